"""Which build of a model answers an entry, and what becomes of entries that none can answer in time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from runtime_harness import MODEL, Sent, Transport, classes, tensor

from serve_app.errors import DeadlineExceeded, InferenceFailed, ModelUnavailable
from serve_app.payloads import BundleResult, Execution, Success
from serve_app.protocols.service import Answer
from serve_app.runtime.dispatcher import Dispatcher
from serve_app.runtime.metrics import RouterMetrics
from serve_app.scheduling.entry import Priority
from serve_app.scheduling.scheduler import Scheduler
from serve_app.scheduling.settings import ModelScheduling, ProcessLimits

TOO_LONG_S = 1000.0
QUICK_S = 0.001


class Line:
    """A dispatcher of a model with one replica, which is running a first entry while the others queue."""

    def __init__(self, transport: Transport, replicas: tuple[str, ...] = ("a",), **settings: Any) -> None:
        model = ModelScheduling(MODEL, max_rows=4, slo_s=1.0, window=1, **settings)
        self.scheduler = Scheduler([model], classes(), ProcessLimits(total_bytes=10**9))
        self.metrics = RouterMetrics(self.scheduler)
        self.dispatcher = Dispatcher(self.scheduler, transport, self.metrics, 60.0)
        self.dispatcher.on_replicas(MODEL, replicas)

    def submit(self, value: float, **options: Any) -> asyncio.Task[Answer]:
        """Submit one row in a task of its own."""
        answer = self.dispatcher.submit(
            MODEL,
            tensor(value),
            priority=Priority.NORMAL,
            timeout_s=30.0,
            rows=1,
            bucket=0,
            nbytes=8,
            **options,
        )
        return asyncio.ensure_future(answer)

    def learn(self, **seconds: float) -> None:
        """From now on every batch of ``exact`` or of a variant is predicted to take so long."""
        points = [(rows, 0, s, "" if name == "exact" else name) for name, s in seconds.items() for rows in (1, 4)]
        self.scheduler.seed(MODEL, points)

    def count(self, name: str, **labels: str) -> float:
        """A counter of the metrics page."""
        return self.metrics.registry.get_sample_value(name, {"model": MODEL, "priority": "normal", **labels}) or 0.0


def answer(sent: Sent, variant: str) -> None:
    """Answer a bundle, having run it on this variant."""
    results = [Success(entry.payload) for entry in sent.bundle.entries]
    sent.answer.set_result(BundleResult(list(results), [Execution(len(results), 0, QUICK_S, variant)], 0.0, 0.0, 0.0))


async def settle() -> None:
    """Let everything that can happen without outside help happen."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_what_cannot_be_in_time_any_more_is_given_up_at_once() -> None:
    """Its client is told well before its deadline, it is not executed, and metrics tell it from what expired."""
    transport = Transport()
    line = Line(transport)
    first = line.submit(0)
    sent = await transport.next()
    hopeless = line.submit(1)
    await settle()
    line.learn(exact=TOO_LONG_S)
    answer(sent, "")
    with pytest.raises(DeadlineExceeded, match="could not be met any more, so the request was not executed"):
        async with asyncio.timeout(10.0):  # not wait_for, which keeps the error's task in a cycle
            await hopeless
    assert (await first).variant == ""
    await settle()
    assert transport.sent.empty()
    assert line.count("serve_app_requests_total", outcome="given_up") == 1
    assert line.count("serve_app_requests_total", outcome="deadline_exceeded") == 0
    assert line.metrics.statistics(MODEL).failed == 1


async def test_giving_up_can_be_turned_off() -> None:
    """Then the replica gets what it can still take."""
    transport = Transport()
    line = Line(transport, early_drop=False)
    first = line.submit(0)
    sent = await transport.next()
    second = line.submit(1)
    await settle()
    line.learn(exact=TOO_LONG_S)
    answer(sent, "")
    sent = await asyncio.wait_for(transport.next(), 10.0)
    assert sent.values == [1.0]
    answer(sent, "")
    await asyncio.gather(first, second)


async def test_a_fallback_answers_where_the_exact_model_would_be_too_late() -> None:
    """The replica is told to run it, the client that it ran, and it is counted."""
    transport = Transport()
    line = Line(transport, fallbacks=("int8",))
    first = line.submit(0)
    sent = await transport.next()
    assert [entry.variant for entry in sent.bundle.entries] == [""]
    late = line.submit(1)
    await settle()
    line.learn(exact=TOO_LONG_S, int8=QUICK_S)
    answer(sent, "")
    sent = await asyncio.wait_for(transport.next(), 10.0)
    assert [entry.variant for entry in sent.bundle.entries] == ["int8"]
    answer(sent, "int8")
    assert [(await task).variant for task in (first, late)] == ["", "int8"]
    assert line.count("serve_app_fallback_answers_total", variant="int8") == 1
    assert line.count("serve_app_requests_total", outcome="ok") == 2


async def test_an_entry_that_forbids_fallbacks_gets_none() -> None:
    """It is given up instead, and its neighbour is not."""
    transport = Transport()
    line = Line(transport, fallbacks=("int8",))
    first = line.submit(0)
    sent = await transport.next()
    strict, lax = line.submit(1, exact=True), line.submit(2)
    await settle()
    line.learn(exact=TOO_LONG_S, int8=QUICK_S)
    answer(sent, "")
    sent = await asyncio.wait_for(transport.next(), 10.0)
    assert (sent.values, sent.bundle.entries[0].variant) == ([2.0], "int8")
    answer(sent, "int8")
    await asyncio.gather(first, lax)
    with pytest.raises(DeadlineExceeded):
        async with asyncio.timeout(10.0):  # not wait_for, which keeps the error's task in a cycle
            await strict


async def test_a_variant_that_was_asked_for_is_no_fallback() -> None:
    """The answer names it, the counter of fallbacks does not."""
    transport = Transport()
    line = Line(transport, fallbacks=("int8",))
    asked = line.submit(0, variant="int8")
    answer(await transport.next(), "int8")
    assert (await asked).variant == "int8"
    assert line.count("serve_app_fallback_answers_total", variant="int8") == 0


@pytest.mark.parametrize(("asked", "ran"), [("", "int8"), ("int8", "")])
async def test_an_answer_of_another_variant_is_an_error(asked: str, ran: str) -> None:
    """Nobody gets it under the wrong name, and the latency model does not learn from it."""
    transport = Transport()
    line = Line(transport)
    task = line.submit(0, variant=asked)
    answer(await transport.next(), ran)
    with pytest.raises(InferenceFailed):
        await task
    assert not line.scheduler.latency(MODEL, ran).known
    assert line.scheduler.snapshot()[MODEL]["slots_in_use"] == 0


async def test_without_a_replica_giving_up_is_not_the_clients_fault() -> None:
    """Nothing could have run it, whatever it asked for."""
    transport = Transport()
    line = Line(transport, replicas=())
    line.learn(exact=QUICK_S)
    waking = line.submit(0)
    await transport.next()
    line.learn(exact=TOO_LONG_S)
    with pytest.raises(ModelUnavailable):
        await line.dispatcher.submit(
            MODEL, tensor(1), priority=Priority.NORMAL, timeout_s=0.02, rows=1, bucket=0, nbytes=8
        )
    waking.cancel()
