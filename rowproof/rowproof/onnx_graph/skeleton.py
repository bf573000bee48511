"""A model's graph without its weights, read from a file in milliseconds however large they are."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rowproof.wire_format import fields, tagged

KEEP = 65536
"""Bytes of a tensor that are always read. Small constants say where things go."""

_GRAPH = 7
"""Field of `onnx.ModelProto`."""
_INITIALIZER = 5
"""Field of `onnx.GraphProto`."""
_TENSOR_DATA = frozenset({4, 5, 6, 7, 9, 10, 11})
"""Fields of `onnx.TensorProto` that hold its elements."""


def read_skeleton(model_file: Path) -> Any:
    """The `onnx.ModelProto` in a file, where large initializers have a type and a shape and hold nothing.

    A model is a protobuf message, fields one after another, and the weights are fields of one of them. So they can be
    passed over without reading them; the parser of protobuf would copy them all.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is no protobuf message.
    """
    # A process that serves needs no onnx: it is imported where a model is looked at.
    import onnx  # noqa: PLC0415

    with model_file.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole:
        view = memoryview(whole)
        try:
            parts = with_weights(view, _without_elements)
        finally:
            view.release()
    model = onnx.ModelProto()
    try:
        model.ParseFromString(parts)
    except Exception as error:  # of whichever protobuf there is
        raise ValueError(f"is no ONNX model: {error}") from error
    return model


def with_weights(whole: memoryview, weights: Callable[[memoryview, int, int], bytes | bytearray]) -> bytes:
    """A model's message, in which another one stands for each large initializer.

    Args:
        whole: The message.
        weights: Makes the other one of the first, which is between two places of the whole.

    Raises:
        ValueError: It is no protobuf message.
    """
    parts = bytearray()
    for field, start, content, end in fields(whole, 0, len(whole)):
        if field != _GRAPH or content is None:
            parts += whole[start:end]
            continue
        graph = bytearray()
        for inner, inner_start, inner_content, inner_end in fields(whole, content, end):
            if inner != _INITIALIZER or inner_content is None or inner_end - inner_content <= KEEP:
                graph += whole[inner_start:inner_end]
            else:
                graph += tagged(_INITIALIZER, weights(whole, inner_content, inner_end))
        parts += tagged(_GRAPH, graph)
    return bytes(parts)


def _without_elements(whole: memoryview, start: int, end: int) -> bytearray:
    """A tensor's type and shape."""
    tensor = bytearray()
    for field, first, _, last in fields(whole, start, end):
        if field not in _TENSOR_DATA:
            tensor += whole[first:last]
    return tensor
