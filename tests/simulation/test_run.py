"""Whole simulations: what they find, that they repeat, and that they agree with theory."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis_profiles import thorough
from simulation_builders import HIGH, LOW, NORMAL, Fifo, make_model, make_scenario

from serve_app.errors import ConfigError
from serve_app.scheduling.settings import ModelScheduling
from serve_app_simulator.ours import ServeApp
from serve_app_simulator.results import Result, Series, Tally
from serve_app_simulator.run import MakeSystem, simulate, simulate_many
from serve_app_simulator.scenario import Affine, Failure, Noise, Overheads, SimulatedModel, Stream

MIXED = make_scenario(
    Stream("gamma", "m", rate=700.0, cv=3.0, timeout_s=0.1, share={HIGH: 0.2, NORMAL: 0.5, LOW: 0.3}),
    Stream("video", "m", streams=5, fps=30.0, timeout_s=0.05),
    duration_s=4.0,
    warm_up_s=1.0,
    models=(make_model(replicas=2),),
    noise=Noise("lognormal", 0.2, stall_every_s=2.0, stall_s=0.1),
    overheads=Overheads(0.0005, 0.0005, 0.0005),
    failures=(Failure("m", 0, 2.0, 1.0),),
    routers=2,
)


def _facts(result: Result) -> dict[str, object]:
    """All but how fast the simulation ran."""
    found = result.to_dict()
    del found["wall_s"], found["events_per_s"]
    return found


def _sum(tally: Tally) -> int:
    return tally.in_time + tally.late + tally.dropped + tally.replaced + tally.unfinished


@pytest.mark.parametrize("make_system", [Fifo, partial(Fifo, 8), ServeApp], ids=["one", "batches", "serve_app"])
def test_every_request_ends_once_and_everything_adds_up(make_system: MakeSystem) -> None:
    """By class, by model and over time, with failures, stalls, replaced frames and requests before the counted time."""
    result = simulate(MIXED, make_system, 7)
    assert result.total.offered == _sum(result.total) > 2000
    for groups in (result.classes, result.models):
        assert result.total.offered == sum(tally.offered for tally in groups.values())
        assert result.total.in_time == sum(tally.in_time for tally in groups.values())
        assert result.total.server_s == pytest.approx(sum(tally.server_s for tally in groups.values()))
    assert 1.0 == pytest.approx(sum(result.server_share.values()))
    series = result.series
    first = round(MIXED.warm_up_s / series.step_s)
    for label, tally in result.classes.items():
        assert tally.offered == sum(series.offered[label][first:])
        assert tally.in_time == sum(series.in_time[label][first:])
    assert 0.0 < result.utilisation <= 1.0
    assert 0.0 <= result.wasted_s <= result.server_s
    assert result.goodput * result.duration_s == pytest.approx(result.total.in_time)
    assert result.weighted_goodput <= result.offered_weight


@pytest.mark.parametrize("make_system", [Fifo, ServeApp], ids=["fifo", "serve_app"])
def test_a_seed_says_everything(make_system: MakeSystem) -> None:
    """The same seed gives the same result to the last digit, another seed another one."""
    first, again, other = (_facts(simulate(MIXED, make_system, seed)) for seed in (1, 1, 2))
    assert first == again
    assert first["total"] != other["total"]


def test_systems_meet_the_same_arrivals() -> None:
    """What is offered depends on the seed only."""
    found = simulate_many(MIXED, {"fifo": Fifo, "ours": ServeApp}, (3, 4))
    assert ["fifo", "ours"] == list(found)
    assert found["fifo"][0].series.offered == found["ours"][0].series.offered
    assert [3, 4] == [result.seed for result in found["ours"]]
    assert found["ours"][0].series.offered != found["ours"][1].series.offered


def test_several_processes_find_the_same() -> None:
    """Progress is told of every run."""
    told: list[tuple[str, int]] = []
    scenario = replace(MIXED, duration_s=2.0, failures=())
    alone = simulate_many(scenario, {"ours": ServeApp}, (3, 4))
    together = simulate_many(
        scenario, {"ours": ServeApp}, (3, 4), 2, lambda result: told.append((result.system, result.seed))
    )
    assert [_facts(result) for result in alone["ours"]] == [_facts(result) for result in together["ours"]]
    assert [("ours", 3), ("ours", 4)] == sorted(told)


def test_a_result_is_json() -> None:
    """With attainments and waste spelt out."""
    found = json.loads(json.dumps(simulate(MIXED, ServeApp, 1).to_dict(), allow_nan=False))
    assert found["classes"]["high"]["in_time"] / found["classes"]["high"]["offered"] == pytest.approx(
        found["classes"]["high"]["attainment"]
    )
    assert {"attainment", "wasted", "series", "total", "models"} <= set(found)


def test_nothing_offered_is_no_error() -> None:
    """There is nothing to divide by."""
    result = simulate(make_scenario(), ServeApp, 1)
    assert (0, 1.0, 0.0, 0.0) == (result.total.offered, result.attainment, result.goodput, result.wasted)


def _waits(system: MakeSystem, load: float, service_s: float, seeds: int) -> list[float]:
    scenario = make_scenario(
        Stream("poisson", "m", rate=load / service_s, timeout_s=1e5),
        duration_s=20_000 * service_s,
        warm_up_s=1_000 * service_s,
        models=(SimulatedModel(ModelScheduling("m", 1, 1e6, window=1), Affine(service_s, 0.0)),),
    )
    waits = []
    for seed in range(seeds):
        result = simulate(scenario, system, seed)
        assert result.total.offered == result.total.in_time
        # Little's law for the server and the mean over all answers: the mean wait follows from the mean queue.
        waits.append(float(np.mean(result.series.queued_rows[10:-1])) / (load / service_s))
    return waits


@pytest.mark.parametrize("load", [0.5, pytest.param(0.8, marks=thorough)])
def test_one_server_waits_as_the_pollaczek_khinchine_formula_says(load: float) -> None:
    """Poisson arrivals and a constant time D, one at a time: the mean wait is load * D / (2 * (1 - load))."""
    service_s = 1.0
    waits = _waits(Fifo, load, service_s, 12)
    expected = load * service_s / (2.0 * (1.0 - load))
    error = float(np.std(waits, ddof=1)) / np.sqrt(len(waits))
    assert abs(float(np.mean(waits)) - expected) < 3.0 * error
    assert error < 0.05 * expected


@thorough
def test_serve_app_with_batches_of_one_waits_as_theory_says_too() -> None:
    """Equal deadlines make earliest-deadline-first a first-in-first-out queue."""
    waits = _waits(ServeApp, 0.6, 1.0, 2)
    assert 0.6 / 0.8 == pytest.approx(float(np.mean(waits)), rel=0.1)


def test_the_goodput_of_a_part_of_the_time() -> None:
    """Over all classes, by the steps that the moments fall on; less than a step is one."""
    series = Series(0.5, {}, {"high": [1, 2, 3, 4], "low": [0, 10, 20, 0]}, [0] * 5, [1] * 5)
    assert series.goodput(0.5, 1.5) == 35.0
    assert series.goodput(1.5, 1.6) == 8.0


def test_recovery_is_the_time_until_the_queue_is_short_again() -> None:
    """As before the surge, or as the caller says, for two steps in a row."""
    result = simulate(make_scenario(Stream("periodic", "m", rate=10.0)), Fifo, 1)
    queued = [0, 1, 2, 0, 50, 90, 60, 2, 30, 2, 1, 0]
    series = Series(0.5, {}, {}, queued, [1] * len(queued))
    changed = replace(result, series=series)
    assert 2.0 == changed.recovery_s(2.5, before_s=2.0)
    assert 2.5 == changed.recovery_s(2.5, rows=1)
    assert 0.5 == changed.recovery_s(2.5, rows=60)
    assert changed.recovery_s(2.0, rows=-1) is None


def test_an_impossible_scenario_is_refused_with_all_its_faults() -> None:
    """Each line names the field."""
    wrong = make_scenario(
        Stream("poisson", "x", rate=0.0),
        Stream("video", "m", streams=0),
        Stream("poisson", "m", rate=1.0, share={HIGH: 0.5}),
        duration_s=5.0,
        warm_up_s=6.0,
        models=(make_model(device="gpu"), make_model(replicas=0)),
        failures=(Failure("y", 0, 1.0, 1.0),),
        noise=Noise("uniform", 1.5),
        routers=0,
    )
    with pytest.raises(ConfigError) as caught:
        simulate(wrong, ServeApp, 1)
    said = "\n".join(caught.value.problems)
    for fault in (
        "models: 'm' is there more than once",
        "warm_up_s: must be from 0 to below the duration, got 6",
        "models.m.device: unknown device 'gpu'; there are: none",
        "models.m.replicas: must be at least 1, or 0 with autoscaling; got 0",
        "workload[0].model: unknown model 'x'; there are: m",
        "workload[0].rate: must be above 0, got 0.0",
        "workload[1].streams: must be above 0, got 0",
        "workload[2].share: must be 1 in sum, got 0.5",
        "failures[0].model: unknown model 'y'",
        "noise.spread: must be below 1 for uniform noise, got 1.5",
        "routers: must be at least 1, got 0",
    ):
        assert fault in said
