"""The dispatcher's one timer: bundles that wait for a moment, not for an event."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop
from runtime_harness import MODEL, Transport, classes, entry, settle, tensor

from serve_app.domain.service import Answer
from serve_app.errors import DeadlineExceeded
from serve_app.router.dispatcher import Dispatcher
from serve_app.scheduling.decisions import Decisions
from serve_app.scheduling.scheduler import Scheduler
from serve_app.scheduling.settings import ModelScheduling, ProcessLimits
from serve_app.telemetry.metrics import RouterMetrics
from serve_app.transport.send import awaiting

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
"""uvloop's clock has whole milliseconds, and its timers go by it."""

Run = Callable[[Coroutine[Any, Any, None]], None]


class CountingScheduler(Scheduler):
    """Counts how often it is asked."""

    asked = 0

    def decide(self, now: float) -> Decisions:
        """Count, and decide."""
        self.asked += 1
        return super().decide(now)


def make(transport: Transport, model: ModelScheduling) -> tuple[CountingScheduler, Dispatcher]:
    """A dispatcher of a model with one idle replica whose batches of up to four rows take a millisecond."""
    scheduler = CountingScheduler([model], classes(), ProcessLimits(total_bytes=10**9))
    scheduler.seed(MODEL, [(rows, 0, 0.001, "") for rows in (1, 4)])
    dispatcher = Dispatcher(scheduler, awaiting(transport), RouterMetrics(scheduler), 60.0)
    dispatcher.on_replicas(MODEL, ["a"])
    return scheduler, dispatcher


def submit(dispatcher: Dispatcher, value: float, timeout_s: float) -> asyncio.Task[Answer]:
    """Submit one row in a task of its own."""
    return asyncio.ensure_future(dispatcher.submit(entry(tensor(value), timeout_s=timeout_s)))


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a test on one of the event loops."""

    def on_loop(test: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.run(test)

    return on_loop


def test_a_timer_that_is_early_is_set_again_and_not_in_a_loop(run: Run) -> None:
    """Deadlines fall between the milliseconds that a timer may go by; each is awaited in a few turns."""
    run(_deadlines())


async def _deadlines() -> None:
    scheduler, dispatcher = make(Transport(), ModelScheduling(MODEL, max_rows=4, slo_s=1.0, window=1))
    blocking = submit(dispatcher, 0, 30.0)
    await settle()
    for step in range(20):
        with pytest.raises(DeadlineExceeded):
            await submit(dispatcher, 1, 0.005 + 0.0001 * step)
    blocking.cancel()
    assert await asyncio.gather(blocking, return_exceptions=True)
    assert scheduler.asked < 6 * 20
