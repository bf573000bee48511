"""The best settings of a baseline for a scenario, found by trying them: what a careful operator would run.

The sweep sees the very scenario that is measured, its load and its deadlines, which is more than an operator knows. It
can use seeds of its own, so that luck with one sequence of arrivals is not taken for merit.

Settings are a grid (`Grid`): every batch size from 1 to the model's limit, delays in parts of what one row takes, and
what else a system has. Large grids are searched from coarse to fine under the first seed: every value of the first axis
(the batch sizes) with the first values of the others; from the three best of these, every value of each other axis;
and from the best of all so far, its neighbours (one and two steps along every axis), again from a better one where
there is one, until there is none. Small grids are tried in full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import fmean
from typing import Any, NamedTuple, get_args

from benchmarks.scheduling.baselines.clipper import Clipper
from benchmarks.scheduling.baselines.clockwork import Clockwork
from benchmarks.scheduling.baselines.nexus import Balance, Nexus, Plan
from benchmarks.scheduling.baselines.ray_serve import RayServeBatch
from benchmarks.scheduling.baselines.sliding import SlidingWindow
from benchmarks.scheduling.baselines.symphony import Symphony
from benchmarks.scheduling.baselines.triton import Timeout, Triton
from serve_app_simulator.run import simulate_many
from serve_app_simulator.scenario import Scenario
from serve_app_simulator.system import System

MakeSystem = Callable[[], System]
_KEPT = 3
"""One in so many settings, and at least so many, are tried under further seeds."""
_MOST_KEPT = 8
_SMALL = 24
"""Grids of up to so many settings are tried in full."""
_DELAYS = (0.0, 0.05, 0.1, 0.2, 0.4, 1.0, 2.0)
"""The delays of a grid, in parts of what one row takes (of the model where that is least)."""


class Tuned(NamedTuple):
    """What a sweep has found.

    Attributes:
        name: Of the best settings.
        make_system: Makes a system with them.
        scores: Mean weighted goodput of every settings tried, by name, over the seeds it was tried with.
    """

    name: str
    make_system: MakeSystem
    scores: dict[str, float]


def tune(
    factories: Mapping[str, MakeSystem],
    scenario: Scenario,
    seeds: Iterable[int],
    *,
    weighted: bool = True,
    processes: int = 1,
) -> Tuned:
    """Find the settings with the most goodput.

    All are simulated under the first seed, and the best third of them, three to eight, under the others. Equal ones
    are told apart by their order: the first wins.

    Args:
        factories: By name, what makes a system with those settings.
        scenario: What they are tried on.
        seeds: Of arrivals and noise.
        weighted: Whether answers count by the weight of their class.
        processes: Simulations at once.

    Raises:
        ValueError: There is nothing to try, or no seed.
        ConfigError: The scenario is impossible.
    """
    seeds = tuple(seeds)
    if not factories or not seeds:
        raise ValueError("tuning needs settings to try and at least one seed")
    found: dict[str, list[float]] = {name: [] for name in factories}

    def run(names: Iterable[str], those: tuple[int, ...]) -> None:
        results = simulate_many(scenario, {name: factories[name] for name in names}, those, processes)
        for name, by_seed in results.items():
            found[name] += [result.weighted_goodput if weighted else result.goodput for result in by_seed]

    def best_first(names: Iterable[str]) -> list[str]:
        return sorted(names, key=lambda name: -fmean(found[name]))

    run(factories, seeds[:1])
    finalists = best_first(factories)
    if len(seeds) > 1:
        finalists = finalists[: min(_MOST_KEPT, max(_KEPT, len(factories) // _KEPT))]
        run(finalists, seeds[1:])
        finalists = best_first(sorted(finalists, key=list(factories).index))
    best = finalists[0]
    return Tuned(best, factories[best], {name: fmean(scores) for name, scores in found.items()})


@dataclass(frozen=True, slots=True)
class Grid:
    """The settings of a baseline that are worth trying on a scenario.

    Attributes:
        axes: By argument of its constructor, the values to try, ascending where they are numbers; the first axis is
            swept first, with the first values of the others.
        make: Makes a system of the arguments.
    """

    axes: Mapping[str, tuple[Any, ...]]
    make: Callable[..., System]

    def __len__(self) -> int:
        count = 1
        for values in self.axes.values():
            count *= len(values)
        return count

    def all(self) -> Iterator[tuple[int, ...]]:
        """Every point: a place on each axis."""
        return product(*(range(len(values)) for values in self.axes.values()))

    def near(self, point: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """The points one and two steps from this one along each axis."""
        for axis, values in enumerate(self.axes.values()):
            for step in (-1, 1, -2, 2):
                if 0 <= point[axis] + step < len(values):
                    yield (*point[:axis], point[axis] + step, *point[axis + 1 :])

    def along(self, point: tuple[int, ...], axis: int) -> Iterator[tuple[int, ...]]:
        """The points that differ from this one on one axis only, itself included."""
        for place in range(len(list(self.axes.values())[axis])):
            yield (*point[:axis], place, *point[axis + 1 :])

    def title(self, point: tuple[int, ...]) -> str:
        """What tells it from the others."""
        return " ".join(f"{name}={_shown(name, value)}" for name, value in self._arguments(point).items())

    def factory(self, point: tuple[int, ...]) -> MakeSystem:
        """Makes a system with these settings; can be sent to other processes."""
        return partial(self.make, **self._arguments(point))

    def _arguments(self, point: tuple[int, ...]) -> dict[str, Any]:
        return {name: values[place] for (name, values), place in zip(self.axes.items(), point, strict=True)}


def _shown(name: str, value: Any) -> str:
    if name.endswith("_s"):
        return f"{1e3 * value:.3g}ms"
    return f"{value:g}" if isinstance(value, float) else str(value)


def tuned(
    baseline: str,
    scenario: Scenario,
    seeds: Iterable[int],
    *,
    weighted: bool = True,
    processes: int = 1,
    make: Callable[..., System] | None = None,
) -> Tuned:
    """The best settings of a baseline's grid, searched as the module says.

    Args:
        baseline: A name of `benchmarks.scheduling.baselines.BASELINES`.
        scenario: What settings are tried on.
        seeds: Of arrivals and noise: the search sees the first, the best it has found all of them.
        weighted: Whether answers count by the weight of their class.
        processes: Simulations at once.
        make: Makes the system instead of the baseline's own class.

    Raises:
        ValueError: There is no baseline of that name, or no seed.
        ConfigError: The scenario is impossible.
    """
    grid, seeds = grid_of(baseline, scenario), tuple(seeds)
    if make is not None:
        grid = Grid(grid.axes, make)
    points = list(grid.all()) if len(grid) <= _SMALL else _searched(grid, scenario, seeds[:1], weighted, processes)
    factories = {grid.title(point): grid.factory(point) for point in points}
    return tune(factories, scenario, seeds, weighted=weighted, processes=processes)


def _searched(
    grid: Grid, scenario: Scenario, seeds: tuple[int, ...], weighted: bool, processes: int
) -> list[tuple[int, ...]]:
    """The best points of a grid under one seed."""
    scores: dict[tuple[int, ...], float] = {}

    def look(points: Iterable[tuple[int, ...]]) -> None:
        new = [point for point in dict.fromkeys(points) if point not in scores]
        if new:
            factories = {grid.title(point): grid.factory(point) for point in new}
            found = tune(factories, scenario, seeds, weighted=weighted, processes=processes).scores
            scores.update({point: found[grid.title(point)] for point in new})

    def best(count: int) -> list[tuple[int, ...]]:
        return sorted(scores, key=lambda point: (-scores[point], point))[:count]

    start = (0,) * len(grid.axes)
    look(grid.along(start, 0))
    for axis in range(1, len(grid.axes)):
        look(point for good in best(_KEPT) for point in grid.along(good, axis))
    top: list[tuple[int, ...]] = []
    while top != best(1):
        top = best(1)
        look(grid.near(top[0]))
    return best(_MOST_KEPT)


def grid_of(baseline: str, scenario: Scenario) -> Grid:
    """The settings of a baseline that are worth trying on a scenario.

    Args:
        baseline: A name of `benchmarks.scheduling.baselines.BASELINES`.
        scenario: What they will be tried on.

    Raises:
        ValueError: There is no baseline of that name.
    """
    if baseline not in _GRIDS:
        raise ValueError(f"unknown baseline {baseline!r}; there are: {', '.join(_GRIDS)}")
    return _GRIDS[baseline](scenario)


def _sizes(scenario: Scenario) -> tuple[int, ...]:
    return tuple(range(1, max(model.scheduling.max_rows for model in scenario.models) + 1))


def _delays_s(scenario: Scenario) -> tuple[float, ...]:
    least_s = min(model.curve(1, 0) for model in scenario.models)
    return tuple(part * least_s for part in _DELAYS)


def _ray_serve(scenario: Scenario) -> Grid:
    return Grid(
        {
            "max_batch_size": _sizes(scenario),
            "batch_wait_timeout_s": _delays_s(scenario),
            "max_ongoing_requests": (None, max(_sizes(scenario)), 1000),
        },
        RayServeBatch,
    )


def _triton(scenario: Scenario) -> Grid:
    timeouts: tuple[Timeout, ...] = ("full", "one", "budget", "half")
    return Grid(
        {"max_batch_size": _sizes(scenario), "timeout": timeouts, "delay_s": _delays_s(scenario)},
        Triton,
    )


def _sliding(scenario: Scenario) -> Grid:
    return Grid({"max_batch_size": _sizes(scenario), "delay_s": _delays_s(scenario)}, SlidingWindow)


def _clipper(scenario: Scenario) -> Grid:
    return Grid({"objective": (0.25, 0.5, 0.75, 1.0), "delay_s": _delays_s(scenario)[::2]}, Clipper)


def _clockwork(scenario: Scenario) -> Grid:  # noqa: ARG001 - as the others
    return Grid({"buffer_s": (0.0, 0.001, 0.002, 0.005, 0.01), "schedule_ahead_s": (0.0, 0.005, 0.01)}, Clockwork)


def _nexus(scenario: Scenario) -> Grid:  # noqa: ARG001 - as the others
    return Grid({"plan": get_args(Plan), "balance": get_args(Balance)}, Nexus)


def _symphony(scenario: Scenario) -> Grid:  # noqa: ARG001 - as the others
    return Grid(
        {"jitter_s": (0.0001, 0.001, 0.004, 0.008), "eager_at_target": (False, True)},
        Symphony,
    )


_GRIDS: dict[str, Callable[[Scenario], Grid]] = {
    RayServeBatch.name: _ray_serve,
    Triton.name: _triton,
    SlidingWindow.name: _sliding,
    Clipper.name: _clipper,
    Clockwork.name: _clockwork,
    Nexus.name: _nexus,
    Symphony.name: _symphony,
}
