"""What all baselines share: the way of a request to its model's queue, replicas, executions, and what is known before.

A baseline is a `Baseline`: it keeps one `ModelServer` per model, and that one decides. Every baseline has the same
information as the scheduler that it is compared with (`known_latency`), pays what overheads it would really pay, and
lets a newer frame of a video stream cancel the waiting one, as a client does that closes its call.

A batch in which the replica dies is lost, its requests are not tried again: none of these systems does that by itself.
A replica in which a batch failed gets nothing more.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import inf
from typing import ClassVar

from serve_app.scheduling.batching.latency import LatencyModel
from serve_app.scheduling.demand import ModelDemand
from serve_app_simulator.scenario import Scenario, SimulatedModel, Stream
from serve_app_simulator.system import Execution, Hop, Request, World

ROUNDING_S = 1e-9
"""Sums of virtual times differ by rounding: what is late by less than this is in time, for the world as well."""


class Worker:
    """A replica as a baseline sees it.

    Attributes:
        name: The replica's name.
        running: What it executes or has just executed; ``None`` when it can begin another batch.
        lost: Whether a batch failed there.
        listed: Whether it is in the latest list of replicas.
    """

    __slots__ = ("listed", "lost", "name", "running")

    def __init__(self, name: str) -> None:
        self.name = name
        self.running: list[Request] | None = None
        self.lost = False
        self.listed = True

    @property
    def usable(self) -> bool:
        """Whether it may get more work."""
        return self.listed and not self.lost


class ModelServer(ABC):
    """Serves one model. Subclasses decide; this class runs what they decided.

    Args:
        world: Of the simulation.
        model: The model.
        latency: What predicts its executions, for those that predict.
        remote: Whether batches travel from a router to replicas in other processes. Otherwise the process that answers
            clients composes them, and nothing travels.

    Attributes:
        send_s: Mean way to a replica, seconds.
        answer_s: Mean way back to the client, seconds.
        waiting_rows: Rows whose execution has not begun.
        cancelled: Whether a waiting request was cancelled since a subclass has looked; it may still be in a queue.
    """

    def __init__(
        self, world: World, model: SimulatedModel, latency: LatencyModel | None = None, *, remote: bool = False
    ) -> None:
        self.world = world
        self.name = model.scheduling.name
        self._model = model
        self._latency = latency
        self._seen = {0} if latency is None else set(latency.buckets)
        self.max_rows = model.scheduling.max_rows
        self.remote = remote
        overheads = world.overheads
        self.send_s = overheads.send_s * overheads.mean_factor if remote else 0.0
        self.answer_s = (overheads.answer_s if remote else overheads.direct_s) * overheads.mean_factor
        self._answers_by: Hop = "answer" if remote else "direct"
        self.waiting_rows = 0
        self.cancelled = False
        self._frames: dict[int, Request] = {}

    @abstractmethod
    def enqueue(self, request: Request) -> None:
        """A request has reached the system."""

    @abstractmethod
    def joined(self, name: str) -> None:
        """A replica is new in the list."""

    @abstractmethod
    def left(self, name: str) -> None:
        """A replica is not in the list any more. What it executes ends by itself."""

    @abstractmethod
    def finished(self, worker: Worker, requests: list[Request], rows: int, bucket: int, seconds: float) -> None:
        """An execution has ended, its requests are answered, and the replica can begin the next."""

    @abstractmethod
    def lost(self, worker: Worker) -> None:
        """An execution has failed; its requests are dropped and the replica is not `Worker.usable` any more."""

    def enter(self, request: Request) -> None:
        """Take a request that has reached the system."""
        if request.ended is not None:
            return
        self.waiting_rows += request.rows
        if request.bucket not in self._seen:
            self._seen.add(request.bucket)
            if self._latency is not None:
                _seed(self._latency, self._model, request.bucket)
        if request.stream >= 0:
            former = self._frames.get(request.stream)
            self._frames[request.stream] = request
            if former is not None and former.ended is None:
                former.replaced = True
                self.drop(former)
                self.cancelled = True
        self.enqueue(request)

    def travel(self, action: Callable[[], None]) -> None:
        """Do this when a message that leaves now has reached a replica."""
        hop_s = self.world.hop_s("send") if self.remote else 0.0
        if hop_s > 0.0:
            self.world.at(self.world.now + hop_s, action)
        else:
            action()

    def drop(self, request: Request) -> None:
        """A waiting request gets no answer."""
        self.waiting_rows -= request.rows
        self.world.drop(request)

    def execute(self, worker: Worker, requests: list[Request]) -> None:
        """Begin an execution at an idle worker."""
        rows = bucket = 0
        for request in requests:
            rows += request.rows
            bucket = max(bucket, request.bucket)
            if request.stream >= 0 and self._frames.get(request.stream) is request:
                del self._frames[request.stream]
        self.waiting_rows -= rows
        worker.running = requests
        self.world.execute(self.name, worker.name, requests, rows, bucket, partial(self._ended, worker, rows, bucket))

    def _ended(self, worker: Worker, rows: int, bucket: int, execution: Execution) -> None:
        requests = worker.running
        assert requests is not None
        if execution.failed:
            worker.running = None
            worker.lost = True
            for request in requests:
                self.world.drop(request)
            self.lost(worker)
            return
        answer = self.world.answer
        for request in requests:
            answer(request, None, self._answers_by)
        ready = self.world.ready_at(worker.name)
        free = partial(self._freed, worker, requests, rows, bucket, execution.seconds)
        if ready > self.world.now:
            self.world.at(ready, free)
        else:
            free()

    def _freed(self, worker: Worker, requests: list[Request], rows: int, bucket: int, seconds: float) -> None:
        worker.running = None
        self.finished(worker, requests, rows, bucket, seconds)


class Baseline(ABC):
    """A serving system made of one `ModelServer` per model; see `serve_app_simulator.system.System`.

    Attributes:
        name: What it is called in results.
    """

    name: ClassVar[str]

    def __init__(self) -> None:
        self._servers: dict[str, ModelServer] = {}
        self._names: dict[str, list[str]] = {}

    @abstractmethod
    def serve(self, world: World, model: SimulatedModel) -> ModelServer:
        """What serves one model."""

    def start(self, world: World) -> None:
        """See `System.start`."""
        self._servers = {model.scheduling.name: self.serve(world, model) for model in world.scenario.models}

    def replicas(self, model: str, names: Sequence[str]) -> None:
        """See `System.replicas`."""
        server, former = self._servers[model], self._names.get(model, [])
        self._names[model] = list(names)
        for name in former:
            if name not in names:
                server.left(name)
        for name in names:
            if name not in former:
                server.joined(name)

    def arrive(self, request: Request) -> None:
        """See `System.arrive`."""
        self._servers[request.model].enter(request)

    def read_demand(self, model: str) -> ModelDemand:  # noqa: ARG002 - counts nothing
        """See `System.read_demand`."""
        return ModelDemand()

    def queued_rows(self, model: str) -> int:
        """See `System.queued_rows`."""
        return self._servers[model].waiting_rows


class Rate:
    """Rows per second, as the mean over the last whole intervals.

    Args:
        interval_s: Length of an interval.
        intervals: How many count.
    """

    __slots__ = ("_counts", "_current", "_interval_s", "_next", "_sum")

    def __init__(self, interval_s: float, intervals: int) -> None:
        self._interval_s = interval_s
        self._counts: deque[int] = deque(maxlen=intervals)
        self._sum = 0
        self._current = 0
        self._next = -inf

    @property
    def per_s(self) -> float | None:
        """The rate; ``None`` before the first interval has ended."""
        return self._sum / (len(self._counts) * self._interval_s) if self._counts else None

    def count(self, rows: int, now: float) -> bool:
        """Count rows that arrive. Returns whether the rate has changed."""
        if now < self._next:
            self._current += rows
            return False
        if self._next == -inf:
            self._next = now + self._interval_s
            self._current = rows
            return False
        assert self._counts.maxlen is not None
        for _ in range(self._counts.maxlen + 1):
            if len(self._counts) == self._counts.maxlen:
                self._sum -= self._counts[0]
            self._counts.append(self._current)
            self._sum += self._current
            self._current = 0
            self._next += self._interval_s
            if now < self._next:
                break
        else:
            self._next = now + self._interval_s
        self._current = rows
        return True


def known_latency(scenario: Scenario, model: SimulatedModel, quantile: float = 0.95, window: int = 32) -> LatencyModel:
    """A latency model that has seen the profile of a model, if there is one.

    Args:
        scenario: Its workload names the cost buckets. Further ones, of a trace, are seeded when they are met.
        model: Its curve is read only where it is ``known``.
        quantile: See `LatencyModel`.
        window: See `LatencyModel`.
    """
    latency = LatencyModel(quantile, window)
    for bucket in sorted({stream.bucket for stream in _streams(scenario, model)} or {0}):
        _seed(latency, model, bucket)
    return latency


def _seed(latency: LatencyModel, model: SimulatedModel, bucket: int) -> None:
    if model.known:
        most = model.scheduling.max_rows
        sizes = sorted({1 << power for power in range(most.bit_length())} | {most})
        latency.seed((rows, bucket, model.curve(rows, bucket)) for rows in sizes)


def objective_s(scenario: Scenario, model: SimulatedModel) -> float:
    """The one latency objective that an operator would give a model: its shortest timeout, seconds.

    The model's own setting where the workload names none, as with a trace.
    """
    timeouts = [
        stream.timeouts_s.get(priority, stream.timeout_s)
        for stream in _streams(scenario, model)
        if stream.kind != "trace"
        for priority in (stream.share or (stream.priority,))
    ]
    return min(timeouts, default=model.scheduling.slo_s)


def _streams(scenario: Scenario, model: SimulatedModel) -> Iterable[Stream]:
    name = model.scheduling.name
    return (s for s in scenario.workload if s.model == name or s.kind == "long_tail" or not s.model)
