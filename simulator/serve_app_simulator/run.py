"""Runs scenarios: one system and one seed, or many of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from time import perf_counter

from serve_app_simulator.check import check
from serve_app_simulator.results import Result, make_result
from serve_app_simulator.scenario import Scenario
from serve_app_simulator.system import System
from serve_app_simulator.workloads import Arrivals, generate
from serve_app_simulator.world import SimulatedWorld

MakeSystem = Callable[[], System]
"""Makes a system for one run; for several processes it must be picklable (a class, a `functools.partial` of one)."""


def simulate(
    scenario: Scenario,
    make_system: MakeSystem,
    seed: int,
    *,
    arrivals: Arrivals | None = None,
    name: str = "",
    step_s: float = 1.0,
) -> Result:
    """Simulate one system once. Under one seed, all systems meet the same arrivals.

    Args:
        scenario: The scenario.
        make_system: Makes the system under test.
        seed: Of arrivals and noise.
        arrivals: The scenario's arrivals under this seed, if they have been generated already.
        name: Name of the system in the result; by default its ``name`` or that of its class.
        step_s: Resolution of the result's series, virtual seconds.

    Raises:
        ConfigError: The scenario is impossible, or a trace cannot be read.
    """
    check(scenario)
    if arrivals is None:
        arrivals = generate(scenario, seed)
    system = make_system()
    world = SimulatedWorld(scenario, seed, step_s)
    started = perf_counter()
    records = world.run(system, arrivals)
    wall_s = perf_counter() - started
    return make_result(
        scenario,
        name or str(getattr(system, "name", "")) or type(system).__name__,
        seed,
        arrivals,
        records,
        world.usage,
        world.queued_rows,
        world.replicas,
        step_s,
        wall_s,
        world.events,
        world.pools,
        world.scaling,
    )


def simulate_many(
    scenario: Scenario,
    systems: Mapping[str, MakeSystem],
    seeds: Iterable[int],
    processes: int = 1,
    on_progress: Callable[[Result], None] | None = None,
    *,
    step_s: float = 1.0,
) -> dict[str, list[Result]]:
    """Simulate several systems under several seeds, all systems under the first seed first.

    With more than one process, scenario and systems must be picklable. ``on_progress`` is called with each result as it
    comes.

    Returns:
        Results by the system's name, in the order of the seeds.

    Raises:
        ConfigError: The scenario is impossible, or a trace cannot be read.
    """
    seeds = tuple(seeds)
    check(scenario)
    found: dict[tuple[str, int], Result] = {}
    for result in _all_results(scenario, systems, seeds, processes, step_s):
        found[result.system, result.seed] = result
        if on_progress is not None:
            on_progress(result)
    return {name: [found[name, seed] for seed in seeds] for name in systems}


def _all_results(
    scenario: Scenario, systems: Mapping[str, MakeSystem], seeds: tuple[int, ...], processes: int, step_s: float
) -> Iterator[Result]:
    if processes <= 1:
        for seed in seeds:
            arrivals = generate(scenario, seed)
            for name, make_system in systems.items():
                yield simulate(scenario, make_system, seed, arrivals=arrivals, name=name, step_s=step_s)
        return
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        runs = [
            pool.submit(simulate, scenario, make_system, seed, name=name, step_s=step_s)
            for seed in seeds
            for name, make_system in systems.items()
        ]
        for run in as_completed(runs):
            yield run.result()
