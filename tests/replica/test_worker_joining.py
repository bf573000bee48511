"""Sharing runs inside a worker: from what is proven, by what it sees while it runs, to what routers are told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest
from joining_backends import Made, Paced, shifted
from runtime_harness import batch_same_turn, run_to_the_end

from serve_app.payloads import Bundle, BundleResult, Execution, Failure, Joinable, Success, Tensors, WireEntry
from serve_app.replica.joining import Joining
from serve_app.replica.proof import ProofContext
from serve_app.replica.worker import Worker
from serve_app.scheduling.settings import ModelScheduling

EXACT = Joinable("exact", "same bits")
PROVEN = Joinable("proven", "by the graph")
MakeWorker = Callable[..., Worker]


def mirror(inputs: Tensors) -> Tensors:
    """What it is asked."""
    return {"y": inputs["x"] + 0}


@pytest.fixture
async def make_worker() -> AsyncIterator[MakeWorker]:
    """Workers of up to eight rows over backends that a test wrote."""
    made: list[Worker] = []

    def worker(backend: Any, verdict: Joinable = EXACT, verify: float = 1.0, inputs: int = 1) -> Worker:
        made.append(
            Worker(
                scheduling=ModelScheduling("m", 8, slo_s=60.0),
                backends={"": backend},
                processor=None,
                preprocess_threads=1,
                batch=batch_same_turn,
                warm_up=[Execution(1, 0, 1.0), Execution(8, 0, 1.0)],  # too long for the event loop
                joining=Joining("m", {"": verdict}, {"": inputs}),
                proofs=ProofContext("m", 8),
                verify=verify,
            )
        )
        return made[-1]

    yield worker
    for each in made:
        await asyncio.get_running_loop().run_in_executor(None, each.close)


def bundle(*entries: Any, sender: str = "a", priority: int = 2) -> Bundle:
    """One entry for each: its rows, or its inputs."""
    payloads = [{"x": np.ones((entry, 2), np.float32)} if isinstance(entry, int) else entry for entry in entries]
    return Bundle([WireEntry(priority, 60.0, 1, "", payload) for payload in payloads], sender)


async def run(worker: Worker, *entries: Any, sender: str = "a") -> BundleResult:
    """Run a bundle, and again what comes back."""
    return await run_to_the_end(worker, bundle(*entries, sender=sender))


def told(*results: BundleResult) -> list[str]:
    """The verdicts that came with these answers."""
    return [result.joinable[""].verdict for result in results if result.joinable is not None]


async def begun(backend: Paced, runs: int = 1) -> None:
    """Wait in the event loop until so many runs have begun."""
    for _ in range(runs):
        assert await asyncio.get_running_loop().run_in_executor(None, lambda: backend.begun.acquire(timeout=30.0))


class Answered(Made):
    """As `Made`, and tells of each request that ran alone; `run` is for those that may share."""

    def __init__(self, answer: Any) -> None:
        super().__init__(answer)
        self.alone = asyncio.Semaphore(0)
        self.loop = asyncio.get_running_loop()

    def run_whole(self, inputs: Tensors) -> Tensors:
        """Answer, and tell."""
        outputs = self.run(inputs)
        self.loop.call_soon_threadsafe(self.alone.release)
        return outputs


async def test_a_deviation_in_service_ends_the_sharing(make_worker: MakeWorker) -> None:
    """Two requests share a run, one is run again and differs: the next two are run apart, and routers are told once.

    It is run once more with its last bits changed, to tell a difference from rounding.
    """
    backend = Answered(shifted(np.float32, 1.0))
    worker = make_worker(backend)
    first = await run(worker, 3, 3)
    await backend.alone.acquire()
    later = [await run(worker, 3, 3, sender=router) for router in "aabb"]
    assert [6, 3, 3, *[3, 3] * 4] == backend.runs
    assert (["dependent"], ["dependent"], (1, 1)) == (told(first, *later[:2]), told(*later[2:]), worker.verified)


async def test_without_a_share_nothing_runs_twice(make_worker: MakeWorker) -> None:
    """`verify: 0` is what it says."""
    backend = Answered(mirror)
    worker = make_worker(backend, verify=0.0)
    for _ in range(5):
        await run(worker, 2, 2)
    assert ([4] * 5, (0, 0)) == (backend.runs, worker.verified)


async def test_a_large_request_is_checked_too(make_worker: MakeWorker) -> None:
    """It was cut into pieces: alone it is run as a whole. One that had a run to itself is not run again."""
    backend = Answered(mirror)
    worker = make_worker(backend)
    await run(worker, 5)
    await run(worker, 11)
    await backend.alone.acquire()
    await run(worker, 1)
    assert ([5, 8, 3, 11, 1], (1, 0)) == (backend.runs, worker.verified)


@pytest.mark.parametrize("bundles", [[(1, 1, 1)], [(1,), (1,), (1,)], [(1, 1), (1,)]], ids=str)
async def test_a_build_that_nobody_could_try_is_tried_with_its_first_requests(
    make_worker: MakeWorker, bundles: list[tuple[int, ...]]
) -> None:
    """One by one until then, however they are bundled, and together afterwards."""
    backend = Answered(mirror)
    worker = make_worker(backend, PROVEN, verify=0.0)
    first = [await run(worker, *entries) for entries in bundles]
    for _ in range(3 + 2):  # the requests, and what tells whether the model is steady; then pairs
        await backend.alone.acquire()
    behind = await run(worker, 1)  # its turn comes behind the trial
    result = await run(worker, 1, 1, 1, 1)
    assert ([1, 1, 1], 4) == (backend.runs[:3], backend.runs[-1])
    assert ["exact"] == told(*first, behind, result)


async def test_a_request_that_can_try_nothing_is_answered(make_worker: MakeWorker) -> None:
    """Without rows, of uneven rows, or with an optional input: while a build is still to be tried."""
    backend = Answered(mirror)
    worker = make_worker(backend, PROVEN, inputs=2)
    uneven: Any = {"x": np.ones((3, 1), np.float32), "z": np.ones((1, 1), np.float32)}
    for payload in (0, uneven, {"x": np.ones((9, 1), np.float32), "z": np.float32(1), "w": np.float32(1)}):
        result = await run(worker, payload)
        assert isinstance(result.results[0], Success), result.results
    assert ([0, 3, 9], None) == (backend.runs, result.joinable)


async def test_a_check_waits_for_everything_else(make_worker: MakeWorker) -> None:
    """Bundles of the lowest class that are there before it go first."""
    backend = Paced(mirror)
    worker = make_worker(backend)
    running = [asyncio.ensure_future(worker.run(bundle(2, 2)))]
    await begun(backend)
    running += [asyncio.ensure_future(worker.run(bundle(5 + more, priority=3))) for more in range(2)]
    await asyncio.get_running_loop().run_in_executor(None, lambda: None)
    backend.go.release(4)
    await asyncio.gather(*running)
    await begun(backend, 3)
    await run_after(worker, backend)
    assert ([4, 5, 6, 2, 1], (1, 0)) == (backend.runs, worker.verified)


async def run_after(worker: Worker, backend: Paced) -> None:
    """Run one more request: when it is answered, what was before it is done."""
    backend.go.release()
    await run(worker, 1)


async def test_a_check_that_has_no_turn_is_dropped(make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a minute nobody asks any more; the next shared run is checked instead."""
    later, real = [0.0], time.monotonic
    backend = Paced(mirror)
    worker = make_worker(backend)
    monkeypatch.setattr("time.monotonic", lambda: real() + later[0])
    running = [asyncio.ensure_future(worker.run(bundle(2, 2)))]
    await begun(backend)
    running.append(asyncio.ensure_future(worker.run(bundle(7))))
    backend.go.release()
    await begun(backend)  # the second one runs, and the check of the first waits
    await asyncio.gather(running[0])
    later[0] = 61.0
    backend.go.release()
    await asyncio.gather(*running)
    backend.go.release(2)
    await run(worker, 3, 3)
    await begun(backend, 2)
    await run_after(worker, backend)
    assert ([4, 7, 6, 3, 1], (1, 0)) == (backend.runs, worker.verified)


async def test_classes_and_deadlines_order_what_runs_one_by_one(make_worker: MakeWorker) -> None:
    """No batch carries the less urgent along: each bundle has the session to itself, in the gate's order."""
    backend = Paced(mirror)
    worker = make_worker(backend, Joinable("whole", "no rows", rows=False), verify=0.0)

    def one(size: int, priority: int, budget_s: float) -> Bundle:
        return Bundle([WireEntry(priority, budget_s, 1, "", {"x": np.ones(size, np.float32)})], "a")

    running = [asyncio.ensure_future(worker.run(one(1, 2, 60.0)))]
    await begun(backend)
    waiting = [(6, 3, 20.0), (4, 2, 50.0), (3, 2, 40.0), (2, 1, 60.0), (5, 2, 55.0)]
    running += [asyncio.ensure_future(worker.run(one(*asked))) for asked in waiting]
    await asyncio.get_running_loop().run_in_executor(None, lambda: None)
    backend.go.release(len(running))
    results = await asyncio.gather(*running)
    assert [1, 2, 3, 4, 5, 6] == backend.runs
    assert [[1]] * 6 == [[execution.rows for execution in result.executions] for result in results]


async def test_only_the_request_that_no_model_takes_fails(make_worker: MakeWorker) -> None:
    """Of uneven rows, beside one that is run by itself and two that are joined."""

    def even(inputs: Tensors) -> Tensors:
        return {"y": inputs["x"] + inputs.get("z", np.float32(0))}

    backend = Made(even)
    worker = make_worker(backend, verify=0.0, inputs=2)
    entries: list[Any] = [{name: np.ones((rows, 1), np.float32) for name, rows in pair} for pair in _UNEVEN]
    result = await run(worker, *entries)
    kinds = [len(each.value["y"]) if isinstance(each, Success) else each.code for each in result.results]
    assert [1, 3, "invalid_request", 1] == kinds
    assert isinstance(result.results[2], Failure)


_UNEVEN = [[("x", 1)], [("x", 3), ("z", 1)], [("x", 3), ("z", 2)], [("x", 1)]]
