"""Replicas that hang and fail, and what serve_app makes of them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples
from simulation_builders import Fifo, make_arrivals, make_model, make_scenario

from serve_app.errors import ConfigError
from serve_app.scheduling.settings import BreakerSettings
from serve_app_simulator.check import check
from serve_app_simulator.ours import ServeApp
from serve_app_simulator.results import Result
from serve_app_simulator.run import simulate
from serve_app_simulator.scenario import Affine, Failure, SimulatedModel, Stream
from serve_app_simulator.world import SimulatedWorld

_BREAKER = BreakerSettings(reset_s=3.0, ejection_s=60.0)
_STEADY = Stream("periodic", "m", rate=100.0, timeout_s=1.0)


def _model(replicas: int = 2, breaker: BreakerSettings | None = _BREAKER, copies: int = 8) -> SimulatedModel:
    model = make_model(replicas=replicas)
    return replace(model, scheduling=replace(model.scheduling, breaker=breaker, copies=copies))


def _simulate(
    *failures: Failure,
    model: SimulatedModel | None = None,
    stream: Stream = _STEADY,
    duration_s: float = 10.0,
    **options: float | None,
) -> Result:
    scenario = make_scenario(stream, models=(model or _model(),), failures=failures, duration_s=duration_s)
    return simulate(scenario, partial(ServeApp, **options), 1)  # type: ignore[arg-type]


_FAILURES = st.builds(
    Failure,
    st.just("m"),
    st.integers(0, 2),
    at_s=st.floats(0.0, 1.5),
    down_s=st.floats(0.0, 1.0),
    noticed_s=st.floats(0.0, 0.5),
    kind=st.sampled_from(["die", "hang", "fail"]),
    lasts_s=st.sampled_from([0.05, 0.3, 1.0, 100.0]),
    share=st.sampled_from([0.2, 1.0]),
)


@settings(max_examples=examples(12, thorough=300))
@given(
    st.lists(_FAILURES, min_size=1, max_size=5).map(tuple),
    st.integers(1, 3),
    st.integers(1, 2),
    st.sampled_from([0.05, 30.0]),
    st.sampled_from([None, 0.4]),
    st.integers(0, 100),
)
def test_whatever_goes_wrong_every_request_ends_once(
    failures: tuple[Failure, ...],
    replicas: int,
    routers: int,
    bundle_timeout_s: float,
    kill_s: float | None,
    seed: int,
) -> None:
    """Also where several things go wrong with one replica at a time."""
    scenario = make_scenario(
        replace(_STEADY, kind="poisson", rate=200.0, timeout_s=0.3),
        models=(_model(replicas),),
        failures=failures,
        routers=routers,
        duration_s=2.0,
    )
    system = ServeApp(bundle_timeout_s=bundle_timeout_s, replica_silence_s=0.1, replica_kill_s=kill_s)
    result = simulate(scenario, lambda: system, seed)
    total = result.total
    assert total.unfinished == 0
    assert total.offered == total.in_time + total.late + total.dropped


def test_whoever_is_not_told_waits_until_a_replica_goes_on() -> None:
    """What runs there is held up for as long, and what is given to it begins then."""
    scenario = make_scenario(
        models=(make_model(curve=Affine(1.0, 0.0)),), failures=(Failure("m", 0, 1.5, kind="hang", lasts_s=2.0),)
    )
    system = Fifo()
    SimulatedWorld(scenario, 0, 1.0).run(system, make_arrivals((1.0, 9.0), (1.0, 9.0)))
    assert [("m#1", 1.0, 4.0, 1, False), ("m#1", 4.0, 5.0, 1, False)] == system.log


def test_an_answer_of_a_model_that_raises_is_an_error_for_every_system() -> None:
    """Also where the system does not know."""
    scenario = make_scenario(
        models=(make_model(curve=Affine(1.0, 0.0)),), failures=(Failure("m", 0, 0.5, kind="fail", lasts_s=1.0),)
    )
    result = simulate(scenario, Fifo, 1, arrivals=make_arrivals((0.0, 9.0), (0.0, 9.0), (0.0, 9.0)))
    assert (2, 1) == (result.total.in_time, result.total.dropped)


def test_what_a_hanging_replica_has_is_answered_by_another_where_that_is_in_time() -> None:
    """Once the replica is silent."""
    hang = Failure("m", 0, 5.0, kind="hang", lasts_s=1.5)
    untied = _model(copies=1)
    late = _simulate(hang, model=untied)
    assert late.total.dropped > 0
    silent = _simulate(hang, model=untied, replica_silence_s=0.5)
    assert silent.total.in_time == silent.total.offered


def test_a_replica_that_goes_on_takes_work_again() -> None:
    """One replica alone cannot do it all."""
    stream = replace(_STEADY, rate=900.0, timeout_s=0.2)
    run = partial(_simulate, stream=stream, duration_s=4.0, replica_silence_s=0.2)
    short = run(Failure("m", 0, 1.0, kind="hang", lasts_s=1.0))
    good = run(Failure("m", 0, 1.0, kind="hang"), replica_kill_s=None)
    assert short.attainment > good.attainment + 0.05


def test_a_replica_that_hangs_for_good_is_killed_and_replaced() -> None:
    """Its successor is listed after the down time."""
    hang = Failure("m", 0, 2.0, down_s=2.0, kind="hang")
    killed = _simulate(hang, replica_silence_s=0.4, replica_kill_s=1.0)
    assert 2 == killed.series.replicas[-1]
    assert 1 in killed.series.replicas
    left = _simulate(hang, replica_silence_s=0.4, replica_kill_s=None)
    assert {2} == set(left.series.replicas)


def test_a_replica_that_fails_alone_is_ejected() -> None:
    """Then the other does all the work; without breakers half of the requests go on to fail."""
    fails = Failure("m", 0, 1.0, kind="fail")
    ejected = _simulate(fails)
    assert 0 < ejected.total.dropped < 10
    asked = _simulate(fails, model=_model(breaker=None))
    assert asked.total.dropped > 200


def test_a_model_that_fails_is_not_asked_until_it_works_again() -> None:
    """An open breaker refuses, and its probes close it."""
    fails = Failure("m", 0, 1.0, kind="fail", lasts_s=4.0)
    one = _model(replicas=1)
    closed = _simulate(fails, model=one)
    assert closed.total.in_time < closed.total.offered - 400
    assert sum(closed.series.queued_rows) == 0
    open_s = _simulate(fails, model=replace(one, scheduling=replace(one.scheduling, breaker=None)))
    assert closed.total.server_s < open_s.total.server_s - 0.5
    assert closed.total.in_time > 300


def test_entries_of_a_batch_that_raises_run_again_one_by_one() -> None:
    """So that those are answered whose own run does not raise: of half of the batches, half of the entries."""
    scenario = make_scenario(
        models=(_model(replicas=1, breaker=None),), failures=(Failure("m", 0, 0.0, kind="fail", share=0.5),)
    )
    together = [(1.0 + 0.2 * group, 9.0) for group in range(40) for _ in range(4)]
    result = simulate(scenario, ServeApp, 1, arrivals=make_arrivals(*together))
    assert 160 == result.total.offered
    assert 20 < result.total.dropped < 60


def _per_bucket(rows: int, bucket: int) -> float:
    return 0.001 + 1e-5 * rows * max(1, bucket)


@pytest.mark.parametrize(("pads", "seconds"), [(True, 0.001 + 1e-5 * 4 * 8), (False, 0.002 + 1e-5 * (2 * 1 + 2 * 8))])
def test_a_batch_of_several_buckets_is_padded_to_the_largest_or_runs_in_parts(pads: bool, seconds: float) -> None:
    """As replicas do: padded where that leaves answers as they are."""
    scheduling = replace(make_model(slo_s=1.0).scheduling, policy="eager", size_fairness=0.0)
    model = SimulatedModel(scheduling, _per_bucket, pads=pads)
    arrivals = make_arrivals(*[(1.0, 9.0)] * 4)
    arrivals.bucket[:] = [1, 8, 1, 8]
    result = simulate(make_scenario(models=(model,)), ServeApp, 1, arrivals=arrivals)
    assert 4 == result.total.in_time
    assert seconds == pytest.approx(result.server_s)


@pytest.mark.parametrize(
    ("failure", "field"),
    [
        (Failure("m", 0, 1.0, kind="fail", share=0.0), "share"),
        (Failure("m", 0, 1.0, kind="fail", share=1.5), "share"),
        (Failure("m", 0, 1.0, kind="hang", lasts_s=-1.0), "lasts_s"),
    ],
)
def test_impossible_failures_are_named(failure: Failure, field: str) -> None:
    """With their place."""
    with pytest.raises(ConfigError, match=rf"failures\[0\]\.{field}"):
        check(make_scenario(_STEADY, failures=(failure,)))
