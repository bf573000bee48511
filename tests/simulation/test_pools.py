"""Pools in the simulator: hosts that load and unload, and what a scheduler does with them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from simulation_builders import HIGH, LOW, NORMAL, Scripted, make_classes, make_model, make_scenario

from serve_app.errors import ConfigError
from serve_app.pools.policy.settings import Pool
from serve_app_simulator.ours import ServeApp
from serve_app_simulator.run import simulate
from serve_app_simulator.scenario import Affine, Overheads, Scenario, SimulatedPool, Stream
from serve_app_simulator.system import Execution, Loaded, World
from serve_app_simulator.workloads import generate

_SHARE = {HIGH: 0.2, NORMAL: 0.5, LOW: 0.3}


def _make_pool(*streams: Stream, members: int = 20, room: int = 5, duration_s: float = 5.0, **more: Any) -> Scenario:
    """Members of 10 bytes and 6 ms; two hosts that have room for a few of them and load one in 20 ms."""
    names = tuple(f"m{number}" for number in range(members))
    models = []
    for name in names:
        model = make_model(name, replicas=0, curve=Affine(0.005, 0.001))
        models.append(replace(model, scheduling=replace(model.scheduling, resident_bytes=10)))
    settings = Pool("pool", names, memory_bytes=10 * room, load_s=0.02)
    pool = SimulatedPool(settings, **{"hosts": 2, "load_s": 0.02, **more})
    return make_scenario(*streams, models=tuple(models), pools=(pool,), duration_s=duration_s, classes=make_classes())


def _a_stream(rate: float = 100.0, timeout_s: float = 0.5) -> Stream:
    return Stream("poisson", "pool", rate=rate, timeout_s=timeout_s, share=_SHARE)


def test_requests_of_more_models_than_fit_are_in_time_and_every_load_counts() -> None:
    """Half of them fit."""
    result = simulate(replace(_make_pool(_a_stream()), overheads=Overheads(send_s=0.001, answer_s=0.002)), ServeApp, 1)
    usage = result.pools["pool"]
    assert result.attainment > 0.95
    assert result.total.unfinished == 0
    assert usage.hits + usage.misses == result.total.offered
    assert usage.loads - 10 <= usage.evictions <= usage.loads
    assert usage.loaded_bytes == 10 * usage.loads
    assert usage.load_s == pytest.approx(0.02 * usage.loads)


def test_where_all_fit_each_is_loaded_once_and_none_is_evicted() -> None:
    """Nothing is swapped without need."""
    usage = simulate(_make_pool(_a_stream(), hosts=1, room=20), ServeApp, 1).pools["pool"]
    assert usage.loads <= 20
    assert usage.evictions == usage.thrash == 0


def test_a_run_is_reproducible() -> None:
    """By its seed."""
    scenario = _make_pool(_a_stream(), load_spread=0.3, slowdown=1.5)
    one, two = (simulate(scenario, ServeApp, 3).to_dict() for _ in range(2))
    for result in (one, two):
        del result["wall_s"], result["events_per_s"]
    assert one == two


def test_no_load_begins_for_what_it_cannot_serve_in_time() -> None:
    """But for probes."""
    usage = simulate(_make_pool(_a_stream(timeout_s=0.015)), ServeApp, 1).pools["pool"]
    assert usage.loads < 0.6 * usage.misses  # probes, at most one per second and member, or every tenth


def test_a_stream_for_a_pool_is_one_for_each_member_by_their_popularity() -> None:
    """Zipf's law with exponent 1."""
    arrivals = generate(_make_pool(replace(_a_stream(rate=400.0), exponent=1.0)), 1)
    counts = [int((arrivals.model == place).sum()) for place in range(20)]
    assert counts[0] > 1.5 * counts[1] > 1.5 * counts[4]
    assert sum(counts) == pytest.approx(2000, rel=0.1)


def test_a_load_slows_down_what_runs_and_a_host_does_only_what_it_can() -> None:
    """Memory, members that it has, and one that runs."""
    done: list[tuple[str, float]] = []

    def script(world: World, system: Scripted) -> None:
        first, second = world.hosts("pool")
        loaded: list[Loaded] = []

        def run(member: Loaded) -> None:
            loaded.append(member)
            world.execute("m0", member.replica, system.requests[:1], 1, 0, executed)
            world.load_member("m1", first, lambda _: done.append(("loaded", world.now)))
            with pytest.raises(ValueError, match="runs m0"):
                world.evict_member("m0", first)
            with pytest.raises(ValueError, match="has m0 already"):
                world.load_member("m0", first, loaded.append)
            with pytest.raises(ValueError, match="has no memory for m2"):
                world.load_member("m2", first, loaded.append)

        def executed(execution: Execution) -> None:
            done.append(("executed", world.now))
            world.evict_member("m0", first)
            with pytest.raises(ValueError, match="has no m0"):
                world.evict_member("m0", first)
            with pytest.raises(ValueError, match="no replica"):
                world.execute("m0", loaded[0].replica, system.requests[:1], 1, 0, executed)
            world.answer(system.requests[0])
            assert execution.seconds == pytest.approx(0.012)

        world.at(1.0, lambda: world.load_member("m0", first, run))
        assert second == "pool#2"

    simulate(_make_pool(Stream("periodic", "m0", rate=1.0), room=2, slowdown=2.0), lambda: Scripted(script), 1)
    assert [what for what, _ in done] == ["executed", "loaded"]
    assert [at for _, at in done] == pytest.approx([1.032, 1.04])


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"routers": 2}, "routers: pools need a single router"),
        ({"workload": (Stream("video", "pool", streams=1),)}, "frames are of one model, and 'pool' is a pool"),
    ],
)
def test_what_cannot_be_simulated_is_told(changes: dict[str, Any], problem: str) -> None:
    """By field."""
    with pytest.raises(ConfigError, match=problem):
        simulate(replace(_make_pool(_a_stream()), **changes), ServeApp, 1)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"hosts": 0}, "hosts: must be at least 1"),
        ({"load_s": 0.0}, "load_s: must be above 0"),
        ({"slowdown": 0.5}, "slowdown: must be at least 1"),
        ({"room": 0}, "resident_bytes: must be above 0 and at most the memory of a host"),
    ],
)
def test_what_a_pool_cannot_be_is_told(changes: dict[str, Any], problem: str) -> None:
    """By field."""
    with pytest.raises(ConfigError, match=problem):
        simulate(_make_pool(_a_stream(), **changes), ServeApp, 1)
