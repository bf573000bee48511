"""NaN and infinities in JSON, as Triton and its clients write them: NaN, Infinity and -Infinity.

JSON has no such words, and its decoder refuses them. A refused body is read again with marks in their place: numbers
beyond any float, so that they are unambiguous. Only float data accepts them.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import numpy as np
import numpy.typing as npt

_MARKS: Final = {b"Infinity": b"8e99999999", b"NaN": b"9e99999999"}
_IN_MARKS: Final = b"e99999999"
_MOST_QUOTES: Final = 20_000
"""Quotation marks of a body: names and parameters have some, and each costs a microsecond."""
_NULL: Final = b"null"
_RUNS: Final = re.compile(
    # Strings, or else words, with what is between them: so many at once, since each match calls a function. What is
    # behind a string without an end belongs to it, or looking for the end would begin anew at each quotation mark.
    # An I or N that begins no such word is no JSON, wherever it stands between strings.
    rb'(?:"[^"\\]*+(?:\\.?[^"\\]*+)*+(?:"|\Z)[^"IN]*+){1,1000}+|(?:[IN][^"IN]*+){1,100000}+',
    re.DOTALL,
)


def mark(text: bytes) -> bytes | None:
    """Replace such words by marks; ``None`` if there are none, or too many strings, or a mark already."""
    if _IN_MARKS in text or not any(word in text for word in _MARKS) or text.count(b'"') > _MOST_QUOTES:
        return None
    marked = _RUNS.sub(_marked, text)
    return None if marked == text else marked


def _marked(found: re.Match[bytes]) -> bytes:
    run = found[0]
    if not run.startswith(b'"'):
        for word, sign in _MARKS.items():
            run = run.replace(word, sign)
    return run


def values_of(text: bytes, *, marked: bool) -> tuple[Any, int]:
    """Decode data with nulls or marks.

    Args:
        marked: Whether it is from `mark`; otherwise a mark's value is an ordinary number.

    Returns:
        The unchecked values (numbers, ``None`` for null, or anything else), and how many of them are infinite by
        intent.

    Raises:
        ValueError: The data is no JSON.
        RecursionError: The data is nested too deeply.
    """
    if marked:
        for word, sign in _MARKS.items():
            text = text.replace(sign, word)
    return json.loads(text.decode()), text.count(b"Infinity")


def in_words(data: bytes, array: npt.NDArray[Any]) -> bytes:
    """JSON of an array, with words instead of null for NaN and infinities."""
    flat = array.reshape(-1)
    between = data.split(_NULL)
    parts = [between[0]]
    for value, following in zip(flat[~np.isfinite(flat)].tolist(), between[1:], strict=True):
        parts += (b"NaN" if value != value else b"Infinity" if value > 0 else b"-Infinity", following)  # noqa: PLR0124
    return b"".join(parts)
