"""Counts the parts of a message before it is parsed.

Two bytes of a message can be a whole tensor, which takes fifty times as much memory once parsed; meanwhile the parser
holds the GIL and so stops all other requests. Legitimate requests have few tensors.
"""

from __future__ import annotations

from typing import Final

from rowproof.wire_format import fields, read_varint
from serve_app.api.open_inference import inference_pb2 as pb
from serve_app.errors import InvalidRequest

MAX_PARTS: Final = 4096
"""Fields of a message and of the inputs and outputs that it names, and bytes of their shapes."""

MAX_GROWING: Final = 2**20
"""Bytes of typed `contents` that take more room once they are parsed: whole numbers, BOOL, and short BYTES."""
_OF_TEXT: Final = 16
"""What each element of `bytes_contents` counts for, where they are walked through: it is an object of its own."""
_GROWTH: Final = 15
"""How many more bytes each of them takes then, at most. An element of 8 bytes can be one here, and room is doubled."""

_DELIMITED: Final = 2  # wire type
_IN_REQUEST, _IN_TENSOR, _IN_CONTENTS = range(3)
_REQUEST: Final = pb.ModelInferRequest.DESCRIPTOR.fields_by_name
_TENSOR: Final = pb.ModelInferRequest.InferInputTensor.DESCRIPTOR.fields_by_name
_ELEMENTS: Final = pb.InferTensorContents.DESCRIPTOR.fields_by_name
_TENSORS: Final = frozenset(_REQUEST[name].number for name in ("inputs", "outputs"))
_SHAPE: Final = _TENSOR["shape"].number
_CONTENTS: Final = _TENSOR["contents"].number
_FLOATS: Final = frozenset(_ELEMENTS[name].number for name in ("fp32_contents", "fp64_contents"))
_TEXTS: Final = _ELEMENTS["bytes_contents"].number
_FLOAT_TAGS: Final = frozenset(number << 3 | _DELIMITED for number in _FLOATS)
_TEXT_TAG: Final = _TEXTS << 3 | _DELIMITED


def check_parts(body: bytes) -> int:
    """Refuse a `ModelInferRequest` with very many small parts.

    Returns:
        An upper bound of the bytes that it takes in addition once parsed.

    Raises:
        InvalidRequest: It exceeds `MAX_PARTS` or `MAX_GROWING`, or is malformed.
    """
    walk = _Walk(body)
    try:
        walk.fields(0, len(body), _IN_REQUEST)
    except (IndexError, ValueError):
        raise InvalidRequest(f"this is not a valid message {pb.ModelInferRequest.DESCRIPTOR.full_name}") from None
    return (MAX_GROWING - walk.growing) * _GROWTH


class _Walk:
    """Walks through a message.

    Attributes:
        parts: Remaining allowance of parts.
        growing: Remaining allowance of bytes that grow by parsing.
    """

    __slots__ = ("_body", "growing", "parts")

    def __init__(self, body: bytes) -> None:
        self._body = body
        self.parts = MAX_PARTS
        self.growing = MAX_GROWING

    def fields(self, position: int, end: int, level: int) -> None:
        """Walk through fields, including those of tensors and large contents. Raises `IndexError` and `ValueError`."""
        for number, _, content, after in fields(self._body, position, end):
            self.parts -= 1
            if content is not None:
                size = after - content
                if level == _IN_REQUEST:
                    if number in _TENSORS:
                        self.fields(content, after, _IN_TENSOR)
                elif level == _IN_CONTENTS:
                    if number not in _FLOATS and number != _TEXTS:
                        self._grow(size)
                elif number == _SHAPE:
                    self.parts -= size
                elif number == _CONTENTS and size:
                    self._contents(content, size)
            if self.parts < 0:
                raise InvalidRequest(
                    f"the message has more than {MAX_PARTS} parts (fields, and sizes of dimensions); send few tensors"
                    " with many elements each, in raw_input_contents"
                )

    def _contents(self, position: int, size: int) -> None:
        """Count typed elements. Short texts are not walked through: that would be slow, and most of them grow."""
        if size <= self.growing and self._body[position] not in _FLOAT_TAGS:
            self.growing -= size
        else:
            self.fields(self._texts(position, position + size), position + size, _IN_CONTENTS)

    def _texts(self, position: int, end: int) -> int:
        """Count the leading BYTES elements of contents. Returns their end. Raises `IndexError` and `ValueError`.

        Inlined for speed: there may be very many.
        """
        body, most = self._body, self.growing // _OF_TEXT
        elements = 0
        while position < end and body[position] == _TEXT_TAG and elements <= most:
            size = body[position + 1]
            position += 2
            if size >= 0x80:
                high = body[position]
                if high < 0x80:
                    size, position = size & 0x7F | high << 7, position + 1
                else:
                    size, position = read_varint(body, position - 1, end)
            position += size
            elements += 1
        if position > end:
            raise IndexError
        if elements > most:
            raise InvalidRequest(
                f"bytes_contents: more than {MAX_GROWING} bytes may be {MAX_GROWING // _OF_TEXT} elements at most; send"
                " raw_input_contents"
            )
        self.growing -= elements * _OF_TEXT
        return position

    def _grow(self, size: int) -> None:
        self.growing -= size
        if self.growing < 0:
            raise InvalidRequest(
                f"the message has more than {MAX_GROWING} bytes of whole numbers or BOOL in contents; send"
                " raw_input_contents"
            )
