"""Converts text for ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from serve_app.errors import InvalidRequest


def as_text(name: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array with ``bytes`` decoded. ONNX Runtime would silently take ``str(b"a")``, i.e. ``"b'a'"``.

    Bytes that are not UTF-8 pass unchanged, in an array of numpy's fixed-length bytes. ONNX Runtime reads each element
    up to its first NUL, so none may hold one.

    Raises:
        InvalidRequest: An element is neither text nor bytes, or cannot be passed to ONNX Runtime; names the element.
    """
    values = array.ravel().tolist()
    if all(type(value) is str for value in values):
        return array
    text = np.empty(len(values), dtype=np.object_)
    for index, value in enumerate(values):
        if isinstance(value, bytes):
            try:
                text[index] = value.decode()
            except UnicodeDecodeError:
                return _as_bytes(name, values).reshape(array.shape)
        elif isinstance(value, str):
            text[index] = value
        else:
            raise InvalidRequest(f"input {name!r}: element {index} is neither text nor bytes")
    return text.reshape(array.shape)


def _as_bytes(name: str, values: list[Any]) -> npt.NDArray[Any]:
    raw = [value.encode() if isinstance(value, str) else value for value in values]
    for index, value in enumerate(raw):
        if not isinstance(value, bytes):
            raise InvalidRequest(f"input {name!r}: element {index} is neither text nor bytes")
        if b"\0" in value:
            raise InvalidRequest(
                f"input {name!r}: element {index} holds a NUL byte, which cannot be sent beside bytes that are not"
                " UTF-8"
            )
    return np.array(raw, dtype=np.bytes_)
