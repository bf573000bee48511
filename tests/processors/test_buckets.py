"""Variable axes are padded to one of a few lengths."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.processors.buckets import bucket_for, size_classes, widen


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


@pytest.mark.parametrize(
    ("first", "longest", "lengths"),
    [
        (8, 512, (*range(8, 64, 8), *range(64, 128, 8), *range(128, 256, 16), *range(256, 512, 32), 512)),
        (8, 100, (*range(8, 96, 8), 96, 100)),
        (8, 65, (*range(8, 64, 8), 64, 65)),
        (8, 64, tuple(range(8, 65, 8))),
        (8, 8, (8,)),
        (8, 5, (5,)),
        (1, 20, (*range(1, 17), 18, 20)),
    ],
)
def test_lengths_are_eighths_of_a_doubling(first: int, longest: int, lengths: tuple[int, ...]) -> None:
    """In steps of the first up to eight of it; the longest is the last whatever it is."""
    assert lengths == size_classes(first, longest)


@given(st.integers(1, 2_000), st.integers(1, 1_000_000), st.integers(1, 1_000_000))
def test_padding_is_an_eighth_of_what_is_there_at_most(first: int, longest: int, length: int) -> None:
    """Beyond eight times the first; before, it is less than the first. So lengths ascend, and are few."""
    lengths = size_classes(first, longest)
    assert (min(first, longest), longest) == (lengths[0], lengths[-1])
    assert all(0 < long - short <= max(first, short / 8) for short, long in pairwise(lengths))
    assert len(lengths) <= 8 * max(1, (longest // first).bit_length() - 2) + 1
    if length <= longest:
        assert 0 <= bucket_for(length, lengths) - length < max(first, length / 8)
