"""Scenarios and small systems for tests of the simulator, with values that a test names only where they matter."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from serve_app.domain.priority import Priority
from serve_app.scheduling.demand import ModelDemand
from serve_app.scheduling.settings import ClassSettings, ModelScheduling
from serve_app_simulator.scenario import Affine, Scenario, SimulatedModel, Stream
from serve_app_simulator.system import Execution, Request, World
from serve_app_simulator.workloads import Arrivals

HIGH, NORMAL, LOW = Priority


def make_classes(min_share: float = 0.05, entries: int = 100_000) -> Mapping[Priority, ClassSettings]:
    """Roomy classes; the lower ones have a guaranteed share."""
    return {
        priority: ClassSettings(entries, 1 << 50, 10.0, min_share=0.0 if priority is HIGH else min_share)
        for priority in Priority
    }


def make_model(
    name: str = "m", *, max_rows: int = 8, slo_s: float = 0.1, window: int = 2, **more: Any
) -> SimulatedModel:
    """A model of 5 ms and 1 ms per row, unless a curve is given."""
    more.setdefault("curve", Affine(0.005, 0.001))
    return SimulatedModel(ModelScheduling(name, max_rows, slo_s, window), **more)


def make_scenario(*streams: Stream, **more: Any) -> Scenario:
    """One model ``m`` for 10 s, unless said otherwise."""
    more.setdefault("models", (make_model(),))
    more.setdefault("duration_s", 10.0)
    more.setdefault("classes", make_classes())
    more.setdefault("workload", streams)
    return Scenario("test", **more)


def make_arrivals(*requests: tuple[float, float], models: Sequence[str] = ("m",), rows: int = 1) -> Arrivals:
    """Arrivals of ``(arrival, deadline)``, all of the first model and class ``normal``."""
    count = len(requests)

    def column(value: int) -> Any:
        return np.full(count, value, dtype=np.int64)

    return Arrivals(
        tuple(models),
        np.array([arrival for arrival, _ in requests], dtype=np.float64),
        np.array([deadline for _, deadline in requests], dtype=np.float64),
        column(0),
        column(NORMAL),
        column(rows),
        column(0),
        column(-1),
        column(0),
    )


class Fifo:
    """Serves first in, first out, up to ``most`` requests per batch; what fails is tried again, first.

    Attributes:
        log: Every execution: replica, beginning, end, requests and whether it failed.
        lists: Every list of replicas that it was told: time and names.
    """

    name = "fifo"

    def __init__(self, most: int = 1) -> None:
        self.log: list[tuple[str, float, float, int, bool]] = []
        self.lists: list[tuple[float, tuple[str, ...]]] = []
        self._most = most
        self._queues: dict[str, deque[Request]] = {}
        self._listed: dict[str, tuple[str, ...]] = {}

    def start(self, world: World) -> None:
        self._world = world

    def replicas(self, model: str, names: Sequence[str]) -> None:
        self._listed[model] = tuple(names)
        self.lists.append((self._world.now, tuple(names)))
        self._serve(model)

    def arrive(self, request: Request) -> None:
        self._queues.setdefault(request.model, deque()).append(request)
        self._serve(request.model)

    def read_demand(self, model: str) -> ModelDemand:
        """See `System.read_demand`."""
        return ModelDemand()

    def queued_rows(self, model: str) -> int:
        return sum(request.rows for request in self._queues.get(model, ()))

    def _serve(self, model: str) -> None:
        queue = self._queues.setdefault(model, deque())
        for replica in self._listed.get(model, ()):
            if queue and self._world.idle(replica):
                batch = [queue.popleft() for _ in range(min(self._most, len(queue)))]
                rows = sum(request.rows for request in batch)
                done = partial(self._done, model, replica, batch, self._world.now)
                self._world.execute(model, replica, batch, rows, 0, done)

    def _done(self, model: str, replica: str, batch: list[Request], began: float, execution: Execution) -> None:
        self.log.append((replica, began, self._world.now, len(batch), execution.failed))
        if execution.failed:
            self._listed[model] = tuple(name for name in self._listed[model] if name != replica)
            self._queues[model].extendleft(reversed(batch))
        else:
            for request in batch:
                self._world.answer(request)
        self._serve(model)


class Scripted:
    """A system that does what a test says when the simulation starts, and keeps the requests that arrive.

    Attributes:
        requests: What has arrived.
        lists: As in `Fifo`.
    """

    name = "scripted"

    def __init__(self, script: Callable[[World, Scripted], None], queued: int = 0) -> None:
        self.requests: list[Request] = []
        self.lists: list[tuple[float, tuple[str, ...]]] = []
        self.queued = queued
        self._script = script

    def start(self, world: World) -> None:
        self._world = world
        self._script(world, self)

    def replicas(self, model: str, names: Sequence[str]) -> None:
        self.lists.append((self._world.now, tuple(names)))

    def arrive(self, request: Request) -> None:
        self.requests.append(request)

    def read_demand(self, model: str) -> ModelDemand:
        """See `System.read_demand`."""
        return ModelDemand()

    def queued_rows(self, model: str) -> int:
        return self.queued
