"""Variable axes are padded to one of a few lengths."""

from __future__ import annotations

import numpy as np
import pytest

from serve_app.processors.buckets import widen


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float16, np.float32])
def test_rows_are_filled_up_behind(dtype: type[np.generic]) -> None:
    """What was there stays, of its type; the rest is the value."""
    tensor = np.array([[1, 2], [3, 4]], dtype)

    wide = widen(tensor, 4, 7)

    assert wide.tolist() == [[1, 2, 7, 7], [3, 4, 7, 7]]
    assert wide.dtype == dtype
    assert wide.flags.c_contiguous


def test_rows_of_that_length_are_not_copied() -> None:
    """Most texts of a full bundle have the length of their bucket already, or soon."""
    tensor = np.ones((2, 4), np.int64)

    assert widen(tensor, 4, 0) is tensor


def test_rows_are_never_cut() -> None:
    """A bucket that is too short is a bug of the caller."""
    with pytest.raises(ValueError, match="4 do not fit into 3"):
        widen(np.ones((2, 4), np.int64), 3, 0)
