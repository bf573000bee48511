"""The linear programme of one window; `benchmarks.scheduling.bounds.linear` says why its optimum is a bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.scheduling.bounds.exact import TOLERANCE_S, batch_costs
from benchmarks.scheduling.bounds.greedy import serves_all
from benchmarks.scheduling.bounds.programme import Programme

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_SIZE_STEP = 2.0
"""Batch sizes share a variable while the largest is at most this much the smallest."""
_STRETCHES = (4, 16)
"""Lengths of the stretches of time in which work is limited, in longest executions."""
_SLIVER = 1e-6
"""Arrivals are this part of a slot earlier and deadlines later, slots shorter: sums of floats must not round a slot."""
_MARGIN = 1e-6
"""Part added to an optimum, ten times the solver's tolerance."""


class Replicas(Protocol):
    """What runs a model; see `benchmarks.scheduling.bounds.linear.ModelReplicas`."""

    @property
    def latency(self) -> Callable[[int], float]:
        """Seconds per batch."""

    @property
    def max_rows(self) -> int:
        """Rows in a batch."""

    @property
    def replicas(self) -> int:
        """How many."""

    @property
    def device(self) -> int:
        """What they share, or -1."""


class WindowRequests(NamedTuple):
    """The requests of a window, as columns.

    Attributes:
        arrival: Seconds.
        deadline: Seconds.
        model: Place among the models.
        kind: Requests of one model and kind are counted together.
        rows: Rows.
        worth: What one is worth in time.
    """

    arrival: Floats
    deadline: Floats
    model: Integers
    kind: Integers
    rows: Integers
    worth: Floats


class _Cohorts(NamedTuple):
    """Requests that differ in nothing the programme sees; times are slots, ``served`` numbers variables."""

    model: Integers
    kind: Integers
    released: Integers
    due: Integers
    rows: Integers
    served: Integers


class _Sizes(NamedTuple):
    """Batch sizes that share variables; the work of b rows is at least ``fixed_s + row_s * b``."""

    low: int
    high: int
    shortest_s: float
    longest_s: float
    fixed_s: float
    row_s: float


@dataclass(frozen=True, slots=True)
class _Starts:
    """Variables of batches of like size: ``batches`` start at ``slots``; ``rows`` start at ``rows_at`` in them."""

    sizes: _Sizes
    slots: Integers
    batches: Integers
    rows_at: Integers
    rows: Integers


class SlotPlan:
    """Solves windows.

    Args:
        models: What runs each model.
        devices: Executions at once at full speed, per device.
        slot_s: Length of a slot, seconds.
    """

    def __init__(self, models: Sequence[Replicas], devices: Sequence[float], slot_s: float) -> None:
        self._models = models
        self._devices = devices
        self._slot_s = slot_s * (1.0 - _SLIVER)
        self._costs = [batch_costs(model.latency, model.max_rows) for model in models]

    def best(self, requests: WindowRequests) -> float:
        """The most that the requests can be worth.

        Raises:
            ModuleNotFoundError: SciPy is missing.
            RuntimeError: The solver gave up.
        """
        offered = float(requests.worth.sum())
        programme = Programme()
        cohorts = self._cohorts(programme, requests)
        for device, speed in enumerate(self._devices):
            self._share(programme, cohorts, device, speed)
        if programme.allows_most() and self._serves_all(requests):
            return offered
        for model in np.unique(requests.model):
            arrival, deadline = requests.arrival[requests.model == model], requests.deadline[requests.model == model]
            longest = float((deadline - arrival).max())
            sizes = _shared_sizes(self._costs[model], longest + TOLERANCE_S)
            mine = _Cohorts(*(column[cohorts.model == model] for column in cohorts))
            starts = self._batches(programme, mine, sizes)
            self._occupy(programme, starts, self._models[model].replicas, int(mine.due.max()) + 1)
            horizon_s = float(deadline.max() - requests.arrival.min()) + TOLERANCE_S
            self._work(programme, starts, self._models[model].replicas, horizon_s)
        return min(programme.maximise() * (1.0 + _MARGIN), offered)

    def _serves_all(self, requests: WindowRequests) -> bool:
        """Whether every model, alone on its devices, evidently serves everything."""
        for model in np.unique(requests.model):
            mine = requests.model == model
            columns = (requests.arrival[mine], requests.deadline[mine], requests.rows[mine])
            if not serves_all(*columns, self._costs[model], self._models[model].replicas):
                return False
        return True

    def _cohorts(self, programme: Programme, requests: WindowRequests) -> _Cohorts:
        origin = requests.arrival.min()
        released = np.ceil((requests.arrival - origin) / self._slot_s - _SLIVER).astype(np.int64)
        due = np.ceil((requests.deadline + TOLERANCE_S - origin) / self._slot_s + _SLIVER).astype(np.int64)
        keys = np.stack([requests.model, requests.kind, released, np.maximum(due, released), requests.rows])
        unique, first, counts = np.unique(keys, axis=1, return_index=True, return_counts=True)
        served = programme.variables(len(counts), counts, requests.worth[first])
        model, kind, released, due, rows = unique
        return _Cohorts(model, kind, released, due, rows, served)

    def _batches(self, programme: Programme, cohorts: _Cohorts, all_sizes: list[_Sizes]) -> list[_Starts]:
        """Batches start in slots and hold rows that have arrived and are not late; every kind is counted for itself."""
        end = int(cohorts.due.max()) + 1
        kinds = []
        for kind in np.unique(cohorts.kind):
            mine = _Cohorts(*(column[cohorts.kind == kind] for column in cohorts))
            waiting, done = programme.balances.open(np.zeros(end)), programme.balances.open(np.zeros(end))
            for rows in (waiting, done):
                spare = programme.variables(end)
                programme.balances.put(rows, spare, 1.0)
                programme.balances.put(rows[1:], spare[:-1], -1.0)
            programme.balances.put(waiting[mine.released], mine.served, -mine.rows)
            programme.balances.put(done[mine.due], mine.served, mine.rows)
            kinds.append((mine, waiting, done))
        starts = []
        for sizes in all_sizes:
            length = int(sizes.shortest_s / self._slot_s)
            open_slots = [_slots_in_time(mine, length, end) for mine, _, _ in kinds]
            slots = np.unique(np.concatenate(open_slots))
            batches = programme.variables(len(slots))
            room = programme.limits.open(np.zeros(len(slots)))
            programme.limits.put(room, batches, -float(sizes.high))
            full = programme.limits.open(np.zeros(len(slots) if sizes.row_s > 0.0 else 0))
            programme.limits.put(full, batches[: len(full)], float(sizes.low))
            rows_of = []
            for (_, waiting, done), at in zip(kinds, open_slots, strict=True):
                rows = programme.variables(len(at))
                programme.limits.put(room[np.searchsorted(slots, at)], rows, 1.0)
                if len(full):
                    programme.limits.put(full[np.searchsorted(slots, at)], rows, -1.0)
                programme.balances.put(waiting[at], rows, 1.0)
                programme.balances.put(done[at + length], rows, -1.0)
                rows_of.append(rows)
            starts.append(_Starts(sizes, slots, batches, np.concatenate(open_slots), np.concatenate(rows_of)))
        return starts

    def _occupy(self, programme: Programme, starts: list[_Starts], replicas: int, end: int) -> None:
        """At no instant do more batches run than there are replicas."""
        balance = programme.balances.open(np.zeros(end))
        running = programme.variables(end, replicas)
        programme.balances.put(balance, running, 1.0)
        programme.balances.put(balance[1:], running[:-1], -1.0)
        for group in starts:
            length = int(group.sizes.shortest_s / self._slot_s)
            programme.balances.put(balance[group.slots], group.batches, -1.0)
            ends = group.slots + length
            programme.balances.put(balance[ends], group.batches, 1.0)

    def _work(self, programme: Programme, starts: list[_Starts], replicas: int, horizon_s: float) -> None:
        """In no stretch of time do executions take longer than replicas have. All lies between 0 and ``horizon_s``."""
        if not starts:
            return
        longest = int(np.ceil(max(group.sizes.longest_s for group in starts) / self._slot_s))
        end = int(np.ceil(horizon_s / self._slot_s))
        for stretch in (*(factor * longest for factor in _STRETCHES), end + 2 * longest):
            # Stretch k covers the slots from (k - 5) * stride on. A batch touches few of them.
            stride = max(stretch // 2, 1)
            begin: Floats = (np.arange(end // stride + 8, dtype=np.float64) - 5.0) * (stride * self._slot_s)
            stop: Floats = begin + stretch * self._slot_s
            limits = programme.limits.open(
                replicas * np.maximum(np.minimum(stop, horizon_s) - np.maximum(begin, 0.0), 0.0)
            )
            begin[begin <= 0.0], stop[stop >= horizon_s] = -np.inf, np.inf
            for group in starts:
                for back in range(-(-(stretch + longest + 1) // stride) + 1):
                    number = (group.slots + longest) // stride + 5 - back
                    least, inside = self._overlap(group.sizes, group.slots, begin[number], stop[number])
                    least[inside] = group.sizes.fixed_s
                    some = least != 0.0
                    programme.limits.put(limits[number[some]], group.batches[some], least[some])
                    if group.sizes.row_s > 0.0:
                        number = (group.rows_at + longest) // stride + 5 - back
                        _, inside = self._overlap(group.sizes, group.rows_at, begin[number], stop[number])
                        programme.limits.put(limits[number[inside]], group.rows[inside], group.sizes.row_s)

    def _overlap(self, sizes: _Sizes, slots: Integers, begin: Floats, stop: Floats) -> tuple[Floats, NDArray[np.bool_]]:
        """Seconds that batches of slots run within stretches at the least, and which lie inside whatever their size."""
        early, late = (slots - 1) * self._slot_s, slots * self._slot_s
        ends = (np.minimum(stop, start + sizes.shortest_s) - np.maximum(begin, start) for start in (early, late))
        return np.maximum(np.minimum(*ends), 0.0), (begin <= early) & (late + sizes.longest_s <= stop)

    def _share(self, programme: Programme, cohorts: _Cohorts, device: int, speed: float) -> None:
        """In no stretch of time does a device do more work than it can for requests that live within it."""
        per_row = np.array(
            [
                (costs / np.arange(1, len(costs) + 1)).min() if model.device == device else 0.0
                for model, costs in zip(self._models, self._costs, strict=True)
            ]
        )
        work_s = per_row[cohorts.model] * cohorts.rows
        mine = np.flatnonzero(work_s > 0.0)
        if not len(mine):
            return
        begin, stop = cohorts.released[mine] - 1, cohorts.due[mine]
        end = int(stop.max()) + 1
        stretch = int((stop - begin).min())
        while True:
            # Stretch k covers the slots from k * stride - 1 on.
            stride = max(stretch // 2, 1)
            first = np.arange(end // stride + 1) * stride - 1
            lengths = np.minimum(first + stretch, end) - np.maximum(first, 0)
            limits = programme.limits.open(speed * self._slot_s * np.maximum(lengths, 0))
            for back in range(3):
                number = (begin + 1) // stride - back
                inside = (number >= 0) & (number * stride - 1 + stretch >= stop)
                programme.limits.put(limits[number[inside]], cohorts.served[mine][inside], work_s[mine][inside])
            if stretch > end:
                return
            stretch *= 2


def _slots_in_time(cohorts: _Cohorts, length: int, end: int) -> Integers:
    """Slots where a batch can start that holds any of the requests and is not late for it."""
    last = cohorts.due - length
    possible = last >= cohorts.released
    edges = np.zeros(end + 1, dtype=np.int64)
    np.add.at(edges, cohorts.released[possible], 1)
    np.add.at(edges, last[possible] + 1, -1)
    return np.flatnonzero(np.cumsum(edges)[:-1] > 0)


def _shared_sizes(costs: Floats, longest_s: float) -> list[_Sizes]:
    """Group the sizes whose execution fits the longest timeout."""
    sizes, low = [], 1
    most = int(np.searchsorted(costs, longest_s, side="right"))
    while low <= most:
        high = min(max(low, int(low * _SIZE_STEP)), most)
        lengths = costs[low - 1 : high]
        row_s = float(lengths[-1] - lengths[0]) / max(high - low, 1)
        fixed_s = float((lengths - row_s * np.arange(low, high + 1)).min())
        sizes.append(_Sizes(low, high, float(lengths[0]), float(lengths[-1]), fixed_s, row_s))
        low = high + 1
    return sizes
