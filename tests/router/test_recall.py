"""What nobody waits for any more is asked back from the gate of the replica that it was sent to, and does not run."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest
from link_calls import ask
from runtime_harness import (
    MODEL,
    Paced,
    Transport,
    acquired,
    batch_same_turn,
    ended,
    entry,
    make_dispatcher,
    nothing_left,
    settle,
    submit,
    tensor,
    until,
)

from serve_app.domain.priority import Priority
from serve_app.domain.service import Answer
from serve_app.payloads import RETURNED, Bundle, BundleResult, Execution, Media, Success, Tensors, Texts, WireEntry
from serve_app.processors.processor import Cost, Processor
from serve_app.replica.worker import Worker
from serve_app.router.dispatcher import Dispatcher
from serve_app.scheduling.settings import ModelScheduling
from serve_app.transport.frames import encode_recall
from serve_app.transport.link_server import LinkServer
from serve_app.transport.replica_link import ReplicaLink, connect
from serve_app.transport.ties import TieTable

needs_link = pytest.mark.skipif(not LinkServer.supported(), reason="needs Linux's sockets and memory files")


class Making:
    """A processor that makes a number of a text, one after the other, when it is let."""

    task = "test"
    labels: tuple[str, ...] = ()
    buckets = (1,)
    bucket_invariant = True

    def __init__(self) -> None:
        self.made: list[str] = []
        self.begun = threading.Semaphore(0)
        self.go = threading.Semaphore(0)

    def estimate(self, payload: Media | Texts) -> Cost:
        """One row."""
        return Cost(1, 1)

    lengths = Processor.lengths
    cut = Processor.cut

    def preprocess(self, payload: Media | Texts) -> Tensors:
        """Note it, and wait."""
        assert isinstance(payload, Texts)
        text = payload.texts[0]
        assert isinstance(text, str)
        self.made.append(text)
        self.begun.release()
        assert self.go.acquire(timeout=30.0)
        return tensor(float(text))

    def bucket(self, tensors: Tensors) -> int:
        """The only one."""
        return 1

    def pad(self, tensors: Tensors, bucket: int) -> Tensors:
        """Nothing to do."""
        return tensors

    def example(self, rows: int, bucket: int) -> Tensors:
        """An input."""
        return {"x": np.zeros((rows, bucket), np.float32)}

    def postprocess(self, payload: Media | Texts, outputs: Tensors, inputs: Tensors | None = None) -> Any:
        """The number."""
        return float(outputs["y"][0, 0])


class Stage:
    """Workers over a paced backend."""

    def __init__(self) -> None:
        self.backend = Paced()
        self.workers: list[Worker] = []

    def worker(self, *, max_rows: int = 4, processor: Making | None = None, run_s: float = 1.0) -> Worker:
        """One worker."""
        self.workers.append(
            Worker(
                scheduling=ModelScheduling(MODEL, max_rows, slo_s=60.0),
                backends={"": self.backend},
                processor=processor,
                preprocess_threads=1,
                batch=batch_same_turn,
                warm_up=[Execution(1, 1 if processor else 0, run_s), Execution(max_rows, 0, run_s)],
            )
        )
        return self.workers[-1]

    async def begun(self) -> None:
        """Wait in the event loop until the next run has begun."""
        await acquired(self.backend.begun)


@pytest.fixture
def stage() -> Iterator[Stage]:
    """A stage, whose workers are closed at the end."""
    made = Stage()
    yield made
    for worker in made.workers:
        worker.close()


def bundle(*values: float) -> Bundle:
    """One entry per value, as a link brings it."""
    return Bundle([WireEntry(2, 60.0, 1, "", tensor(value)) for value in values], "router", set())


def recall(worker: Worker, sent: Bundle, *positions: int) -> None:
    """Do what a link does."""
    assert isinstance(sent.recalled, set)
    sent.recalled.update(positions)
    worker.recall(sent)


def values(result: BundleResult) -> list[float | None]:
    """Per entry what it was answered; ``None`` for one that comes back."""
    answers = [None if answer == RETURNED else answer for answer in result.results]
    assert all(answer is None or isinstance(answer, Success) for answer in answers)
    return [float(answer.value["y"][0, 0]) if isinstance(answer, Success) else None for answer in answers]


# ------------------------------------------------------------------ the session


async def test_what_is_recalled_at_the_gate_does_not_run(stage: Stage) -> None:
    """The rest of its bundle does, and is answered."""
    worker = stage.worker()
    running = asyncio.ensure_future(worker.run(bundle(1.0)))
    await stage.begun()
    sent = bundle(2.0, 3.0, 4.0)
    waiting = asyncio.ensure_future(worker.run(sent))
    await asyncio.sleep(0)
    recall(worker, sent, 1)
    stage.backend.go.release(2)
    assert values(await waiting) == [3.0, None, 5.0]
    assert values(await running) == [2.0]
    assert stage.backend.runs == [[1.0], [2.0, 4.0]]


async def test_a_bundle_of_which_nothing_is_left_is_answered_at_once(stage: Stage) -> None:
    """While what it waited for runs; recalled in two parts, one of them twice."""
    worker = stage.worker()
    running = asyncio.ensure_future(worker.run(bundle(1.0)))
    await stage.begun()
    sent = bundle(2.0, 3.0)
    waiting = asyncio.ensure_future(worker.run(sent))
    await asyncio.sleep(0)
    recall(worker, sent, 0)
    recall(worker, sent, 0)
    recall(worker, sent, 0, 1)
    result = await waiting
    assert (values(result), result.executions) == ([None, None], [])
    assert not running.done()
    stage.backend.go.release()
    await running
    assert stage.backend.runs == [[1.0]]
    assert not worker.broken


async def test_what_runs_or_has_ended_is_left_alone(stage: Stage) -> None:
    """So is a bundle that is not known."""
    worker = stage.worker()
    sent = bundle(1.0, 2.0)
    running = asyncio.ensure_future(worker.run(sent))
    await stage.begun()
    recall(worker, sent, 0)
    recall(worker, bundle(1.0, 2.0), 0)
    stage.backend.go.release()
    assert values(await running) == [2.0, 3.0]
    recall(worker, sent, 1)
    stage.backend.go.release()
    assert values(await worker.run(bundle(5.0))) == [6.0]
    assert stage.backend.runs == [[1.0, 2.0], [5.0]]


async def test_what_is_recalled_while_it_is_preprocessed_does_not_run(stage: Stage) -> None:
    """What is not decoded by then never is."""
    processor = Making()
    worker = stage.worker(processor=processor)
    sent = Bundle([WireEntry(2, 60.0, 1, "", Texts([text], {})) for text in ("1", "2", "3")], "router", set())
    running = asyncio.ensure_future(worker.run(sent))
    await acquired(processor.begun)
    recall(worker, sent, 0, 1)
    processor.go.release(3)
    stage.backend.go.release()
    result = await running
    assert result.results == [RETURNED, RETURNED, Success(4.0)]
    assert processor.made == ["1", "3"]
    assert stage.backend.runs == [[3.0]]


async def test_a_bundle_that_is_recalled_before_it_is_at_the_gate_never_waits(stage: Stage) -> None:
    """All of it, while its first entry is decoded."""
    processor = Making()
    worker = stage.worker(processor=processor)
    sent = Bundle([WireEntry(2, 60.0, 1, "", Texts(["1"], {}))], "router", set())
    running = asyncio.ensure_future(worker.run(sent))
    await acquired(processor.begun)
    recall(worker, sent, 0)
    processor.go.release()
    result = await running
    assert (result.results, result.executions, stage.backend.runs) == ([RETURNED], [], [])


# ------------------------------------------------------------------ the link


class Ends(NamedTuple):
    """Links to some workers.

    Attributes:
        links: One each.
        lost: Set when one has ended.
        told: Released whenever a worker was told of a recall.
    """

    links: list[ReplicaLink]
    lost: asyncio.Event
    told: asyncio.Semaphore


@asynccontextmanager
async def linked(*workers: Worker) -> AsyncIterator[Ends]:
    """A link to each worker."""
    lost, told = asyncio.Event(), asyncio.Semaphore(0)

    def telling(worker: Worker, sent: Bundle) -> None:
        worker.recall(sent)
        told.release()

    servers = [LinkServer(MODEL, worker.run, partial(telling, worker)) for worker in workers]
    links = [await connect(server.address, "r", TieTable(), None, lost.set) for server in servers]
    yield Ends(links, lost, told)
    for link in links:
        link.close()
    for server in servers:
        server.close()


@needs_link
async def test_a_recall_travels_by_the_link(stage: Stage) -> None:
    """Also right behind its bundle; what is no entry is ignored, and the call of the rest goes on."""
    worker = stage.worker()
    async with linked(worker) as ([link], lost, told):
        running = asyncio.ensure_future(ask(link, bundle(1.0)))
        await stage.begun()
        sent = bundle(2.0, 3.0)
        waiting = asyncio.ensure_future(ask(link, sent))
        await asyncio.sleep(0)
        link.recall(sent, [1, 1, 7, -1])
        await told.acquire()
        stage.backend.go.release(2)
        assert values(await waiting) == [3.0, None]
        assert values(await running) == [2.0]
        assert stage.backend.runs == [[1.0], [2.0]]
        assert not lost.is_set()


@needs_link
async def test_a_recall_of_what_is_not_there_changes_nothing(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """A call that never was, one that has been answered, and a bundle that was never sent: the link stays up."""
    caplog.set_level(logging.DEBUG, "serve_app")
    worker = stage.worker()
    async with linked(worker) as ([link], lost, _):
        sent = bundle(1.0)
        stage.backend.go.release(2)
        await ask(link, sent)
        link.recall(sent, [0])
        link.recall(bundle(1.0), [0])
        link.write(encode_recall(1, [0]))
        link.write(encode_recall(99, [0]))
        assert values(await ask(link, bundle(2.0))) == [3.0]
        assert not lost.is_set()
    assert [record.levelno for record in caplog.records if "recalled" in record.message] == [logging.DEBUG] * 2


# ------------------------------------------------------------------ the router


def slots(dispatcher: Dispatcher) -> int:
    """Bundles in flight."""
    in_use: int = dispatcher.scheduler.snapshot()[MODEL]["slots_in_use"]
    return in_use


def by(links: Sequence[ReplicaLink]) -> dict[str, Any]:
    """The ways of a dispatcher whose replicas are these, named by their numbers."""

    async def send(_: str, sent: Bundle, replica: str | None, __: int) -> BundleResult:
        return await ask(links[int(replica or 0)], sent)

    def recall(sent: Bundle, replica: str | None, positions: Sequence[int]) -> None:
        links[int(replica or 0)].recall(sent, positions)

    return {"send": send, "recall": recall, "replicas": tuple(str(number) for number in range(len(links)))}


async def test_whose_client_leaves_is_recalled_in_one_message_per_bundle() -> None:
    """Of two bundles; nobody is asked for what is queued."""
    transport = Transport()
    asked: list[tuple[Bundle, str | None, Sequence[int]]] = []
    dispatcher, metrics = make_dispatcher(
        transport, window=1, replicas=("a", "b"), recall=lambda *message: asked.append(message)
    )
    tasks = [submit(dispatcher, tensor(value)) for value in range(8)]
    sent = [await transport.next() for _ in range(2)]
    tasks += [submit(dispatcher, tensor(8 + value)) for value in range(2)]
    await asyncio.sleep(0)
    for place in (1, 2, 7, 9):
        tasks[place].cancel()
    await settle()
    assert [(message[0] is each.bundle, *message[1:]) for message, each in zip(asked, sent, strict=True)] == [
        (True, "a", [1, 2]),
        (True, "b", [3]),
    ]
    for each in sent:
        each.succeed()
    (await transport.next()).succeed()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(answer, Answer) for answer in answers) == 6
    assert [ended(metrics, outcome) for outcome in ("ok", "cancelled")] == [6, 4]
    assert nothing_left(dispatcher)


async def test_who_cannot_recall_lets_it_run() -> None:
    """As by Serve's handle."""
    transport = Transport()
    dispatcher, _ = make_dispatcher(transport)
    leaving, staying = submit(dispatcher, tensor(1)), submit(dispatcher, tensor(2))
    sent = await transport.next()
    leaving.cancel()
    await settle()
    sent.succeed()
    assert (await staying).value == {"x": tensor(2)["x"]}
    assert dispatcher.scheduler.snapshot()[MODEL]["wasted_rows"] == 1
    assert nothing_left(dispatcher)


@needs_link
async def test_who_leaves_at_the_gate_costs_no_run_from_end_to_end(stage: Stage) -> None:
    """One client leaves, and one is answered early with what came another way; both are counted as before."""
    async with linked(stage.worker()) as (links, _, _):
        dispatcher, metrics = make_dispatcher(**by(links), window=4)
        entries: list[Any] = []
        first = submit(dispatcher, tensor(1))
        await stage.begun()
        leaving = submit(dispatcher, tensor(2))
        await until(lambda: slots(dispatcher) == 2)
        staying = submit(dispatcher, tensor(3))
        await until(lambda: slots(dispatcher) == 3)
        early = asyncio.ensure_future(dispatcher.submit(entry(tensor(4)), entries.append))
        await until(lambda: slots(dispatcher) == 4)
        leaving.cancel()
        answer = Answer("early", Priority.NORMAL, 0.0, 0.0)
        assert dispatcher.end_early(entries[0], answer)
        assert await early == answer
        await until(lambda: slots(dispatcher) == 2)
        stage.backend.go.release(2)
        assert [float((await task).value["y"][0, 0]) for task in (first, staying)] == [2.0, 4.0]
        assert stage.backend.runs == [[1.0], [3.0]]
        assert dispatcher.scheduler.snapshot()[MODEL]["wasted_rows"] == 0
        assert [ended(metrics, outcome) for outcome in ("ok", "cancelled")] == [2, 1]
        assert nothing_left(dispatcher)


@needs_link
async def test_whoever_leaves_others_get_their_own_answers(stage: Stage) -> None:
    """Of three routers at two replicas: all classes, many who leave at any moment, and nothing is left behind."""
    random = Random(5)
    workers = [stage.worker(run_s=0.001) for _ in range(2)]
    stage.backend.go.release(10_000)

    async def client(router: Dispatcher) -> int:
        answered = 0
        for _ in range(30):
            value = float(random.randrange(1000))
            task = submit(router, tensor(value), priority=random.choice(tuple(Priority)))
            if random.random() < 0.5:
                for _ in range(random.randrange(30)):
                    await asyncio.sleep(0)
                task.cancel()
            try:
                assert float((await task).value["y"][0, 0]) == value + 1
            except asyncio.CancelledError:
                continue
            answered += 1
        return answered

    async with linked(*workers) as one, linked(*workers) as two, linked(*workers) as three:
        routers = [make_dispatcher(**by(each.links), window=4)[0] for each in (one, two, three)]
        async with asyncio.timeout(60.0):
            answered = await asyncio.gather(*(client(routers[number % 3]) for number in range(24)))
            assert sum(answered) > 24 * 30 / 3
            await until(lambda: all(map(nothing_left, routers)))
    assert not any(worker.broken for worker in workers)
