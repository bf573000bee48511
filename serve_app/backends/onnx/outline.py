"""A model as ONNX Runtime can open it without its weights: what it declares follows from the graph and small constants.

Large weights are replaced by zeros of the same type and shape, in a file that takes no room. So a model of gigabytes is
opened in milliseconds, and ONNX Runtime still infers the types and shapes itself. It is only done where it changes
nothing: the weights must be there whole, as plain bytes.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, Final

from serve_app.backends.onnx.proof.skeleton import KEEP
from serve_app.backends.onnx.wire_format import fields, tagged

WORTH_BYTES: Final = 2**20
"""A smaller model is opened as quickly as it is."""
_GRAPH: Final = 7
"""Field of `onnx.ModelProto`."""
_INITIALIZER: Final = 5
"""Field of `onnx.GraphProto`."""
_RAW_DATA: Final = 9
_OTHER_DATA: Final = frozenset({3, 4, 5, 6, 7, 10, 11, 13, 14})
"""Fields of `onnx.TensorProto` that hold its elements otherwise, or say where they are."""
_BYTES: Final = {1: 4, 2: 1, 3: 1, 4: 2, 5: 2, 6: 4, 7: 8, 9: 1, 10: 2, 11: 8, 12: 4, 13: 8, 16: 2}
"""By type of `onnx.TensorProto`: bytes of an element."""
_FILE: Final = "zeros"


@contextmanager
def outline(model_file: Path) -> Iterator[tuple[bytes, Path] | None]:
    """The model without its large weights, and the folder that its external data is in meanwhile.

    ``None`` where nothing would be gained, or where it cannot be told that nothing changes.

    Raises:
        OSError: The file cannot be read.
    """
    found = None
    if model_file.stat().st_size >= WORTH_BYTES:
        with model_file.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole:
            view = memoryview(whole)
            try:
                found = _without_weights(view)
            except ValueError:  # who opens the whole file says what is wrong with it
                found = None
            finally:
                view.release()
    if found is None:
        yield None
        return
    model, nbytes = found
    with tempfile.TemporaryDirectory(prefix="serve-app-") as folder:
        with (Path(folder) / _FILE).open("wb") as zeros:
            zeros.truncate(nbytes)
        yield model, Path(folder)


def _without_weights(whole: memoryview) -> tuple[bytes, int] | None:
    """The model, and how many zeros its largest weights take."""
    parts = bytearray()
    largest = 0
    for field, start, content, end in fields(whole, 0, len(whole)):
        if field != _GRAPH or content is None:
            parts += whole[start:end]
            continue
        graph = bytearray()
        for inner, inner_start, inner_content, inner_end in fields(whole, content, end):
            if inner != _INITIALIZER or inner_content is None or inner_end - inner_content <= KEEP:
                graph += whole[inner_start:inner_end]
                continue
            tensor = _as_zeros(whole, inner_content, inner_end)
            if tensor is None:
                return None
            graph += tagged(_INITIALIZER, tensor[0])
            largest = max(largest, tensor[1])
        parts += tagged(_GRAPH, bytes(graph))
    return (bytes(parts), largest) if largest else None


def _as_zeros(whole: memoryview, start: int, end: int) -> tuple[bytes, int] | None:
    """A tensor that names zeros for its elements, and how many bytes; ``None`` if they are not all there as bytes."""
    import onnx  # noqa: PLC0415 - a process that serves needs none: it is imported where a model is looked at

    head = bytearray()
    nbytes = 0
    for field, first, content, last in fields(whole, start, end):
        if field in _OTHER_DATA:
            return None
        if field == _RAW_DATA and content is not None:
            nbytes = last - content  # of a field that is there twice, the last counts
        else:
            head += whole[first:last]
    tensor: Any = onnx.TensorProto()
    try:
        tensor.ParseFromString(bytes(head))
    except Exception as error:  # of whichever protobuf there is
        raise ValueError(str(error)) from error
    if nbytes != prod(tensor.dims) * _BYTES.get(tensor.data_type, -1):
        return None
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", _FILE), ("offset", "0"), ("length", str(nbytes))):
        tensor.external_data.add(key=key, value=value)
    return tensor.SerializeToString(), nbytes
