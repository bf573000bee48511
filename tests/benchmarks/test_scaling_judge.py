"""The judge of replica policies: what rivals decide, what the bound allows, and who is better."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from statistics import mean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.scaling import judge_report
from benchmarks.scaling.judge import (
    BOUND,
    OURS,
    RAY,
    RIVALS,
    TUNING_SEED,
    Cell,
    Score,
    Settings,
    as_good,
    bound,
    read_settings,
    run,
    score,
    tune,
)
from benchmarks.scaling.rivals import Keda, RayServe, losses, plan
from benchmarks.scaling.workloads import Load, flash
from serve_app.scheduling.demand import ModelDemand
from serve_app_simulator.scalers import FleetState
from serve_app_simulator.scenario import Affine

CURVE = Affine(0.1, 0.05)


def state(now: float, target: int, load: int = 0, arrived: int = 0, turned_away: int = 0) -> FleetState:
    """What a scaler sees."""
    return FleetState(now, target, target, load + turned_away, 0, arrived, ModelDemand({}, turned_away))


def cell(timeout_s: float = 2.0, start_s: float = 5.0) -> Cell:
    """A short surge."""
    return Cell(flash(0.5, 3.0, 30.0, 20.0), "test", CURVE, 1, timeout_s, start_s)


def test_ray_serve_averages_what_is_queued_and_waits_before_it_scales_down() -> None:
    """Up at once; down when fewer were wanted all the time of the delay; what was turned away does not count."""
    policy = RayServe(1, 10, target=2.0, downscale_delay_s=5.0, look_back_s=1.0)
    assert policy.decide(state(1.0, 1, load=7))[0] == 4
    decided = [policy.decide(state(float(now), 4, load=2, turned_away=50))[0] for now in range(2, 8)]
    assert decided == [4, 4, 4, 4, 4, 1]


def test_keda_looks_every_15_seconds_and_grows_by_4_at_most() -> None:
    """Or to the double; down only to the largest number advised in the window."""
    policy = Keda("queue", 1, 20, target=1.0, downscale_window_s=30.0)
    assert policy.decide(state(0.0, 1, load=15))[0] == 5
    assert policy.decide(state(10.0, 5, load=15))[0] == 5
    assert policy.decide(state(15.0, 5, load=15))[0] == 10
    assert policy.decide(state(30.0, 10, load=3))[0] == 10
    assert policy.decide(state(45.0, 10, load=3))[0] == 10
    assert policy.decide(state(60.0, 10, load=3))[0] == 3


def test_keda_by_rate_counts_what_arrives() -> None:
    """Rows per second over the last 15 s."""
    policy = Keda("rate", 1, 20, target=4.0, downscale_window_s=0.0)
    decided = [policy.decide(state(float(now), 1, arrived=12))[0] for now in range(1, 17)]
    assert decided[-1] == 3


@given(st.lists(st.floats(0.0, 20.0), min_size=1, max_size=60), st.floats(0.2, 2.0))
def test_more_replicas_lose_fewer(times: list[float], budget_s: float) -> None:
    """In sum over the slots; and no slot loses more than arrives in it."""
    arrivals = np.sort(np.array(times))
    lost = losses(arrivals, 1, CURVE, budget_s, 20.1, 10.0, 5)
    totals = lost.sum(axis=1)
    assert all(after <= before for before, after in pairwise(totals))
    assert np.all(lost <= np.histogram(arrivals, np.arange(0.0, 40.0, 10.0))[0])


@given(st.lists(st.lists(st.integers(0, 50), min_size=4, max_size=4), min_size=1, max_size=8), st.integers(0, 200))
def test_a_plan_allows_no_more_losses_than_it_may(falls: list[list[int]], allowed: int) -> None:
    """Where any number of replicas can do it, and no number can be lowered by one."""
    lost = np.array([sorted(slot, reverse=True) for slot in falls], dtype=float).T
    numbers = np.array(plan(lost, allowed)) - 1
    slots = np.arange(lost.shape[1])
    total = lost[numbers, slots].sum()
    if total > allowed:
        more = np.minimum(numbers + 1, lost.shape[0] - 1)
        assert np.all(lost[more, slots] == lost[numbers, slots])


def test_a_cell_has_all_contenders_with_means_over_the_draws(tmp_path: Path) -> None:
    """Rivals have settings that a search found, or those of a report."""
    scores = run(cell(), [2, 3])
    assert [score.contender for score in scores] == [OURS, *RIVALS, BOUND]
    assert scores[-1].in_time >= scores[0].in_time - 0.02
    assert judge_report.share_of_bound(scores) <= 1.1
    each = [score(cell(), seed) for seed in (2, 3)]
    assert each[0] != each[1]
    assert scores[0].in_time == mean([of_draw.in_time for of_draw in each])
    report = tmp_path / "scaling.json"
    report.write_text(json.dumps({"cells": [{"cell": cell().name, "scores": [asdict(of) for of in scores]}]}))
    tuned = read_settings(report)[cell().name]
    assert set(tuned) == set(RIVALS)
    again = run(cell(), [2, 3], tuned | {RAY: Settings(1.0, 60.0)})
    assert (again[0], again[-1]) == (scores[0], scores[-1])
    assert again[1].settings == "1, 60 s"
    assert [of.settings for of in again[2:4]] == [of.settings for of in scores[2:4]]


def test_tuned_rivals_are_not_worse_than_with_a_poor_setting() -> None:
    """On the draw that they are tuned on."""
    ours = score(cell(), TUNING_SEED)
    for name, settings in tune(cell()).items():
        tuned, poor = (score(cell(), TUNING_SEED, name, each) for each in (settings, Settings(50.0, 60.0)))
        assert as_good(ours, tuned) or tuned.in_time >= poor.in_time


def test_the_bound_needs_fewer_the_fewer_must_be_in_time() -> None:
    """Down to one replica all the time."""
    costs = [bound(cell(), 1, in_time).replica_s for in_time in (0.99, 0.9, 0.7, 0.0)]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == 80.0


@pytest.mark.parametrize(
    ("in_time", "replica_s", "better"),
    [(0.95, 90.0, True), (0.9497, 90.0, True), (0.949, 90.0, False), (0.99, 101.0, False)],
)
def test_a_rival_is_better_if_it_is_in_time_for_as_many_at_less_cost(
    in_time: float, replica_s: float, better: bool
) -> None:
    """A difference of 0.05 points is none."""
    scores = [Score(OURS, 0.95, 100.0, 1, 0), Score(RAY, in_time, replica_s, 1, 0, "2, 60 s")]
    assert bool(judge_report.beaten_by(scores)) is better


def test_the_report_says_who_is_better_where(tmp_path: Path) -> None:
    """And draws it."""
    scores = run(cell(), [2], dict.fromkeys(RIVALS, Settings(2.0, 60.0)))
    scores[1] = Score(RAY, 1.0, scores[0].replica_s / 2, 3, 1, "2, 60 s")
    cells = {"test, flash crowd, 2 s, start 5 s": scores}
    page = judge_report.text(cells, [2])
    assert "costs less: 1." in page
    assert "| test, flash crowd, 2 s, start 5 s |" in page
    judge_report.draw(cells, tmp_path / "scaling.svg")
    assert (tmp_path / "scaling.svg").read_text().count("KEDA") >= 2


def test_loads_have_the_rates_that_they_say() -> None:
    """Requests per second in replicas that are always busy."""
    load = Load("test", np.repeat([1.0, 3.0], 1000))
    arrivals = load.arrivals(10.0, 1.0, 1, "m").arrival
    assert np.count_nonzero(arrivals < 100.0) == pytest.approx(1000, rel=0.1)
    assert np.count_nonzero(arrivals >= 100.0) == pytest.approx(3000, rel=0.1)
