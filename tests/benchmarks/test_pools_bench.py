"""Servers of many models, and the bound: against what they must do in any case."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.scheduling.baselines.pools import ModelMesh, Multiplexed, PoolSystem, Swapping
from benchmarks.scheduling.bounds.loading import loading_bound
from serve_app.domain.priority import Priority
from serve_app.pools.policy.settings import Pool
from serve_app.scheduling.settings import ClassSettings, ModelScheduling
from serve_app_simulator.ours import ServeApp
from serve_app_simulator.run import simulate
from serve_app_simulator.scenario import Affine, Scenario, SimulatedModel, SimulatedPool, Stream
from serve_app_simulator.workloads import generate

_SYSTEMS = (ModelMesh, Multiplexed, Swapping)


def _scenario(rate: float, room: int, timeout_s: float = 0.5, load_s: float = 0.05) -> Scenario:
    """Twelve members of 6 ms, and two hosts with room for some of them."""
    names = tuple(f"m{number}" for number in range(12))
    models = tuple(
        SimulatedModel(ModelScheduling(name, 8, 0.1, resident_bytes=10), Affine(0.005, 0.001), 0) for name in names
    )
    return Scenario(
        "pool",
        models,
        (Stream("poisson", "pool", rate=rate, timeout_s=timeout_s),),
        4.0,
        {priority: ClassSettings(100_000, 1 << 50, 10.0) for priority in Priority},
        pools=(SimulatedPool(Pool("pool", names, memory_bytes=10 * room, load_s=load_s), 2, load_s),),
    )


@pytest.mark.parametrize("system", _SYSTEMS)
def test_where_all_fit_each_model_is_loaded_once_and_all_is_answered(system: type[PoolSystem]) -> None:
    """Llama-swap's models share places by their names, so that some take turns in any case."""
    result = simulate(_scenario(40.0, room=12), system, 1)
    usage = result.pools["pool"]
    assert result.total.unfinished == 0
    assert result.attainment > 0.9
    if system is not Swapping:
        assert usage.loads <= 14  # a model in demand may be at both hosts
        assert usage.evictions == 0


@pytest.mark.parametrize("system", _SYSTEMS)
def test_in_overload_nothing_is_lost_and_memory_is_kept(system: type[PoolSystem]) -> None:
    """The simulated hosts refuse what does not fit, and what would unload a model that runs."""
    result = simulate(_scenario(400.0, room=2), system, 1)
    total = result.total
    assert total.in_time + total.late + total.dropped + total.unfinished == total.offered
    assert 0 < result.pools["pool"].evictions <= result.pools["pool"].loads


def test_without_disconnecting_late_requests_run_too() -> None:
    """Then their answers are late."""
    assert simulate(_scenario(400.0, room=2), lambda: ModelMesh(disconnect=False), 1).total.late > 0


@pytest.mark.parametrize("seed", [1, 2])
def test_no_system_answers_more_than_the_bound(seed: int) -> None:
    """And the bound is below what is offered where loads are the bottleneck."""
    scenario = _scenario(100.0, room=2, load_s=0.4)
    arrivals = generate(scenario, seed)
    most = loading_bound(scenario, arrivals, slot_s=0.25)
    assert most < 0.97 * len(arrivals)
    for system in (ServeApp, *_SYSTEMS):
        assert simulate(scenario, system, seed, arrivals=arrivals).total.in_time <= most


def test_the_bound_is_all_where_all_is_easy() -> None:
    """And what it cannot be for is told."""
    scenario = _scenario(10.0, room=12, timeout_s=1.0, load_s=0.01)
    arrivals = generate(scenario, 1)
    assert loading_bound(scenario, arrivals) == pytest.approx(len(arrivals))
    other = replace(scenario.models[0], curve=Affine(0.1, 0.1))
    with pytest.raises(ValueError, match="the same affine cost"):
        loading_bound(replace(scenario, models=(other, *scenario.models[1:])), arrivals)
