"""How many parts a message has, before it is parsed.

Two bytes of a message can be a whole tensor of it, which takes fifty times as much memory once it is parsed; and the
parser holds the GIL, and with it every other request, until it is done. Tensors that are worth sending are few.
"""

from __future__ import annotations

from typing import Final

from serve_app.errors import InvalidRequest
from serve_app.protocols.open_inference import inference_pb2 as pb

MAX_PARTS: Final = 4096
"""Fields of a message and of the inputs and outputs that it names, and bytes of their shapes."""

_VARINT, _EIGHT_BYTES, _DELIMITED, _FOUR_BYTES = 0, 1, 2, 5
_LONGEST_VARINT: Final = 10
_REQUEST: Final = pb.ModelInferRequest.DESCRIPTOR.fields_by_name
_TENSORS: Final = frozenset(_REQUEST[name].number << 3 | _DELIMITED for name in ("inputs", "outputs"))
_SHAPE: Final = pb.ModelInferRequest.InferInputTensor.DESCRIPTOR.fields_by_name["shape"].number << 3 | _DELIMITED


def check_parts(body: bytes) -> None:
    """Refuse a `ModelInferRequest` that is made of very many small parts.

    Raises:
        InvalidRequest: It has more than `MAX_PARTS`, or is no message.
    """
    try:
        _walk(body, 0, len(body), MAX_PARTS, _TENSORS)
    except IndexError:
        raise InvalidRequest("this is not a valid message: it is cut off") from None


def _walk(body: bytes, position: int, end: int, left: int, inside: frozenset[int]) -> int:
    """Go through fields, and through those of the fields ``inside``. Returns how many parts there may still be."""
    while position < end:
        tag, position = _varint(body, position)
        kind = tag & 7
        left -= 1
        if kind == _VARINT:
            _, position = _varint(body, position)
        elif kind == _DELIMITED:
            size, position = _varint(body, position)
            if position + size > end:
                raise IndexError
            if tag in inside:
                left = _walk(body, position, position + size, left, frozenset())
            elif tag == _SHAPE and not inside:
                left -= size
            position += size
        elif kind in {_EIGHT_BYTES, _FOUR_BYTES}:
            position += 8 if kind == _EIGHT_BYTES else 4
        if left < 0:
            raise InvalidRequest(
                f"the message has more than {MAX_PARTS} parts (fields, and sizes of dimensions); send few tensors with"
                " many elements each"
            )
    return left


def _varint(body: bytes, position: int) -> tuple[int, int]:
    """The number there, and where it ends. Raises `IndexError`."""
    value = 0
    for index in range(_LONGEST_VARINT):
        byte = body[position + index]
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, position + index + 1
    raise IndexError
