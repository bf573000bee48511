"""An upper bound on goodput for any number of replicas, models and classes, by a linear programme over time slots.

The programme relaxes the planning problem of somebody who knows the future. Time is cut into slots of length s. A
batch that starts at time x stands in slot ``t = ceil(x / s)``. Every rounding is in the planner's favour:

- *Arrivals and deadlines round up.* A request arriving at a is in a batch with ``x >= a``, so ``t >= ceil(a / s)``.
  With deadline d and execution time L, ``x + L <= d``, so ``t + floor(L / s) <= ceil((x + L) / s) <= ceil(d / s)``.
- *Executions round down.* A batch of slot t runs at least at the instants ``t*s, ..., (t + floor(L/s) - 1)*s``: the
  first is no earlier than x, and the last lies below ``x + s + (floor(L/s) - 1)*s <= x + L``. So at each instant the
  batches that are counted as running do run, and there are at most as many as replicas.
- *What rounding down gives away, work takes back.* In a stretch of time of length H, replicas spend at most K*H on
  executions. A batch is charged with the least that its execution can overlap the stretch, whatever the x within its
  slot (at an end of the slot, since the overlap rises and then falls with x).
- *Sizes share a variable.* Batches of ``lo`` to ``hi`` rows occupy instants as one of ``lo``, hold ``hi`` rows, and do
  work as a line below L says, at ``lo`` to ``hi``.
- *Requests of a kind (model, class, like timeout) are counted, not assigned.* At any slot, those started are among
  those that arrived and are to be served; those to be served and due are among those completed. Both hold in any
  schedule.
- *A device does so much work.* Executions that share one slow each other down, so they occupy their replicas for their
  execution times at least, and those of requests that live within a stretch do their work within it.
- *Batches and requests may be split.*

Long workloads are cut by arrival into windows that are planned alone, each with all replicas idle at its start and
until its last deadline. A schedule for everything contains one for each window (leave the others' requests out of its
batches, which then take no longer), so the sum of the windows' optima is a bound. It gives away about one timeout per
window.

For one replica the bound is loose, because split batches can be staggered as a server's cannot: use
`benchmarks.scheduling.bounds.exact`. Solved by HiGHS through `scipy.optimize.linprog`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from benchmarks.scheduling.bounds.exact import batch_costs
from benchmarks.scheduling.bounds.slots import SlotPlan, WindowRequests

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_KINDS = 8
"""At most this many groups of like timeouts per model and class."""
_WINDOW_SLOTS = 1024
_WINDOW_TIMEOUTS = 10.0


@dataclass(frozen=True, slots=True)
class ModelReplicas:
    """A model as the planner knows it.

    Attributes:
        latency: Seconds for a batch of that many rows. Where a larger batch takes less time, a smaller one is taken to
            be padded to it.
        max_rows: The most rows in a batch.
        replicas: How many run side by side.
        device: Place of the device that they share with other models, or -1.
    """

    latency: Callable[[int], float]
    max_rows: int
    replicas: int = 1
    device: int = -1


@dataclass(frozen=True, slots=True)
class LinearBound:
    """What no schedule exceeds.

    Attributes:
        weighted: Sum of the weights of requests in time.
        count: Requests in time, whatever their weight.
        per_class: Requests in time of one class, if the others did not exist.
    """

    weighted: float
    count: float
    per_class: tuple[float, ...]


def linear_bound(
    arrivals: ArrayLike,
    deadlines: ArrayLike,
    models: ArrayLike,
    classes: ArrayLike,
    rows: ArrayLike,
    replicas: Sequence[ModelReplicas],
    weights: Sequence[float],
    *,
    devices: Sequence[float] = (),
    slot_s: float | None = None,
    window_s: float | None = None,
) -> LinearBound:
    """Bound goodput, weighted goodput and goodput per class.

    What is fixed per request folds into the columns, as in `benchmarks.scheduling.bounds.exact.exact_bound`.

    Args:
        arrivals: When each request can first be executed, seconds; shape (n,), in any order, as all columns.
        deadlines: When its execution must have ended, seconds.
        models: Place of its model in ``replicas``.
        classes: Place of its class in ``weights``.
        rows: Its rows, at least 1. A batch may hold parts of a request.
        replicas: What runs each model.
        weights: Worth of a request in time, per class; not negative.
        devices: Executions at once at full speed, per device. Executions on it may slow each other down, never gain.
        slot_s: Length of a time slot, seconds. Shorter is tighter and slower. Default: half of the longest
            execution or a fifth of the shortest timeout, but not below half of the shortest execution.
        window_s: Length of a window, seconds. Longer is tighter and slower. Default: 1,024 slots, and at least 10
            times the longest timeout.

    Raises:
        ValueError: Columns of different lengths or with impossible values, a model without latency, a negative weight.
        ModuleNotFoundError: SciPy is missing.
        RuntimeError: The solver gave up.
    """
    columns = _checked(arrivals, deadlines, models, classes, rows, replicas, weights, devices)
    arrival, deadline, model, group, size = columns
    timeouts = deadline - arrival
    if slot_s is None:
        slot_s = _slot(replicas, timeouts)
    if window_s is None:
        window_s = max(_WINDOW_SLOTS * slot_s, _WINDOW_TIMEOUTS * float(timeouts.max(initial=0.0)))
    if slot_s <= 0.0 or window_s <= 0.0:
        raise ValueError("slot_s and window_s must be positive")
    plan = SlotPlan(replicas, devices, slot_s)
    kind = group * _KINDS + _like_timeouts(model, group, timeouts)

    def best(chosen: NDArray[np.bool_], worth: Floats) -> float:
        """The sum of the optima of all windows."""
        if not chosen.any():
            return 0.0
        window = np.floor((arrival - arrival[chosen].min()) / window_s).astype(np.int64)
        total = 0.0
        for number in np.unique(window[chosen]):
            inside = chosen & (window == number)
            total += plan.best(WindowRequests(*(column[inside] for column in (*columns[:3], kind, size, worth))))
        return total

    everything, one = np.ones(len(arrival), dtype=np.bool_), np.ones(len(arrival))
    worths = np.asarray(weights, dtype=np.float64)
    per_class = tuple(best(group == place, one) for place in range(len(worths)))
    weighted, count = float(worths @ np.array(per_class)), sum(per_class)
    if len(np.unique(group)) > 1:
        count = min(count, best(everything, one))
        weighted = min(weighted, best(everything, worths[group]))
    return LinearBound(weighted, count, per_class)


def _slot(replicas: Sequence[ModelReplicas], timeouts: Floats) -> float:
    """Half of the longest execution or a fifth of the shortest timeout, but at least half of the shortest execution."""
    slots = []
    for model in replicas:
        costs = batch_costs(model.latency, model.max_rows)
        shortest = float(timeouts[timeouts > 0.0].min(initial=np.inf))
        slots.append(max(float(costs[0]) / 2, min(float(costs[-1]) / 2, shortest / 5)))
    return min(slots, default=1.0)


def _like_timeouts(models: Integers, classes: Integers, timeouts: Floats) -> Integers:
    """Number groups of like timeouts within each model and class from 0. Any grouping is right; likeness is tight."""
    groups = np.zeros(len(models), dtype=np.int64)
    for model in np.unique(models):
        for place in np.unique(classes):
            chosen = (models == model) & (classes == place)
            values, inverse = np.unique(np.round(timeouts[chosen], 6), return_inverse=True)
            groups[chosen] = inverse if len(values) <= _KINDS else inverse * _KINDS // len(values)
    return groups


def _checked(
    arrivals: ArrayLike,
    deadlines: ArrayLike,
    models: ArrayLike,
    classes: ArrayLike,
    rows: ArrayLike,
    replicas: Sequence[ModelReplicas],
    weights: Sequence[float],
    devices: Sequence[float],
) -> tuple[Floats, Floats, Integers, Integers, Integers]:
    times = [np.asarray(column, dtype=np.float64) for column in (arrivals, deadlines)]
    numbers = [np.asarray(column, dtype=np.int64) for column in (models, classes, rows)]
    if times[0].ndim != 1 or any(column.shape != times[0].shape for column in (*times, *numbers)):
        raise ValueError("the columns of the requests must have one length")
    if not all(np.isfinite(column).all() for column in times):
        raise ValueError("arrivals and deadlines must be finite")
    for name, column, low, high in (
        ("models", numbers[0], 0, len(replicas)),
        ("classes", numbers[1], 0, len(weights)),
        ("rows", numbers[2], 1, np.inf),
    ):
        wrong = np.flatnonzero((column < low) | (column >= high))
        if len(wrong):
            raise ValueError(f"{name}: request {wrong[0]} has {column[wrong[0]]}, which does not exist")
    if not all(weight >= 0.0 for weight in weights):
        raise ValueError("weights must not be negative")
    for place, model in enumerate(replicas):
        if model.replicas < 0 or not -1 <= model.device < len(devices):
            raise ValueError(f"model {place} has {model.replicas} replicas on device {model.device}")
    return times[0], times[1], numbers[0], numbers[1], numbers[2]
