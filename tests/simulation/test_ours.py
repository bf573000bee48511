"""serve_app's own scheduler and gate in the simulated world."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples
from simulation_builders import HIGH, LOW, NORMAL, make_arrivals, make_classes, make_model, make_scenario

from serve_app_simulator.ours import ServeApp
from serve_app_simulator.results import Result
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
from serve_app_simulator.system import Execution, Hop, Request, World


class _Watch:
    """Passes everything on to the world and notes what the system does.

    Attributes:
        ends: How many answers and drops each request got, by id.
        batches: Beginning, replica, rows, bucket and requests of every execution.
        too_late: Ids of requests that were late already when their execution began.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.ends: Counter[int] = Counter()
        self.batches: list[tuple[float, str, int, int, tuple[int, ...]]] = []
        self.too_late: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world, name)

    def answer(self, request: Request, left: float | None = None, hop: Hop = "answer") -> None:
        self.ends[request.id] += 1
        self._world.answer(request, left, hop)

    def drop(self, request: Request) -> None:
        self.ends[request.id] += 1
        self._world.drop(request)

    def execute(
        self,
        model: str,
        replica: str,
        requests: Sequence[Request],
        rows: int,
        bucket: int,
        done: Callable[[Execution], None],
        variant: str = "",
    ) -> None:
        now = self._world.now
        self.batches.append((now, replica, rows, bucket, tuple(request.id for request in requests)))
        latest = now - self._world.overheads.send_s
        self.too_late += [request.id for request in requests if request.deadline <= latest]
        self._world.execute(model, replica, requests, rows, bucket, done, variant)


class _Watched(ServeApp):
    watch: Any

    def start(self, world: World) -> None:
        self.watch = _Watch(world)
        super().start(self.watch)


def _watched(scenario: Scenario, *requests: tuple[float, float], rows: int = 1, **options: Any) -> tuple[Result, Any]:
    system = _Watched(**options)
    arrivals = make_arrivals(*requests, rows=rows) if requests else None
    return simulate(scenario, lambda: system, 1, arrivals=arrivals), system.watch


def _asleep(duration_s: float = 10.0) -> Scenario:
    """One model that has no replica until somebody waits for it; then one is up after 2 s."""
    scaling = SimulatedAutoscaling(0, 1, target_rows=4.0, upscale_delay_s=0.0, downscale_delay_s=2.0)
    return make_scenario(models=(make_model(replicas=0, startup_s=2.0, autoscaling=scaling),), duration_s=duration_s)


_STREAMS = st.builds(
    Stream,
    st.sampled_from(["poisson", "gamma", "periodic", "video"]),
    st.sampled_from(["a", "b"]),
    rate=st.floats(1.0, 400.0),
    cv=st.floats(0.5, 4.0),
    timeout_s=st.floats(0.005, 1.0),
    rows=st.integers(1, 8),
    bucket=st.sampled_from([0, 64]),
    streams=st.integers(1, 4),
    share=st.sampled_from([{}, {HIGH: 0.2, NORMAL: 0.4, LOW: 0.4}]),
)
_FAILURES = st.builds(
    Failure,
    st.sampled_from(["a", "b"]),
    st.integers(0, 2),
    at_s=st.floats(0.0, 1.5),
    down_s=st.floats(0.0, 1.0),
    noticed_s=st.floats(0.0, 0.5),
)
_MILLISECONDS = st.sampled_from([0.0, 0.0005, 0.004])
_SCALING = SimulatedAutoscaling(1, 3, 8.0, upscale_delay_s=0.2, downscale_delay_s=0.3, interval_s=0.1)
_SCENARIOS = st.builds(
    partial(make_scenario, duration_s=1.5),
    models=st.builds(
        lambda count, window, scaling, known: (
            make_model("a", replicas=count, window=window, known=known, autoscaling=scaling, startup_s=0.1),
            make_model("b", curve=Affine(0.002, 0.002), replicas=1),
        ),
        st.integers(1, 3),
        st.integers(1, 3),
        st.sampled_from([None, _SCALING]),
        st.booleans(),
    ),
    workload=st.lists(_STREAMS, min_size=1, max_size=3).map(tuple),
    failures=st.lists(_FAILURES, max_size=4).map(tuple),
    routers=st.integers(1, 3),
    overheads=st.builds(Overheads, _MILLISECONDS, _MILLISECONDS, _MILLISECONDS),
    noise=st.builds(
        Noise,
        st.sampled_from(["none", "uniform", "lognormal"]),
        st.floats(0.0, 0.4),
        st.sampled_from([0.0, 0.5]),
        st.just(0.1),
    ),
)


@settings(max_examples=examples(12, thorough=300))
@given(_SCENARIOS, st.integers(0, 1000), st.sampled_from([0.05, 30.0]))
def test_whatever_fails_every_request_ends_once_and_none_is_run_too_late(
    scenario: Scenario, seed: int, bundle_timeout_s: float
) -> None:
    """With replicas that die, stall, start and stop, several routers, and bundles that time out."""
    system = _Watched(bundle_timeout_s=bundle_timeout_s)
    result = simulate(scenario, lambda: system, seed)
    assert 0 == result.total.unfinished
    assert result.total.offered == sum(system.watch.ends.values()) == len(system.watch.ends)
    assert [] == system.watch.too_late
    assert all(rows <= 8 for _, _, rows, _, _ in system.watch.batches)


def test_a_request_pays_every_overhead_once() -> None:
    """To the queue, to the replica, its execution, and back."""
    scenario = make_scenario(overheads=Overheads(0.001, 0.002, 0.004))
    result, watch = _watched(scenario, (1.0, 2.0))
    assert 0.001 + 0.002 + 0.006 + 0.004 == pytest.approx(result.total.p50_s)
    assert [1.003] == pytest.approx([began for began, *_ in watch.batches])


def test_a_replica_that_has_work_never_waits_for_the_ways() -> None:
    """While more comes, the next bundle is there as each batch ends, however long bundles and answers travel."""
    scenario = make_scenario(overheads=Overheads(0.0, 0.001, 0.002))
    _, watch = _watched(scenario, *((1.0 + 0.001 * at, 3.0) for at in range(200)))
    ends = [began + 0.005 + 0.001 * rows for began, _, rows, _, _ in watch.batches]
    assert [began for began, *_ in watch.batches[1:20]] == pytest.approx(ends[:19])


def test_what_arrives_at_one_instant_runs_together() -> None:
    """An idle replica takes a full batch; the rest are at the gate when it is free."""
    _, watch = _watched(make_scenario(), *((1.0, 2.0) for _ in range(12)))
    assert [(1.0, "m#1", 8), (1.013, "m#1", 4)] == [batch[:3] for batch in watch.batches]
    assert sorted(request for *_, ids in watch.batches for request in ids) == [*range(12)]


def test_requests_of_several_routers_are_merged_at_the_gate() -> None:
    """What waits while the replica is busy runs together, as far as it fits."""
    scenario = make_scenario(models=(make_model(curve=Affine(0.1, 0.0), slo_s=1.0),), routers=3)
    _, watch = _watched(scenario, (1.0, 3.0), (1.01, 3.1), (1.02, 3.2), (1.03, 3.3))
    assert [(0,), (1, 2, 3)] == [ids for *_, ids in watch.batches]
    _, watch = _watched(scenario, (1.0, 3.0), (1.01, 3.1), (1.02, 3.2), (1.03, 3.3), rows=4)
    assert [4, 8, 4] == [rows for _, _, rows, *_ in watch.batches]


@pytest.mark.parametrize("rate", [300.0, 900.0])
def test_it_hardly_matters_how_many_routers_there_are(rate: float) -> None:
    """Below and above what the replica can do, priorities, shares and deadlines hold across them."""
    share = {HIGH: 0.3, NORMAL: 0.3, LOW: 0.4}
    stream = Stream("poisson", "m", rate=rate, timeout_s=0.1, share=share)
    one, four = (simulate(make_scenario(stream, routers=routers), ServeApp, 1) for routers in (1, 4))
    assert one.attainment == pytest.approx(four.attainment, abs=0.02)
    for name in ("high", "normal", "low"):
        assert one.classes[name].attainment == pytest.approx(four.classes[name].attainment, abs=0.05)


def test_who_waits_behind_busy_replicas_runs_at_whichever_is_free_first() -> None:
    """Once: eight replicas run a hundred requests, and none is idle while one waits, however they were dealt out."""
    scenario = make_scenario(
        models=(make_model(curve=Affine(0.05, 0.0), replicas=8, slo_s=1.0, max_rows=1),), routers=3, duration_s=2.0
    )
    result, watch = _watched(scenario, *[(0.001 * number, 60.0) for number in range(100)])
    assert 100 == result.total.in_time
    assert Counter(ids for *_, ids in watch.batches) == Counter((number,) for number in range(100))
    begins = sorted(begin for begin, *_ in watch.batches)
    assert all(later - begin >= 0.05 - 1e-9 for begin, later in zip(begins, begins[8:], strict=False))
    assert begins[-1] <= 0.05 * 12 + 0.01


def test_a_request_larger_than_a_batch_runs_in_pieces() -> None:
    """And is answered once, after the last."""
    result, watch = _watched(make_scenario(), (1.0, 2.0), rows=19)
    assert [8, 8, 3] == [rows for _, _, rows, *_ in watch.batches]
    assert 3 * 0.005 + 19 * 0.001 == pytest.approx(result.total.p50_s)
    assert result.total.server_s == pytest.approx(result.total.p50_s)


@pytest.mark.parametrize("window", [1, 4])
def test_a_new_frame_takes_the_place_of_the_one_that_waits(window: int) -> None:
    """In the queue or at a gate, and not of one that runs; where this is switched off, frames queue up."""
    stream = Stream("video", "m", streams=1, fps=30.0, timeout_s=0.5)
    scenario = make_scenario(
        stream,
        models=(make_model(max_rows=1, curve=Affine(0.09, 0.0), slo_s=0.2, window=window),),
        routers=2,
        overheads=Overheads(0.0005, 0.001, 0.001),
    )
    newest = simulate(scenario, ServeApp, 1)
    assert newest.total.replaced > 150
    assert newest.total.offered == newest.total.in_time + newest.total.replaced
    assert newest.total.p99_s is not None
    assert newest.total.p99_s < 0.19
    every = simulate(scenario, partial(ServeApp, newest_frame_wins=False), 1)
    assert 0 == every.total.replaced
    assert every.total.dropped > 100


def test_what_a_dying_replica_held_is_answered_by_another() -> None:
    """Also what waited at its gate. Only the time of the execution that died is waste."""
    scenario = make_scenario(
        models=(make_model(curve=Affine(0.5, 0.0), replicas=2, slo_s=5.0),),
        failures=(Failure("m", 0, 1.25, 5.0),),
        duration_s=10.0,
    )
    result, watch = _watched(scenario, *[(1.0 + 0.01 * number, 9.0) for number in range(6)])
    assert 6 == result.total.in_time
    assert 0.25 == pytest.approx(result.wasted_s)
    first = {replica for _, replica, _, _, ids in watch.batches if 0 in ids}
    assert {"m#1", "m#2"} == first


def test_a_replica_that_does_not_answer_for_long_loses_its_work_to_others() -> None:
    """A bundle's time-out lets its requests be answered elsewhere while their replica stalls."""
    scenario = make_scenario(
        Stream("periodic", "m", rate=100.0, timeout_s=2.0),
        models=(make_model(replicas=4),),
        noise=Noise(stall_every_s=10.0, stall_s=4.0),
        duration_s=30.0,
    )
    impatient = simulate(scenario, partial(ServeApp, bundle_timeout_s=0.3), 7)
    patient = simulate(scenario, ServeApp, 7)
    assert patient.total.offered - patient.total.in_time > 5
    assert impatient.total.offered == impatient.total.in_time
    assert impatient.wasted_s > 0.0  # what ran twice


def test_a_model_without_replicas_wakes_up() -> None:
    """What waited for its first replica goes there at once, as what the dispatcher has queued again does."""
    result, watch = _watched(_asleep(), (0.5, 9.0), (0.6, 9.0))
    assert 2 == result.total.in_time
    assert [(3.0, "m#1", 2, 0, (0, 1))] == watch.batches


def test_who_waits_for_a_start_is_charged_for_it() -> None:
    """What expired is not run, and the next goes by the budget that it has left."""
    result, watch = _watched(_asleep(), (0.5, 2.5), (0.6, 3.004), (0.7, 3.1))
    assert [(2,)] == [ids for *_, ids in watch.batches]
    assert (1, 2) == (result.total.in_time, result.total.dropped)


def test_a_model_can_be_woken_up_again() -> None:
    """Its replica comes, stops when it is idle, and comes again; the wake-up before holds nothing back."""
    result, watch = _watched(_asleep(duration_s=30.0), (0.5, 9.0), (15.5, 29.0), (15.6, 29.0))
    assert 3 == result.total.in_time
    assert [("m#1", (0,)), ("m#2", (1, 2))] == [(replica, ids) for _, replica, _, _, ids in watch.batches]


def test_an_unknown_curve_is_learnt() -> None:
    """Without a prior the first batches teach it, and then it serves like one that was known."""
    stream = Stream("poisson", "m", rate=800.0, timeout_s=0.1)
    known, unknown = (
        simulate(make_scenario(stream, models=(make_model(known=known),), warm_up_s=2.0, duration_s=6.0), ServeApp, 1)
        for known in (True, False)
    )
    assert known.attainment < 0.9
    assert known.attainment == pytest.approx(unknown.attainment, abs=0.03)


def test_requests_are_spread_over_routers_as_asked_for() -> None:
    """In turn, or at random; the outcome is whole either way."""
    scenario = make_scenario(
        Stream("poisson", "m", rate=300.0, timeout_s=0.2), routers=4, models=(make_model(replicas=2),), duration_s=3.0
    )
    in_turn = simulate(scenario, ServeApp, 1)
    at_random = simulate(scenario, partial(ServeApp, spread="random"), 1)
    assert in_turn.total.offered == at_random.total.offered
    assert in_turn.total.p99_s != at_random.total.p99_s
    assert min(in_turn.attainment, at_random.attainment) > 0.95


def test_more_than_a_class_holds_is_refused() -> None:
    """The bounds of the classes count in the simulator as they do in the server."""
    scenario = make_scenario(
        Stream("poisson", "m", rate=3000.0, timeout_s=5.0), classes=make_classes(entries=10), duration_s=2.0
    )
    result = simulate(scenario, ServeApp, 1)
    assert result.total.dropped > 2000
    assert max(result.series.queued_rows) <= 10 + 2 * 8


def test_high_is_served_before_low_in_an_overload() -> None:
    """And low is not forgotten."""
    share = {HIGH: 0.5, LOW: 0.5}
    scenario = make_scenario(Stream("poisson", "m", rate=1100.0, timeout_s=0.1, share=share), warm_up_s=1.0)
    result = simulate(scenario, ServeApp, 2)
    assert result.classes["high"].attainment > 0.95 > result.classes["low"].attainment
    assert result.classes["low"].in_time > 0


def test_models_that_share_a_device_are_served_side_by_side() -> None:
    """No scheduler knows of the sharing."""
    models = (
        make_model("tight", curve=Affine(0.004, 0.001), device="gpu"),
        make_model("heavy", curve=Affine(0.05, 0.01), device="gpu", slo_s=1.0),
    )
    scenario = make_scenario(
        Stream("poisson", "tight", HIGH, rate=40.0, timeout_s=0.25),
        Stream("poisson", "heavy", LOW, rate=30.0, timeout_s=2.0),
        models=models,
        devices=(Device("gpu", interference=0.1),),
        duration_s=20.0,
    )
    result = simulate(scenario, ServeApp, 1)
    assert 0 == result.total.unfinished
    assert min(tally.in_time for tally in result.models.values()) > 50
    assert result.attainment > 0.8


def test_a_fallback_stands_in_where_the_exact_model_would_be_late() -> None:
    """It runs with its own cost, and more is answered in time than without it."""
    stream = Stream("poisson", "m", rate=600.0, timeout_s=0.1)
    plain = make_model(curve=Affine(0.02, 0.004), variants={"int8": Affine(0.004, 0.001)})
    falling = replace(plain, scheduling=replace(plain.scheduling, fallbacks=("int8",)))
    exact, light = (simulate(make_scenario(stream, models=(model,)), ServeApp, 1) for model in (plain, falling))
    assert light.total.in_time > 1.5 * exact.total.in_time


def test_timers_may_be_late_and_the_gate_allows_for_it() -> None:
    """In bursts, batches that wait are 3 ms late; that costs answers, but few heads."""
    stream = Stream("gamma", "m", rate=300.0, cv=6.0, timeout_s=0.014)
    in_time = []
    for timer_s in (0.0, 0.003):
        model = make_model(slo_s=0.014, curve=Affine(0.0056, 0.0004), max_rows=16)
        scenario = make_scenario(stream, models=(model,), overheads=Overheads(timer_s=timer_s))
        result = simulate(scenario, partial(ServeApp, network_s=1e-6), 1)
        in_time.append(result.attainment)
        assert result.total.late == 0

    assert in_time[0] > in_time[1] > 0.85 * in_time[0]


def test_a_protected_class_is_in_time_more_often() -> None:
    """At a load of about 1, for fewer answers of the others."""
    share = {HIGH: 0.2, NORMAL: 0.8}
    stream = Stream("poisson", "m", rate=600.0, share=share, timeouts_s={HIGH: 0.017, NORMAL: 0.06})
    attainments = []
    for protect in (0.0, 0.99):
        classes = dict(make_classes(0.0))
        classes[HIGH] = replace(classes[HIGH], protect=protect)
        result = simulate(make_scenario(stream, classes=classes), partial(ServeApp, network_s=1e-6), 1)
        attainments.append([result.classes[name].attainment for name in ("high", "normal")])

    (high, normal), (protected, others) = attainments
    assert protected > high
    assert protected > 0.97
    assert others < normal
