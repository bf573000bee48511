"""What holds for every baseline."""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
from baselines_runs import Ask, WatchedWorld, run, serve
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples, thorough
from simulation_builders import HIGH, LOW, NORMAL, make_model, make_scenario

from benchmarks.scheduling.baselines import BASELINES
from benchmarks.scheduling.baselines.serving import Baseline, Rate, known_latency, objective_s
from benchmarks.scheduling.baselines.tuning import grid_of, tune, tuned
from serve_app_simulator.results import IN_TIME, LATE, REPLACED, UNFINISHED
from serve_app_simulator.run import simulate
from serve_app_simulator.scenario import (
    Affine,
    Device,
    Failure,
    Noise,
    Overheads,
    Scenario,
    SimulatedAutoscaling,
    Stream,
)
from serve_app_simulator.workloads import generate

EVERY = pytest.mark.parametrize("name", list(BASELINES))
FULL = 8 / 0.013
"""Rows per second of a replica of 5 ms + 1 ms per row in batches of 8."""


def _everything(overheads: Overheads) -> Scenario:
    """Three models, two of which share a device, with all that can happen."""
    mixed = {HIGH: 0.2, NORMAL: 0.5, LOW: 0.3}
    return make_scenario(
        Stream("poisson", "a", rate=900.0, timeout_s=0.06, share=mixed, timeouts_s={LOW: 0.5}),
        Stream("gamma", "a", rate=50.0, cv=3.0, timeout_s=0.1, rows=5),
        Stream("poisson", "a", rate=10.0, timeout_s=0.2, rows=20, bucket=1),
        Stream("video", "b", streams=12, timeout_s=0.05),
        Stream("flash_crowd", "c", rate=60.0, timeout_s=0.1, surge=4.0, surge_at_s=1.0, surge_s=1.0),
        models=(
            make_model("a", replicas=2, autoscaling=SimulatedAutoscaling(1, 4, 8.0, 0.2, 0.5, 0.1), startup_s=0.2),
            make_model("b", device="gpu", known=False),
            make_model("c", device="gpu"),
        ),
        devices=(Device("gpu", interference=0.1),),
        failures=(
            Failure("a", 1, at_s=1.3, down_s=0.7, noticed_s=0.2),
            Failure("b", 0, at_s=2.0, down_s=0.3, noticed_s=0.1),
        ),
        noise=Noise("lognormal", 0.2, stall_every_s=1.0, stall_s=0.1),
        overheads=overheads,
        duration_s=4.0,
    )


@EVERY
@pytest.mark.parametrize("overheads", [Overheads(), Overheads(0.001, 0.002, 0.001)], ids=["free", "overheads"])
def test_nothing_is_lost_or_executed_twice(name: str, overheads: Overheads) -> None:
    """Every request ends once, and what waits is counted right, whatever happens."""
    scenario = _everything(overheads)
    arrivals = generate(scenario, 1)
    system, world = BASELINES[name](), WatchedWorld(scenario, 1)
    outcomes = world.run(system, arrivals).outcome
    executed = Counter(number for begun in world.begun for number in begun.ids)
    assert {1} == set(executed.values())
    assert all(rows >= 0 for rows in world.queued_rows)
    in_time = outcomes.count(IN_TIME)
    assert 0.02 * len(arrivals) < in_time <= len(executed)
    waiting = sum(system.queued_rows(model) for model in arrivals.models)
    never_begun = [number for number, end in enumerate(outcomes) if end == UNFINISHED and number not in executed]
    assert waiting <= sum(int(arrivals.rows[number]) for number in never_begun)
    if UNFINISHED not in outcomes:
        assert 0 == waiting


ASKS = st.lists(
    st.builds(
        Ask,
        at_ms=st.integers(0, 60),
        timeout_ms=st.integers(5, 80),
        priority=st.sampled_from([HIGH, NORMAL, LOW]),
        rows=st.integers(1, 10),
        stream=st.sampled_from([-1, -1, 0, 1]),
        model=st.just(0),
    ),
    min_size=1,
    max_size=30,
).map(lambda asks: sorted(asks, key=lambda ask: ask.at_ms))


@settings(max_examples=examples(60))
@given(ASKS, st.sampled_from(list(BASELINES)), st.integers(1, 3), st.sampled_from([0.0, 0.001]))
def test_every_request_ends_once(asks: list[Ask], name: str, replicas: int, overhead_s: float) -> None:
    """Those that predict never answer late where predictions are exact, and no request is executed that has ended."""
    scenario = make_scenario(
        models=(make_model(replicas=replicas),), overheads=Overheads(overhead_s, overhead_s, overhead_s)
    )
    served = run(BASELINES[name](), asks, scenario)
    executed = [number for ids in served.batches for number in ids]
    assert len(set(executed)) == len(executed)
    answered = {number for number, end in enumerate(served.outcomes) if end in {IN_TIME, LATE}}
    assert answered == set(executed)
    assert UNFINISHED not in served.outcomes
    if name in {"clockwork", "nexus", "sliding", "symphony"}:
        assert LATE not in served.outcomes


@EVERY
def test_the_same_seed_gives_the_same_run(name: str) -> None:
    """Also where a baseline draws replicas by chance."""
    scenario = _everything(Overheads(0.001, 0.001, 0.001))
    first, second = (simulate(scenario, BASELINES[name], 3) for _ in range(2))
    assert (first.total, first.classes, first.series) == (second.total, second.classes, second.series)


@EVERY
def test_a_newer_frame_replaces_the_waiting_one(name: str) -> None:
    """Only the frame of the same stream; the client has cancelled it."""
    asked = (Ask(0, 7), Ask(1, 90, stream=4), Ask(2, 90, stream=5), Ask(3, 90, stream=4))
    served = serve(BASELINES[name](), *asked, curve=Affine(0.006, 0.0), max_rows=1)
    assert REPLACED == served.outcomes[1]
    assert [IN_TIME] * 3 == [served.outcomes[number] for number in (0, 2, 3)]


@EVERY
def test_a_request_pays_every_overhead(name: str) -> None:
    """6 ms of execution and 6 ms around it, besides what a batch waits for more; 2 ms where nothing is sent on."""
    (latency_ms,) = serve(BASELINES[name](), Ask(0, 100), overheads=Overheads(0.001, 0.002, 0.003)).latency_ms
    if name in {"triton", "sliding", "clipper", "nexus"}:
        assert 6.0 + 2.0 == pytest.approx(latency_ms, abs=1e-4)
        return
    waits_ms = {"ray-serve": 10.0, "symphony": 100.0 - 0.1 - 7.0 - 3.0 - 3.0}.get(name, 0.0)
    assert 12.0 + waits_ms == pytest.approx(latency_ms, abs=1e-4)


@EVERY
def test_replicas_that_come_late_serve_what_waits(name: str) -> None:
    """Requests that come while there is no replica wait for one."""
    scenario = make_scenario(
        models=(make_model(curve=Affine(0.01, 0.0)),),
        failures=(Failure("m", 0, at_s=0.0, down_s=0.3, noticed_s=0.0),),
    )
    served = run(BASELINES[name](), [Ask(10), Ask(20)], scenario)
    assert [IN_TIME, IN_TIME] == served.outcomes
    assert {"m#2"} == {begun.replica for begun in served.begun}


def _overloaded(load: float) -> Scenario:
    return make_scenario(Stream("poisson", "m", rate=load * FULL, timeout_s=0.05), duration_s=8.0)


def test_early_drop_beats_first_come_first_served_in_overload() -> None:
    """At 1.2 times the capacity, those that execute late requests collapse."""
    attainment = {name: simulate(_overloaded(1.2), make, 5).attainment for name, make in BASELINES.items()}
    careful = min(attainment[name] for name in ("nexus", "clockwork", "symphony"))
    careless = max(attainment[name] for name in ("ray-serve", "triton", "clipper"))
    assert careful > 0.7
    assert careless < 0.3


def test_all_serve_a_light_load() -> None:
    """At 0.3 of the capacity there is nothing to lose."""
    attainment = {name: simulate(_overloaded(0.3), make, 5).attainment for name, make in BASELINES.items()}
    assert [name for name, part in attainment.items() if part < 0.99] == []


def test_timeouts_save_triton_from_collapse() -> None:
    """Tuned, it is far better than untuned, and no better than what a search of the same settings could find."""
    scenario = _overloaded(1.2)
    found = tuned("triton", scenario, [1, 2])
    assert found.scores[found.name] == max(found.scores[name] for name in found.scores)
    untuned = simulate(scenario, BASELINES["triton"], 7).attainment
    assert simulate(scenario, found.make_system, 7).attainment > untuned + 0.4


@EVERY
def test_settings_can_be_sent_to_other_processes_and_differ(name: str) -> None:
    """Every point of a grid is another setting, under another title."""
    grid = grid_of(name, _overloaded(1.0))
    found = {grid.title(point): grid.factory(point) for point in grid.all()}
    assert len(found) == len(grid)
    made = [pickle.loads(pickle.dumps(make))() for make in found.values()]
    settings = {
        tuple((key, value) for key, value in vars(system).items() if not key.startswith("_")) for system in made
    }
    assert len(found) == len(settings) > 1
    assert {name} == {system.name for system in made}


@thorough
def test_a_search_visits_every_batch_size_and_the_neighbours_of_the_best() -> None:
    """From coarse to fine: all sizes first, and around the best every point one and two steps away."""
    scenario = replace(_overloaded(1.0), models=(make_model(max_rows=32),))
    grid, found = grid_of("sliding", scenario), tuned("sliding", scenario, [1])
    assert len(grid) == 32 * 7
    points = {grid.title(point): point for point in grid.all()}
    assert set(points) >= set(found.scores)
    best = max(points, key=lambda title: simulate(scenario, grid.factory(points[title]), 1).weighted_goodput)
    most = simulate(scenario, grid.factory(points[best]), 1).weighted_goodput
    assert found.scores[found.name] >= 0.99 * most
    assert [(0, 1), (2, 1), (3, 1), (1, 0), (1, 2), (1, 3)] == sorted(
        grid.near((1, 1)), key=lambda point: (point[1] != 1, point)
    )


def test_tuning_prefers_the_weighted_goodput_unless_told_otherwise() -> None:
    """With levels `high` is safe in a flood; without, more requests are answered in all."""
    scenario = make_scenario(
        Stream("poisson", "m", rate=150.0, timeout_s=0.03, priority=HIGH),
        Stream("poisson", "m", rate=700.0, timeout_s=0.5, priority=LOW),
        duration_s=6.0,
    )
    ways = {str(levels): partial(BASELINES["triton"], 0.0, "full", levels=levels) for levels in (False, True)}
    weighted = tune(ways, scenario, [1, 2])
    assert "True" == weighted.name
    plain = {name: simulate(scenario, make, 1).goodput for name, make in ways.items()}
    assert max(plain, key=lambda name: plain[name]) == tune(ways, scenario, [1], weighted=False).name


def test_tuning_needs_something_to_try() -> None:
    """Without settings or seeds, or for an unknown name, it says so."""
    with pytest.raises(ValueError, match="settings to try and at least one seed"):
        tune({}, _overloaded(1.0), [1])
    with pytest.raises(ValueError, match="unknown baseline 'tritn'; there are: ray-serve, triton"):
        grid_of("tritn", _overloaded(1.0))


def test_every_name_is_its_systems_own() -> None:
    """The registry and the results use one name."""
    made = {name: make() for name, make in BASELINES.items()}
    assert all(isinstance(system, Baseline) and system.name == name for name, system in made.items())
    assert ["ray-serve", "triton", "sliding", "clipper", "clockwork", "nexus", "symphony"] == list(BASELINES)


def test_baselines_know_the_profile_and_the_deadlines() -> None:
    """Where a model is known; the objective is the shortest timeout of its streams."""
    scenario = make_scenario(
        Stream("poisson", "m", rate=1.0, timeout_s=0.3, share={HIGH: 0.5, LOW: 0.5}, timeouts_s={HIGH: 0.1}, bucket=2),
        Stream("long_tail", rate=1.0, timeout_s=0.2),
        models=(make_model(), make_model("new", known=False, slo_s=0.7)),
    )
    known, new = scenario.models
    assert 0.013 == pytest.approx(known_latency(scenario, known).predict(8, 2))
    assert (0, 2) == known_latency(scenario, known).buckets
    assert not known_latency(scenario, new).known
    assert (0.1, 0.2) == (objective_s(scenario, known), objective_s(scenario, new))
    assert 0.7 == objective_s(make_scenario(models=(new,)), new)


def test_a_rate_is_the_mean_over_whole_intervals_and_forgets() -> None:
    """After a long silence nothing is left of what was before."""
    rate = Rate(interval_s=1.0, intervals=2)
    assert [False, False, True] == [rate.count(rows, now) for rows, now in ((4, 0.0), (2, 0.9), (1, 1.0))]
    assert 6.0 == rate.per_s
    assert rate.count(1, 2.5)
    assert 3.5 == rate.per_s
    assert rate.count(5, 1000.0)
    assert 0.0 == rate.per_s
