"""Opens a model without its weights: the graph and small constants determine what it declares.

Zeros of the same type and shape, in a sparse file, replace large weights. ONNX Runtime opens a model of gigabytes in
milliseconds and still infers types and shapes itself. Only applied where it changes nothing: the weights must be
complete, as plain bytes.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, Final

from rowproof.onnx_graph.skeleton import with_weights
from rowproof.wire_format import fields

WORTH_BYTES: Final = 2**20
"""A smaller model is opened as quickly as it is."""
_RAW_DATA: Final = 9
_OTHER_DATA: Final = frozenset({3, 4, 5, 6, 7, 10, 11, 13, 14})
"""Fields of `onnx.TensorProto` that hold its elements otherwise, or say where they are."""
_BYTES: Final = {1: 4, 2: 1, 3: 1, 4: 2, 5: 2, 6: 4, 7: 8, 9: 1, 10: 2, 11: 8, 12: 4, 13: 8, 16: 2}
"""By type of `onnx.TensorProto`: bytes of an element."""
_FILE: Final = "zeros"


@contextmanager
def outline(model_file: Path) -> Iterator[tuple[bytes, Path] | None]:
    """The model without its large weights, and the temporary folder of its external data.

    ``None`` if nothing would be gained, or if it is unsure that nothing changes.
    """
    found = None
    if model_file.stat().st_size >= WORTH_BYTES:
        with model_file.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole:
            view = memoryview(whole)
            try:
                found = _without_weights(view)
            except ValueError:  # if something is wrong with the file, who opens the whole of it says what
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
    """The model, and the bytes of zeros for its largest weights; ``None`` if none are large."""
    sizes: list[int] = []

    def zeros(whole: memoryview, start: int, end: int) -> bytes:
        tensor, nbytes = _as_zeros(whole, start, end)
        sizes.append(nbytes)
        return tensor

    model = with_weights(whole, zeros)
    return (model, max(sizes)) if any(sizes) else None


def _as_zeros(whole: memoryview, start: int, end: int) -> tuple[bytes, int]:
    """A tensor that refers to zeros, and their number of bytes. Raises `ValueError` unless all elements are bytes."""
    import onnx  # noqa: PLC0415 - a process that serves needs none: it is imported where a model is looked at

    head = bytearray()
    nbytes = 0
    for field, first, content, last in fields(whole, start, end):
        if field in _OTHER_DATA:
            raise ValueError("its elements are not plain bytes")
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
        raise ValueError("its elements are not as many as its shape says")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", _FILE), ("offset", "0"), ("length", str(nbytes))):
        tensor.external_data.add(key=key, value=value)
    return tensor.SerializeToString(), nbytes
