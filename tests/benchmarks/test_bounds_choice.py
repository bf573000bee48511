"""No system exceeds the bound of its scenario, and no schedule either."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples
from simulation_brute_force import Offered, best_weight
from simulation_builders import HIGH, LOW, NORMAL, Fifo, make_arrivals, make_classes, make_model, make_scenario

from benchmarks.scheduling.bounds.choice import Bound, bound_for
from serve_app.domain.priority import Priority
from serve_app_simulator.ours import ServeApp
from serve_app_simulator.run import MakeSystem, simulate
from serve_app_simulator.scenario import Affine, Device, Noise, Overheads, Scenario, SimulatedAutoscaling, Stream
from serve_app_simulator.workloads import Arrivals, generate

MIXED = {HIGH: 0.2, NORMAL: 0.5, LOW: 0.3}
TIMEOUTS = {HIGH: 0.05, NORMAL: 0.1, LOW: 0.4}
AUTOSCALING = SimulatedAutoscaling(1, 2, 4.0, upscale_delay_s=0.5, downscale_delay_s=1.0, interval_s=0.5)


def poisson(rate: float, **more: object) -> Stream:
    """Requests for ``m`` that have 50 ms."""
    return Stream("poisson", **{"model": "m", "rate": rate, "timeout_s": 0.05, **more})  # type: ignore[arg-type]


SCENARIOS = {
    "exact": make_scenario(poisson(700), duration_s=3.0, warm_up_s=1.0),
    "overheads": make_scenario(poisson(700), duration_s=1.0, overheads=Overheads(0.001, 0.002, 0.003)),
    "nested": make_scenario(poisson(900, share=MIXED), duration_s=1.0),
    "nested and linear": make_scenario(poisson(900, share=MIXED, timeouts_s=TIMEOUTS), duration_s=1.0),
    "linear": make_scenario(
        poisson(2500, share=MIXED, timeouts_s=TIMEOUTS), duration_s=1.0, models=(make_model(replicas=3),)
    ),
    "rows": make_scenario(poisson(300, rows=3), poisson(5, rows=20), duration_s=1.0),
    "autoscaling": make_scenario(poisson(1500), duration_s=1.0, models=(make_model(autoscaling=AUTOSCALING),)),
    "variant": make_scenario(
        poisson(1500), duration_s=1.0, models=(make_model(variants={"small": Affine(0.002, 0.0005)}),)
    ),
    "two models": make_scenario(
        poisson(700), poisson(2000, model="n"), duration_s=1.0, models=(make_model(), make_model("n", replicas=2))
    ),
    "device": make_scenario(
        poisson(400), poisson(400, model="n", timeout_s=0.2), duration_s=1.0,
        models=(make_model(device="d"), make_model("n", device="d")), devices=(Device("d", 1, 0.1),),
    ),
}  # fmt: skip


@cache
def offered_and_bound(name: str) -> tuple[Arrivals, Bound]:
    """The arrivals of a scenario and their bound."""
    arrivals = generate(SCENARIOS[name], 5)
    return arrivals, bound_for(SCENARIOS[name], arrivals)


@pytest.mark.parametrize("make_system", [ServeApp, Fifo], ids=["ours", "fifo"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_no_system_exceeds_it(name: str, make_system: MakeSystem) -> None:
    """Overloaded in many ways."""
    scenario = SCENARIOS[name]
    arrivals, bound = offered_and_bound(name)
    result = simulate(scenario, make_system, 5, arrivals=arrivals)
    counted_s = scenario.duration_s - scenario.warm_up_s
    assert result.total.in_time <= bound.count + 1e-6
    assert result.weighted_goodput * counted_s <= bound.weighted * (1 + 1e-9)
    for priority, count in bound.per_class.items():
        if priority.label in result.classes:
            assert result.classes[priority.label].in_time <= count + 1e-6
    assert bound.strict


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("exact", "exact"),
        ("nested", "nested"),
        ("nested and linear", "nested and linear"),
        ("linear", "linear"),
        ("rows", "linear"),
        ("two models", "exact, linear"),
        ("device", "linear"),
    ],
)
def test_the_method_is_the_tightest_that_applies(name: str, method: str) -> None:
    """And the bound says which it was."""
    assert offered_and_bound(name)[1].method == method


def test_overload_is_bounded_below_what_is_offered() -> None:
    """A bound that said "everything" would be no bound."""
    for name in SCENARIOS:
        arrivals, bound = offered_and_bound(name)
        assert bound.count < 0.97 * len(arrivals), name


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[Offered], list[int]]:
    """Requests of three classes for one replica, with deadlines in any order, and costs per batch size."""
    offer = st.builds(Offered, st.integers(0, 10), st.integers(1, 9), st.just(0), st.integers(0, 2))
    offered = sorted(draw(st.lists(offer, min_size=1, max_size=6)))
    return offered, draw(st.lists(st.integers(1, 7), min_size=1, max_size=4).map(sorted))


@settings(max_examples=examples(40, thorough=1500))
@given(problems())
def test_no_schedule_of_one_replica_exceeds_it(problem: tuple[list[Offered], list[int]]) -> None:
    """Whatever the order of deadlines: sorting them is in the planner's favour."""
    offered, costs = problem
    scenario = make_scenario(
        models=(make_model(max_rows=len(costs), curve=lambda rows, _: float(costs[rows - 1])),), duration_s=30.0
    )
    arrivals = make_arrivals(*((offer.arrival, offer.arrival + offer.timeout) for offer in offered))
    arrivals = replace(arrivals, priority=np.array([int(tuple(Priority)[offer.group]) for offer in offered]))
    bound = bound_for(scenario, arrivals)
    weights = [scenario.weights[priority] for priority in Priority]
    assert best_weight(offered, [1], [costs], weights) <= bound.weighted + 1e-6
    assert best_weight(offered, [1], [costs], [1.0] * 3) <= bound.count + 1e-6


def test_requests_that_are_not_counted_are_left_out() -> None:
    """Warm-up."""
    scenario = make_scenario(duration_s=4.0, warm_up_s=2.0)
    bound = bound_for(scenario, make_arrivals((1.0, 2.0), (3.0, 4.0)))
    assert (bound.count, bound.weighted) == (1, 10.0)
    assert bound.per_class == {HIGH: 0, NORMAL: 1, LOW: 0}


def test_noise_makes_it_a_bound_of_the_mean() -> None:
    """Luck may exceed it, and it says so."""
    scenario = make_scenario(duration_s=4.0, noise=Noise("uniform", 0.2))
    assert not bound_for(scenario, make_arrivals((1.0, 2.0))).strict


def test_nothing_offered_bounds_at_nothing() -> None:
    """No requests, no models to plan."""
    empty: Arrivals = make_arrivals()
    scenario: Scenario = make_scenario(classes=make_classes())
    assert bound_for(scenario, empty).count == 0
