"""Finds files with external weights of an ONNX model, without reading the weights.

Messages follow https://github.com/onnx/onnx/blob/main/onnx/onnx.proto. Only fields that lead to tensors are followed
and all others skipped, so that a file of gigabytes is read in milliseconds.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Final

from rowproof.wire_format import fields
from serve_app.errors import ConfigError

_TENSOR: Final = "tensor"
_EXTERNAL_DATA: Final = 13
_KEY, _VALUE = 1, 2
_BELOW: Final[Mapping[str, Mapping[int, str]]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "graph": {1: "node", 5: _TENSOR, 15: "sparse"},
    "function": {7: "node"},
    "node": {5: "attribute"},
    "attribute": {5: _TENSOR, 6: "graph", 10: _TENSOR, 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: _TENSOR, 2: _TENSOR},
}
"""By message: its fields that hold messages which lead to tensors."""


def external_data(model_file: Path) -> tuple[str, ...]:
    """Names of a model's files of weights, relative to its folder, sorted.

    Raises:
        ConfigError: It is no ONNX file, or names a file outside its folder.
    """
    if model_file.stat().st_size == 0:  # which cannot be mapped
        return ()
    with model_file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as whole:
        content = memoryview(whole)
        try:
            names = {name.decode() for name in _locations(content)}
        except (ValueError, KeyError):
            raise ConfigError((f"{model_file} is not an ONNX file",)) from None
        finally:
            content.release()
    for name in names:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            raise ConfigError((f"{model_file} keeps weights in {name!r}, which is outside its folder",))
    return tuple(sorted(names))


def _locations(content: memoryview) -> Iterator[bytes]:
    waiting = [("model", 0, len(content))]
    while waiting:
        kind, start, end = waiting.pop()
        below = _BELOW.get(kind, {})
        for field, _, begin, stop in fields(content, start, end):
            if begin is None:
                continue
            if kind == _TENSOR:
                if field == _EXTERNAL_DATA:
                    entry = {
                        number: bytes(content[first:last]) for number, _, first, last in fields(content, begin, stop)
                    }
                    if entry.get(_KEY) == b"location":
                        yield entry[_VALUE]
            elif field in below:
                waiting.append((below[field], begin, stop))
