"""The tightest bound there is for a scenario: exact for single replicas, the linear programme otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.scheduling.bounds.exact import TOLERANCE_S, batch_costs, exact_bound
from benchmarks.scheduling.bounds.linear import LinearBound, ModelReplicas, linear_bound
from serve_app.domain.priority import Priority
from serve_app_simulator.scenario import Scenario, SimulatedModel
from serve_app_simulator.workloads import Arrivals

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Bound:
    """What no system exceeds with these arrivals, not even one that knows the future. Only counted requests count.

    Attributes:
        method: ``exact``, ``nested``, ``nested and linear`` (the lower one) or ``linear``; several where models differ.
        count: Requests in time.
        weighted: Sum of their classes' weights.
        per_class: Requests in time of one class, if the others did not exist.
        strict: Whether it holds in every case. With noise it is the bound of executions as the curve says and of mean
            ways, and luck may exceed it a little.
    """

    method: str
    count: float
    weighted: float
    per_class: Mapping[Priority, float]
    strict: bool


def bound_for(
    scenario: Scenario, arrivals: Arrivals, *, slot_s: float | None = None, window_s: float | None = None
) -> Bound:
    """Bound what any system can reach in a scenario.

    Models that share no device are planned apart. A model with one replica and requests of one row is bounded exactly
    when it has one class and deadlines in the order of arrivals. With several classes a best schedule of the classes
    down to each is bounded exactly, and these are put together (`nested`): with weights that fall from class to class,

        sum_c w_c n_c = sum_c (w_c - w_(c+1)) * (n_1 + ... + n_c).

    Deadlines that are not in order are sorted, after those shorter than the longest execution were put off to it. That
    loses nothing: of a request and a later one with an earlier deadline d', exchanging the deadlines keeps as many in
    time, because a batch that started before the later one came ends by d'.
    Everything else is bounded by the linear programme. Where both apply, the lower one counts.

    Taken as the best case: replicas are as many as autoscaling allows from the start and never fail, every execution
    is the cheapest variant's in the smallest cost bucket there is, batches are as large as the largest request, which
    alone may exceed ``max_rows``, and newer frames do not replace waiting ones.

    Of the ways, only those count that every system pays: to the system, and back from a process that executes and
    answers itself. Where they and the pauses scatter, all have the mean.

    Args:
        scenario: What is simulated.
        arrivals: Its workload under a seed.
        slot_s: See `benchmarks.scheduling.bounds.linear.linear_bound`.
        window_s: Likewise.

    Raises:
        ModuleNotFoundError: SciPy is missing and the linear programme is needed.
        RuntimeError: The solver gave up.
    """
    classes = tuple(Priority)
    weights = [scenario.weights[priority] for priority in classes]
    overheads = scenario.overheads
    counted = arrivals.arrival >= scenario.warm_up_s
    mean = overheads.mean_factor
    # A pause after an execution is a longer execution whose answer left when it began.
    pause_s = 0.0 if scenario.devices else overheads.between_s * mean
    released = arrivals.arrival[counted] + overheads.request_s * mean
    due = arrivals.deadline[counted] - overheads.direct_s * mean + pause_s
    model, rows, bucket = arrivals.model[counted], arrivals.rows[counted], arrivals.bucket[counted]
    group = np.searchsorted(np.array([int(priority) for priority in classes]), arrivals.priority[counted])
    names = [device.name for device in scenario.devices]
    replicas = [
        _replicas(
            served,
            int(bucket[model == place].min(initial=2**31 - 1)),
            int(rows[model == place].max(initial=served.scheduling.max_rows)),
            names,
            pause_s,
        )
        for place, served in enumerate(scenario.models)
    ]
    speeds = [float(device.concurrency) for device in scenario.devices]
    methods, parts = set(), []
    for together in _apart(replicas):
        mine = np.isin(model, together)
        if not mine.any():
            continue
        found, method = [], "linear"
        only = replicas[together[0]]
        if len(together) == 1 and only.replicas == 1 and bool((rows[mine] == 1).all()):
            single, in_order = _single(only, released[mine], due[mine], group[mine], weights)
            found.append(single)
            method = ("exact" if len(np.unique(group[mine])) == 1 else "nested") if in_order else "nested and linear"
        if method not in {"exact", "nested"}:
            columns = (released[mine], due[mine], model[mine], group[mine], rows[mine])
            found.append(linear_bound(*columns, replicas, weights, devices=speeds, slot_s=slot_s, window_s=window_s))
        methods.add(method)
        parts.append(found)
    per_class = {
        priority: sum(min(bound.per_class[place] for bound in found) for found in parts)
        for place, priority in enumerate(classes)
    }
    return Bound(
        ", ".join(sorted(methods)) or "exact",
        sum(min(bound.count for bound in found) for found in parts),
        sum(min(bound.weighted for bound in found) for found in parts),
        per_class,
        overheads.scatter == 0.0 and (scenario.noise.kind == "none" or scenario.noise.spread == 0.0),
    )


def _single(
    served: ModelReplicas, released: Floats, due: Floats, classes: Integers, weights: Sequence[float]
) -> tuple[LinearBound, bool]:
    """The bounds of one replica, and whether deadlines were in order."""
    costs = batch_costs(served.latency, served.max_rows)
    fitting = costs[costs <= (due - released).max() + TOLERANCE_S]
    order = np.argsort(released, kind="stable")
    released, due, classes = released[order], due[order], classes[order]
    in_order = True

    def best(places: Sequence[int]) -> int:
        nonlocal in_order
        chosen = np.isin(classes, places)
        arrivals, deadlines = released[chosen], due[chosen]
        if (np.diff(deadlines) < 0.0).any():
            in_order = False
            longest = float(fitting[-1]) if len(fitting) else 0.0
            deadlines = np.sort(np.maximum(deadlines, arrivals + longest))
        return exact_bound(arrivals, deadlines, served.latency, served.max_rows)

    falling = sorted(range(len(weights)), key=lambda place: -weights[place])
    nested = [best(falling[: count + 1]) for count in range(len(falling))]
    steps = [
        weights[place] - (weights[after] if after is not None else 0.0)
        for place, after in zip(falling, [*falling[1:], None], strict=True)
    ]
    weighted = sum(step * count for step, count in zip(steps, nested, strict=True))
    per_class = tuple(float(best([place])) for place in range(len(weights)))
    return LinearBound(weighted, float(nested[-1]), per_class), in_order


def _replicas(
    model: SimulatedModel, bucket: int, max_rows: int, devices: Sequence[str], pause_s: float
) -> ModelReplicas:
    """The best that a model's replicas can be."""
    curves = (model.curve, *model.variants.values())

    def latency(rows: int) -> float:
        return min(curve(rows, bucket) for curve in curves) + pause_s

    most = max(model.replicas, model.autoscaling.max_replicas if model.autoscaling is not None else 0)
    device = devices.index(model.device) if model.device is not None else -1
    return ModelReplicas(latency, max_rows, most, device)


def _apart(replicas: Sequence[ModelReplicas]) -> list[list[int]]:
    """Models that must be planned together: those of a device."""
    groups: dict[int, list[int]] = {}
    for place, model in enumerate(replicas):
        groups.setdefault(model.device if model.device >= 0 else -1 - place, []).append(place)
    return list(groups.values())
