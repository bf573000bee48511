"""Answers as bytes, for a cache outside this process. Reading one runs no code of whoever wrote it.

A version byte, a digest of 16 bytes over the key and the rest, and MessagePack: so that what was cut off, changed,
written by another version or stored under another key is no value. Arrays are their bytes as they lie in memory.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from serve_app.payloads import DTYPES, Embeddings

_VERSION: Final = b"\x01"
_DIGEST_BYTES: Final = 16
_START: Final = len(_VERSION) + _DIGEST_BYTES
_ARRAY: Final = 1
_DATATYPES: Final = {dtype: datatype for datatype, dtype in DTYPES.items()}


class _Array(msgspec.Struct, array_like=True):
    datatype: str
    shape: tuple[int, ...]
    data: Any


class _Value(msgspec.Struct, array_like=True):
    embeddings: bool
    value: Any


def dump(key: bytes, value: Any) -> bytes | None:
    """Write an answer.

    Args:
        key: What it will be stored under.
        value: As in `serve_app.payloads.Success`.

    Returns:
        ``None`` for an answer that has no such form.
    """
    try:
        body = _ENCODER.encode(_Value(isinstance(value, Embeddings), value))
    except (TypeError, KeyError, OverflowError, UnicodeEncodeError):
        return None
    return b"".join((_VERSION, _digest(key, body), body))


def load(key: bytes, data: bytes) -> Any:
    """Read an answer. Its arrays are read-only.

    Args:
        key: What it was stored under.
        data: What was found there.

    Raises:
        ValueError: It is not what `dump` writes.
    """
    body = memoryview(data)[_START:]
    if data[:1] != _VERSION or data[1:_START] != _digest(key, body):
        raise ValueError("the value is damaged, or of another version")
    try:
        embeddings, value = msgspec.structs.astuple(_DECODER.decode(body))
        return Embeddings(*value) if embeddings else value
    except (msgspec.MsgspecError, TypeError) as error:
        raise ValueError(f"the value makes no sense: {error}") from None


def _digest(key: bytes, body: bytes | memoryview) -> bytes:
    digest = hashlib.sha256(key)
    digest.update(body)
    return digest.digest()[:_DIGEST_BYTES]


def _from_array(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if not isinstance(value, np.ndarray):
        raise TypeError(f"{type(value).__name__} is no part of an answer")
    flat = value.reshape(-1)
    data = flat.tolist() if value.dtype.hasobject else flat.view(np.uint8).data
    array = _Array(_DATATYPES[value.dtype], value.shape, data)
    return msgspec.msgpack.Ext(_ARRAY, _ENCODER.encode(array))


def _to_array(code: int, data: memoryview) -> npt.NDArray[Any]:
    if code != _ARRAY:
        raise ValueError(f"extension {code} is not known")
    array = _ARRAY_DECODER.decode(data)
    dtype = DTYPES.get(array.datatype)
    if dtype is None or any(size < 0 for size in array.shape):
        raise ValueError("no such array")
    if dtype.hasobject:
        made = np.empty(len(array.data), dtype)
        made[:] = array.data
    else:
        made = np.frombuffer(array.data, np.uint8)
        if made.size != math.prod(array.shape) * dtype.itemsize:
            raise ValueError("the array has another size")
        made = made.view(dtype)
    made = made.reshape(array.shape)
    made.flags.writeable = False
    return made


_ENCODER: Final = msgspec.msgpack.Encoder(enc_hook=_from_array)
_ARRAY_DECODER: Final = msgspec.msgpack.Decoder(_Array)
_DECODER: Final = msgspec.msgpack.Decoder(_Value, ext_hook=_to_array)
