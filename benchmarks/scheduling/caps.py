"""The frontier between `high` and what is below it: how often a batch may block it too long, and what that gains."""

from __future__ import annotations

from itertools import product
from typing import Any

from benchmarks.scheduling.ablations import replaced
from benchmarks.scheduling.cases import settings
from benchmarks.scheduling.comparison import weighted
from benchmarks.scheduling.conditions import OVERHEADS
from benchmarks.scheduling.drawing import lines
from benchmarks.scheduling.experiment import Experiment, Table, as_values, percent
from benchmarks.scheduling.laboratory import Laboratory
from serve_app.scheduling.batching import blocking_limit
from serve_app_simulator.ours import ServeApp
from serve_app_simulator.report import estimate
from serve_app_simulator.run import simulate

WORKLOADS = ("classes/r1/n1/0.5", "classes/r1/n1/0.8", "classes/r1/n1/1.5", "classes/r1/n2/0.8", "classes/r1/n2/1.5")
QUANTILES = (0.0, 0.02, 0.035, 0.05, 0.1, 0.2)
_CLASSES = ("high", "normal", "low")


def measure(workload: str, quantile: float, seconds: float, seed: int) -> tuple[float, ...]:
    """Part in time of each class, and the weighted goodput as a part of what was offered."""
    scenario = next(line for line in settings(None) if line.name == workload).make(seconds)
    network_s = (OVERHEADS.send_s + OVERHEADS.answer_s) * OVERHEADS.mean_factor
    with replaced(blocking_limit, "_BLOCKED_QUANTILE", quantile):
        result = simulate(scenario, lambda: ServeApp(network_s=network_s), seed)
    return *(result.classes[name].attainment for name in _CLASSES), weighted(result)


def run(lab: Laboratory) -> Experiment:
    """See the module."""
    cells = list(product(WORKLOADS, QUANTILES))
    found = iter(
        lab.call(measure, [(*cell, lab.seconds(30), seed) for cell in cells for seed in lab.seeds], "simulating")
    )
    measured: dict[tuple[str, float], list[Any]] = {
        cell: [estimate(values) for values in zip(*(next(found) for _ in lab.seeds), strict=True)] for cell in cells
    }
    names = (*_CLASSES, "weighted")
    return Experiment(
        "caps",
        "How often a batch may block a more urgent request too long",
        "The quantile of what the last requests of a class tolerate that caps batches with less urgent rows. "
        "The default is 0.05.",
        [],
        [
            Table(
                ["workload", "quantile", *names],
                [[name, f"{at:g}", *(percent(value) for value in values)] for (name, at), values in measured.items()],
            )
        ],
        {
            "": lines(
                [
                    (
                        name,
                        "% of `high` in time",
                        100.0,
                        {f"{at:g}": [(100.0 * measured[name, at][1].mean, measured[name, at][0])] for at in QUANTILES},
                    )
                    for name in WORKLOADS[:4]
                ],
                "% of `normal` in time",
            )
        },
        {
            f"{name}, {at:g}": dict(zip(names, map(as_values, values), strict=True))
            for (name, at), values in measured.items()
        },
    )
