"""What travels: views over arrays that lie one behind the other."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.payloads import joined

_OWNER = np.arange(48, dtype=np.float32).reshape(12, 4)


def test_adjacent_rows_are_one_view() -> None:
    """Nothing is copied, whatever the number of rows of each."""
    view = joined([_OWNER[2:3], _OWNER[3:7], _OWNER[7:9]])

    assert view is not None
    assert _OWNER[2:9].tolist() == view.tolist()
    assert np.shares_memory(view, _OWNER)
    assert not view.flags.writeable


@given(cuts=st.lists(st.integers(0, 12), min_size=2, max_size=8).map(sorted))
def test_however_an_array_is_cut_it_can_be_joined(cuts: list[int]) -> None:
    """Of the parts that have rows."""
    parts = [_OWNER[start:stop] for start, stop in pairwise(cuts) if stop > start]

    view = joined(parts)

    assert (None if view is None else view.tolist()) == (_OWNER[cuts[0] : cuts[-1]].tolist() or None)


def test_parts_of_a_network_buffer_are_joined() -> None:
    """Read-only memory in bytes, seen as another dtype at an offset."""
    raw = np.frombuffer(bytes(8) + np.arange(6, dtype=np.int16).tobytes(), np.uint8)
    rows = raw[8:].view(np.int16).reshape(3, 2)

    view = joined([rows[:1], rows[1:]])

    assert view is not None
    assert rows.tolist() == view.tolist()
    assert view.dtype == np.int16


def test_the_view_keeps_the_memory_alive() -> None:
    """Also when everybody else has let go of it."""
    owner = np.full((4, 1000), 7, dtype=np.int64)
    parts = [owner[:2], owner[2:]]
    view = joined(parts)
    del owner, parts
    gc.collect()

    assert view is not None
    assert (view == 7).all()


_WORDS = np.array([["a"], ["b"]], dtype=np.object_)
_COLUMNS = np.asfortranarray(_OWNER)


@pytest.mark.parametrize(
    "arrays",
    [
        pytest.param([], id="nothing"),
        pytest.param([_OWNER[:1], _OWNER[2:3]], id="a gap"),
        pytest.param([_OWNER[1:2], _OWNER[:1]], id="another order"),
        pytest.param([_OWNER[:2], _OWNER[1:3]], id="an overlap"),
        pytest.param([_OWNER[:1], _OWNER[:1]], id="the same twice"),
        pytest.param([_OWNER[:1], _OWNER[1:2].copy()], id="a copy"),
        pytest.param([_OWNER[:1].copy(), _OWNER[1:2].copy()], id="owners of their own"),
        pytest.param([_OWNER[0:2, :2], _OWNER[2:4, :2]], id="not contiguous"),
        pytest.param([_COLUMNS[:1], _COLUMNS[1:2]], id="columns first"),
        pytest.param([_OWNER[:1], _OWNER[1:2].view(np.int32)], id="another dtype"),
        pytest.param([_OWNER[:1], _OWNER[1:2].reshape(2, 2)], id="another trailing shape"),
        pytest.param([_OWNER[0], _OWNER.reshape(-1)[4:5].reshape(())], id="no rows"),
        pytest.param([_WORDS[:1], _WORDS[1:]], id="references"),
        pytest.param([_OWNER[:0], _OWNER[:0]], id="no bytes"),
    ],
)
def test_what_is_not_adjacent_is_not_joined(arrays: Sequence[npt.NDArray[Any]]) -> None:
    """A view would show other rows than the arrays have."""
    assert joined(arrays) is None
