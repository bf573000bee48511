"""Batches that are put on the device while another one runs. The CPU is the device: all else is as on a GPU."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_models
import pytest
from runtime_harness import batch_same_turn, run_to_the_end, tensor

from serve_app.inference.memory import HostMemory
from serve_app.inference.onnx import OnnxBackend, OnnxSettings
from serve_app.payloads import Bundle, BundleResult, Execution, Success, WireEntry
from serve_app.runtime.ahead import Ahead, Ready
from serve_app.runtime.staged import Staged
from serve_app.runtime.worker import Worker
from serve_app.scheduling.settings import ModelScheduling

WIDTH = 20_000  # values of a row: more than is worth no thread
ROW = 4 * WIDTH


class SteeredMemory(HostMemory):
    """The host's memory. It notes what is copied to the device; a run ends, by copying back, when the test lets it.

    Attributes:
        uploads: Per copy its bytes and its thread.
        begun: Runs that wait to end.
        go: Lets them.
        most: Most runs at once.
    """

    def __init__(self) -> None:
        self.uploads: SimpleQueue[tuple[int, int]] = SimpleQueue()
        self.begun = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.most = 0
        self._running = 0

    def upload(self, array: npt.NDArray[Any], address: int) -> None:
        super().upload(array, address)
        self.uploads.put((array.nbytes, threading.get_ident()))

    def download(self, address: int, array: npt.NDArray[Any]) -> None:
        self._running += 1
        self.most = max(self.most, self._running)
        self.begun.release()
        assert self.go.acquire(timeout=30.0)
        super().download(address, array)
        self._running -= 1


class Stage:
    """A worker, its backend and its device."""

    def __init__(self, path: Path, max_rows: int, **settings: Any) -> None:
        self.memory = SteeredMemory()
        self.backend = OnnxBackend(OnnxSettings("m", path, device="cpu", **settings), lambda: self.memory)
        self.backend.load()
        self.worker = Worker(
            scheduling=ModelScheduling("m", max_rows, slo_s=60.0),
            backends={"": self.backend},
            processor=None,
            preprocess_threads=2,
            batch=batch_same_turn,
            warm_up=[Execution(1, 0, 1.0), Execution(max_rows, 0, 1.0)],
        )

    def send(self, *values: float, **options: Any) -> asyncio.Future[BundleResult]:
        """Run a bundle of one entry per value."""
        return asyncio.ensure_future(self.worker.run(bundle(*values, **options)))

    async def begun(self) -> None:
        """Wait until the next run is under way."""
        assert await asyncio.get_running_loop().run_in_executor(None, lambda: self.memory.begun.acquire(timeout=30.0))

    async def uploaded(self, rows: int) -> int:
        """Wait until a batch of so many rows has been copied to the device. Returns the thread that has done it."""
        while True:
            nbytes, thread = await asyncio.get_running_loop().run_in_executor(
                None, lambda: self.memory.uploads.get(timeout=30.0)
            )
            if nbytes == rows * ROW:
                return thread

    async def nothing_held(self) -> None:
        """Wait until no batch has buffers; a thread may just be about to discard one."""
        async with asyncio.timeout(30.0):
            while self.backend.held:  # noqa: ASYNC110 - nobody tells of it
                await asyncio.sleep(0)


@pytest.fixture
def stage(make_model: Callable[[onnx_models.Kind], Path]) -> Iterator[Callable[..., Stage]]:
    """Makes workers on backends that prepare, and closes them."""
    made: list[Stage] = []

    def make(kind: onnx_models.Kind = "add_one", *, max_rows: int = 4, **settings: Any) -> Stage:
        made.append(Stage(make_model(kind), max_rows, **settings))
        return made[-1]

    yield make
    for each in made:
        each.memory.go.release(100)
        each.worker.close()


def bundle(*values: float, priority: int = 2, budget_s: float = 60.0, sender: str = "", width: int = WIDTH) -> Bundle:
    """One entry per value."""
    return Bundle([WireEntry(priority, budget_s, 1, "", tensor(*[value] * width)) for value in values], sender)


def values(result: BundleResult) -> list[Any]:
    """Per entry the first value of its output, or the code of its error."""
    return [answer.value["y"][0, 0] if isinstance(answer, Success) else answer.code for answer in result.results]


async def test_a_bundle_is_prepared_while_another_runs(stage: Callable[..., Stage]) -> None:
    """In a thread of its own, and once: what was prepared is what runs."""
    at = stage()
    first = at.send(1.0)
    await at.begun()
    session = await at.uploaded(1)
    second = at.send(2.0, 3.0)
    assert await at.uploaded(2) not in {session, threading.get_ident()}
    assert at.backend.held == 2
    at.memory.go.release(2)
    assert [values(result) for result in await asyncio.gather(first, second)] == [[2.0], [3.0, 4.0]]
    assert at.memory.uploads.empty()
    await at.nothing_held()


async def test_a_bundle_of_one_entry_is_prepared_too(stage: Callable[..., Stage]) -> None:
    """It need not be joined, but copied."""
    at = stage()
    first = at.send(1.0)
    await at.begun()
    session = await at.uploaded(1)
    second = at.send(2.0)
    assert await at.uploaded(1) != session
    at.memory.go.release(2)
    assert [values(result) for result in await asyncio.gather(first, second)] == [[2.0], [3.0]]
    assert at.memory.uploads.empty()


async def test_a_few_kilobytes_are_copied_at_their_turn(stage: Callable[..., Stage]) -> None:
    """By the session's thread, which has it done before another one has woken up."""
    at = stage()
    running = [at.send(value, value, width=1) for value in (1.0, 2.0)]
    await at.begun()
    assert at.backend.held == 1
    at.memory.go.release(2)
    assert [values(result) for result in await asyncio.gather(*running)] == [[2.0, 2.0], [3.0, 3.0]]
    assert len({at.memory.uploads.get()[1] for _ in range(2)}) == 1
    assert at.memory.uploads.empty()


async def test_bundles_that_go_together_are_prepared_together(stage: Callable[..., Stage]) -> None:
    """What was prepared of one of them is discarded."""
    at = stage()
    first = at.send(1.0)
    await at.begun()
    second = at.send(2.0, 3.0)
    await at.uploaded(2)
    third = at.send(4.0)
    await at.uploaded(3)
    at.memory.go.release(2)
    results = await asyncio.gather(first, second, third)
    assert [values(result) for result in results] == [[2.0], [3.0, 4.0], [5.0]]
    assert [run.rows for run in results[2].executions] == [3]
    assert at.memory.uploads.empty()
    await at.nothing_held()


async def test_the_gate_may_decide_otherwise(stage: Callable[..., Stage]) -> None:
    """What is more urgent goes first, and what was prepared before gives way."""
    at = stage(max_rows=2)
    first = at.send(1.0)
    await at.begun()
    second = at.send(2.0, 3.0)
    await at.uploaded(2)
    urgent = at.send(4.0, 5.0, priority=1)
    await at.uploaded(2)
    assert at.backend.held == 2
    at.memory.go.release()
    await at.begun()
    assert values(await first) == [2.0]
    at.memory.go.release()
    assert values(await urgent) == [5.0, 6.0]
    at.memory.go.release()
    assert values(await second) == [3.0, 4.0]
    await at.nothing_held()


async def test_a_bundle_of_which_a_part_runs_is_not_run_as_it_was_prepared(stage: Callable[..., Stage]) -> None:
    """Something more urgent takes the rest of the room: what was prepared is discarded, and the rest comes back."""
    at = stage(max_rows=4)
    first = at.send(1.0)
    await at.begun()
    second = at.send(2.0, 3.0, 4.0)
    await at.uploaded(3)
    urgent = at.send(5.0, 6.0, priority=1)
    await at.uploaded(2)
    at.memory.go.release(2)
    assert values(await first) == [2.0]
    assert values(await urgent) == [6.0, 7.0]
    assert values(await second) == [3.0, 4.0, "returned"]
    await at.nothing_held()


async def test_a_fault_in_preparing_ahead_leaves_nobody_waiting(
    stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It costs those who wait then, and the health check tells."""
    at = stage()
    first = at.send(1.0)
    await at.begun()

    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(Ahead, "want", broken)
        assert values(await at.send(2.0)) == ["inference_failed"]
    assert at.worker.broken
    at.memory.go.release(2)
    await first
    assert values(await at.send(3.0)) == [4.0]


@pytest.mark.parametrize("all_of_it", [True, False])
async def test_what_has_expired_is_not_run_as_it_was_prepared(stage: Callable[..., Stage], all_of_it: bool) -> None:
    """Not at all, or only those of its entries that have time."""
    at = stage()
    first = at.send(1.0)
    await at.begun()
    late = bundle(2.0, 3.0)
    late.entries[:] = [
        entry._replace(budget_s=-1.0) if all_of_it or index == 0 else entry for index, entry in enumerate(late.entries)
    ]
    second = asyncio.ensure_future(at.worker.run(late))
    await at.uploaded(2)
    at.memory.go.release(2)
    assert values(await first) == [2.0]
    assert values(await second) == ["deadline_exceeded", "deadline_exceeded" if all_of_it else 4.0]
    await at.nothing_held()


async def test_whoever_leaves_frees_the_buffers(stage: Callable[..., Stage]) -> None:
    """At once, and not when something else is to run."""
    at = stage()
    first = at.send(1.0)
    await at.begun()
    leaving = at.send(2.0, 3.0)
    await at.uploaded(2)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    at.memory.go.release(2)
    assert values(await first) == [2.0]
    assert values(await at.send(4.0)) == [5.0]
    await at.nothing_held()


async def test_when_a_prepared_batch_fails_its_entries_run_one_by_one(stage: Callable[..., Stage]) -> None:
    """Only the guilty one is told so."""
    at = stage("fail_on_negative")
    first = at.send(1.0)
    await at.begun()
    second = at.send(2.0, -3.0, 4.0)
    await at.uploaded(3)
    at.memory.go.release(5)
    assert values(await first) == [1.0]
    assert values(await second) == [2.0, "inference_failed", 4.0]
    await at.nothing_held()


async def test_entries_that_do_not_fit_together_are_not_prepared(stage: Callable[..., Stage]) -> None:
    """They run as they would otherwise."""
    at = stage()
    first = at.send(1.0)
    await at.begun()
    odd = Bundle(bundle(2.0).entries + bundle(3.0, width=WIDTH + 1).entries)
    second = asyncio.ensure_future(at.worker.run(odd))
    at.memory.go.release(3)
    assert [values(result) for result in await asyncio.gather(first, second)] == [[2.0], [3.0, 4.0]]
    await at.nothing_held()


@pytest.mark.parametrize("graphs", [False, True])
async def test_everybody_gets_their_own_answer(stage: Callable[..., Stage], graphs: bool) -> None:
    """Bundles of three routers, of all sizes and classes, some of which are late, and some of whose callers leave."""
    at = stage("fail_on_negative", max_rows=8, row_sizes=(1, 4, 8), cuda_graphs=graphs)
    at.memory.go.release(100_000)
    random = Random(7)

    async def client(number: int) -> None:
        for _ in range(25):
            sent = [float(random.randrange(-20, 1000)) for _ in range(random.randint(1, 5))]
            options: dict[str, Any] = {"priority": random.randint(1, 3), "sender": f"router-{number % 3}"}
            asked = bundle(*sent, **options, width=random.choice((1, WIDTH)))
            running = asyncio.ensure_future(run_to_the_end(at.worker, asked))
            if random.random() < 0.2:
                for _ in range(random.randrange(8)):
                    await asyncio.sleep(0)
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
            else:
                assert values(await running) == [value if value >= 0 else "inference_failed" for value in sent]

    await asyncio.wait_for(asyncio.gather(*(client(number) for number in range(8))), 60.0)
    assert at.memory.most == 1
    assert values(await at.send(1.0)) == [1.0]  # nothing runs any more of those who left
    await at.nothing_held()


class Making:
    """Prepares bundles on a backend when the test lets it, for an `Ahead` without a worker."""

    def __init__(self, backend: OnnxBackend) -> None:
        self.backend = backend
        self.begun = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.done: list[Future[None]] = []
        self.pool = ThreadPoolExecutor(1)
        self.ahead = Ahead(self.prepare, self.submit)

    def submit(self, work: Callable[[], None], /) -> None:
        self.done.append(self.pool.submit(work))

    def prepare(self, bundles: Any) -> Ready:
        self.begun.release()
        assert self.go.acquire(timeout=30.0)
        return Ready(bundles, self.backend, self.backend.prepare([staged.tensors[0] for staged in bundles]))


@pytest.fixture
def making(make_model: Callable[[onnx_models.Kind], Path]) -> Iterator[Making]:
    """With threads, which are ended."""
    backend = OnnxBackend(OnnxSettings("m", make_model("add_one"), device="cpu"), HostMemory)
    backend.load()
    made = Making(backend)
    yield made
    made.go.release(100)
    made.pool.shutdown()
    backend.close()


def staged(value: float) -> Staged:
    """A bundle of one entry that is worth a thread."""
    tensors = {"x": np.full((1, WIDTH), value, np.float32)}
    return Staged([WireEntry(2, 60.0, 1, "", tensors)], [60.0], [tensors], [None], rows=1, counts=[1], nbytes=ROW)


def test_what_is_in_the_making_is_waited_for(making: Making) -> None:
    """By whoever wants to run just that; it is theirs then."""
    bundles = [staged(1.0), staged(2.0)]
    making.ahead.want(bundles)
    assert making.begun.acquire(timeout=30.0)
    making.go.release()
    ready = making.ahead.take(bundles[::-1])
    assert ready is not None
    assert list(ready.bundles) == bundles
    batch = ready.claim()
    assert batch is not None
    ready.discard()  # changes nothing any more
    assert making.backend.held == 1
    assert making.backend.run_prepared(batch)["y"][:, 0].tolist() == [2.0, 3.0]
    assert making.backend.held == 0


def test_what_has_not_begun_is_not_waited_for(making: Making) -> None:
    """Whoever runs prepares it in less time."""
    making.pool.submit(making.go.acquire)
    bundles = [staged(1.0)]
    making.ahead.want(bundles)
    assert making.ahead.take(bundles) is None
    making.go.release()
    making.done[0].result(30.0)
    assert not making.begun.acquire(blocking=False)


def test_only_the_latest_wish_is_prepared(making: Making) -> None:
    """What is in the making meanwhile is discarded when it is done, and what nobody has begun is left."""
    bundles = [staged(value) for value in (1.0, 2.0, 3.0)]
    making.ahead.want(bundles[:1])
    assert making.begun.acquire(timeout=30.0)
    making.ahead.want(bundles[:2])
    making.ahead.want(bundles[2:])
    making.go.release(2)
    making.done[0].result(30.0)
    assert len(making.done) == 1
    assert making.backend.held == 1
    ready = making.ahead.take(bundles[2:])
    assert ready is not None
    ready.discard()
    assert making.backend.held == 0


@pytest.mark.parametrize("end", ["forget", "take another", "want nothing", "close"])
@pytest.mark.parametrize("finished", [True, False])
def test_what_is_not_run_is_discarded(making: Making, end: str, finished: bool) -> None:
    """However it comes about, and whether it is ready or still in the making."""
    one = staged(1.0)
    making.ahead.want([one])
    assert making.begun.acquire(timeout=30.0)
    if finished:
        making.go.release()
        making.done[0].result(30.0)
        assert making.backend.held == 1
    if end == "forget":
        making.ahead.forget(one)
    elif end == "take another":
        assert making.ahead.take([staged(1.0)]) is None
    elif end == "want nothing":
        making.ahead.want([])
    else:
        making.go.release()
        making.ahead.close()
        making.ahead.want([one])
    making.go.release()
    making.done[0].result(30.0)
    assert making.backend.held == 0
    assert len(making.done) == 1


def test_without_threads_nothing_is_prepared(making: Making) -> None:
    """A worker that is closed ends them first."""
    making.pool.shutdown()
    bundles = [staged(1.0)]
    making.ahead.want(bundles)
    assert making.ahead.take(bundles) is None
