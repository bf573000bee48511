"""The latency target of a model: how much a low one costs models whose rows take long."""

from __future__ import annotations

from itertools import product
from typing import Any

from benchmarks.scheduling.conditions import MAX_ROWS, MINILM, MODEL, OVERHEADS, TYPICAL, one_model, scenario
from benchmarks.scheduling.experiment import Experiment, Table, as_values, percent
from benchmarks.scheduling.laboratory import Laboratory
from serve_app.config.router import ClassesConfig
from serve_app.domain.priority import Priority
from serve_app_simulator.ours import ServeApp
from serve_app_simulator.report import estimate
from serve_app_simulator.run import simulate
from serve_app_simulator.scenario import Affine, Curve, Stream

CURVES: dict[str, Curve] = {"50 ms + 20 ms a row": Affine(0.05, 0.02), "typical": TYPICAL, "minilm": MINILM}
TARGETS_S = (0.1, 1.0)
LOADS = (0.5, 0.8, 1.0, 1.3)
_PARTS = {Priority.HIGH: 0.2, Priority.NORMAL: 0.5, Priority.LOW: 0.3}


def measure(curve: str, load: float, slo_s: float, seconds: float, seed: int) -> tuple[float, ...]:
    """Part in time of all and of each class, with the default deadlines of the classes."""
    cost = CURVES[curve]
    rate = load * MAX_ROWS / cost(MAX_ROWS, 0)
    of_class = ClassesConfig()
    streams = [
        Stream(
            "poisson",
            MODEL,
            priority,
            rate=part * rate,
            timeout_s=getattr(of_class, priority.label).timeout_ms / 1000.0,
        )
        for priority, part in _PARTS.items()
    ]
    network_s = (OVERHEADS.send_s + OVERHEADS.answer_s) * OVERHEADS.mean_factor
    result = simulate(
        scenario("target", one_model(slo_s, curve=cost), streams, seconds), lambda: ServeApp(network_s=network_s), seed
    )
    return result.attainment, *(result.classes[priority.label].attainment for priority in _PARTS)


def run(lab: Laboratory) -> Experiment:
    """See the module."""
    cells = list(product(CURVES, LOADS, TARGETS_S))
    found = iter(
        lab.call(measure, [(*cell, lab.seconds(60), seed) for cell in cells for seed in lab.seeds], "simulating")
    )
    measured: dict[tuple[str, float, float], list[Any]] = {
        cell: [estimate(values) for values in zip(*(next(found) for _ in lab.seeds), strict=True)] for cell in cells
    }
    names = ("all", *(priority.label for priority in _PARTS))
    return Experiment(
        "target",
        "A model's latency target",
        "`slo_ms` bounds what batches grow to. A fifth of the requests is `high`, half `normal`, the rest `low`, with"
        " the default deadlines of 1, 5 and 30 s. A load of 1 is what full batches do. The default is 1,000 ms.",
        [],
        [
            Table(
                ["a batch", "load", "`slo_ms`", *names],
                [
                    [curve, f"{load:g}", f"{1000 * slo_s:g}", *(percent(value) for value in values)]
                    for (curve, load, slo_s), values in measured.items()
                ],
            )
        ],
        {},
        {
            f"{curve}, {load:g}, {1000 * slo_s:g} ms": dict(zip(names, map(as_values, values), strict=True))
            for (curve, load, slo_s), values in measured.items()
        },
    )
