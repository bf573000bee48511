"""Tensors of the Open Inference Protocol V2 in binary form: a JSON head, then little-endian bytes."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson

from serve_app_client.errors import InvalidAnswer
from serve_app_client.extras import brought_by

Array = npt.NDArray[Any]

_BFLOAT16: Final = "BF16"
_BYTES: Final = "BYTES"
_LENGTH: Final = struct.Struct("<I")

DTYPES: Final[Mapping[str, np.dtype[Any]]] = {
    "BOOL": np.dtype(np.bool_),
    **{f"{sign}INT{bits}": np.dtype(f"{sign.lower()}int{bits}") for sign in ("", "U") for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
    _BYTES: np.dtype(np.object_),
}
"""The protocol's datatypes and numpy's; BF16, which is not numpy's own, comes from ml_dtypes."""

_DATATYPES: Final = {dtype: datatype for datatype, dtype in DTYPES.items()}


def datatype_of(array: Array) -> str:
    """The protocol's name of an array's type. Strings, bytes and objects are BYTES.

    Raises:
        TypeError: The protocol has no such type.
    """
    dtype = array.dtype.newbyteorder("=")
    if dtype.kind in "SUO":
        return _BYTES
    if dtype.name == "bfloat16":
        return _BFLOAT16
    if dtype not in _DATATYPES:
        raise TypeError(f"a tensor of {dtype} has no form in the protocol; use one of {', '.join(DTYPES)}, {_BFLOAT16}")
    return _DATATYPES[dtype]


def encode_request(
    inputs: Mapping[str, npt.ArrayLike], outputs: Sequence[str] | None = None, *, timings: bool = False
) -> tuple[bytes, int]:
    """Encode an infer request for binary outputs.

    Args:
        inputs: By name. Axis 0 is rows.
        outputs: Names of the wanted outputs, in order; ``None`` for all.
        timings: Whether the answer includes durations.

    Returns:
        The body, and the length of its JSON head.

    Raises:
        TypeError: An input has no form in the protocol.
    """
    described, blobs = [], []
    for name, value in inputs.items():
        array = _array_of(value)
        blob = _to_bytes(array)
        blobs.append(blob)
        described.append(
            {
                "name": name,
                "datatype": datatype_of(array),
                "shape": array.shape,
                "parameters": {"binary_data_size": len(blob)},
            }
        )
    head: dict[str, Any] = {"inputs": described, "parameters": {"binary_data_output": True}}
    if timings:
        head["parameters"]["timings"] = True
    if outputs is not None:
        head["outputs"] = [{"name": name} for name in outputs]
    encoded = orjson.dumps(head)
    return b"".join((encoded, *blobs)), len(encoded)


def decode_answer(body: bytes, head_length: str | None) -> tuple[dict[str, Any], dict[str, Array]]:
    """Decode an infer response.

    Args:
        head_length: The header Inference-Header-Content-Length, if any.

    Returns:
        The JSON head, and the outputs by name. Binary numbers are read-only views of the body.

    Raises:
        InvalidAnswer: It is no infer response.
    """
    try:
        length = len(body) if head_length is None else int(head_length)
        head: dict[str, Any] = orjson.loads(body[:length])
        outputs: dict[str, Array] = {}
        offset = length
        for described in head["outputs"]:
            shape = tuple(described["shape"])
            size = (described.get("parameters") or {}).get("binary_data_size")
            if size is None:
                outputs[described["name"]] = _from_json(described["data"], described["datatype"], shape)
                continue
            blob = memoryview(body)[offset : offset + size]
            outputs[described["name"]] = _from_bytes(blob, described["datatype"], shape)
            offset += size
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, struct.error) as error:
        raise InvalidAnswer(f"the answer is no V2 infer response: {type(error).__name__}: {error}") from None
    if offset != len(body):
        raise InvalidAnswer(
            f"the answer has {len(body) - offset} bytes of binary data beyond its outputs' binary_data_size"
        )
    return head, outputs


def _dtype_of(datatype: str) -> np.dtype[Any]:
    if datatype == _BFLOAT16:
        with brought_by("bfloat16"):
            import ml_dtypes  # noqa: PLC0415 - rarely needed

        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return DTYPES[datatype]


def _array_of(value: npt.ArrayLike) -> Array:
    array = np.asarray(value)
    if array.dtype.kind in "SU" and not isinstance(value, np.ndarray):
        # numpy's own texts lose the NULs at their end, and make texts of the numbers beside them.
        return np.array(value, np.object_)
    return array


def _to_bytes(array: Array) -> bytes:
    if array.dtype.kind not in "SUO":
        return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    parts: list[bytes] = []
    for item in array.reshape(-1).tolist():
        if not isinstance(item, str | bytes):
            raise TypeError(f"a tensor of objects must hold str or bytes, got {type(item).__name__}")
        element = item.encode() if isinstance(item, str) else item
        parts += (_LENGTH.pack(len(element)), element)
    return b"".join(parts)


def _from_bytes(blob: memoryview, datatype: str, shape: tuple[int, ...]) -> Array:
    if datatype != _BYTES:
        return np.frombuffer(blob, _dtype_of(datatype)).reshape(shape)
    elements: list[bytes] = []
    position = 0
    while position < len(blob):
        (length,) = _LENGTH.unpack_from(blob, position)
        start = position + _LENGTH.size
        position = start + length
        elements.append(bytes(blob[start:position]))
    if position != len(blob):
        raise ValueError("the last element of a BYTES output is cut off")
    return _objects(elements, shape)


def _from_json(data: list[Any], datatype: str, shape: tuple[int, ...]) -> Array:
    if datatype != _BYTES:
        return np.array(data, _dtype_of(datatype)).reshape(shape)
    flat = np.array(data, np.object_).reshape(-1).tolist()
    return _objects([item.encode() for item in flat], shape)


def _objects(elements: list[bytes], shape: tuple[int, ...]) -> Array:
    if len(elements) != math.prod(shape):
        raise ValueError(f"{len(elements)} elements, but the shape {list(shape)} needs {math.prod(shape)}")
    array = np.empty(len(elements), np.object_)
    array[:] = elements
    return array.reshape(shape)
