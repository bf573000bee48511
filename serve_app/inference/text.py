"""Text as ONNX Runtime takes it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from serve_app.errors import InvalidRequest


def as_text(name: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array with ``bytes`` decoded. ONNX Runtime would take ``str(b"a")``, which is ``"b'a'"``, without a word.

    Raises:
        InvalidRequest: An element is not text; names the input and the element.
    """
    values = array.ravel().tolist()
    if all(type(value) is str for value in values):
        return array
    text = np.empty(len(values), dtype=np.object_)
    for index, value in enumerate(values):
        if isinstance(value, bytes):
            try:
                text[index] = value.decode()
            except UnicodeDecodeError as error:
                raise InvalidRequest(f"input {name!r}: element {index} is not valid UTF-8") from error
        elif isinstance(value, str):
            text[index] = value
        else:
            raise InvalidRequest(f"input {name!r}: element {index} is neither text nor bytes")
    return text.reshape(array.shape)
