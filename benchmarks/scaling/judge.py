"""The judge: the server's policy beside others, each with the target that suits it best in that cell.

    python -m benchmarks.scaling judge --publish

Every contender runs over the same scheduler and meets the same arrivals. A rival's target is chosen per cell, by the
run itself: the cheapest with which it is in time for as many as the server's policy, else the one in time for most.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np

from benchmarks.scaling.rivals import Keda, RayServe, losses, plan
from benchmarks.scaling.workloads import Load
from benchmarks.scheduling.conditions import MAX_ROWS, MODEL, NOISE, OVERHEADS, classes
from serve_app.scheduling.settings import ModelScheduling
from serve_app_simulator.ours import ServeApp
from serve_app_simulator.run import simulate
from serve_app_simulator.scalers import Scaler
from serve_app_simulator.scenario import Curve, Scenario, SimulatedAutoscaling, SimulatedModel
from serve_app_simulator.workloads import Arrivals

MOST = 10
OURS, RAY, QUEUE, RATE, BOUND = "serve_app", "Ray Serve", "KEDA, queue", "KEDA, rate", "sees the future"
_SLOT_S = 10.0
_QUEUE_TARGETS = (2.0, 8.0, 32.0)
"""In requests."""
_RATE_TARGETS = (0.6, 0.75, 0.9)


@dataclass(frozen=True, slots=True)
class Cell:
    """One question.

    Attributes:
        curve: True cost of a batch.
        rows: Of a request.
        timeout_s: Deadline.
        start_s: How long a replica takes to start.
    """

    load: Load
    curve_name: str
    curve: Curve
    rows: int
    timeout_s: float
    start_s: float

    @property
    def name(self) -> str:
        """For tables."""
        return f"{self.curve_name}, {self.load.name}, {self.timeout_s:g} s, start {self.start_s:g} s"

    def row_s(self) -> float:
        """Server-seconds of a row in the largest batch that the deadline allows twice."""
        fitting = [rows for rows in range(1, MAX_ROWS + 1) if 2 * self.curve(rows, 0) <= self.timeout_s]
        rows = max(fitting, default=1)
        return self.curve(rows, 0) / rows


@dataclass(frozen=True, slots=True)
class Score:
    """How a contender did.

    Attributes:
        in_time: Part of the requests.
        replica_s: Replicas' time on the list, seconds.
        changes: How often the number was changed.
        turns: How often the direction of a change was another than that of the one before.
        target: Of a rival; 0.0: it has none.
    """

    contender: str
    in_time: float
    replica_s: float
    changes: int
    turns: int
    target: float = 0.0


def run(cell: Cell, seed: int) -> list[Score]:
    """Score all contenders in a cell, the server's policy first."""
    ours = score(cell, OURS, seed, None)
    capacity = 1.0 / cell.row_s()
    makers: dict[str, tuple[tuple[float, ...], Callable[[float], Callable[[], Scaler]]]] = {
        RAY: (_QUEUE_TARGETS, lambda target: partial(RayServe, 1, MOST, target * cell.rows)),
        QUEUE: (_QUEUE_TARGETS, lambda target: partial(Keda, 1, MOST, "queue", target * cell.rows)),
        RATE: (_RATE_TARGETS, lambda target: partial(Keda, 1, MOST, "rate", target * capacity)),
    }
    rivals = [
        _best(ours, [score(cell, name, seed, make(target), target) for target in targets])
        for name, (targets, make) in makers.items()
    ]
    return [ours, *rivals, bound(cell, seed, ours.in_time)]


def _best(ours: Score, scores: list[Score]) -> Score:
    as_good = [each for each in scores if each.in_time >= ours.in_time]
    if as_good:
        return min(as_good, key=lambda each: each.replica_s)
    return max(scores, key=lambda each: (each.in_time, -each.replica_s))


def bound(cell: Cell, seed: int, in_time: float) -> Score:
    """The cheapest plan of slots that is in time for as many, if it is known when they come."""
    arrivals = _arrivals(cell, seed)
    ways_s = (OVERHEADS.request_s + OVERHEADS.send_s + OVERHEADS.answer_s) * OVERHEADS.mean_factor
    lost = losses(arrivals.arrival, cell.rows, cell.curve, cell.timeout_s - ways_s, cell.load.seconds, _SLOT_S, MOST)
    numbers = plan(lost, (1.0 - in_time) * len(arrivals))
    reached = 1.0 - float(lost[np.array(numbers) - 1, np.arange(len(numbers))].sum()) / len(arrivals)
    return Score(BOUND, reached, sum(numbers) * _SLOT_S, sum(a != b for a, b in pairwise(numbers)), 0)


def score(
    cell: Cell,
    contender: str,
    seed: int,
    make_scaler: Callable[[], Scaler] | None,
    target: float = 0.0,
) -> Score:
    """Run a contender. ``None`` is the server's policy."""
    scaling = SimulatedAutoscaling(1, MOST, make_scaler=make_scaler)
    scenario = Scenario(
        cell.name,
        (
            SimulatedModel(
                ModelScheduling(MODEL, MAX_ROWS, cell.timeout_s),
                cell.curve,
                startup_s=cell.start_s,
                autoscaling=scaling,
            ),
        ),
        (),
        cell.load.seconds,
        classes(),
        overheads=replace(OVERHEADS, router_s=0.0),
        noise=NOISE,
    )
    result = simulate(scenario, ServeApp, seed, arrivals=_arrivals(cell, seed))
    numbers = [1, *(step.replicas for step in result.scaling.get(MODEL, ()))]
    steps = [after > before for before, after in pairwise(numbers)]
    turns = sum(before != after for before, after in pairwise(steps))
    return Score(contender, result.attainment, result.replica_s, len(steps), turns, target)


def _arrivals(cell: Cell, seed: int) -> Arrivals:
    rate = 1.0 / (cell.row_s() * cell.rows)
    return cell.load.arrivals(rate, cell.timeout_s, seed, MODEL, cell.rows)
