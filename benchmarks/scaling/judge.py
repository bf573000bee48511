"""The judge: the server's policy beside others, each with the settings that suit it best in that cell.

    python -m benchmarks.scaling judge --publish

Every contender runs over the same scheduler and meets the same arrivals. A rival's settings are chosen per cell, with
other draws of its arrivals than those that count: the cheapest with which it is in time for as many as the server's
policy, else those in time for most. First its target is searched for, then how long it waits before it scales down.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from math import sqrt
from pathlib import Path
from statistics import mean
from typing import Final, NamedTuple, Self

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
RIVALS: Final[Mapping[str, Callable[[int, int, float, float], Scaler]]] = {
    RAY: RayServe,
    QUEUE: partial(Keda, "queue"),
    RATE: partial(Keda, "rate"),
}
"""Made of the least and most replicas, the target in rows, and how long fewer must do before there are fewer."""
TUNING_SEED = 1
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


class Settings(NamedTuple):
    """Of a rival.

    Attributes:
        target: Of a replica, in requests or in requests per second.
        down_s: How long fewer must do before there are fewer.
    """

    target: float
    down_s: float

    def __str__(self) -> str:
        return f"{self.target:.3g}, {self.down_s:g} s"

    @classmethod
    def read(cls, text: str) -> Self:
        """Read what `str` gives. Raises ValueError."""
        target, down = text.removesuffix(" s").split(", ")
        return cls(float(target), float(down))


@dataclass(frozen=True, slots=True)
class Score:
    """How a contender did, on average over draws.

    Attributes:
        in_time: Part of the requests.
        replica_s: Replicas' time on the list, seconds.
        changes: How often the number was changed.
        turns: How often the direction of a change was another than that of the one before.
        settings: Of a rival.
    """

    contender: str
    in_time: float
    replica_s: float
    changes: float
    turns: float
    settings: str = ""


def run(cell: Cell, seeds: Sequence[int], tuned: Mapping[str, Settings] | None = None) -> list[Score]:
    """Score all contenders in a cell, the server's policy first.

    Args:
        seeds: Of the draws that count.
        tuned: Settings by rival; ``None``: they are searched for.
    """
    ours = [score(cell, seed) for seed in seeds]
    found = tune(cell) if tuned is None else tuned
    rivals = [_mean([score(cell, seed, name, found[name]) for seed in seeds]) for name in RIVALS]
    bounds = [bound(cell, seed, each.in_time) for seed, each in zip(seeds, ours, strict=True)]
    return [_mean(ours), *rivals, _mean(bounds)]


def tune(cell: Cell) -> dict[str, Settings]:
    """The best settings of each rival: bisects targets, in requests, then tries other waits with the best of them."""
    ours = score(cell, TUNING_SEED)
    rate = 1.0 / (cell.row_s() * cell.rows)
    chosen = {}
    for name in RIVALS:
        low, high = [part * rate for part in _UTILIZATION] if name == RATE else _ONGOING
        found: dict[Settings, Score] = {}
        for _ in range(_STEPS):
            settings = Settings(sqrt(low * high), _DOWN_S)
            found[settings] = score(cell, TUNING_SEED, name, settings)
            if as_good(ours, found[settings]):
                low = settings.target
            else:
                high = settings.target
        target = _best(ours, found).target
        for down_s in _OTHER_DOWN_S:
            settings = Settings(target, down_s)
            found[settings] = score(cell, TUNING_SEED, name, settings)
        chosen[name] = _best(ours, {each: found[each] for each in found if each.target == target})
    return chosen


def read_settings(report: Path) -> dict[str, dict[str, Settings]]:
    """Read the settings of rivals by cell from the JSON of a report."""
    return {
        cell["cell"]: {
            each["contender"]: Settings.read(each["settings"]) for each in cell["scores"] if each["contender"] in RIVALS
        }
        for cell in json.loads(report.read_text())["cells"]
    }


def _mean(scores: Sequence[Score]) -> Score:
    return Score(
        scores[0].contender,
        mean([each.in_time for each in scores]),
        mean([each.replica_s for each in scores]),
        mean([each.changes for each in scores]),
        mean([each.turns for each in scores]),
        scores[0].settings,
    )


def as_good(ours: Score, other: Score) -> bool:
    """Whether a contender is in time for as many as the server's policy."""
    return other.in_time >= ours.in_time - _SAME


def _best(ours: Score, scores: Mapping[Settings, Score]) -> Settings:
    """The cheapest of those as good as ours, else the one that is in time for most."""

    def key(settings: Settings) -> tuple[float, float]:
        each = scores[settings]
        return (0.0, each.replica_s) if as_good(ours, each) else (1.0 - each.in_time, each.replica_s)

    return min(scores, key=key)


def bound(cell: Cell, seed: int, in_time: float) -> Score:
    """The cheapest plan of slots that is in time for as many, if it is known when they come."""
    arrivals = _arrivals(cell, seed)
    ways_s = (OVERHEADS.request_s + OVERHEADS.send_s + OVERHEADS.answer_s) * OVERHEADS.mean_factor
    lost = losses(arrivals.arrival, cell.rows, cell.curve, cell.timeout_s - ways_s, cell.load.seconds, _SLOT_S, MOST)
    numbers = plan(lost, (1.0 - in_time) * len(arrivals))
    reached = 1.0 - float(lost[np.array(numbers) - 1, np.arange(len(numbers))].sum()) / len(arrivals)
    return Score(BOUND, reached, sum(numbers) * _SLOT_S, sum(a != b for a, b in pairwise(numbers)), 0)


def score(cell: Cell, seed: int, contender: str = OURS, settings: Settings | None = None) -> Score:
    """Run a contender."""
    make_scaler = None
    if settings is not None:
        make_scaler = partial(RIVALS[contender], 1, MOST, settings.target * cell.rows, settings.down_s)
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
    return Score(contender, result.attainment, result.replica_s, len(steps), turns, str(settings or ""))


def _arrivals(cell: Cell, seed: int) -> Arrivals:
    rate = 1.0 / (cell.row_s() * cell.rows)
    return cell.load.arrivals(rate, cell.timeout_s, seed, MODEL, cell.rows)
