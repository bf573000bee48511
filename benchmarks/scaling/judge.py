"""The judge: the server's policy beside others, each with the target that suits it best in that cell.

    python -m benchmarks.scaling judge --publish

Every contender runs over the same scheduler and meets the same arrivals. A rival's settings are chosen per cell, by
the run itself: the cheapest with which it is in time for as many as the server's policy, else those in time for most.
First its target is searched for, then how long it waits before it scales down.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from math import sqrt
from pathlib import Path

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
_SAME = 5e-4
"""Parts in time that differ by no more count as equal."""
_SLOT_S = 10.0
_ONGOING = (0.5, 4.0)
"""Range of targets, in requests queued and running; Ray Serve's default is 2."""
_UTILIZATION = (0.5, 1.0)
"""Range of targets, as parts of what a replica can answer."""
_STEPS = 3
"""Of the search for a target."""
_DOWN_S = 60.0
_OTHER_DOWN_S = (15.0, 300.0)
"""How long fewer replicas must do before there are fewer."""


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
        settings: Of a rival: its target, in requests or in requests per second, and how long it waits before it scales
            down.
    """

    contender: str
    in_time: float
    replica_s: float
    changes: int
    turns: int
    settings: str = ""


class Kept:
    """Scores of rivals in a file, a line each, so that a run goes on where another ended."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        lines = file.read_text().splitlines() if file is not None and file.exists() else []
        self._scores = {tuple(key): Score(**score) for key, score in map(json.loads, lines)}

    def score(self, cell: Cell, contender: str, seed: int, make_scaler: Callable[[], Scaler], settings: str) -> Score:
        """Find a score, or run the contender and keep it."""
        key = (cell.name, contender, seed, settings)
        if (found := self._scores.get(key)) is None:
            found = self._scores[key] = score(cell, contender, seed, make_scaler, settings)
            if self._file is not None:
                with self._file.open("a") as lines:
                    lines.write(json.dumps([key, asdict(found)]) + "\n")
        return found


def run(cell: Cell, seed: int, keep: Path | None = None) -> list[Score]:
    """Score all contenders in a cell, the server's policy first.

    Args:
        keep: Scores of rivals; see `Kept`.
    """
    ours = score(cell, OURS, seed, None)
    rate = 1.0 / (cell.row_s() * cell.rows)
    part, whole = _UTILIZATION
    kept = Kept(keep)
    rivals = [
        _tuned(kept, cell, seed, ours, RAY, _ONGOING, RayServe),
        _tuned(kept, cell, seed, ours, QUEUE, _ONGOING, partial(Keda, "queue")),
        _tuned(kept, cell, seed, ours, RATE, (part * rate, whole * rate), partial(Keda, "rate")),
    ]
    return [ours, *rivals, bound(cell, seed, ours.in_time)]


def _tuned(
    kept: Kept,
    cell: Cell,
    seed: int,
    ours: Score,
    contender: str,
    targets: tuple[float, float],
    make_scaler: Callable[[int, int, float, float], Scaler],
) -> Score:
    """The best score of a rival: bisects targets, in requests, then tries other waits with the best of them."""

    def tried(target: float, down_s: float) -> Score:
        make = partial(make_scaler, 1, MOST, target * cell.rows, down_s)
        return kept.score(cell, contender, seed, make, f"{target:.3g}, {down_s:g} s")

    low, high = targets
    found: dict[float, Score] = {}
    for _ in range(_STEPS):
        target = sqrt(low * high)
        found[target] = tried(target, _DOWN_S)
        if as_good(ours, found[target]):
            low = target
        else:
            high = target
    best = _best(ours, found.values())
    target = next(target for target, each in found.items() if each is best)
    return _best(ours, [best, *(tried(target, down_s) for down_s in _OTHER_DOWN_S)])


def as_good(ours: Score, other: Score) -> bool:
    """Whether a contender is in time for as many as the server's policy."""
    return other.in_time >= ours.in_time - _SAME


def _best(ours: Score, scores: Iterable[Score]) -> Score:
    """The cheapest of those as good as ours, else the one that is in time for most."""
    return min(
        scores,
        key=lambda each: (0.0, each.replica_s) if as_good(ours, each) else (1.0 - each.in_time, each.replica_s),
    )


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
    settings: str = "",
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
    return Score(contender, result.attainment, result.replica_s, len(steps), turns, settings)


def _arrivals(cell: Cell, seed: int) -> Arrivals:
    rate = 1.0 / (cell.row_s() * cell.rows)
    return cell.load.arrivals(rate, cell.timeout_s, seed, MODEL, cell.rows)
