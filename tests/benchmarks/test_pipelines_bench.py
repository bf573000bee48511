"""The chain of steps in the simulator, and the report of it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from benchmarks.machine import describe
from benchmarks.pipelines.__main__ import LOADS, STEPS, Report, render
from benchmarks.pipelines.served import Kept, Served, Way
from benchmarks.pipelines.simulated import POLICIES, Chain, scenario
from serve_app_simulator.run import simulate


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("steps", STEPS)
def test_at_rest_every_request_runs_every_step_in_time(policy: str, steps: int) -> None:
    """Whatever each step is given; and nothing is dropped."""
    light = replace(scenario(steps, 0.05, cv=0.1, seconds=6.0), warm_up_s=0.0)
    result = simulate(light, partial(Chain, POLICIES[policy]), 1)
    assert result.attainment == 1.0
    assert result.total.offered > 100
    assert result.total.dropped == 0


def test_in_overload_every_request_ends() -> None:
    """Those that are dropped at one step run no other; a second try ends once, too."""
    heavy = replace(scenario(2, 1.5, seconds=3.0), warm_up_s=0.0)
    for again in (False, True):
        result = simulate(heavy, partial(Chain, POLICIES["pipeline"], again=again), 1)
        total = result.total
        assert 0 < total.in_time < total.offered
        assert total.offered == total.in_time + total.late + total.dropped


def test_what_could_not_be_in_time_is_refused_before_its_first_step_but_for_probes() -> None:
    """By the rule of the server: without probes nothing would run."""
    short = scenario(2, 0.5, seconds=8.0, slack=0.5)
    for policy in ("pipeline", "equal flexibility alone"):
        result = simulate(short, partial(Chain, POLICIES[policy]), 1)
        assert result.total.in_time == 0
        assert 0 < result.total.server_s


def test_the_report_has_a_row_for_each_way() -> None:
    """Also without a server."""
    simulated = {steps: {policy: dict.fromkeys(LOADS, 90.0) for policy in POLICIES} for steps in STEPS}
    way, kept = Way("pipeline", 1.0, 2.0, 3.0), Kept("pipeline", 0.9, 0.8, 1.0)
    served = Served(5, 2.0, 16, [way, way], 0.1, [way, way], 1.5, 100.0, 50.0, [kept])
    report = Report("2026-11-26", describe({}), 1, 10.0, simulated, served)
    text = render(report)
    assert all(f"| {policy} | {' | '.join(['90.0'] * len(STEPS))} |" in text for policy in POLICIES)
    assert "| pipeline | 90.0% | 80.0% to 100.0% |" in text
    assert "5 rounds of 2 s" in text
    assert "## On a server" not in render(replace(report, served=None))
