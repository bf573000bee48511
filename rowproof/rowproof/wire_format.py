"""Reads Protocol Buffers' wire format field by field, skipping contents.

A model's file may have gigabytes of weights, all of which protobuf's parser would copy
(https://protobuf.dev/programming-guides/encoding/).
"""

from __future__ import annotations

from collections.abc import Iterator


def fields(data: memoryview | bytes, start: int, end: int) -> Iterator[tuple[int, int, int | None, int]]:
    """Yield each field's number, start, content start if its length is written, and end.

    Raises:
        ValueError: The message is malformed or truncated.
    """
    place = start
    while place < end:
        first = place
        tag, place = read_varint(data, place, end)
        wire = tag & 7
        if not tag >> 3:
            raise ValueError("is no ONNX model: its bytes are no protobuf message")
        content: int | None = None
        if wire == 0:
            _, place = read_varint(data, place, end)
        elif wire == 1:
            place += 8
        elif wire == 5:
            place += 4
        elif wire == 2:
            length, content = read_varint(data, place, end)
            place = content + length
        else:
            raise ValueError("is no ONNX model: its bytes are no protobuf message")
        if place > end:
            raise ValueError("is no ONNX model: it is cut short")
        yield tag >> 3, first, content, place


def tagged(field: int, content: bytes | bytearray) -> bytes:
    """Encode a field that holds a message, text or bytes."""
    return _varint(field << 3 | 2) + _varint(len(content)) + bytes(content)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_varint(data: memoryview | bytes, place: int, end: int) -> tuple[int, int]:
    """A varint's value and end. Raises `ValueError`."""
    number = shift = 0
    while place < end and shift < 70:
        byte = data[place]
        place += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, place
        shift += 7
    raise ValueError("is no ONNX model: it is cut short")
