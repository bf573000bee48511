"""How early a request that cannot be served is told so, and what an earlier "no" costs."""

from __future__ import annotations

from itertools import product
from math import inf
from typing import Any

import numpy as np

from benchmarks.scheduling.ablations import replaced
from benchmarks.scheduling.cases import settings
from benchmarks.scheduling.conditions import OVERHEADS
from benchmarks.scheduling.drawing import lines
from benchmarks.scheduling.experiment import Experiment, Table, as_values, percent
from benchmarks.scheduling.laboratory import Laboratory
from serve_app.scheduling import admission, scheduler
from serve_app.scheduling.decisions import Rejection
from serve_app.scheduling.entry import Entry
from serve_app.scheduling.model_state import ModelState
from serve_app.scheduling.placement.devices import DedicatedDevice
from serve_app_simulator.ours import ServeApp
from serve_app_simulator.report import estimate
from serve_app_simulator.run import simulate
from serve_app_simulator.system import Request, World

WORKLOADS = ("overload/1.5", "overload/3", "gamma/3x/1.1")
WAYS = {"as it is": inf} | {f"wait over {part:g} x budget": part for part in (1, 1.5, 2, 3)}
"""When it is told: with a number, at arrival, when the predicted wait is over so many times its budget."""
_too_slow = admission.too_slow


class _Told(ServeApp):
    """Notes when it says no, as a part of the budget."""

    def start(self, world: World) -> None:
        """See `System.start`."""
        self.told: list[float] = []
        drop = world.drop

        def noting(request: Request) -> None:
            if request.ended is None:
                self.told.append((world.now - request.arrival) / (request.deadline - request.arrival))
            drop(request)

        world.drop = noting  # type: ignore[method-assign]
        super().start(world)


def measure(workload: str, way: str, seconds: float, seed: int) -> tuple[float, float, float]:
    """Part in time, and the median and the 90th percentile of when it was told, as parts of the budget."""
    most = WAYS[way]

    def refuse(entry: Entry, model: ModelState, now: float, ready_s: float = 0.0) -> Rejection | None:
        wait_s = admission.drain_s(model, DedicatedDevice(model), entry.priority, now)
        if wait_s is not None and wait_s + model.solo_s(entry) > most * (entry.deadline - now):
            return Rejection("deadline_exceeded", "refused by the predicted wait")
        return _too_slow(entry, model, now, ready_s)

    scenario = next(line for line in settings(None) if line.name == workload).make(seconds)
    system = _Told(network_s=(OVERHEADS.send_s + OVERHEADS.answer_s) * OVERHEADS.mean_factor)
    with replaced(scheduler, "too_slow", refuse):
        result = simulate(scenario, lambda: system, seed)
    half, most_of_all = np.quantile(system.told or [1.0], (0.5, 0.9))
    return result.attainment, float(half), float(most_of_all)


def run(lab: Laboratory) -> Experiment:
    """See the module."""
    cells = list(product(WORKLOADS, WAYS))
    runs = [(*cell, lab.seconds(30), seed) for cell in cells for seed in lab.seeds]
    found = iter(lab.call(measure, runs, "simulating"))
    measured: dict[tuple[str, str], list[Any]] = {
        cell: [estimate(values) for values in zip(*(next(found) for _ in lab.seeds), strict=True)] for cell in cells
    }
    early = {cell: values[1].mean for cell, values in measured.items()}
    return Experiment(
        "frontier",
        "How early a no is told",
        "A request that cannot be in time is told when it cannot be in time any more, not even alone (as it is), or at "
        "arrival by the predicted wait.",
        [],
        [
            Table(
                ["workload", "told", "in time", "median of a no, part of the budget", "90th percentile"],
                [[*cell, *(percent(value) for value in values)] for cell, values in measured.items()],
            )
        ],
        {
            "": lines(
                [
                    (name, "% in time", 100.0, {way: [(early[name, way], measured[name, way][0])] for way in WAYS})
                    for name in WORKLOADS
                ],
                "median time to a no, part of the budget",
            )
        },
        {
            f"{name}, {way}": dict(zip(("in_time", "p50", "p90"), map(as_values, values), strict=True))
            for (name, way), values in measured.items()
        },
    )
