"""Runs of a system on requests that a test names one by one, with everything it executed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from simulation_builders import make_model, make_scenario

from serve_app.domain.priority import Priority
from serve_app_simulator.results import Records
from serve_app_simulator.scenario import Overheads, Scenario
from serve_app_simulator.system import Execution, Request, System
from serve_app_simulator.workloads import Arrivals
from serve_app_simulator.world import SimulatedWorld


class Ask(NamedTuple):
    """A request: when it leaves its client and how long that one waits, in milliseconds."""

    at_ms: float
    timeout_ms: float = 10_000.0
    priority: Priority = Priority.NORMAL
    rows: int = 1
    stream: int = -1
    model: int = 0


class Begun(NamedTuple):
    """An execution: when it began, in milliseconds, where, and which requests it carried."""

    at_ms: float
    replica: str
    ids: tuple[int, ...]


class Served(NamedTuple):
    """What became of the requests."""

    begun: list[Begun]
    records: Records

    @property
    def outcomes(self) -> list[int]:
        """One of the five ends of each request."""
        return list(self.records.outcome)

    @property
    def latency_ms(self) -> list[float]:
        """Of each answered request; NaN for the others."""
        return [round(seconds * 1e3, 6) for seconds in self.records.latency_s]

    @property
    def batches(self) -> list[tuple[int, ...]]:
        """Which requests each execution carried."""
        return [begun.ids for begun in self.begun]


class WatchedWorld(SimulatedWorld):
    """A world that writes down what is executed."""

    def __init__(self, scenario: Scenario, seed: int = 0) -> None:
        super().__init__(scenario, seed, 1.0)
        self.begun: list[Begun] = []

    def execute(
        self,
        model: str,
        replica: str,
        requests: Sequence[Request],
        rows: int,
        bucket: int,
        done: Callable[[Execution], None],
        variant: str = "",
    ) -> None:
        """See `SimulatedWorld.execute`."""
        assert rows == sum(request.rows for request in requests)
        assert bucket == max(request.bucket for request in requests)
        assert all(request.ended is None for request in requests)
        ids = tuple(request.id for request in requests)
        self.begun.append(Begun(round(self.now * 1e3, 6), replica, ids))
        super().execute(model, replica, requests, rows, bucket, done, variant)


def run(system: System, asked: Sequence[Ask], scenario: Scenario) -> Served:
    """Serve these requests, which are in the order of their times."""

    def column(values: Any) -> Any:
        return np.array(list(values), dtype=np.int64)

    arrivals = Arrivals(
        tuple(model.scheduling.name for model in scenario.models),
        np.array([ask.at_ms / 1e3 for ask in asked]),
        np.array([(ask.at_ms + ask.timeout_ms) / 1e3 for ask in asked]),
        column(ask.model for ask in asked),
        column(ask.priority for ask in asked),
        column(ask.rows for ask in asked),
        column(0 for _ in asked),
        column(ask.stream for ask in asked),
        column(0 for _ in asked),
    )
    world = WatchedWorld(scenario)
    return Served(world.begun, world.run(system, arrivals))


def serve(system: System, *asked: Ask, overheads: Overheads | None = None, **model: Any) -> Served:
    """Serve these requests with one model; see `simulation_builders.make_model`."""
    return run(system, asked, make_scenario(models=(make_model(**model),), overheads=overheads or Overheads()))
