"""Converts tensor data of V2, JSON numbers and raw bytes, to and from numpy arrays."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import orjson

from serve_app.api.open_inference.non_finite import values_of
from serve_app.api.open_inference.wire import invalid
from serve_app.errors import InvalidRequest
from serve_app.payloads import DTYPES

# JSON longer than this is converted piece by piece. That bounds the memory of the intermediate Python objects (about
# 16 times the text), and lets other threads run between pieces: neither msgspec nor orjson releases the GIL.
_PIECE_BYTES: Final = 64 * 1024
_PIECE_ITEMS: Final = 16 * 1024

_SPACE: Final = b" \t\r\n"
_BRACKETS: Final = b"[] \t\r\n"
_RAWS: Final = msgspec.json.Decoder(list[msgspec.Raw])
_LENGTH: Final = struct.Struct("<I")
# V is bfloat16, which numpy does not know as a float.
_ELEMENTS: Final[Mapping[str, type]] = MappingProxyType(
    {"b": bool, "i": int, "u": int, "f": float, "V": float, "O": str}
)
_DATATYPES: Final[Mapping[np.dtype[Any], str]] = MappingProxyType(
    {
        form: datatype
        for datatype, dtype in DTYPES.items()
        if datatype != "BYTES"
        for form in (dtype, dtype.newbyteorder())
    }
)
# In the standard sizes of `struct`, which also checks what it packs: one pass where numpy needs three.
_FORMATS: Final[Mapping[str, str]] = MappingProxyType(
    {"b1": "?", "i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I", "u8": "Q"}
    | {"f2": "e", "f4": "f", "f8": "d"}
)


def datatype_of(array: npt.NDArray[Any]) -> str:
    """The protocol's name of an array's dtype; BYTES unless it is numeric."""
    return _DATATYPES.get(array.dtype, "BYTES")


def element_type(datatype: str) -> type:
    """The Python type of a datatype's elements decoded from JSON."""
    return _ELEMENTS[DTYPES[datatype].kind]


@lru_cache(maxsize=256)
def _packer(count: int, form: str) -> Callable[..., bytes]:
    return struct.Struct(f"={count}{form}").pack


class JsonData:
    """Decodes the ``data`` of JSON tensors of one datatype.

    Numbers must be representable: a float that would overflow, or an integer out of range, is refused. Null among
    floats is NaN, as in answers. BYTES elements are JSON strings and become UTF-8 `bytes`, equal to those of binary
    data.

    Args:
        datatype: A key of `serve_app.payloads.DTYPES`.
        rank: Of the tensor; ``data`` may be nested that deep, or flat.
    """

    def __init__(self, datatype: str, rank: int) -> None:
        self._datatype = datatype
        self._dtype = DTYPES[datatype]
        element: Any = element_type(datatype)
        self._format = _FORMATS.get(self._dtype.str[1:])
        self._decoders: list[msgspec.json.Decoder[Any]] = []
        for _ in range(max(1, rank)):
            element = list[element]
            self._decoders.append(msgspec.json.Decoder(element))
        self._is_float = self._dtype.kind == "f"
        self._may_overflow = self._dtype.kind == "f" and self._dtype.itemsize < 8

    def decode(
        self, raw: msgspec.Raw | bytes, shape: tuple[int, ...], count: int, where: str, marked: bool = False
    ) -> npt.NDArray[Any]:
        """Decode one tensor.

        Args:
            raw: The JSON of ``data``.
            shape: Checked.
            count: Product of ``shape``.
            where: Path of the data, for messages.
            marked: Whether the text is from `serve_app.api.open_inference.non_finite.mark`.

        Raises:
            InvalidRequest: The data does not fit the datatype or the shape.
        """
        view = memoryview(raw)
        nested = len(shape) > 1 and _is_nested(view)
        try:
            if len(view) > _PIECE_BYTES and self._dtype.kind != "O":
                return self._decode_long(bytes(view), shape, count, where, marked)
            if not nested:
                return self.take(self._decoders[0].decode(view), shape, count, where)
            array = self._array(self._decoders[len(shape) - 1].decode(view), where)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            if len(view) > _PIECE_BYTES:  # its pieces were read with their gaps
                raise invalid(error, where) from None
            array = self._with_gaps(bytes(view), len(shape) if nested else 1, where, error, marked)
            if not nested:
                if array.size != count:
                    raise _miscounted(where, array.size, shape, count) from None
                return array.reshape(shape)
        if array.shape != shape:
            raise _misshaped(where, array.shape, shape)
        return array

    def take(self, values: list[Any], shape: tuple[int, ...], count: int, where: str) -> npt.NDArray[Any]:
        """`decode` for a flat list of elements that is decoded already."""
        if len(values) != count:
            raise _miscounted(where, len(values), shape, count)
        if self._format is None:
            return _bytes_array(values, where).reshape(shape)
        try:
            packed = _packer(count, self._format)(*values)
        except (OverflowError, struct.error):
            if self._may_overflow:
                raise InvalidRequest(f"{where}: a number is too large for {self._datatype}") from None
            raise InvalidRequest(f"{where}: a number does not fit {self._datatype}") from None
        array: npt.NDArray[Any] = np.ndarray(shape, self._dtype, packed)
        return array

    def _array(self, values: list[Any], where: str, infinite: int = 0) -> npt.NDArray[Any]:
        if self._dtype.kind == "O":
            return _bytes_array(values, where)
        try:
            if not self._is_float:
                return np.array(values, dtype=self._dtype)
            with np.errstate(over="ignore"):
                array = np.array(values, dtype=self._dtype)
        except OverflowError:
            raise InvalidRequest(f"{where}: a number does not fit {self._datatype}") from None
        except ValueError:
            raise InvalidRequest(f"{where}: nested lists have unequal lengths") from None
        if np.count_nonzero(np.isinf(array)) != infinite:
            raise InvalidRequest(f"{where}: a number is too large for {self._datatype}")
        return array

    def _with_gaps(self, text: bytes, depth: int, where: str, error: Exception, marked: bool) -> npt.NDArray[Any]:
        """Decode data whose error may be due to null, or NaN and infinities as words."""
        if not self._is_float or not (marked or b"null" in text):
            raise invalid(error, where) from None
        kind: Any = float | None
        for _ in range(depth):
            kind = list[kind]
        try:
            values, infinite = values_of(text, marked=marked)
            return self._array(msgspec.convert(values, kind), where, infinite)
        except msgspec.ValidationError as another:
            raise invalid(another, where) from None
        except (ValueError, RecursionError):
            raise invalid(error, where) from None

    def _piece(self, text: bytes, depth: int, where: str, marked: bool) -> npt.NDArray[Any]:
        try:
            values = self._decoders[depth - 1].decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return self._with_gaps(text, depth, where, error, marked)
        return self._array(values, where)

    def _decode_long(
        self, text: bytes, shape: tuple[int, ...], count: int, where: str, marked: bool
    ) -> npt.NDArray[Any]:
        # A value takes two bytes at least (a digit and a comma): nothing is allocated for a shape that cannot be met.
        if count > len(text) // 2:
            raise InvalidRequest(f"{where}: fewer values than the {count} that shape {list(shape)} needs")
        array = np.empty(shape, dtype=self._dtype)
        if len(shape) > 1 and _is_nested(memoryview(text)):
            self._fill(text, array, where, marked)
        else:
            self._fill_flat(text, array.reshape(-1), where, marked)
        return array

    def _fill(self, text: bytes, out: npt.NDArray[Any], where: str, marked: bool) -> None:
        if out.ndim == 1:
            self._fill_flat(text, out, where, marked)
        elif len(text) <= _PIECE_BYTES:
            values = self._piece(text, out.ndim, where, marked)
            if values.shape != out.shape:
                raise _misshaped(where, values.shape, out.shape)
            out[...] = values
        else:
            rows = _RAWS.decode(text)
            if len(rows) != len(out):
                raise InvalidRequest(f"{where}: {len(rows)} lists, but its shape {list(out.shape)} needs {len(out)}")
            for index, row in enumerate(rows):
                place = f"{where}[{index}]"
                try:
                    self._fill(bytes(memoryview(row)), out[index], place, marked)
                except msgspec.MsgspecError as error:
                    raise invalid(error, place) from None

    def _fill_flat(self, text: bytes, out: npt.NDArray[Any], where: str, marked: bool) -> None:
        # Numbers hold no commas, so a list of them can be cut at any comma. A piece that holds anything else fails
        # to decode, whole or cut.
        if not text.startswith(b"["):
            self._decoders[0].decode(text)  # raises: not an array
        filled, position, end = 0, 1, len(text) - 1
        while position < end:
            cut = text.find(b",", position + _PIECE_BYTES, end)
            cut = cut if cut >= 0 else end
            piece = b"[%b]" % text[position:cut]
            try:
                values = self._array(self._decoders[0].decode(piece), where)
            except msgspec.MsgspecError as error:
                try:
                    values = self._with_gaps(piece, 1, where, error, marked)
                except InvalidRequest:
                    raise InvalidRequest(
                        f"{where}: an element near position {filled} is not a {self._datatype} value"
                    ) from None
            if filled + len(values) > len(out):
                raise InvalidRequest(f"{where}: more values than the {len(out)} that its shape needs")
            out[filled : filled + len(values)] = values
            filled += len(values)
            position = cut + 1
        if filled != len(out):
            raise InvalidRequest(f"{where}: {filled} values, but its shape needs {len(out)}")


def listed(raw: msgspec.Raw) -> bytes:
    """The text of a JSON list; a single value becomes a list of it."""
    text = bytes(raw)
    return text if text.startswith(b"[") else b"[%b]" % text


def count_of(text: bytes, datatype: str) -> int:
    """The number of elements of a JSON list, possibly nested, without decoding; any number if it is no list.

    One comma separates two numbers at any nesting. Two quotation marks enclose a text.
    """
    if datatype == "BYTES":
        plain = text.replace(rb"\\", b"") if b"\\" in text else text
        return (plain.count(b'"') - plain.count(rb"\"")) // 2
    commas = text.count(b",")
    return commas + 1 if commas or text.strip(_BRACKETS) else 0


def _miscounted(where: str, got: int, shape: tuple[int, ...], count: int) -> InvalidRequest:
    return InvalidRequest(f"{where}: {got} values, but shape {list(shape)} needs {count}")


def _misshaped(where: str, got: tuple[int, ...], expected: tuple[int, ...]) -> InvalidRequest:
    return InvalidRequest(f"{where}: nested as {list(got)}, but the shape says {list(expected)}")


def _is_nested(view: memoryview) -> bool:
    if len(view) > 1 and view[1] not in _SPACE:
        return view[1] == 0x5B  # [
    return bytes(view[1:]).lstrip(_SPACE).startswith(b"[")


def _bytes_array(values: list[Any], where: str) -> npt.NDArray[Any]:
    """An object array with the list's nesting, its strings in UTF-8."""
    shape: list[int] = []
    level: Any = values
    while isinstance(level, list):
        shape.append(len(level))
        level = level[0] if level else None
    flat = values
    for width in shape[1:]:
        if any(len(part) != width for part in flat):
            raise InvalidRequest(f"{where}: nested lists have unequal lengths")
        flat = [item for part in flat for item in part]
    array = np.empty(len(flat), dtype=np.object_)
    array[:] = [text.encode() for text in flat]
    return array.reshape(shape)


def decode_binary(
    body: bytes | memoryview,
    offset: int,
    size: int,
    datatype: str,
    shape: tuple[int, ...],
    count: int,
    where: str,
    size_field: str = ".parameters.binary_data_size",
) -> npt.NDArray[Any]:
    """An array of little-endian bytes. Numbers are a read-only view of the body.

    NaN and infinities pass: they are valid IEEE 754 values for the model. ``size_field`` names the field of the size,
    below ``where``.

    Raises:
        InvalidRequest: The number of bytes does not match, or the content is no valid BOOL or BYTES.
    """
    if not count and not size:
        return np.empty(shape, DTYPES[datatype])
    if datatype == "BYTES":
        return _decode_bytes(memoryview(body)[offset : offset + size], shape, count, where)
    dtype = DTYPES[datatype]
    if size != count * dtype.itemsize:
        raise InvalidRequest(
            f"{where}{size_field}: {size} bytes, but {datatype} of shape {list(shape)} needs {count * dtype.itemsize}"
        )
    array = np.frombuffer(body, dtype=dtype, count=count, offset=offset)
    if datatype == "BOOL" and (array.view(np.uint8) > 1).any():
        raise InvalidRequest(f"{where}: BOOL bytes must be 0 or 1")
    return array.reshape(shape)


def _decode_bytes(view: memoryview, shape: tuple[int, ...], count: int, where: str) -> npt.NDArray[Any]:
    if count * _LENGTH.size > len(view):
        raise InvalidRequest(f"{where}: {len(view)} bytes of BYTES data are too few for {count} elements")
    elements: list[bytes] = []
    position = 0
    for index in range(count):
        start = position + _LENGTH.size
        if start > len(view):
            raise InvalidRequest(f"{where}: the BYTES data ends before element {index} of {count}")
        (length,) = _LENGTH.unpack_from(view, position)
        position = start + length
        if position > len(view):
            raise InvalidRequest(f"{where}: element {index} says {length} bytes, only {len(view) - start} follow")
        elements.append(bytes(view[start:position]))
    if position != len(view):
        raise InvalidRequest(f"{where}: {len(view) - position} bytes follow the last of {count} BYTES elements")
    array = np.empty(count, dtype=np.object_)
    array[:] = elements
    return array.reshape(shape)


def dump_data(array: npt.NDArray[Any], where: str) -> bytes:
    """The JSON of an array: flat, in row-major order, null for NaN and infinities.

    Raises:
        InvalidRequest: The array is bfloat16, or a BYTES element is not UTF-8.
    """
    flat = np.ascontiguousarray(array).reshape(-1)
    datatype = _DATATYPES.get(array.dtype, "BYTES")
    if datatype == "BF16":
        raise InvalidRequest(f"output {where!r} is BF16, which has no JSON representation: request it as binary_data")
    if datatype == "BYTES":
        try:
            texts = [item.decode() if isinstance(item, bytes) else str(item) for item in flat.tolist()]
        except UnicodeDecodeError:
            raise InvalidRequest(f"output {where!r} is not UTF-8 text: ask for it as binary_data") from None
        return orjson.dumps(texts)
    if flat.size <= _PIECE_ITEMS:
        return orjson.dumps(flat, option=orjson.OPT_SERIALIZE_NUMPY)
    pieces = [
        orjson.dumps(flat[start : start + _PIECE_ITEMS], option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
        for start in range(0, flat.size, _PIECE_ITEMS)
    ]
    return b"[" + b",".join(pieces) + b"]"


def encode_binary(array: npt.NDArray[Any]) -> bytes | memoryview:
    """The little-endian bytes of an array, a view if possible; BYTES elements follow their lengths."""
    datatype = datatype_of(array)
    if datatype != "BYTES":
        if not array.flags.c_contiguous:
            return array.tobytes()
        return array.view(np.uint16).data if datatype == "BF16" else array.data  # bfloat16 has no buffer format
    parts: list[bytes] = []
    for item in array.reshape(-1).tolist():
        element = item if isinstance(item, bytes) else str(item).encode()
        parts.append(_LENGTH.pack(len(element)))
        parts.append(element)
    return b"".join(parts)
