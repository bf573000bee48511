"""The session: whose turn it is, and in which thread, while the event loop is elsewhere."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from runtime_harness import Paced, acquired, batch_same_turn, run_to_the_end, tensor

from serve_app.payloads import RETURNED, Bundle, Execution, Failure, RequestAttributes, Success, Tensors, WireEntry
from serve_app.replica.worker import BatchTogether, RunBatch, RunOne, Worker
from serve_app.scheduling.settings import ModelScheduling

MakeWorker = Callable[..., Worker]


@pytest.fixture
def make_worker() -> Iterator[MakeWorker]:
    """Workers over a paced backend."""
    made: list[Worker] = []

    def worker(
        backend: Paced,
        *,
        batch: BatchTogether = batch_same_turn,
        max_rows: int = 1,
        run_s: float = 1.0,
        full_s: float | None = None,
        **scheduling: Any,
    ) -> Worker:
        made.append(
            Worker(
                scheduling=ModelScheduling("paced", max_rows, slo_s=60.0, **scheduling),
                backends={"": backend},
                processor=None,
                preprocess_threads=1,
                batch=batch,
                warm_up=[Execution(1, 0, run_s), Execution(max_rows, 0, full_s or run_s)],
            )
        )
        return made[-1]

    yield worker
    for each in made:
        each.close()


def bundle(*values: float, priority: int = 2, budget_s: float = 60.0, sender: str = "", width: int = 1) -> Bundle:
    """One entry per value."""
    return Bundle([WireEntry(priority, budget_s, 1, "", tensor(*[value] * width)) for value in values], sender)


async def begun(backend: Paced) -> None:
    """Wait in the event loop until the next run has begun."""
    await acquired(backend.begun)


class Unhurried(Paced):
    """Runs take as long as those of a real model, so that a batch waits for the rest of a burst."""

    def run(self, inputs: Tensors) -> Tensors:
        """Take a while, and note nothing."""
        time.sleep(0.005)
        return {"y": inputs["x"] + 1}

    run_whole = run


async def in_a_burst(worker: Worker, done: Callable[[list[Any]], bool]) -> list[Any]:
    """Results of two bundles that come together in a burst, of the first two of whom that is true."""
    for _ in range(4):
        await asyncio.gather(*(worker.run(bundle(float(value))) for value in range(16)))
    for _ in range(200):
        results = await asyncio.gather(*(worker.run(sent) for sent in (bundle(2.0, 3.0), bundle(4.0))))
        if done(results):
            return results
    raise AssertionError("they were never joined")


def first_values(results: list[Any]) -> list[Any]:
    """Of every entry of every bundle."""
    return [answer.value["y"][0, 0] for result in results for answer in result.results if isinstance(answer, Success)]


async def test_the_next_bundle_runs_without_the_event_loop(make_worker: MakeWorker) -> None:
    """The session's thread takes it from the gate, however long the event loop is busy."""
    backend = Paced()
    worker = make_worker(backend)
    running = [asyncio.ensure_future(worker.run(bundle(value))) for value in (1.0, 2.0)]
    await begun(backend)
    backend.go.release()
    # The event loop is kept from running until the second run has begun.
    assert backend.begun.acquire(timeout=30.0)
    backend.go.release()
    assert first_values(await asyncio.gather(*running)) == [2.0, 3.0]
    assert [[1.0], [2.0]] == backend.runs


async def test_bundles_that_waited_together_are_joined(make_worker: MakeWorker) -> None:
    """By ``batch``, when the time ends that they waited for: nothing ran, and no thread is there to take them."""
    joined: list[int] = []

    def batch(run_batch: RunBatch) -> RunOne:
        async def noting(bundles: list[Any]) -> Sequence[Any]:
            joined.append(len(bundles))
            return await run_batch(bundles)

        return batch_same_turn(noting)

    worker = make_worker(Unhurried(), batch=batch, max_rows=4, run_s=0.005)
    results = await in_a_burst(worker, lambda _: 2 in joined)
    assert first_values(results) == [3.0, 4.0, 5.0]


async def test_who_waits_for_the_rest_of_a_burst_is_answered(make_worker: MakeWorker) -> None:
    """Nothing else comes that would wake the session. What leaves meanwhile takes nobody along."""
    worker = make_worker(Unhurried(), max_rows=4, run_s=0.005)
    await in_a_burst(worker, lambda _: True)
    for _ in range(20):
        leaving, staying = (asyncio.ensure_future(worker.run(bundle(value))) for value in (1.0, 2.0))
        await asyncio.sleep(0)
        leaving.cancel()
        assert first_values([await staying]) == [3.0]


async def test_a_high_bundle_goes_first_and_what_had_no_room_beside_it_comes_back(make_worker: MakeWorker) -> None:
    """The bundle that waited fills the batch up; its answer does not wait for the rest of it."""
    backend = Paced()
    worker = make_worker(backend, max_rows=2)
    running = asyncio.ensure_future(worker.run(bundle(1.0)))
    await begun(backend)
    low = bundle(2.0, 3.0, 4.0, priority=3, sender="a")
    waiting = [asyncio.ensure_future(worker.run(sent)) for sent in (low, bundle(5.0, priority=1, sender="b"))]
    await asyncio.sleep(0)
    backend.go.release(2)
    first, split, high = await asyncio.gather(running, *waiting)
    assert first_values([first, high]) == [2.0, 6.0]
    assert split.results[1:] == [RETURNED] * 2
    assert first_values([split]) == [3.0]
    assert [2, 2] == [result.executions[0].rows for result in (split, high)]
    backend.go.release()
    assert first_values([await worker.run(Bundle(low.entries[1:], "a"))]) == [4.0, 5.0]
    assert [[1.0], [5.0, 2.0], [3.0, 4.0]] == backend.runs


async def test_entries_of_two_senders_share_batches_by_their_deadlines(make_worker: MakeWorker) -> None:
    """Whatever bundles they came in."""
    backend = Paced()
    worker = make_worker(backend, max_rows=2)
    running = [asyncio.ensure_future(worker.run(bundle(1.0)))]
    await begun(backend)
    for sender, budgets_s in (("a", (50.0, 30.0)), ("b", (40.0, 20.0))):
        entries = [WireEntry(2, budget_s, 1, "", tensor(budget_s)) for budget_s in budgets_s]
        running.append(asyncio.ensure_future(run_to_the_end(worker, Bundle(entries, sender))))
    await asyncio.sleep(0)
    backend.go.release(4)  # what comes back goes one by one, since nothing runs then
    assert first_values(await asyncio.gather(*running)) == [2.0, 51.0, 31.0, 41.0, 21.0]
    assert [[1.0], [20.0, 30.0]] == [sorted(run) for run in backend.runs[:2]]


async def test_tenants_share_the_gate_by_what_their_entries_say(make_worker: MakeWorker) -> None:
    """One that floods it keeps another waiting for a few runs, though the deadline of that is later."""
    backend = Paced()
    worker = make_worker(backend)
    running = [asyncio.ensure_future(worker.run(bundle(1.0)))]
    await begun(backend)
    entries = [WireEntry(2, 40.0, 1, "", tensor(2.0), attributes=RequestAttributes("flood"))] * 16
    entries.append(WireEntry(2, 50.0, 1, "", tensor(3.0), attributes=RequestAttributes("other")))
    running += [asyncio.ensure_future(worker.run(Bundle([entry], "router"))) for entry in entries]
    await asyncio.sleep(0)
    backend.go.release(18)
    await asyncio.gather(*running)
    assert backend.runs.index([3.0]) < 12


async def test_one_bundle_of_a_batch_counts_its_run(make_worker: MakeWorker) -> None:
    """However many share it, the metrics of all routers together count it once."""
    backend = Paced()
    worker = make_worker(backend, max_rows=4)
    running = [asyncio.ensure_future(worker.run(bundle(1.0)))]
    await begun(backend)
    running += [asyncio.ensure_future(worker.run(bundle(value, sender=f"{value}"))) for value in (2.0, 3.0, 4.0)]
    await asyncio.sleep(0)
    backend.go.release(2)
    results = await asyncio.gather(*running)
    assert [len(run) for run in backend.runs] == [1, 3]
    assert results[0].counts
    assert sum(result.counts for result in results[1:]) == 1


async def test_what_a_replica_may_have_died_of_shares_no_run(make_worker: MakeWorker) -> None:
    """Whichever routers such entries come from."""
    backend = Paced()
    worker = make_worker(backend, max_rows=4)
    running = [asyncio.ensure_future(worker.run(bundle(1.0)))]
    await begun(backend)
    for value, alone in ((2.0, True), (3.0, False), (4.0, True), (5.0, False)):
        entry = WireEntry(2, 60.0 + value, 1, "", tensor(value), unbatched=alone)
        running.append(asyncio.ensure_future(worker.run(Bundle([entry], f"router-{value}"))))
    await asyncio.sleep(0)
    backend.go.release(4)
    await asyncio.gather(*running)
    assert sorted(sorted(run) for run in backend.runs) == [[1.0], [2.0], [3.0, 5.0], [4.0]]


async def test_whoever_left_takes_the_rest_of_the_bundle_along(make_worker: MakeWorker) -> None:
    """Also when a part of it runs by then: nothing of it stays at the gate."""
    backend = Paced()
    worker = make_worker(backend, max_rows=2)
    leaving = asyncio.ensure_future(worker.run(bundle(1.0, 2.0, 3.0)))
    await begun(backend)
    leaving.cancel()
    following = asyncio.ensure_future(worker.run(bundle(4.0)))
    backend.go.release(2)
    assert first_values([await following]) == [5.0]
    assert [[1.0, 2.0], [4.0]] == backend.runs
    assert worker.stalled_s() == 0.0


async def test_an_answer_waits_for_those_of_its_bundle_that_expired_and_no_others(make_worker: MakeWorker) -> None:
    """One expired, one runs, and one comes back: the bundle is answered, and the session is free for the next."""
    backend = Paced()
    worker = make_worker(backend)
    running = asyncio.ensure_future(worker.run(bundle(1.0)))
    await begun(backend)
    mixed = Bundle([*bundle(2.0, budget_s=0.0).entries, *bundle(3.0).entries, *bundle(4.0).entries])
    waiting = asyncio.ensure_future(worker.run(mixed))
    await asyncio.sleep(0)
    backend.go.release(2)
    await running
    result = await waiting
    expired, ran, back = result.results
    assert isinstance(expired, Failure)
    assert (expired.code, back) == ("deadline_exceeded", RETURNED)
    assert isinstance(ran, Success)
    backend.go.release()
    assert first_values([await worker.run(bundle(5.0))]) == [6.0]


@pytest.mark.parametrize("budget_s", [0.0, -1.0])
async def test_a_bundle_that_expired_while_another_ran_has_waited_and_done_nothing(
    make_worker: MakeWorker, budget_s: float
) -> None:
    """What it is told of its time is waiting, and the session goes on."""
    backend = Paced()
    worker = make_worker(backend)
    running = asyncio.ensure_future(worker.run(bundle(1.0)))
    await begun(backend)
    waiting = asyncio.ensure_future(worker.run(bundle(2.0, 3.0, budget_s=budget_s)))
    await asyncio.sleep(0.02)
    backend.go.release(2)
    await running
    result = await waiting
    assert [answer.code for answer in result.results if isinstance(answer, Failure)] == ["deadline_exceeded"] * 2
    assert result.wait_s >= 0.02
    assert first_values([await worker.run(bundle(4.0, budget_s=float("inf")))]) == [5.0]
    assert [[1.0], [4.0]] == backend.runs


async def test_routers_are_told_how_much_there_is_to_do(make_worker: MakeWorker) -> None:
    """By whichever of them it was sent; nothing is left when all has run, however short that was."""
    backend = Paced()
    worker = make_worker(backend, run_s=5.0)
    running = [asyncio.ensure_future(worker.run(bundle(1.0, sender=sender))) for sender in "abc"]
    await begun(backend)
    backend.go.release()
    assert 5.0 < (await running[0]).backlog_s <= 10.0
    backend.go.release(2)
    await asyncio.gather(*running[1:])
    backend.go.release()
    assert (await worker.run(bundle(1.0))).backlog_s == 0.0


async def test_what_waits_commits_nobody(make_worker: MakeWorker) -> None:
    """A more urgent bundle that comes later goes first, and each runs once."""
    backend = Paced()
    worker = make_worker(backend, max_rows=2)
    running = [asyncio.ensure_future(worker.run(bundle(1.0)))]
    await begun(backend)
    running += [asyncio.ensure_future(worker.run(bundle(value))) for value in (2.0, 3.0)]
    for _ in range(20):
        await asyncio.sleep(0)
    running.append(asyncio.ensure_future(worker.run(bundle(4.0, 5.0, priority=1))))
    for _ in range(2):
        await asyncio.sleep(0)
    for _ in range(3):
        backend.go.release()
    assert first_values(await asyncio.gather(*running)) == [2.0, 3.0, 4.0, 5.0, 6.0]
    assert [[1.0], [4.0, 5.0], [2.0, 3.0]] == backend.runs


@pytest.mark.parametrize("run_s", [0.00001, 0.0009])
async def test_a_short_run_happens_in_the_event_loop(make_worker: MakeWorker, run_s: float) -> None:
    """No thread has to wake up for it."""
    backend = Paced()
    worker = make_worker(backend, run_s=run_s)
    backend.go.release()
    assert first_values([await worker.run(bundle(1.0))]) == [2.0]
    assert [threading.get_ident()] == backend.threads


@pytest.mark.parametrize(("device", "run_s"), [("cuda", 0.00001), ("cpu", 0.0011), ("cpu", 1.0)])
async def test_other_runs_leave_the_event_loop_alone(make_worker: MakeWorker, device: str, run_s: float) -> None:
    """Long ones, and those that wait for a GPU."""
    backend = Paced(device)
    worker = make_worker(backend, run_s=run_s)
    backend.go.release()
    assert first_values([await worker.run(bundle(1.0))]) == [2.0]
    assert threading.get_ident() not in backend.threads


@pytest.mark.parametrize("width", [1, 20_000])
async def test_an_entry_that_expires_while_it_waits_is_left_out(make_worker: MakeWorker, width: int) -> None:
    """Even though its bundle has been assembled."""
    backend = Paced("cuda")
    worker = make_worker(backend, max_rows=4, run_s=0.00001)
    running = asyncio.ensure_future(worker.run(bundle(1.0, width=width)))
    await begun(backend)
    mixed = bundle(2.0, 3.0, width=width)
    mixed.entries[0] = replace(mixed.entries[0], budget_s=0.05)
    waiting = asyncio.ensure_future(worker.run(mixed))
    await asyncio.sleep(0.1)
    backend.go.release(2)
    await running
    result = await waiting
    assert isinstance(result.results[0], Failure)
    assert result.results[0].code == "deadline_exceeded"
    assert first_values([result]) == [4.0]
    assert [[1.0], [3.0]] == backend.runs


async def test_a_fault_of_the_batcher_costs_nobody_anything(
    make_worker: MakeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    """Its bundles run without it, and so does the next one; the log says what happened."""

    def broken(_: RunBatch) -> RunOne:
        async def run_one(_: Any) -> Any:
            raise ZeroDivisionError("a secret")

        return run_one

    worker = make_worker(Unhurried(), batch=broken, max_rows=4, run_s=0.005)
    results = await in_a_burst(worker, lambda _: "could not join" in caplog.text)
    assert first_values(results) == [3.0, 4.0, 5.0]
    assert first_values([await worker.run(bundle(5.0))]) == [6.0]
    assert not worker.broken


async def test_a_join_that_is_cancelled_costs_nobody_anything(
    make_worker: MakeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever ``batch`` raises, the bundles run, and the session is free again."""
    cancelled = True

    def batch(run_batch: RunBatch) -> RunOne:
        together = batch_same_turn(run_batch)

        async def one(staged: Any) -> Any:
            if cancelled:
                raise asyncio.CancelledError
            return await together(staged)

        return one

    worker = make_worker(Unhurried(), batch=batch, max_rows=4, run_s=0.005)
    results = await in_a_burst(worker, lambda _: "could not join" in caplog.text)
    assert first_values(results) == [3.0, 4.0, 5.0]
    assert not worker.broken
    cancelled = False
    assert first_values(await in_a_burst(worker, lambda _: True)) == [3.0, 4.0, 5.0]


async def test_large_rows_that_lie_one_behind_the_other_run_where_they_lie(make_worker: MakeWorker) -> None:
    """As the transport delivers them."""
    seen: list[Any] = []

    class Looking(Paced):
        def run(self, inputs: Tensors) -> Tensors:
            seen.append(inputs["x"])
            return {"y": inputs["x"]}

        run_whole = run

    whole = np.arange(3 * 20_000, dtype=np.float32).reshape(3, 20_000)
    worker = make_worker(Looking(), max_rows=4)
    result = await worker.run(Bundle([WireEntry(2, 60.0, 1, "", {"x": whole[row : row + 1]}) for row in range(3)]))
    assert np.shares_memory(seen[0], whole)
    assert first_values([result]) == [0.0, 20_000.0, 40_000.0]


async def test_whoever_leaves_while_it_waits_is_not_run(make_worker: MakeWorker) -> None:
    """Also when the session's thread asks the gate before the event loop has told it."""
    backend = Paced()
    worker = make_worker(backend)
    running = [asyncio.ensure_future(worker.run(bundle(value))) for value in (1.0, 2.0, 3.0)]
    await begun(backend)
    running[1].cancel()
    backend.go.release()
    assert backend.begun.acquire(timeout=30.0)
    backend.go.release()
    results = await asyncio.gather(*running, return_exceptions=True)
    assert isinstance(results[1], asyncio.CancelledError)
    assert first_values([results[0], results[2]]) == [2.0, 4.0]
    assert [[1.0], [3.0]] == backend.runs


@pytest.mark.parametrize("device", ["cpu", "cuda"])
async def test_everybody_gets_their_own_answer_whatever_happens_beside_them(
    make_worker: MakeWorker, device: str
) -> None:
    """Bundles of three routers, of all sizes and classes, some of whose callers leave at any moment."""

    class Quick(Paced):
        def run(self, inputs: Tensors) -> Tensors:
            return {"y": inputs["x"] + 1}

        run_whole = run

    random = Random(7)
    worker = make_worker(Quick(device), max_rows=8, run_s=0.00001)

    async def client(number: int) -> None:
        for _ in range(40):
            values = [float(random.randrange(1000)) for _ in range(random.randint(1, 5))]
            sent = bundle(*values, priority=random.randint(1, 3), sender=f"router-{number % 3}")
            running = asyncio.ensure_future(run_to_the_end(worker, sent))
            if random.random() < 0.2:
                for _ in range(random.randrange(8)):
                    await asyncio.sleep(0)
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
            else:
                assert first_values([await running]) == [value + 1 for value in values]

    await asyncio.wait_for(asyncio.gather(*(client(number) for number in range(12))), 60.0)


async def test_what_waits_when_it_is_closed_goes_back_to_its_router(make_worker: MakeWorker) -> None:
    """At once, and not at its deadline; so does what comes later. What runs is answered."""
    backend = Paced()
    worker = make_worker(backend)
    runs = asyncio.ensure_future(worker.run(bundle(1.0)))
    await begun(backend)
    waits = asyncio.ensure_future(worker.run(bundle(2.0, 3.0)))
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(asyncio.to_thread(worker.close))
    async with asyncio.timeout(30.0):
        assert (await waits).results == [RETURNED, RETURNED]
        assert (await worker.run(bundle(4.0))).results == [RETURNED]
    assert not runs.done()
    backend.go.release()
    assert first_values([await runs]) == [2.0]
    await closing
    assert backend.runs == [[1.0]]


async def test_what_is_joined_when_it_is_closed_goes_back_to_its_router(make_worker: MakeWorker) -> None:
    """It was let through, and no thread runs it any more."""
    joined: list[int] = []
    ends = asyncio.Event()

    def batch(run_batch: RunBatch) -> RunOne:
        async def noting(bundles: list[Any]) -> Sequence[Any]:
            joined.append(len(bundles))
            if ends.is_set():
                await asyncio.to_thread(worker.close)
            return await run_batch(bundles)

        return batch_same_turn(noting)

    worker = make_worker(Unhurried(), batch=batch, max_rows=4, run_s=0.005)
    async with asyncio.timeout(60.0):
        await in_a_burst(worker, lambda _: 2 in joined)
        joined.clear()
        ends.set()
        while not joined:
            results = await asyncio.gather(*(worker.run(sent) for sent in (bundle(2.0, 3.0), bundle(4.0))))
    assert [result.results for result in results] == [[RETURNED, RETURNED], [RETURNED]]
