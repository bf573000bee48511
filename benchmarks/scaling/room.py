"""Two models that ask for more replicas than there is room for, beside a fixed split of the room."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from benchmarks.scaling.workloads import Load, flash, sine, steady, step
from benchmarks.scheduling.conditions import MAX_ROWS, NOISE, OVERHEADS, classes
from serve_app.domain.priority import Priority
from serve_app.scheduling.room import WEIGHTS
from serve_app.scheduling.settings import ModelScheduling
from serve_app_simulator.ours import ServeApp
from serve_app_simulator.run import simulate
from serve_app_simulator.scenario import Affine, Scenario, SimulatedAutoscaling, SimulatedModel
from serve_app_simulator.workloads import Arrivals

ROOM = 6
_CURVE = Affine(0.05, 0.02)
_TIMEOUT_S = 2.0
_NAMES = ("first", "second")
_ROWS = 8  # of a request
_RATE = MAX_ROWS / _CURVE(MAX_ROWS) / _ROWS


@dataclass(frozen=True, slots=True)
class Contest:
    """What is asked of two models.

    Attributes:
        loads: Of each.
        priorities: Of each.
        start_s: How long a replica takes to start.
    """

    name: str
    loads: tuple[Load, Load]
    priorities: tuple[Priority, Priority]
    start_s: float


@dataclass(frozen=True, slots=True)
class Shared:
    """How the room was used.

    Attributes:
        split: Most replicas of each; the room for both if it is shared.
        in_time: Weighted part of the requests.
        of_each: Part of each model's.
        changes: How often a number was changed.
    """

    split: tuple[int, int]
    in_time: float
    of_each: tuple[float, float]
    changes: int


def contests() -> list[Contest]:
    """The grid."""
    waves = sine(400.0, 2, 0.4, 5.0)
    opposite = replace(waves, replicas=np.roll(waves.replicas, len(waves.replicas) // 4))
    equal = (Priority.NORMAL, Priority.NORMAL)
    unequal = (Priority.LOW, Priority.HIGH)
    return [
        Contest(f"{name}, start {start_s:g} s", loads, priorities, start_s)
        for start_s in (10.0, 30.0)
        for name, loads, priorities in (
            ("low steady 4, high steps 0.8 to 4", (steady(4.0, 600.0), step()), unequal),
            ("low steady 4, high has a flash crowd", (steady(4.0, 360.0), flash()), unequal),
            ("waves in turn, both normal", (waves, opposite), equal),
            ("both steady 3.6, both normal", (steady(3.6, 400.0), steady(3.6, 400.0)), equal),
        )
    ]


def share(contest: Contest, seed: int) -> Shared:
    """Let both models ask for all of the room."""
    return _run(contest, seed, (ROOM - 1, ROOM - 1))


def best_split(contest: Contest, seed: int) -> Shared:
    """The fixed split with which most is in time, by weight."""
    splits = [_run(contest, seed, (first, ROOM - first)) for first in range(1, ROOM)]
    return max(splits, key=lambda each: each.in_time)


def _run(contest: Contest, seed: int, most: tuple[int, int]) -> Shared:
    models = tuple(
        SimulatedModel(
            ModelScheduling(name, MAX_ROWS, 1.0),
            _CURVE,
            startup_s=contest.start_s,
            needs={"cpus": 1.0},
            autoscaling=SimulatedAutoscaling(1, maximum),
        )
        for name, maximum in zip(_NAMES, most, strict=True)
    )
    scenario = Scenario(
        contest.name,
        models,
        (),
        contest.loads[0].seconds,
        classes(),
        room={"cpus": float(ROOM)},
        overheads=replace(OVERHEADS, router_s=0.0),
        noise=NOISE,
    )
    result = simulate(scenario, ServeApp, seed, arrivals=_arrivals(contest, seed))
    tallies = [result.models[name] for name in _NAMES]
    weights = [WEIGHTS[priority] * tally.offered for priority, tally in zip(contest.priorities, tallies, strict=True)]
    parts = tallies[0].attainment, tallies[1].attainment
    worth = sum([weight * part for weight, part in zip(weights, parts, strict=True)]) / sum(weights)
    return Shared(most, worth, parts, sum([len(result.scaling.get(name, ())) for name in _NAMES]))


def _arrivals(contest: Contest, seed: int) -> Arrivals:
    drawn = [
        load.arrivals(_RATE, _TIMEOUT_S, 2 * seed + place, name, _ROWS)
        for place, (load, name) in enumerate(zip(contest.loads, _NAMES, strict=True))
    ]
    order = np.argsort(np.concatenate([each.arrival for each in drawn]), kind="stable")

    def joined(column: str) -> np.ndarray:
        return np.concatenate([getattr(each, column) for each in drawn])[order]

    of_model = np.repeat([0, 1], [len(each) for each in drawn])[order]
    priorities = np.array([int(priority) for priority in contest.priorities])[of_model]
    return replace(
        drawn[0],
        models=_NAMES,
        arrival=joined("arrival"),
        deadline=joined("deadline"),
        model=of_model,
        priority=priorities,
        rows=joined("rows"),
        bucket=joined("bucket"),
        stream=joined("stream"),
        tenant=joined("tenant"),
    )
