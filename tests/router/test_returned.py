"""What a replica has not run goes back to its router, which sends it again: its client hears nothing of it."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest
from runtime_harness import (
    MODEL,
    Transport,
    batch_same_turn,
    ended,
    make_dispatcher,
    nothing_left,
    settle,
    submit,
    tensor,
    until,
)

from serve_app.domain.priority import Priority
from serve_app.errors import DeadlineExceeded, InferenceFailed
from serve_app.payloads import NOT_IN_TIME, RETURNED, Bundle, BundleResult, Execution, ModelSignature, Success, Tensors
from serve_app.replica.worker import Worker
from serve_app.scheduling.settings import ModelScheduling
from serve_app.transport.send import ReplicaLost


def answer(*results: Any, rows: int = 1) -> BundleResult:
    """Results of a bundle that a run of so many rows has carried."""
    return BundleResult(list(results), [Execution(rows, 0, 0.001)] if rows else [], 0.0, 0.0, 0.0)


async def test_what_comes_back_is_sent_again_and_counted_once() -> None:
    """Its neighbour does not wait for it; of a run with the rows of others, each counts its own part."""
    transport = Transport()
    dispatcher, metrics = make_dispatcher(transport)
    first, second = submit(dispatcher, tensor(1)), submit(dispatcher, tensor(2))
    (await transport.next()).answer.set_result(answer(Success("ran"), RETURNED, rows=4))
    assert (await first).value == "ran"
    again = await transport.next()
    assert again.values == [2.0]
    again.succeed()
    assert (await second).value == {"x": tensor(2)["x"]}
    statistics = metrics.statistics(MODEL)
    assert (statistics.rows, statistics.executions, ended(metrics, "ok")) == (2, 1.25, 2)
    assert dispatcher.scheduler.snapshot()[MODEL]["wasted_rows"] == 0
    assert nothing_left(dispatcher)


async def test_its_time_at_the_replica_was_queueing() -> None:
    """As if it had never left: what it is told of its queue is all but its last way."""
    transport = Transport()
    dispatcher, _ = make_dispatcher(transport)
    task = submit(dispatcher, tensor(1))
    sent = await transport.next()
    await asyncio.sleep(0.02)
    sent.answer.set_result(answer(RETURNED, rows=0))
    (await transport.next()).succeed()
    told = await task
    assert 0.02 <= told.queue_s <= told.total_s


async def test_what_comes_back_to_nobody_is_forgotten() -> None:
    """Its client has left, or been told that it is late: it is not sent again."""
    transport = Transport()
    dispatcher, metrics = make_dispatcher(transport)
    leaving, late = submit(dispatcher, tensor(1)), submit(dispatcher, tensor(2), timeout_s=0.02)
    staying = submit(dispatcher, tensor(3))
    sent = await transport.next()
    leaving.cancel()
    with pytest.raises(DeadlineExceeded):
        await late
    position = sent.values.index(3.0)
    results: list[Any] = [RETURNED] * 3
    results[position] = Success("ran")
    sent.answer.set_result(answer(*results))
    assert (await staying).value == "ran"
    await settle()
    assert transport.sent.empty()
    assert [ended(metrics, outcome) for outcome in ("ok", "cancelled", "deadline_exceeded")] == [1, 1, 1]
    assert nothing_left(dispatcher)


async def test_whoever_leaves_after_it_came_back_is_not_sent_again() -> None:
    """It is queued and taken out in one turn of the event loop."""
    transport = Transport()
    dispatcher, metrics = make_dispatcher(transport)
    task = submit(dispatcher, tensor(1))
    (await transport.next()).answer.set_result(answer(RETURNED, rows=0))
    task.cancel()
    await settle()
    assert transport.sent.empty()
    assert ended(metrics, "cancelled") == 1
    assert nothing_left(dispatcher)


async def test_a_replica_that_has_run_nothing_of_a_bundle_gets_the_next() -> None:
    """Whatever became of the entries, its slot is free."""
    transport = Transport()
    dispatcher, metrics = make_dispatcher(transport)
    tasks = [submit(dispatcher, tensor(value)) for value in (1, 2)]
    for _ in range(3):
        (await transport.next()).answer.set_result(answer(RETURNED, RETURNED, rows=0))
    (await transport.next()).answer.set_result(answer(NOT_IN_TIME, NOT_IN_TIME, rows=0))
    for task in tasks:
        with pytest.raises(DeadlineExceeded, match="could not finish before its deadline"):
            await task
    assert [ended(metrics, outcome) for outcome in ("given_up", "deadline_exceeded")] == [2, 0]
    assert metrics.statistics(MODEL).executions == 0
    following = submit(dispatcher, tensor(3))
    (await transport.next()).succeed()
    await following
    assert nothing_left(dispatcher)


async def test_coming_back_is_no_try() -> None:
    """It may still be tried once more where a replica dies with it, and not twice."""
    transport = Transport()
    dispatcher, _ = make_dispatcher(transport, replicas=("a", "b", "c"))
    task = submit(dispatcher, tensor(1))
    for _ in range(3):
        (await transport.next()).answer.set_result(answer(RETURNED, rows=0))
    lost = await transport.next()
    lost.answer.set_exception(ReplicaLost("dead"))
    second = await transport.next()
    assert second.replica != lost.replica
    second.answer.set_result(answer(RETURNED, rows=0))
    third = await transport.next()
    third.answer.set_exception(ReplicaLost("dead"))
    with pytest.raises(InferenceFailed, match="two replicas failed"):
        await task
    assert nothing_left(dispatcher)


async def test_a_late_answer_takes_nothing_from_where_it_was_sent_since() -> None:
    """A bundle that timed out comes back after its entry went elsewhere: it is not queued twice."""
    transport = Transport()
    dispatcher, metrics = make_dispatcher(transport, replicas=("a", "b"), bundle_timeout_s=0.02)
    task = submit(dispatcher, tensor(1))
    slow = await transport.next()
    elsewhere = await transport.next()
    slow.answer.set_result(answer(RETURNED, rows=0))
    await settle()
    assert transport.sent.empty()
    elsewhere.succeed()
    await task
    await settle()
    assert ended(metrics, "ok") == 1
    assert nothing_left(dispatcher)


class Adding:
    """A backend on a device of its own, whose runs are short."""

    device = "cuda"
    signature = ModelSignature((), ())

    def __init__(self) -> None:
        self.rows: list[int] = []

    def load(self) -> None:
        """Nothing to load."""

    def run(self, inputs: Tensors) -> Tensors:
        """Add one."""
        self.rows.append(len(inputs["x"]))
        return {"y": inputs["x"] + 1}

    run_whole = run

    def close(self) -> None:
        """Nothing to free."""


@pytest.mark.parametrize("policy", ["auto", "eager"])
async def test_whatever_happens_beside_them_clients_get_their_own_answers(policy: Any) -> None:
    """Of three routers at one replica: all classes and sizes, hasty ones and such as leave. Nothing is left behind."""
    backend, random = Adding(), Random(11)
    worker = Worker(
        scheduling=ModelScheduling(MODEL, 4, slo_s=1.0, policy=policy),
        backends={"": backend},
        processor=None,
        preprocess_threads=1,
        batch=batch_same_turn,
        warm_up=[Execution(1, 0, 1e-4), Execution(4, 0, 3e-4)],
        min_share={Priority.HIGH: 0.0, Priority.NORMAL: 0.2, Priority.LOW: 0.1},
    )

    async def send(_: str, bundle: Bundle, __: str | None, ___: int) -> BundleResult:
        return await worker.run(bundle)

    routers = [make_dispatcher(send, window=2)[0] for _ in range(3)]

    async def client(number: int) -> int:
        answered = 0
        for _ in range(30):
            value, rows = float(random.randrange(1000)), random.choice((1, 1, 1, 2, 4, 6))
            task = submit(
                routers[number % 3],
                {"x": tensor(value)["x"].repeat(rows, axis=0)},
                priority=random.choice(tuple(Priority)),
                timeout_s=random.choice((30.0, 30.0, 0.001)),
                rows=rows,
            )
            if random.random() < 0.2:
                for _ in range(random.randrange(8)):
                    await asyncio.sleep(0)
                task.cancel()
            try:
                result = await task
            except (DeadlineExceeded, asyncio.CancelledError):
                continue
            assert result.value["y"].tolist() == [[value + 1]] * rows
            answered += 1
        return answered

    async with asyncio.timeout(60.0):
        answered = await asyncio.gather(*(client(number) for number in range(24)))
    assert sum(answered) > 24 * 30 / 4
    assert max(backend.rows) <= 4
    await until(lambda: all(map(nothing_left, routers)))
    assert worker.stalled_s() == 0.0
    assert not worker.broken
    worker.close()
