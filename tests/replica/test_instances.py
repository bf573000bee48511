"""A replica of two instances: batches run beside each other, on one backend."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from runtime_harness import Paced, acquired, batch_same_turn, tensor

from serve_app.errors import InferenceFailed
from serve_app.payloads import RETURNED, Bundle, BundleResult, Execution, Success, Tensors, WireEntry
from serve_app.replica.worker import BatchTogether, RunBatch, RunOne, Worker
from serve_app.scheduling.gate import Gate
from serve_app.scheduling.settings import ModelScheduling


class Stage:
    """Workers of two instances over such a backend."""

    def __init__(self) -> None:
        self.made: list[Worker] = []

    def worker(self, backend: Paced, *, max_rows: int = 1, batch: BatchTogether = batch_same_turn) -> Worker:
        """One worker."""
        self.made.append(
            Worker(
                scheduling=ModelScheduling("paced", max_rows, slo_s=60.0, policy="eager"),
                backends={"": backend},
                processor=None,
                preprocess_threads=1,
                batch=batch,
                warm_up=[Execution(1, 0, 1.0), Execution(max_rows, 0, 1.0)],
                examples={"": tensor(1.0)} if isinstance(backend, Failing) else {},
                instances=2,
            )
        )
        return self.made[-1]


class Failing(Paced):
    """A backend that fails on negative numbers, and runs its example at once."""

    def run(self, inputs: Tensors) -> Tensors:
        """Fail once it is let go."""
        if inputs["x"][0, 0] == 1.0:
            return inputs
        outputs = super().run(inputs)
        if (inputs["x"] < 0).any():
            raise InferenceFailed("negative")
        return outputs

    run_whole = run


@pytest.fixture
def stage() -> Iterator[Stage]:
    """Closes its workers."""
    made = Stage()
    yield made
    for worker in made.made:
        worker.close()


def ask(worker: Worker, *values: float) -> asyncio.Task[BundleResult]:
    """Run a bundle of one entry per value, in a task of its own."""
    return asyncio.ensure_future(worker.run(Bundle([WireEntry(2, 60.0, 1, "", tensor(value)) for value in values])))


async def answers(*running: asyncio.Task[BundleResult]) -> list[Any]:
    """The value of every entry, or the code of its error."""
    async with asyncio.timeout(30.0):
        results = await asyncio.gather(*running)
    return [
        answer.value["y"][0, 0] if isinstance(answer, Success) else answer.code
        for result in results
        for answer in result.results
    ]


async def test_two_batches_run_at_once_and_a_third_waits(stage: Stage) -> None:
    """In threads of their own; the first that is free takes what waits."""
    backend = Paced()
    worker = stage.worker(backend)
    running = [ask(worker, value) for value in (1.0, 2.0, 3.0)]
    for _ in range(2):
        await acquired(backend.begun)
    assert sorted(backend.runs) == [[1.0], [2.0]]
    assert len(set(backend.threads)) == 2
    backend.go.release()
    await acquired(backend.begun)
    assert backend.runs[2] == [3.0]
    backend.go.release(2)
    assert await answers(*running) == [2.0, 3.0, 4.0]


async def test_the_next_batch_of_each_runs_without_the_event_loop(stage: Stage) -> None:
    """Their threads take it from the gate."""
    backend = Paced()
    worker = stage.worker(backend)
    running = [ask(worker, float(value)) for value in range(6)]
    for _ in range(2):
        await acquired(backend.begun)
    backend.go.release(6)
    for _ in range(4):  # while the event loop is kept from running
        assert backend.begun.acquire(timeout=30.0)
    assert sorted(backend.runs) == [[0.0], [1.0], [2.0], [3.0], [4.0], [5.0]]
    assert await answers(*running) == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


async def test_what_comes_together_is_divided_and_answered_once(stage: Stage) -> None:
    """What of a bundle has no room beside the others comes back to its router."""
    backend = Paced()
    worker = stage.worker(backend, max_rows=4)
    backend.go.release(2)
    (first,) = await asyncio.gather(ask(worker, 1.0, 2.0, 3.0, 4.0))
    assert [answer is RETURNED for answer in first.results] == [False, False, True, True]
    assert backend.runs == [[1.0, 2.0]]


async def test_bundles_of_two_instances_are_not_joined_with_each_other(stage: Stage) -> None:
    """Whatever ``batch`` hands over together: each runs in its own batch."""
    backend, handed = Paced(), []

    def batch(run_batch: RunBatch) -> RunOne:
        async def noting(bundles: list[Any]) -> Sequence[Any]:
            handed.append(len(bundles))
            return await run_batch(bundles)

        return batch_same_turn(noting)

    worker = stage.worker(backend, max_rows=4, batch=batch)
    running = [ask(worker, 1.0), ask(worker, 2.0)]
    for _ in range(2):
        await acquired(backend.begun)
    more = [ask(worker, value) for value in (3.0, 4.0, 5.0, 6.0)]
    await asyncio.sleep(0)
    backend.go.release(6)
    assert await answers(*running, *more) == [2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    assert sum(map(len, backend.runs)) == 6


async def test_the_run_that_stalls_is_told_while_others_go_on(stage: Stage) -> None:
    """The longest counts; nothing stalls where nothing runs."""
    backend = Paced()
    worker = stage.worker(backend)
    assert worker.stalled_s() == 0.0
    first = ask(worker, 1.0)
    await acquired(backend.begun)
    before = worker.stalled_s()
    second = ask(worker, 2.0)
    await acquired(backend.begun)
    assert worker.stalled_s() >= before
    backend.go.release()
    await asyncio.wait([first, second], return_when=asyncio.FIRST_COMPLETED)
    assert worker.stalled_s() > 0.0  # of the one that still runs, whichever it is
    backend.go.release()
    await answers(first, second)
    assert worker.stalled_s() == 0.0


async def test_a_close_sends_back_what_waits_and_waits_for_both(stage: Stage) -> None:
    """What runs is answered."""
    backend = Paced()
    worker = stage.worker(backend)
    running = [ask(worker, value) for value in (1.0, 2.0, 3.0)]
    for _ in range(2):
        await acquired(backend.begun)
    closing = asyncio.ensure_future(asyncio.to_thread(worker.close))
    assert (await running[2]).results == [RETURNED]
    backend.go.release(2)
    assert await answers(*running[:2]) == [2.0, 3.0]
    await closing
    assert sorted(backend.runs) == [[1.0], [2.0]]


async def test_two_that_fail_at_once_ask_for_one_self_test(stage: Stage) -> None:
    """Both get its verdict."""
    backend = Failing()
    worker = stage.worker(backend)
    running = [ask(worker, value) for value in (-1.0, -2.0)]
    for _ in range(2):
        await acquired(backend.begun)
    backend.go.release(2)
    results = await asyncio.gather(*running)
    assert [result.model_works for result in results] == [True, True]
    assert not worker.failing


async def test_a_bug_costs_both_and_leaves_both_free(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs on in the other thread meanwhile is answered with the failure, and takes no instance along."""
    backend = Paced()
    worker = stage.worker(backend)
    running = [ask(worker, value) for value in (1.0, 2.0)]
    for _ in range(2):
        await acquired(backend.begun)

    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(Gate, "ended", broken)
        backend.go.release()
        assert await answers(*running) == ["inference_failed"] * 2
    assert worker.broken
    backend.go.release()
    again = [ask(worker, value) for value in (3.0, 4.0)]
    for _ in range(2):
        await acquired(backend.begun)
    assert np.isclose(worker.stalled_s(), 0.0, atol=30.0)
    backend.go.release(2)
    assert await answers(*again) == [4.0, 5.0]
