"""The runtime without Ray: a real scheduler and dispatcher, and a transport that tests steer."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from msgspec.structs import replace

from serve_app.domain.priority import Priority
from serve_app.domain.service import Answer, ModelInfo
from serve_app.payloads import (
    RETURNED,
    Bundle,
    BundleResult,
    Execution,
    ModelSignature,
    Payload,
    RequestAttributes,
    Success,
    Tensors,
)
from serve_app.processors.processor import Processor
from serve_app.replica.staged import Staged
from serve_app.replica.worker import RunBatch, RunOne, Worker
from serve_app.router.administration import RouterAdministration
from serve_app.router.answer_cache import AnswerCaches, ModelCacheSettings
from serve_app.router.dispatcher import Dispatcher, Work
from serve_app.router.inference import RouterInference
from serve_app.router.models import Models
from serve_app.router.parts import PartQueue
from serve_app.router.settings import RoutedModel
from serve_app.scheduling.entry import Entry
from serve_app.scheduling.scheduler import Scheduler
from serve_app.scheduling.settings import ClassSettings, ModelScheduling, ProcessLimits
from serve_app.telemetry.metrics import RouterMetrics
from serve_app.telemetry.trace import RequestTraces
from serve_app.transport.send import Recall, awaiting
from serve_app.transport.ties import TieTable

MODEL = "model"


class Transport:
    """A `Send` that keeps every bundle until the test answers it."""

    def __init__(self) -> None:
        self.sent: asyncio.Queue[Sent] = asyncio.Queue()

    async def __call__(self, model: str, bundle: Bundle, replica: str | None, nbytes: int) -> BundleResult:
        sent = Sent(model, bundle, replica, nbytes)
        self.sent.put_nowait(sent)
        return await sent.answer

    async def next(self) -> Sent:
        """The next bundle that the dispatcher sends."""
        return await self.sent.get()


class Sent:
    """One bundle on its way."""

    def __init__(self, model: str, bundle: Bundle, replica: str | None, nbytes: int) -> None:
        self.model = model
        self.bundle = bundle
        self.replica = replica
        self.nbytes = nbytes
        self.answer: asyncio.Future[BundleResult] = asyncio.get_running_loop().create_future()

    @property
    def values(self) -> list[Any]:
        """What the entries carry: the first number of each."""
        return [float(cast("Tensors", entry.payload)["x"].ravel()[0]) for entry in self.bundle.entries]

    def succeed(self, variant: str = "", seconds: float = 0.001) -> None:
        """Answer every entry with what it carries, as having run on this variant and taken so long."""
        results = [Success(entry.payload) for entry in self.bundle.entries]
        executions = [Execution(len(results), 0, seconds, variant)]
        self.answer.set_result(BundleResult(list(results), executions, 0.0, 0.0, 0.0))


class Paced:
    """A backend whose runs are let go one by one."""

    signature = ModelSignature((), ())

    def __init__(self, device: str = "cpu") -> None:
        self.device = device
        self.runs: list[list[float]] = []
        self.threads: list[int] = []
        self.begun = threading.Semaphore(0)
        self.go = threading.Semaphore(0)

    def load(self) -> None:
        """Nothing to load."""

    def run(self, inputs: Tensors) -> Tensors:
        """Note the first value of every row, and wait."""
        self.runs.append(inputs["x"].reshape(len(inputs["x"]), -1)[:, 0].tolist())
        self.threads.append(threading.get_ident())
        self.begun.release()
        assert self.go.acquire(timeout=30.0)
        return {"y": inputs["x"] + 1}

    run_whole = run

    def close(self) -> None:
        """Nothing to free."""


def classes(**changes: Any) -> dict[Priority, ClassSettings]:
    """Generous limits for every class."""
    settings: dict[str, Any] = {"queue_entries": 1000, "queue_bytes": 10**9, "timeout_s": 30.0, **changes}
    return {priority: ClassSettings(**settings) for priority in Priority}


def make_dispatcher(
    send: Callable[[str, Bundle, str | None, int], Awaitable[BundleResult]],
    *,
    max_rows: int = 4,
    window: int = 1,
    bundle_timeout_s: float = 60.0,
    replicas: tuple[str, ...] = ("a",),
    limits: dict[Priority, ClassSettings] | None = None,
    recall: Recall | None = None,
    ties: TieTable | None = None,
    executions: Sequence[tuple[int, int, float, str]] = (),
    fallbacks: tuple[str, ...] = (),
) -> tuple[Dispatcher, RouterMetrics]:
    """A dispatcher of one model with these replicas."""
    scheduler = Scheduler(
        [ModelScheduling(MODEL, max_rows=max_rows, slo_s=1.0, window=window, fallbacks=fallbacks)],
        limits or classes(),
        ProcessLimits(total_bytes=10**9),
    )
    metrics = RouterMetrics(scheduler)
    scheduler.seed(MODEL, executions)
    dispatcher = Dispatcher(scheduler, awaiting(send), metrics, bundle_timeout_s, recall, ties)
    dispatcher.on_replicas(MODEL, replicas)
    for replica in replicas:
        dispatcher.on_linked(MODEL, replica, linked=ties is not None)
    return dispatcher, metrics


class Serving(NamedTuple):
    """What a router puts around its dispatcher."""

    models: Models
    inference: RouterInference
    administration: RouterAdministration


def serve(
    info: ModelInfo,
    dispatcher: Dispatcher,
    metrics: RouterMetrics,
    *,
    processor: Processor | None = None,
    on_demand: bool = False,
    cache: ModelCacheSettings | None = None,
    caches: AnswerCaches | None = None,
    traces: RequestTraces | None = None,
) -> Serving:
    """Serve the one model of a dispatcher."""

    async def page() -> str:
        return metrics.render()

    models = Models(dispatcher, caches)
    inference = RouterInference(models, dispatcher, metrics, traces)
    administration = RouterAdministration(models, inference, dispatcher, metrics, page)
    scheduling = ModelScheduling(info.name, max_rows=info.max_rows, slo_s=1.0)
    models.add(RoutedModel(info=info, scheduling=scheduling, processor=processor, on_demand=on_demand, cache=cache))
    return Serving(models, inference, administration)


def tensor(*values: float) -> Tensors:
    """One row of numbers, as input ``x``."""
    return {"x": np.array([values], dtype=np.float32)}


def entry(
    payload: Payload,
    *,
    priority: Priority = Priority.NORMAL,
    timeout_s: float = 30.0,
    rows: int = 1,
    variant: str = "",
    exact: bool = False,
    tenant: str = "",
    parts: PartQueue | None = None,
) -> Entry:
    """An entry for `MODEL` that arrives now, for `Dispatcher.submit`."""
    now = time.monotonic()
    made = Entry(
        0,
        MODEL,
        priority,
        now,
        now + timeout_s,
        rows,
        0,
        8,
        Work(payload, variant, parts=parts),
        variant,
        exact=exact,
        attributes=RequestAttributes(tenant),
    )
    if parts is not None:
        made.answer_by = now + parts.limits.seconds
    return made


def submit(dispatcher: Dispatcher, payload: Payload, **options: Any) -> asyncio.Task[Answer]:
    """Submit in a task of its own; options as of `entry`."""
    return asyncio.ensure_future(dispatcher.submit(entry(payload, **options)))


def nothing_left(dispatcher: Dispatcher) -> bool:
    """Whether nothing is queued, running or counted any more."""
    totals, picture = dispatcher.scheduler.totals(), dispatcher.scheduler.snapshot()[MODEL]
    queued = sum(each["entries"] for each in totals["classes"].values())
    return (queued, totals["bytes"], totals["bundles"], picture["slots_in_use"]) == (0, 0, 0, 0)


def ended(metrics: RouterMetrics, outcome: str) -> float:
    """How many requests ended so."""
    labels = {"model": MODEL, "priority": "normal", "outcome": outcome}
    return metrics.registry.get_sample_value("serve_app_requests_total", labels) or 0.0


async def run_to_the_end(worker: Worker, bundle: Bundle) -> BundleResult:
    """Run a bundle, and again what comes back of it, as its router does: all results, and the runs of all parts."""
    result = await worker.run(bundle)
    again = [position for position, answer in enumerate(result.results) if answer == RETURNED]
    if not again:
        return result
    rest = await run_to_the_end(worker, Bundle([bundle.entries[position] for position in again], bundle.sender))
    for position, answer in zip(again, rest.results, strict=True):
        result.results[position] = answer
    works = [each.model_works for each in (result, rest) if each.model_works is not None]
    return replace(
        result,
        executions=[*result.executions, *rest.executions],
        model_works=all(works) if works else None,
        joinable=result.joinable or rest.joinable,
    )


def batch_same_turn(run_batch: RunBatch) -> RunOne:
    """Batches what is asked for in one turn of the event loop, as ``@serve.batch`` does with a wait of 0."""
    waiting: list[tuple[Staged, asyncio.Future[Staged]]] = []

    async def flush(batch: list[tuple[Staged, asyncio.Future[Staged]]]) -> None:
        try:
            results = await run_batch([staged for staged, _ in batch])
        except Exception as error:
            for _, future in batch:
                future.set_exception(error)
            return
        for (_, future), result in zip(batch, results, strict=True):
            if not future.done():
                future.set_result(result)

    tasks: set[asyncio.Task[None]] = set()

    def start() -> None:
        batch = [(staged, future) for staged, future in waiting if not future.cancelled()]
        waiting.clear()
        if batch:
            task = asyncio.ensure_future(flush(batch))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    async def run_one(staged: Staged) -> Staged:
        future: asyncio.Future[Staged] = asyncio.get_running_loop().create_future()
        if not waiting:
            asyncio.get_running_loop().call_soon(start)
        waiting.append((staged, future))
        return await future

    return run_one


async def acquired(semaphore: threading.Semaphore) -> None:
    """Wait in the event loop until a thread has released it."""
    assert await asyncio.get_running_loop().run_in_executor(None, lambda: semaphore.acquire(timeout=30.0))


async def settle() -> None:
    """Let everything that can happen without outside help happen."""
    for _ in range(10):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until it holds."""
    for _ in range(30_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came about")
