"""The best settings of a baseline for a scenario, found by trying them: what a careful operator would run.

The sweep sees the very scenario that is measured, its load and its deadlines, which is more than an operator knows. It
can use seeds of its own, so that luck with one sequence of arrivals is not taken for merit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from statistics import fmean
from typing import NamedTuple

from serve_app.simulation.baselines.clipper import Clipper
from serve_app.simulation.baselines.clockwork import Clockwork
from serve_app.simulation.baselines.nexus import Nexus
from serve_app.simulation.baselines.ray_serve import RayServeBatch
from serve_app.simulation.baselines.serving import known_latency, objective_s
from serve_app.simulation.baselines.symphony import Symphony
from serve_app.simulation.baselines.triton import DELAYS_S, Timeout, Triton
from serve_app.simulation.run import simulate_many
from serve_app.simulation.scenario import Scenario
from serve_app.simulation.system import System

MakeSystem = Callable[[], System]
_KEPT = 3
"""One in so many settings, and at least so many, are tried under further seeds."""


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

    All are simulated under the first seed, and the best third of them, at least three, under the others. Equal ones
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
        finalists = finalists[: max(_KEPT, len(factories) // _KEPT)]
        run(finalists, seeds[1:])
        finalists = best_first(sorted(finalists, key=list(factories).index))
    best = finalists[0]
    return Tuned(best, factories[best], {name: fmean(scores) for name, scores in found.items()})


def tuned(
    baseline: str, scenario: Scenario, seeds: Iterable[int], *, weighted: bool = True, processes: int = 1
) -> Tuned:
    """The best of a baseline's `candidates`; see `tune`."""
    return tune(candidates(baseline, scenario), scenario, seeds, weighted=weighted, processes=processes)


def candidates(baseline: str, scenario: Scenario) -> dict[str, MakeSystem]:
    """The settings of a baseline that are worth trying on a scenario, by a name that tells them apart.

    They can be sent to other processes. Batch sizes that are tried: the model's own limit, and the largest ones whose
    execution takes a half and a quarter of the objective (of the model where that is least).

    Args:
        baseline: A name of `serve_app.simulation.baselines.BASELINES`.
        scenario: What they will be tried on.

    Raises:
        ValueError: There is no baseline of that name.
    """
    if baseline not in _CANDIDATES:
        raise ValueError(f"unknown baseline {baseline!r}; there are: {', '.join(_CANDIDATES)}")
    return _CANDIDATES[baseline](scenario)


def _batch_sizes(scenario: Scenario) -> list[int | None]:
    """``None`` is the model's own limit."""
    sizes: list[int | None] = [None]
    for part in (0.5, 0.25):
        fitting = scenario_limit = max(model.scheduling.max_rows for model in scenario.models)
        for model in scenario.models:
            latency = known_latency(scenario, model)
            if latency.known:
                bucket = max(latency.buckets)
                within_s = objective_s(scenario, model) * part
                fitting = min(fitting, max(1, latency.rows_within(within_s, bucket, model.scheduling.max_rows)))
        if fitting < scenario_limit and fitting not in sizes:
            sizes.append(fitting)
    return sizes


def _size(size: int | None) -> str:
    return "" if size is None else f" b={size}"


def _ray_serve(scenario: Scenario) -> dict[str, MakeSystem]:
    most = max(model.scheduling.max_rows for model in scenario.models)
    return {
        f"wait={wait_s * 1e3:g}ms ongoing={ongoing}{_size(size)}": partial(RayServeBatch, wait_s, size, ongoing)
        for size in _batch_sizes(scenario)
        for wait_s in (*DELAYS_S, 0.02, 0.05)
        for ongoing in ((size or most), 2 * (size or most), 1000)
    }


def _triton(scenario: Scenario) -> dict[str, MakeSystem]:
    timeouts: tuple[Timeout, ...] = ("full", "one", "budget", "half")
    return {
        f"delay={delay_s * 1e3:g}ms timeout={timeout}{_size(size)}": partial(Triton, delay_s, timeout, size)
        for size in _batch_sizes(scenario)
        for timeout in timeouts
        for delay_s in DELAYS_S
    }


def _clipper(scenario: Scenario) -> dict[str, MakeSystem]:  # noqa: ARG001 - as the others
    return {
        f"delay={delay_s * 1e3:g}ms objective={objective:g}": partial(Clipper, delay_s, objective)
        for objective in (1.0, 0.5, 0.25)
        for delay_s in (0.0, 0.002, 0.005)
    }


def _clockwork(scenario: Scenario) -> dict[str, MakeSystem]:  # noqa: ARG001 - as the others
    return {
        f"buffer={buffer_s * 1e3:g}ms ahead={ahead_s * 1e3:g}ms": partial(Clockwork, buffer_s, ahead_s)
        for buffer_s in (0.0, 0.001, 0.005)
        for ahead_s in (0.0, 0.005)
    }


def _nexus(scenario: Scenario) -> dict[str, MakeSystem]:  # noqa: ARG001 - as the others
    return {
        f"plan={plan} balance={balance}": partial(Nexus, plan, balance)
        for plan in ("rate", "saturated")
        for balance in ("round_robin", "least_loaded")
    }


def _symphony(scenario: Scenario) -> dict[str, MakeSystem]:  # noqa: ARG001 - as the others
    return {
        f"jitter={jitter_s * 1e3:g}ms{' eager' if eager else ''}": partial(Symphony, jitter_s, eager_at_target=eager)
        for eager in (False, True)
        for jitter_s in (0.0001, 0.001, 0.004)
    }


_CANDIDATES: dict[str, Callable[[Scenario], dict[str, MakeSystem]]] = {
    RayServeBatch.name: _ray_serve,
    Triton.name: _triton,
    Clipper.name: _clipper,
    Clockwork.name: _clockwork,
    Nexus.name: _nexus,
    Symphony.name: _symphony,
}
