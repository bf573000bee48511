"""The least number of replicas that holds a demand: from the heavy-traffic formula, verified by simulation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil

import numpy as np

from serve_app.domain.priority import Priority
from serve_app.scheduling.batching.variants import VariantLatency
from serve_app.scheduling.demand import BIN_S, Demand, price
from serve_app.scheduling.scaling import replicas_for
from serve_app_simulator.plan.costs import Costed
from serve_app_simulator.plan.uncertainty import OVERHEADS
from serve_app_simulator.workloads import Arrivals

MOST = 256
"""Replicas of a model that are tried at most."""
WAY_S = OVERHEADS.request_s + OVERHEADS.send_s + OVERHEADS.answer_s
"""What a lone request takes besides its execution."""


def least(holds: Callable[[int], bool], start: int, most: int, fewest: int = 1) -> int | None:
    """The least number from ``fewest`` to ``most`` that holds, if all larger ones do; ``None``: not even ``most`` does.

    It asks around ``start``: doubling the distance, then halving it.
    """
    fails, found, step = fewest - 1, min(max(fewest, start), most), 1
    while not holds(found):
        if found == most:
            return None
        fails, found, step = found, min(most, found + step), 2 * step
    step = 1
    while found - 1 > fails:
        lower = max(fails + 1, found - step)
        if holds(lower):
            found, step = lower, 2 * step
        else:
            fails, step = lower, 1
    return found


def heavy_traffic(model: Costed, arrivals: Arrivals, duration_s: float, network_s: float) -> tuple[float, float]:
    """Replicas that the work keeps busy, and those by the server's formula (`serve_app.scheduling.scaling`), fractions.

    Args:
        arrivals: Of this model alone.
        network_s: Time of a bundle besides its execution.
    """
    most, buckets = model.scheduling.max_rows, sorted({0, *arrivals.bucket.tolist()})
    latencies = VariantLatency()
    sizes = sorted({1 << power for power in range(most.bit_length())} | {most})
    latencies.seed([(rows, bucket, model.curve(rows, bucket), "") for rows in sizes for bucket in buckets])
    demands = []
    for priority in Priority:
        of_class = np.flatnonzero(arrivals.priority == priority)
        if not len(of_class):
            continue
        slack = 0.0
        works = np.zeros(max(1, ceil(duration_s / BIN_S)))
        for at in of_class.tolist():
            budget_s = float(arrivals.deadline[at] - arrivals.arrival[at]) - network_s
            rows = int(arrivals.rows[at])
            row_s, wait_s = price(latencies, "", int(arrivals.bucket[at]), model.scheduling, budget_s)
            works[min(len(works) - 1, int(arrivals.arrival[at] / BIN_S))] += rows * row_s
            slack += rows * row_s * wait_s
        variance = float(np.square(np.diff(works)).sum() / 2.0)
        demands.append(Demand(float(works.sum()) / duration_s, variance / duration_s, slack / duration_s))
    return sum(demand.work for demand in demands), replicas_for(demands)


def busiest(models: Sequence[Costed], arrivals: Arrivals, seconds: float) -> float:
    """When the time of this length with the most work begins, seconds. Some request must arrive."""
    rows_s = np.zeros(len(arrivals))
    for model in models:
        asked = arrivals.model == arrivals.models.index(model.name)
        for bucket in set(arrivals.bucket[asked].tolist()):
            same = asked & (arrivals.bucket == bucket)
            rows_s[same] = model.curve(model.scheduling.max_rows, bucket) / model.scheduling.max_rows
    done = np.concatenate([[0.0], np.cumsum(rows_s * arrivals.rows)])
    ends = np.searchsorted(arrivals.arrival, arrivals.arrival + seconds)
    return float(arrivals.arrival[int((done[ends] - done[:-1]).argmax())])


def too_short(model: Costed, arrivals: Arrivals) -> tuple[str, float, float] | None:
    """The class whose deadline is shortest of what a lone request takes, if any: label, deadline and time, seconds.

    Args:
        arrivals: Of this model alone.
    """
    curves = [model.curve, *(model.variants[name] for name in model.scheduling.fallbacks)]
    alone: Mapping[tuple[int, int], float] = {
        (rows, bucket): WAY_S + min(curve(rows, bucket) for curve in curves)
        for rows, bucket in set(zip(arrivals.rows.tolist(), arrivals.bucket.tolist(), strict=True))
    }
    timeouts: Sequence[float] = (arrivals.deadline - arrivals.arrival).tolist()
    shortest: tuple[str, float, float] | None = None
    for timeout_s, rows, bucket, priority in zip(
        timeouts, arrivals.rows.tolist(), arrivals.bucket.tolist(), arrivals.priority.tolist(), strict=True
    ):
        needed_s = alone[rows, bucket]
        if timeout_s < needed_s and (shortest is None or timeout_s / needed_s < shortest[1] / shortest[2]):
            shortest = Priority(priority).label, timeout_s, needed_s
    return shortest
