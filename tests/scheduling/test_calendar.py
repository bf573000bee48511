"""The priority queue of deadlines: order, whatever falls into whichever cell."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from serve_app.scheduling.queueing.calendar import Calendar, Pair

_DEADLINES = st.one_of(
    st.floats(0.0, 0.1), st.floats(0.0, 1e5), st.sampled_from([0.0, 1 / 32, 2 / 32, 1e30, inf]), st.integers(0, 3)
)


def _drained(calendar: Calendar) -> list[Pair]:
    pairs = []
    while (first := calendar.first()) is not None:
        assert calendar.pop() == first
        pairs.append(first)
    return pairs


def test_an_empty_calendar_has_no_first_pair() -> None:
    """Neither before anything was pushed, nor after all was popped."""
    calendar = Calendar()
    assert calendar.first() is None
    assert calendar.pop() is None
    calendar.push((1.0, 1))
    assert _drained(calendar) == [(1.0, 1)]
    assert calendar.pop() is None


def test_a_pair_before_the_present_cell_is_the_first() -> None:
    """A more urgent one may come, or come back, when later cells have been opened already."""
    calendar = Calendar()
    calendar.push((5.0, 1))
    calendar.push((9.0, 2))
    assert calendar.first() == (5.0, 1)
    calendar.push((1.0, 3))
    assert _drained(calendar) == [(1.0, 3), (5.0, 1), (9.0, 2)]


@given(st.lists(st.one_of(_DEADLINES, st.none(), st.sets(st.integers(0, 40)))))
def test_it_is_a_sorted_list(steps: list[float | set[int] | None]) -> None:
    """Pushes (a deadline), pops (`None`) and keeping only some ids (a set) in any order leave it sorted."""
    calendar = Calendar()
    expected: list[Pair] = []
    for at, step in enumerate(steps):
        if step is None:
            assert calendar.pop() == (expected.pop(0) if expected else None)
        elif isinstance(step, set):
            calendar.keep(step)
            expected = [pair for pair in expected if pair[1] in step]
        else:
            calendar.push((step, at))
            expected = sorted([*expected, (step, at)])
    assert _drained(calendar) == expected
