"""What a backlog that can wait costs the class `high`, and what keeping its batches short costs the backlog."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from statistics import fmean

from benchmarks.scheduling.conditions import MINILM, MODEL, OVERHEADS, TYPICAL, WIDE, one_model, rate_at, scenario
from benchmarks.scheduling.drawing import lines
from benchmarks.scheduling.experiment import Experiment, Table, as_values, percent, plain, times
from benchmarks.scheduling.laboratory import Laboratory
from serve_app.domain.priority import Priority
from serve_app_simulator.ours import ServeApp
from serve_app_simulator.report import Estimate, estimate
from serve_app_simulator.run import simulate
from serve_app_simulator.scenario import Curve, Stream

CURVES: dict[str, Curve] = {"25 ms + 5 ms a row": TYPICAL, "wide": WIDE, "minilm": MINILM}
SLOWDOWNS = (1.2, 1.5, 2.0, 3.0, 1000.0)
_BUSY = 0.2
"""Part of the replica's time that requests of class `high` alone would take, one by one."""
_SLO_S = 0.3
_FLOOD = 1.1
_TIMEOUT_S = 20.0
_DAY_S = 86_400.0
_WARM_UP_S = 4.0

Measured = tuple[float, float]
"""99th percentile of class `high`, seconds, and rows per second of the backlog."""


def measure(curve: str, slowdown: float | None, seconds: float, seed: int) -> Measured:
    """With a backlog, or without one."""
    model = one_model(_SLO_S, curve=CURVES[curve])
    streams = [Stream("poisson", MODEL, Priority.HIGH, _BUSY / CURVES[curve](1, 0), timeout_s=_TIMEOUT_S)]
    if slowdown is not None:
        model = replace(model, scheduling=replace(model.scheduling, high_slowdown=slowdown))
        streams.append(Stream("poisson", MODEL, Priority.LOW, rate_at(_FLOOD, model), timeout_s=_DAY_S))
    asked = scenario("backlog", model, streams, seconds, warm_up_s=_WARM_UP_S)
    network_s = (OVERHEADS.send_s + OVERHEADS.answer_s) * OVERHEADS.mean_factor
    result = simulate(asked, lambda: ServeApp(network_s=network_s), seed)
    series = result.series
    first, last = round(_WARM_UP_S / series.step_s), round((_WARM_UP_S + seconds) / series.step_s)
    came = sum(series.offered.get("low", [0] * last)[first:last])
    waits = series.queued_rows[last] - series.queued_rows[first]
    return result.classes["high"].p99_s or 0.0, (came - waits) / ((last - first) * series.step_s)


def run(lab: Laboratory) -> Experiment:
    """See the module."""
    cells = list(product(CURVES, (None, *SLOWDOWNS)))
    calls = [(*cell, lab.seconds(20), seed) for cell in cells for seed in lab.seeds]
    found = iter(lab.call(measure, calls, "simulating"))
    measured = {cell: [next(found) for _ in lab.seeds] for cell in cells}
    slower: dict[tuple[str, float], Estimate] = {}
    kept: dict[tuple[str, float], Estimate] = {}
    rows: list[list[str]] = []
    for curve, slowdown in product(CURVES, SLOWDOWNS):
        at, alone, free = measured[curve, slowdown], measured[curve, None], measured[curve, SLOWDOWNS[-1]]
        slower[curve, slowdown] = estimate([beside_s / s for (beside_s, _), (s, _) in zip(at, alone, strict=True)])
        kept[curve, slowdown] = estimate([per_s / most for (_, per_s), (_, most) in zip(at, free, strict=True)])
        rows.append(
            [
                curve,
                _shown(slowdown),
                f"{1e3 * fmean(s for s, _ in alone):.1f}",
                times(slower[curve, slowdown]),
                plain(estimate([per_s for _, per_s in at]), 0),
                percent(kept[curve, slowdown], 0),
            ]
        )
    return Experiment(
        "backlog",
        "What a backlog costs class `high`, and the backlog",
        "Class `high` asks for a fifth of the replica's time. Beside it there is always more of class `low` than can "
        "be done, without a near deadline: a job's items. `high_slowdown` bounds what these add to the 99th percentile "
        "of `high`; the default is 1.2.",
        [],
        [
            Table(
                ["a batch", "`high_slowdown`", "p99 alone, ms", "p99, times", "backlog, rows/s", "part"],
                rows,
            )
        ],
        {
            "": lines(
                [
                    (
                        "The backlog's rows per second",
                        "% of those without a bound",
                        100.0,
                        {
                            curve: [(slower[curve, each].mean, kept[curve, each]) for each in SLOWDOWNS]
                            for curve in CURVES
                        },
                    ),
                ],
                "99th percentile of `high`, times that without a backlog",
                log=True,
                bottom=0,
            )
        },
        {
            f"{curve}, {_shown(slowdown)}": {
                "p99_times": as_values(slower[curve, slowdown]),
                "part": as_values(kept[curve, slowdown]),
            }
            for curve, slowdown in slower
        },
    )


def _shown(slowdown: float) -> str:
    return "no bound" if slowdown == SLOWDOWNS[-1] else f"{slowdown:g}"
