"""What the planner's residuals would have to be for its intervals to hold the runs of a report.

Split conformal prediction (Vovk et al., 2005): a residual is the quantile of how far outside of the draws the runs
were, on cases that only serve for this. It is somewhat more than the intervals should hold, since other cases differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks.plan.report import Figure, Report
from serve_app_simulator.plan.uncertainty import (
    ATTAINMENT_BIAS,
    ATTAINMENT_RESIDUALS,
    COVERED,
    LATENCY_RESIDUAL_S,
    Interval,
)

_MORE = 0.02
"""This part more than `COVERED`, for cases that differ."""
_LEAST_SCALE = 0.05
"""Of 4 p (1 - p): nearly all or nothing in time says little of the bias."""


def fitted(report: Report) -> Iterator[str]:
    """Constants of `serve_app_simulator.plan.uncertainty` by these runs, one line each."""
    figures = report.figures()
    # Models of a mix slow each other down, which is simulated; `tiny` takes less time than a clock's tick.
    slower = [run.slowdown[model] for run in report.runs if len(run.busy) == 1 for model in run.busy if model != "tiny"]
    if slower:
        yield f"SLOWDOWNS = {tuple(round(float(each), 2) for each in np.quantile(slower, np.linspace(0, 1, 9)))}"
    bias = [
        ATTAINMENT_BIAS + (each.expected.in_time.value - each.in_time) / scale
        for each in figures
        if (scale := 4.0 * each.expected.in_time.value * (1.0 - each.expected.in_time.value)) > _LEAST_SCALE
    ]
    if bias:
        yield f"ATTAINMENT_BIAS = {float(np.median(bias)):.3f}"
    for end, (least, _) in enumerate(ATTAINMENT_RESIDUALS):
        yield f"ATTAINMENT_RESIDUALS[{end}] = ({least}, {_quantile([_share(each, end) for each in figures]):.3f})"
    pairs = [(each.p50_s, each.expected.p50_s) for each in figures] + [
        (each.p99_s, each.expected.p99_s) for each in figures
    ]
    factors = [
        max(interval.draws[0] / real, (real - LATENCY_RESIDUAL_S) / interval.draws[1], 1.0)
        for real, interval in pairs
        if real is not None and interval is not None
    ]
    yield f"LATENCY_RESIDUAL = {_quantile(factors):.2f}"
    outside = [_outside(run.busy[model], run.expected_busy[model]) for run in report.runs for model in run.busy]
    yield f"UTILISATION_RESIDUAL = {_quantile(outside):.3f}"


def _quantile(values: Sequence[float]) -> float:
    return float(np.quantile(values, COVERED + _MORE, method="higher")) if values else 0.0


def _share(figure: Figure, end: int) -> float:
    """The least share of ``4 p (1 - p)`` with which this end of the interval of attainment holds the figure."""
    part, (least, _) = figure.expected.in_time.draws[end], ATTAINMENT_RESIDUALS[end]
    missing = (figure.in_time - part if end else part - figure.in_time) - least
    scale = 4.0 * part * (1.0 - part)
    return 0.0 if missing <= 0.0 else min(1.0, missing / scale) if scale else 1.0


def _outside(real: float, interval: Interval) -> float:
    return max(0.0, interval.draws[0] - real, real - interval.draws[1])
