"""Answers in parts on their way out of a replica."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runtime_harness import batch_same_turn
from streaming_models import ask, write

from serve_app.backends.kind import BuildSettings
from serve_app.backends.python.kind import PYTHON
from serve_app.payloads import (
    EXPIRED,
    RETURNED,
    Bundle,
    BundleResult,
    Failure,
    Streamed,
    StreamLimits,
    Success,
    Tensors,
    WireEntry,
)
from serve_app.replica.joining import Joining
from serve_app.replica.parts import Outlet
from serve_app.replica.worker import Worker
from serve_app.scheduling.settings import ModelScheduling

LIMITS = StreamLimits(seconds=60.0, parts=4, nbytes=1000, reader_s=30.0)


def part(nbytes: int = 10) -> Tensors:
    """One part."""
    return {"y": np.zeros(nbytes, np.uint8)}


class Sent:
    """What has left, by number."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def __call__(self, number: int, waited_s: float, outputs: Tensors) -> None:
        self.numbers.append(number)


def outlet(sent: Sent | None, first_by: float = inf, **limits: Any) -> Outlet:
    """Where parts leave; within ample time unless told otherwise."""
    return Outlet(LIMITS._replace(**limits), sent, first_by)


@pytest.mark.parametrize(("nbytes", "most"), [(10, 4), (400, 2), (1001, 1)], ids=["parts", "bytes", "a large one"])
def test_no_more_leave_than_may_be_under_way(nbytes: int, most: int) -> None:
    """The next waits until the reader has taken some."""
    sent = Sent()
    way = outlet(sent)
    with ThreadPoolExecutor(1) as session:
        assert session.submit(lambda: [way.put(part(nbytes)) for _ in range(most)]).result() == [None] * most
        waiting = session.submit(way.put, part(nbytes))
        assert not waiting.done()
        way.taken(1)
        assert waiting.result() is None
    assert sent.numbers == list(range(most + 1))


def test_a_reader_that_takes_nothing_is_not_waited_for_any_longer() -> None:
    """The session is for others."""
    way = outlet(Sent(), parts=1, reader_s=0.01)
    assert way.put(part()) is None
    ended = way.put(part())
    assert ended is not None
    assert ended.code == "slow_reader"


def test_who_waits_is_told_that_nobody_wants_the_rest() -> None:
    """The first reason counts."""
    way = outlet(Sent(), parts=1)
    with ThreadPoolExecutor(1) as session:
        assert session.submit(way.put, part()).result() is None
        waiting = session.submit(way.put, part())
        way.stop(RETURNED)
        assert waiting.result() == RETURNED
    way.stop(EXPIRED)
    assert way.stopped == RETURNED


def test_parts_after_their_time_are_not_wanted() -> None:
    """The first after its deadline, and any after that of the whole."""
    assert outlet(Sent(), first_by=time.monotonic()).put(part()) == EXPIRED
    assert outlet(Sent(), seconds=0.0).put(part()) == EXPIRED


def test_without_a_way_parts_are_collected() -> None:
    """Up to a bound, and while the first would be in time."""
    way = outlet(None, parts=1)
    assert [way.put(part()) for _ in range(9)] == [None] * 9
    assert (way.count, len(way.collected)) == (9, 9)
    ended = way.put(part(65 * 2**20))
    assert ended is not None
    assert "64 MiB together" in ended.message


# --- In a worker ------------------------------------------------------------------------------------------------------


class Reader:
    """Takes the parts of a bundle's answers, and tells that it has."""

    def __init__(self, *, reads: bool = True) -> None:
        self.numbers: list[int] = []
        self.first = asyncio.Event()
        self._reads = reads
        self._taken: Callable[[int], None] = lambda _: None

    def send(self, position: int, number: int, waited_s: float, outputs: Tensors) -> None:
        assert outputs["i"].tolist() == [number]
        self.numbers.append(number)
        self.first.set()
        if self._reads:
            self._taken(1)

    def on_taken(self, position: int, taken: Callable[[int], None]) -> None:
        self._taken = taken


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    """Counts in parts."""
    options = PYTHON.options.model_validate(write(tmp_path, "count")["backend_options"])
    file = tmp_path / "count" / "model.py"
    described = PYTHON.inspect(file, "count", options)
    assert described.streams
    backend = PYTHON.create(BuildSettings("count", file), options)
    backend.load()
    made = Worker(
        scheduling=ModelScheduling("count", 1, slo_s=60.0),
        backends={"": backend},
        processor=None,
        preprocess_threads=1,
        batch=batch_same_turn,
        joining=Joining("count"),
    )
    yield made
    made.close()


def bundle(reader: Reader | None, n: int, fail_at: int = -1, **limits: Any) -> Bundle:
    """One request."""
    entry = WireEntry(2, 30.0, 1, "", ask(n, fail_at), stream=LIMITS._replace(**limits))
    return Bundle([entry], "router", set(), parts=reader)


def outcome(result: BundleResult) -> Any:
    """How the answer has ended: how many parts it had, or the code of its error."""
    (found,) = result.results
    if isinstance(found, Failure):
        return found.code
    assert isinstance(found, Success)
    assert isinstance(found.value, Streamed)
    return found.value.parts


async def test_parts_leave_before_the_result(worker: Worker) -> None:
    """The time until the first is what a run has taken."""
    reader = Reader()
    result = await worker.run(bundle(reader, 100))
    assert (outcome(result), reader.numbers) == (100, list(range(100)))
    assert [execution.rows for execution in result.executions] == [1]


async def test_an_error_ends_the_answer(worker: Worker) -> None:
    """After the parts before it."""
    reader = Reader()
    assert outcome(await worker.run(bundle(reader, 10, fail_at=3))) == "inference_failed"
    assert reader.numbers == [0, 1, 2]


async def test_a_recall_ends_what_runs(worker: Worker) -> None:
    """Also where it waits for its reader."""
    for reads in (True, False):
        reader = Reader(reads=reads)
        sent = bundle(reader, -1)
        running = asyncio.ensure_future(worker.run(sent))
        await reader.first.wait()
        assert isinstance(sent.recalled, set)
        sent.recalled.add(0)
        worker.recall(sent)
        assert outcome(await running) == "returned"


async def test_a_bundle_whose_router_is_gone_ends(worker: Worker) -> None:
    """And the next one runs."""
    reader = Reader(reads=False)
    running = asyncio.ensure_future(worker.run(bundle(reader, -1)))
    await reader.first.wait()
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert outcome(await worker.run(bundle(Reader(), 3))) == 3


async def test_a_worker_that_closes_ends_what_it_gives(worker: Worker) -> None:
    """It does not wait for a reader then."""
    reader = Reader(reads=False)
    running = asyncio.ensure_future(worker.run(bundle(reader, -1)))
    await reader.first.wait()
    await asyncio.to_thread(worker.close)
    assert outcome(await running) == "model_unavailable"


async def test_a_slow_reader_ends_its_answer(worker: Worker) -> None:
    """After as many parts as may be under way."""
    reader = Reader(reads=False)
    assert outcome(await worker.run(bundle(reader, -1, reader_s=0.05))) == "slow_reader"
    assert reader.numbers == [0, 1, 2, 3]


async def test_a_session_that_waits_for_a_reader_does_not_stall(worker: Worker) -> None:
    """A slow client has no replica replaced, whatever the limits are."""
    reader = Reader(reads=False)
    sent = bundle(reader, -1)
    running = asyncio.ensure_future(worker.run(sent))
    await reader.first.wait()
    while worker.stalled_s():  # noqa: ASYNC110 - in another thread: nobody tells
        await asyncio.sleep(0)
    assert isinstance(sent.recalled, set)
    sent.recalled.add(0)
    worker.recall(sent)
    assert outcome(await running) == "returned"


async def test_without_a_way_parts_come_with_the_result(worker: Worker) -> None:
    """All of them."""
    (found,) = (await worker.run(bundle(None, 7))).results
    assert isinstance(found, Success)
    assert [each["i"].tolist() for each in found.value.collected] == [[n] for n in range(7)]
