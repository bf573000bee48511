"""The dispatcher's one timer: bundles that wait for a moment, not for an event."""

from __future__ import annotations

import asyncio

from runtime_harness import MODEL, Transport, classes, tensor

from serve_app.protocols.service import Answer
from serve_app.runtime.dispatcher import Dispatcher
from serve_app.runtime.metrics import RouterMetrics
from serve_app.scheduling.decisions import Decisions
from serve_app.scheduling.entry import Priority
from serve_app.scheduling.scheduler import Scheduler
from serve_app.scheduling.settings import ModelScheduling, ProcessLimits


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
    dispatcher = Dispatcher(scheduler, transport, RouterMetrics(scheduler), 60.0)
    dispatcher.on_replicas(MODEL, ["a"])
    return scheduler, dispatcher


def submit(dispatcher: Dispatcher, value: float, timeout_s: float) -> asyncio.Task[Answer]:
    """Submit one row in a task of its own."""
    return asyncio.ensure_future(
        dispatcher.submit(
            MODEL, tensor(value), priority=Priority.NORMAL, timeout_s=timeout_s, rows=1, bucket=0, nbytes=8
        )
    )


async def settle() -> None:
    """Let everything that can happen without outside help happen."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_bundle_that_waits_for_a_window_goes_by_the_clock_alone() -> None:
    """Nothing else happens, and the scheduler is asked a few times, not in a loop."""
    transport = Transport()
    scheduler, dispatcher = make(transport, ModelScheduling(MODEL, max_rows=4, slo_s=1.0, policy="window"))
    task = submit(dispatcher, 0, 30.0)
    sent = await asyncio.wait_for(transport.next(), 10.0)
    assert sent.values == [0.0]
    sent.succeed()
    await task
    await settle()
    assert scheduler.asked < 12


async def test_the_timer_moves_to_a_nearer_moment() -> None:
    """A bundle that can wait for long must not hold back the more urgent one that joins it."""
    transport = Transport()
    scheduler, dispatcher = make(transport, ModelScheduling(MODEL, max_rows=4, slo_s=1.0, policy="deferred"))
    patient = submit(dispatcher, 0, 300.0)
    await settle()
    far = armed_for(dispatcher)
    assert far == scheduler.wake_at
    urgent = submit(dispatcher, 1, 30.0)
    await settle()
    near = armed_for(dispatcher)
    assert near == scheduler.wake_at
    assert near < far - 200.0
    for task in (patient, urgent):
        task.cancel()
    assert await asyncio.gather(patient, urgent, return_exceptions=True)
    assert scheduler.asked < 6


def armed_for(dispatcher: Dispatcher) -> float:
    """When the timer goes off."""
    timer = dispatcher._timer
    assert isinstance(timer, asyncio.TimerHandle)
    return timer.when()
