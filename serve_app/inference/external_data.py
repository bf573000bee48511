"""Which files an ONNX file keeps weights in, beside itself. Read from the file without its weights.

The format is Protocol Buffers' (https://protobuf.dev/programming-guides/encoding/), the messages are ONNX's
(https://github.com/onnx/onnx/blob/main/onnx/onnx.proto). Only the fields that lead to tensors are followed, and what
they do not lead to is skipped, so that a file of gigabytes is read in milliseconds.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Final

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
    """Names of the files that hold weights of a model, relative to its folder, sorted.

    Args:
        model_file: The ``.onnx`` file.

    Raises:
        ConfigError: It is no ONNX file, or names a file outside its folder.
        OSError: It cannot be read.
    """
    if model_file.stat().st_size == 0:  # which cannot be mapped
        return ()
    with model_file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
        try:
            names = {name.decode() for name in _locations(content)}
        except (ValueError, IndexError, KeyError, UnicodeDecodeError):
            raise ConfigError((f"{model_file} is not an ONNX file",)) from None
    for name in names:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            raise ConfigError((f"{model_file} keeps weights in {name!r}, which is outside its folder",))
    return tuple(sorted(names))


def _locations(content: mmap.mmap) -> Iterator[bytes]:
    waiting = [("model", 0, len(content))]
    while waiting:
        kind, start, end = waiting.pop()
        below = _BELOW.get(kind, {})
        for field, begin, stop in _fields(content, start, end):
            if kind == _TENSOR:
                if field == _EXTERNAL_DATA:
                    entry = {number: content[first:last] for number, first, last in _fields(content, begin, stop)}
                    if entry.get(_KEY) == b"location":
                        yield entry[_VALUE]
            elif field in below:
                waiting.append((below[field], begin, stop))


def _fields(content: mmap.mmap, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Number, begin and end of every field of a message that holds bytes. Raises ValueError when it is no message."""
    while at < end:
        key, at = _varint(content, at)
        match key & 7:
            case _ if key >> 3 == 0:
                raise ValueError(key)
            case 0:  # a number of any length
                _, at = _varint(content, at)
            case 1:  # 64 bits
                at += 8
            case 2:  # bytes, texts and messages
                size, at = _varint(content, at)
                if at + size > end:
                    raise ValueError(size)
                yield key >> 3, at, at + size
                at += size
            case 5:  # 32 bits
                at += 4
            case kind:
                raise ValueError(kind)


def _varint(content: mmap.mmap, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError(value)
