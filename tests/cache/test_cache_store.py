"""The cache in memory."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.cache.store import ENTRY_BYTES, CacheStore
from serve_app.payloads import Embeddings, held_bytes

STRINGS = np.empty((2, 1), object)
STRINGS[:, 0] = [b"\xff\0", b""]
ANSWERS: dict[str, Any] = {
    "numbers": {"y": np.arange(6, dtype="f4").reshape(2, 3), "n": np.array([[1], [2]], "i8")},
    "strings": {"y": STRINGS},
    "bfloat16": {"y": np.ones((1, 2), ml_dtypes.bfloat16)},
    "no rows": {"y": np.zeros((0, 4), "f8")},
    "not a number": {"y": np.array([[math.nan, math.inf]], "f4")},
    "embeddings": Embeddings(np.ones((2, 3), "f4"), 7),
    "labels": [{"label": "joy", "score": 0.5}, {"label": "fear", "score": 0.25}],
    "nothing": None,
    "an array alone": np.array([0.5, 0.25], "f4"),
}


class Clock:
    """Time that tests set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def same(one: Any, other: Any) -> Any:
    """Whether two answers are the same to the last bit."""
    if isinstance(one, np.ndarray):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        return one.tolist() == other.tolist() if one.dtype.hasobject else one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[name], other[name]) for name in one)
    if isinstance(one, Embeddings):
        return isinstance(other, Embeddings) and same(one.vectors, other.vectors) and one[1:] == other[1:]
    return bool(one == other)


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_answers_survive_the_cache(answer: Any) -> None:
    """To the last bit, and what comes out cannot be written to."""
    store = CacheStore(10**6, Clock())
    kept = store.put(b"k", answer, 1.0)
    stored = store.get(b"k")
    assert stored is not None
    for found in (kept, stored.value):
        assert same(answer, found)
    value = stored.value
    arrays = value.values() if isinstance(value, dict) else [value.vectors] if hasattr(value, "vectors") else []
    for array in arrays:
        assert not array.flags.writeable


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 400), st.integers(0, 3)), max_size=40))
def test_bytes_are_bounded_and_time_counts(steps: list[tuple[int, int, int]]) -> None:
    """Whatever is put in, and whatever is found is what was put in last, and not too old."""
    limit, clock = 4 * ENTRY_BYTES, Clock()
    store = CacheStore(limit, clock)
    put: dict[int, tuple[int, float]] = {}
    for key, size, later in steps:
        clock.now += later
        store.put(b"%d" % key, bytes(size), 5.0)
        put[key] = (size, clock.now)
        assert store.nbytes <= limit
        for other, (other_size, at) in put.items():
            found = store.get(b"%d" % other)
            if found is not None:
                assert len(found.value) == other_size
                assert clock.now < at + 5.0


def test_the_least_recently_used_makes_room() -> None:
    """Being read counts as use."""
    size = held_bytes(bytes(100)) + ENTRY_BYTES
    store = CacheStore(2 * size, Clock())
    for key in (b"a", b"b"):
        store.put(key, bytes(100), 1.0)
    assert store.get(b"a") is not None
    store.put(b"c", bytes(100), 1.0)
    assert [store.get(key) is not None for key in (b"a", b"b", b"c")] == [True, False, True]
    assert (store.evictions, len(store)) == (1, 2)


def test_what_never_fits_evicts_nothing() -> None:
    """It is handed back as it is."""
    store = CacheStore(2000, Clock())
    store.put(b"a", b"small", 1.0)
    large = bytes(3000)
    assert store.put(b"b", large, 1.0) is large
    assert (len(store), store.evictions) == (1, 0)


def test_a_view_does_not_keep_its_whole_frame() -> None:
    """A row of a large result is stored as a row."""
    frame = np.zeros((1000, 4), "f4")
    kept = CacheStore(10**6, Clock()).put(b"k", {"y": frame[3:4]}, 1.0)
    assert kept["y"].base is None
    frame[3] = 1
    assert kept["y"].tolist() == [[0, 0, 0, 0]]
