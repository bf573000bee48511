"""The loop of events."""

from __future__ import annotations

from functools import partial
from math import nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.domain.priority import Priority
from serve_app_simulator.loop import Loop
from serve_app_simulator.system import Request


def _requests(*times: float) -> list[Request]:
    return [Request(number, "m", Priority.NORMAL, time, time + 1.0) for number, time in enumerate(times)]


@given(st.lists(st.floats(0.0, 10.0)), st.lists(st.floats(0.0, 10.0)))
def test_actions_and_arrivals_happen_in_the_order_of_their_times(arrivals: list[float], actions: list[float]) -> None:
    """Arrivals come first where times are equal, and actions in the order they were asked for."""
    loop = Loop()
    seen: list[tuple[float, int, int]] = []
    for number, when in enumerate(actions):
        loop.at(when, partial(lambda number: seen.append((loop.now, 1, number)), number))
    requests = _requests(*sorted(arrivals))
    loop.run(iter(requests), lambda request: seen.append((loop.now, 0, request.id)), until=10.0)
    assert sorted(seen) == seen
    assert len(arrivals) + len(actions) == len(seen) == loop.events


def test_a_cancelled_action_does_not_run() -> None:
    """Cancelling is harmless again and after the fact."""
    loop = Loop()
    seen: list[str] = []
    ran = loop.at(1.0, lambda: seen.append("ran"))
    cancelled = loop.at(2.0, lambda: seen.append("cancelled"))
    cancelled.cancel()
    cancelled.cancel()
    loop.run(iter(()), lambda _: None, until=3.0)
    ran.cancel()
    assert ["ran"] == seen


def test_the_past_is_now() -> None:
    """An action asked for too late runs at once, behind what is due already."""
    loop = Loop()
    seen: list[tuple[str, float]] = []

    def ask() -> None:
        loop.at(1.0, lambda: seen.append(("late", loop.now)))

    loop.at(5.0, ask)
    loop.at(5.0, lambda: seen.append(("due", loop.now)))
    loop.run(iter(()), lambda _: None, until=9.0)
    assert [("due", 5.0), ("late", 5.0)] == seen


def test_nothing_happens_after_the_end() -> None:
    """What lies behind ``until`` is left; the clock stands at the end."""
    loop = Loop()
    seen: list[float] = []
    loop.at(2.0, lambda: seen.append(2.0))
    loop.at(4.0, lambda: seen.append(4.0))
    loop.run(iter(_requests(1.0, 3.5)), lambda request: seen.append(request.arrival), until=3.0)
    assert [1.0, 2.0] == seen


def test_stop_ends_the_run_after_the_present_action() -> None:
    """Whatever else is due stays undone."""
    loop = Loop()
    seen: list[float] = []
    loop.at(1.0, loop.stop)
    loop.at(1.0, lambda: seen.append(1.0))
    loop.run(iter(()), lambda _: None, until=3.0)
    assert [] == seen


def test_an_action_needs_a_time() -> None:
    """NaN would never be due, and would break the order of everything else."""
    with pytest.raises(ValueError, match="NaN"):
        Loop().at(nan, lambda: None)
