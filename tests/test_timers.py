"""Timers of an event loop that go by the monotonic clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from math import inf
from time import monotonic
from typing import Any

import pytest
import uvloop

from serve_app import timers
from serve_app.timers import PreciseTimer

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine in an event loop of either kind."""
    return asyncio.run if request.param == "asyncio" else uvloop.run


class _Called:
    """Waits for calls, and knows when they were."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self._event = asyncio.Event()

    def __call__(self) -> None:
        self.times.append(monotonic())
        self._event.set()

    async def once_more(self) -> float:
        """The time of the next call."""
        await self._event.wait()
        self._event.clear()
        return self.times[-1]


def test_it_calls_when_it_is_due_and_never_before(run: Run) -> None:
    """Also at a time that is over, and again each time that it is set."""

    async def check() -> None:
        timer = PreciseTimer(called := _Called())
        for after_s in (0.003, 0.0, -1.0, 0.0005, -1e9):
            timer.set(when := monotonic() + after_s)
            assert timer.due == when
            assert await called.once_more() >= when
            assert timer.due == inf
        assert len(called.times) == 5
        timer.close()

    run(check())


def test_only_the_last_time_counts(run: Run) -> None:
    """Whether it is earlier or later than the one before."""

    async def check() -> None:
        timer = PreciseTimer(called := _Called())
        timer.set(monotonic() + 60.0)
        timer.set(monotonic() + 0.002)
        timer.set(when := monotonic() + 0.004)
        assert await called.once_more() >= when
        timer.close()

    run(check())


def test_a_closed_one_does_not_call(run: Run) -> None:
    """Though it was due; to close it again does nothing."""

    async def check() -> None:
        timer, other = PreciseTimer(called := _Called()), PreciseTimer(later := _Called())
        timer.set(monotonic())
        timer.close()
        timer.close()
        other.set(monotonic() + 0.002)
        await later.once_more()
        assert called.times == []
        other.close()

    run(check())


def test_without_timerfd_it_is_the_loops_timer(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which may be early by a millisecond."""
    monkeypatch.setattr(timers, "LIBC", None)

    async def check() -> None:
        timer = PreciseTimer(called := _Called())
        timer.set(monotonic() + 60.0)
        timer.set(when := monotonic() + 0.002)
        assert await called.once_more() >= when - 0.001
        timer.set(monotonic() + 60.0)
        timer.close()
        assert len(called.times) == 1

    run(check())
