"""Which build of a model answers an entry, and what becomes of entries that none can answer in time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import pytest
from runtime_harness import MODEL, Sent, Transport, batch_same_turn, classes, entry, submit, tensor

from serve_app.domain.service import Answer
from serve_app.errors import DeadlineExceeded, InferenceFailed, ModelUnavailable
from serve_app.payloads import Bundle, BundleResult, Execution, Joinable, ModelSignature, Success, Tensors
from serve_app.replica.joining import Joining
from serve_app.replica.worker import Worker
from serve_app.router.dispatcher import Dispatcher
from serve_app.scheduling.scheduler import Scheduler
from serve_app.scheduling.settings import ModelScheduling, ProcessLimits
from serve_app.telemetry.metrics import RouterMetrics
from serve_app.transport.send import Call, awaiting

TOO_LONG_S = 1000.0
QUICK_S = 0.001


class Line:
    """A dispatcher of a model with one replica, which gets one batch at a time."""

    def __init__(self, send: Call, replicas: tuple[str, ...] = ("a",), **settings: Any) -> None:
        model = ModelScheduling(MODEL, max_rows=4, slo_s=1.0, window=1, **settings)
        self.scheduler = Scheduler([model], classes(), ProcessLimits(total_bytes=10**9))
        self.metrics = RouterMetrics(self.scheduler)
        self.dispatcher = Dispatcher(self.scheduler, awaiting(send), self.metrics, 60.0)
        self.dispatcher.on_replicas(MODEL, replicas)

    def submit(self, value: float, **options: Any) -> asyncio.Task[Answer]:
        """Submit one row in a task of its own."""
        return submit(self.dispatcher, tensor(value), **options)

    def learn(self, **seconds: float) -> None:
        """From now on every batch of ``exact`` or of a variant is predicted to take so long."""
        self.scheduler.seed(MODEL, profile(**seconds))

    def count(self, name: str, **labels: str) -> float:
        """A counter of the metrics page."""
        return self.metrics.registry.get_sample_value(name, {"model": MODEL, "priority": "normal", **labels}) or 0.0


class Constant:
    """A backend that gives the same for every row, and notes how many it was asked for."""

    device = "cpu"
    signature = ModelSignature((), ())

    def __init__(self, value: float) -> None:
        self.value = value
        self.runs: list[int] = []

    def load(self) -> None:
        """Nothing to load."""

    def run(self, inputs: Tensors) -> Tensors:
        """Give it."""
        self.runs.append(len(inputs["x"]))
        return {"y": np.full((len(inputs["x"]), 1), self.value, np.float32)}

    run_whole = run

    def close(self) -> None:
        """Nothing to free."""


class Replica:
    """A `Send` to a worker of an exact model, which gives 1, and its variant ``int8``, which gives 8."""

    def __init__(self, verdicts: Mapping[str, Joinable], seconds: Mapping[str, float], **settings: Any) -> None:
        self.joining = Joining(MODEL, verdicts)
        self.exact, self.int8 = Constant(1.0), Constant(8.0)
        self.worker = Worker(
            scheduling=ModelScheduling(MODEL, max_rows=4, slo_s=1.0, **settings),
            backends={"": self.exact, "int8": self.int8},
            processor=None,
            preprocess_threads=1,
            batch=batch_same_turn,
            warm_up=profile(**seconds),
            joining=self.joining,
        )

    async def __call__(self, model: str, bundle: Bundle, replica: str | None, nbytes: int) -> BundleResult:
        return await self.worker.run(bundle)


@pytest.fixture
def make_line() -> Iterator[Callable[..., tuple[Line, Replica]]]:
    """A dispatcher of a model that a real worker serves."""
    made: list[Replica] = []

    def line(
        *, verdicts: Mapping[str, Joinable] = MappingProxyType({}), seconds: Mapping[str, float], **settings: Any
    ) -> tuple[Line, Replica]:
        replica = Replica(verdicts, seconds, **settings)
        made.append(replica)
        return Line(replica, **settings), replica

    yield line
    for replica in made:
        replica.worker.close()


def profile(**seconds: float) -> list[Execution]:
    """A warm-up of ``exact`` and of variants: every batch takes so long."""
    return [
        Execution(rows, 0, taken_s, "" if name == "exact" else name)
        for name, taken_s in seconds.items()
        for rows in (1, 4)
    ]


MakeLine: TypeAlias = Callable[..., tuple[Line, Replica]]


def answer(sent: Sent, variant: str) -> None:
    """Answer a bundle, having run it on this variant."""
    results = [Success(entry.payload) for entry in sent.bundle.entries]
    sent.answer.set_result(BundleResult(list(results), [Execution(len(results), 0, QUICK_S, variant)], 0.0, 0.0, 0.0))


async def test_what_cannot_be_in_time_any_more_is_given_up_at_once(make_line: MakeLine) -> None:
    """Its client is told well before its deadline, it is not executed, and metrics tell it from what expired."""
    line, replica = make_line(seconds={"exact": TOO_LONG_S})
    with pytest.raises(DeadlineExceeded, match="could not finish before its deadline"):
        async with asyncio.timeout(10.0):  # not wait_for, which keeps the error's task in a cycle
            await line.submit(1)
    assert replica.exact.runs == []
    assert line.count("serve_app_requests_total", outcome="given_up") == 1
    assert line.count("serve_app_requests_total", outcome="deadline_exceeded") == 0
    assert line.metrics.statistics(MODEL).failed == 1


async def test_a_fallback_answers_where_the_exact_model_would_be_too_late(make_line: MakeLine) -> None:
    """The replica decides it, the client is told what ran, and it is counted."""
    line, replica = make_line(seconds={"exact": TOO_LONG_S, "int8": QUICK_S}, fallbacks=("int8",))
    found = await asyncio.gather(*(line.submit(value) for value in range(3)))
    assert [(answer.variant, answer.value["y"][0, 0]) for answer in found] == [("int8", 8.0)] * 3
    assert (replica.exact.runs, replica.int8.runs) == ([], [3])
    assert line.count("serve_app_fallback_answers_total", variant="int8") == 3
    assert line.count("serve_app_requests_total", outcome="ok") == 3
    assert line.scheduler.latency(MODEL, "int8").known
    assert not line.scheduler.latency(MODEL).known


async def test_the_exact_model_answers_where_it_can(make_line: MakeLine) -> None:
    """A fallback that is quicker is not asked then."""
    line, replica = make_line(seconds={"exact": 2 * QUICK_S, "int8": QUICK_S}, fallbacks=("int8",))
    assert (await line.submit(1)).variant == ""
    assert (replica.exact.runs, replica.int8.runs) == ([1], [])


async def test_an_entry_that_forbids_fallbacks_gets_none(make_line: MakeLine) -> None:
    """It is given up instead, and its neighbour is not."""
    line, replica = make_line(seconds={"exact": TOO_LONG_S, "int8": QUICK_S}, fallbacks=("int8",))
    strict, lax = line.submit(1, exact=True), line.submit(2)
    assert (await lax).variant == "int8"
    with pytest.raises(DeadlineExceeded):
        async with asyncio.timeout(10.0):  # not wait_for, which keeps the error's task in a cycle
            await strict
    assert replica.exact.runs == []


async def test_a_fallback_whose_requests_share_no_runs_runs_them_one_by_one(make_line: MakeLine) -> None:
    """Each in a turn of its own, until it is found that they may: whatever the exact model's may."""
    apart = {"": Joinable("exact", "same bits"), "int8": Joinable("dependent", "measured")}
    line, replica = make_line(verdicts=apart, seconds={"exact": TOO_LONG_S, "int8": QUICK_S}, fallbacks=("int8",))
    found = await asyncio.gather(*(line.submit(value) for value in range(3)))
    assert [answer.variant for answer in found] == ["int8"] * 3
    assert replica.int8.runs == [1] * 3
    replica.joining.change("int8", Joinable("close", "measured again"))
    await asyncio.gather(*(line.submit(value) for value in range(3)))
    assert replica.int8.runs == [1, 1, 1, 3]


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
        await line.dispatcher.submit(entry(tensor(1), timeout_s=0.02))
    waking.cancel()
