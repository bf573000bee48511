"""An upper bound on answers in time of a pool: of many models, hosts have memory for some, and loads take time.

The programme relaxes the planning problem of somebody who knows the future: every arrival, and what each load and each
execution takes. Time is cut into slots of length s; slot k is from ``k*s`` to ``(k+1)*s``. By model m and slot k, there
are: h, whether it is resident on any host when the slot begins; l, loads of it that end within the slot; y, batches of
it that begin within the slot and answer a request in time. For each group g of requests with the same model, first and
last slot, a is how many are answered in time. In any schedule,

- *a request that is answered in time is executed between its arrival and its deadline*, in a slot from ``i``, that of
  its arrival, to ``j``, that of its deadline. Its model is resident then: it was when slot i began, or a load of it has
  ended since. So ``a / n <= h[m, i] + sum of l[m, i..j]``; and ``a / n <= sum of y[m, i..j]``, as a batch begins there;
- *residents come from loads*: ``h[m, k+1] <= h[m, k] + l[m, k]``. At the start of the workload nothing is resident;
- *memory*: at every moment, the bytes of the models that are resident on any host are at most those of all hosts;
- *loaders*: loads that end within a stretch of time H take at most ``loaders * (H + longest load)``, as each loader has
  at most one that began before it;
- *processors*: a batch of b rows takes ``alpha + beta * b`` at least. Batches that begin within a stretch H take
  ``cores * (H + longest batch)`` at most. Of the rows, those of requests whose time lies within the stretch count.

Models and batches may be split, a load slows nobody down, and messages take no time. Long workloads are cut by arrival
into windows that are planned alone, each but the first with any residents at its start, and with idle loaders and
processors: a schedule for everything contains one for each window, so the sum of their optima is a bound.

Where loads and executions scatter, it holds for their means, as the other bounds do.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.scheduling.bounds.programme import Floats, Integers, Programme
from serve_app_simulator.scenario import Affine, Scenario
from serve_app_simulator.workloads import Arrivals

_SLOT_S = 0.5
_WINDOW_S = 30.0


def loading_bound(
    scenario: Scenario, arrivals: Arrivals, *, slot_s: float = _SLOT_S, window_s: float = _WINDOW_S
) -> float:
    """The most requests of one pool, of those that arrive after the warm-up, that can be answered in time.

    Args:
        scenario: Its pool has all models, each of the same affine cost and the same bytes, and requests have one row.
        arrivals: Of the scenario.
        slot_s: Length of a slot, seconds. Shorter is tighter and slower.
        window_s: Length of a window, seconds. Longer is tighter and slower.

    Raises:
        ValueError: The scenario is another.
        ModuleNotFoundError: SciPy is missing.
        RuntimeError: The solver gave up.
    """
    (pool,) = scenario.pools
    curves = {model.curve for model in scenario.models}
    nbytes = {model.scheduling.resident_bytes for model in scenario.models}
    if len(curves) != 1 or len(nbytes) != 1 or not isinstance(curve := curves.pop(), Affine):
        raise ValueError("the bound is for models of the same affine cost and the same bytes")
    if len(arrivals) and int(arrivals.rows.max()) > 1:
        raise ValueError("the bound is for requests of one row")
    counted = arrivals.arrival >= scenario.warm_up_s
    places = pool.hosts * (pool.scheduling.memory_bytes // nbytes.pop())
    longest_s = curve(max(model.scheduling.max_rows for model in scenario.models))
    limits = _Limits(
        places, pool.hosts * pool.scheduling.loads, pool.load_s, pool.hosts * pool.cores, curve, longest_s, slot_s
    )
    window = np.floor(arrivals.arrival / window_s).astype(np.int64)
    total = 0.0
    for number in np.unique(window[counted]):
        chosen = counted & (window == number)
        begins = number * window_s
        total += limits.best(
            arrivals.arrival[chosen] - begins,
            arrivals.deadline[chosen] - begins,
            arrivals.model[chosen],
            empty=number == 0,
        )
    return total


class _Limits:
    """What bounds a window.

    Args:
        places: Models that fit into all hosts.
        loaders: Loads at once.
        load_s: What one takes.
        cores: Executions at once at full speed.
        curve: What one takes.
        longest_s: The longest.
        slot_s: Length of a slot.
    """

    def __init__(
        self, places: int, loaders: int, load_s: float, cores: int, curve: Affine, longest_s: float, slot_s: float
    ) -> None:
        self._places = places
        self._loaders = loaders
        self._load_s = load_s
        self._cores = cores
        self._curve = curve
        self._longest_s = longest_s
        self._slot_s = slot_s

    def best(self, arrival: Floats, deadline: Floats, model: Integers, *, empty: bool) -> float:
        """The optimum of a window, whose times count from its start; ``empty``: nothing is resident then."""
        first = np.floor(arrival / self._slot_s).astype(np.int64)
        last = np.floor(deadline / self._slot_s).astype(np.int64)
        groups, counts = np.unique(np.column_stack([model, first, last]), axis=0, return_counts=True)
        names, of_model = np.unique(groups[:, 0], return_inverse=True)
        slots = int(last.max()) + 1
        programme = Programme()
        shape = (len(names), slots)
        most = np.ones(shape)
        if empty:
            most[:, 0] = 0.0
        resident = programme.variables(most.size, most.ravel()).reshape(shape)
        loads, batches = (programme.variables(most.size).reshape(shape) for _ in range(2))
        answered = programme.variables(len(groups), counts.astype(np.float64), 1.0)
        begin, end = groups[:, 1], groups[:, 2]

        limits = programme.limits
        rows = limits.open(np.zeros(2 * len(groups)))
        lengths = end - begin + 1
        spread = np.repeat(np.arange(len(groups)), lengths)
        at = begin[spread] + np.arange(len(spread)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        ran, had = rows[: len(groups)], rows[len(groups) :]
        for each in (ran, had):
            limits.put(each, answered, 1.0 / counts)
        limits.put(ran[spread], batches[of_model[spread], at], -1.0)
        limits.put(had[spread], loads[of_model[spread], at], -1.0)
        limits.put(had, resident[of_model, begin], -1.0)

        kept = limits.open(np.zeros(len(names) * (slots - 1)))
        limits.put(kept, resident[:, 1:].ravel(), 1.0)
        limits.put(kept, resident[:, :-1].ravel(), -1.0)
        limits.put(kept, loads[:, :-1].ravel(), -1.0)

        memory = limits.open(np.full(slots, float(self._places)))
        limits.put(np.tile(memory, len(names)), resident.ravel(), 1.0)

        for low, high in _stretches(slots):
            stretch_s = (high - low) * self._slot_s
            loader, processor = limits.open(
                np.array(
                    [
                        self._loaders * (stretch_s + self._load_s),
                        self._cores * (stretch_s + self._longest_s),
                    ]
                )
            )
            inside = loads[:, low:high].ravel()
            limits.put(np.full(len(inside), loader), inside, self._load_s)
            begun = batches[:, low:high].ravel()
            limits.put(np.full(len(begun), processor), begun, self._curve.alpha_s)
            within = answered[(begin >= low) & (end < high)]
            limits.put(np.full(len(within), processor), within, self._curve.beta_s)
        return programme.maximise()


def _stretches(slots: int) -> Iterator[tuple[int, int]]:
    """All slots, and halves of them down to single ones."""
    length = 1
    while length < 2 * slots:
        for low in range(0, slots, length):
            yield low, min(low + length, slots)
        length *= 2
