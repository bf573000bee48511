"""Text as ONNX Runtime takes it: decoded where it is UTF-8, and byte by byte where it is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from serve_app.backends.onnx.text import as_text
from serve_app.errors import InvalidRequest


def objects(*values: Any) -> Any:
    """An array of objects."""
    array = np.empty(len(values), object)
    array[:] = values
    return array


def test_text_passes_through() -> None:
    """The array itself: nothing is copied."""
    array = objects("a", "ö")
    assert as_text("x", array) is array


def test_bytes_that_are_utf_8_become_text() -> None:
    """In the array's shape, beside text."""
    assert [["a", "ö"]] == as_text("x", objects(b"a", "ö").reshape(1, 2)).tolist()
    assert ["\u20ac\0"] == as_text("x", objects("\u20ac\0".encode())).tolist()


def test_bytes_that_are_not_utf_8_stay_bytes() -> None:
    """All of them, and text beside them as UTF-8: an array of fixed-width bytes is what ONNX Runtime takes as it is."""
    found = as_text("x", objects(b"\xff\xfe", "ö", b"a").reshape(3, 1))
    assert ("S", [[b"\xff\xfe"], ["ö".encode()], [b"a"]]) == (found.dtype.kind, found.tolist())


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (objects(b"a", 1), "input 'x': element 1 is neither text nor bytes"),
        (objects(b"\xff", 1), "input 'x': element 1 is neither text nor bytes"),
        (objects(b"\xff", "a", b"a\0"), "input 'x': element 2 holds a NUL byte"),
    ],
)
def test_what_is_no_text_is_refused_by_its_place(array: Any, message: str) -> None:
    """Numbers, and what would be cut at a NUL byte."""
    with pytest.raises(InvalidRequest) as caught:
        as_text("x", array)
    assert caught.value.message.startswith(message)
