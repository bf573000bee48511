"""Deadlines: which one counts, and what is told to the server."""

from __future__ import annotations

import asyncio
import threading
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app_client import DeadlineExceeded
from serve_app_client.calls import Call, Calls, default_headers
from serve_app_client.deadline import Deadline, deadline, deadline_of

CALLS = Calls(default_headers(None, None))


def _left(timeout: float | None = None) -> float:
    return deadline_of(timeout, 60.0, 0.0).at


@given(st.lists(st.floats(1e-6, 86400.0), min_size=1, max_size=5))
def test_the_tightest_of_nested_scopes_counts(seconds: list[float]) -> None:
    """Going in can only tighten, and going out restores."""
    outside = _left()
    seen = []

    def nest(rest: list[float]) -> None:
        seen.append(_left())
        if rest:
            with deadline(rest[0]):
                nest(rest[1:])
            assert _left() == seen[len(seconds) - len(rest)]

    nest(seconds)
    assert all(inner <= outer for outer, inner in pairwise(seen[1:]))
    assert _left() == outside


def test_a_call_tightens_its_scope_but_cannot_widen_it() -> None:
    """The call's own timeout counts only where it is the shorter."""
    with deadline(50.0):
        scope = _left()
        assert deadline_of(1e4, 60.0, scope - 50.0).at == scope
        assert deadline_of(1.0, 60.0, scope - 50.0).at == scope - 49.0


async def test_tasks_inherit_a_scope_and_threads_do_not() -> None:
    """A task belongs to who started it; so does `asyncio.to_thread`. A bare thread starts on its own."""
    bare = []
    with deadline(50.0):
        here = _left()
        assert await asyncio.create_task(asyncio.to_thread(_left)) == here
        thread = threading.Thread(target=lambda: bare.append(deadline_of(None, 60.0, 0.0).announced))
        thread.start()
        thread.join()
    assert bare == [False]


def test_without_a_deadline_the_server_is_told_none() -> None:
    """The default of the class counts there; patience is the client's own."""
    call = CALLS.embed("x", "m", None, {})
    assert "x-timeout-ms" not in call.attempt_headers(call.deadline.at - 1.0)


@given(at=st.floats(0.0, 1e9), passed=st.floats(0.0, 1e5))
def test_every_attempt_is_told_what_is_left(at: float, passed: float) -> None:
    """In milliseconds, never nothing, never more than the server takes; and past the deadline none is sent."""
    call: Call[None] = Call("GET", "/", {}, b"", Deadline(at, announced=True), lambda _: None)
    now = at - 5e4 + passed
    try:
        told = float(call.attempt_headers(now)["x-timeout-ms"])
    except DeadlineExceeded:
        assert now >= at
        return
    assert 0.0 < told <= 86_400_000.0
    assert told == pytest.approx((at - now) * 1e3, abs=0.002)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf"), 86_401.0])
def test_impossible_timeouts_are_refused(seconds: float) -> None:
    """By scopes and by calls."""
    with pytest.raises(ValueError, match="timeout: expected seconds"), deadline(seconds):
        pass
    with pytest.raises(ValueError, match="timeout: expected seconds"):
        CALLS.embed("x", "m", None, {"timeout": seconds})
