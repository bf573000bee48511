"""Replicas, devices, failures and autoscaling in the simulated world."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulation_builders import Fifo, Scripted, make_arrivals, make_model, make_scenario

from serve_app.domain.priority import Priority
from serve_app_simulator.ours import ServeApp
from serve_app_simulator.results import DROPPED, IN_TIME, LATE, REPLACED, UNFINISHED, Records
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
from serve_app_simulator.system import Execution, Request, System, World
from serve_app_simulator.workloads import Arrivals
from serve_app_simulator.world import SimulatedWorld

ONE_SECOND = Affine(1.0, 0.0)


def _run(scenario: Scenario, system: System, arrivals: Arrivals, seed: int = 0) -> tuple[SimulatedWorld, Records]:
    world = SimulatedWorld(scenario, seed, step_s=1.0)
    return world, world.run(system, arrivals)


def _executions(scenario: Scenario, *starts: tuple[float, str, int]) -> list[tuple[float, float, bool]]:
    """Start batches of so many rows; returns when each ended, how long it ran, and whether it failed."""
    ends: list[tuple[float, float, bool]] = [(-1.0, -1.0, False)] * len(starts)

    def script(world: World, system: Scripted) -> None:
        for place, (when, replica, rows) in enumerate(starts):
            world.at(when, _start(world, system, place, replica, rows))

    def _start(world: World, system: Scripted, place: int, replica: str, rows: int) -> Callable[[], None]:
        def done(execution: Execution) -> None:
            ends[place] = (world.now, execution.seconds, execution.failed)

        model = replica.partition("#")[0]
        return lambda: world.execute(model, replica, [system.requests[0]], rows, 0, done)

    names = [model.scheduling.name for model in scenario.models]
    _run(scenario, Scripted(script), make_arrivals((0.0, 100.0), models=names))
    return ends


def _shared(count: int = 2, **device: Any) -> Scenario:
    models = tuple(make_model(f"m{number}", curve=Affine(0.0, 1.0), device="gpu") for number in range(count))
    return make_scenario(models=models, devices=(Device("gpu", **device),), duration_s=100.0)


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ({}, (1.5, 2.0)),
        ({"interference": 0.2}, (1.75, 2.25)),
        ({"concurrency": 2}, (1.0, 1.5)),
        ({"concurrency": 2, "interference": 0.5}, (1.5, 2.0)),
    ],
)
def test_two_executions_on_one_device_share_it(device: dict[str, Any], expected: tuple[float, float]) -> None:
    """One of 1 s begins at 0 and one of 1 s at 0.5: both slow down while both run."""
    first, second = _executions(_shared(**device), (0.0, "m0#1", 1), (0.5, "m1#1", 1))
    assert expected == pytest.approx((first[0], second[0]))
    assert (first[0], second[0] - 0.5) == pytest.approx((first[1], second[1]))


@given(st.lists(st.tuples(st.floats(0.0, 5.0), st.integers(1, 6)), min_size=1, max_size=6), st.integers(1, 3))
def test_a_shared_device_does_all_work_and_no_faster_than_it_can(jobs: list[tuple[float, int]], speed: int) -> None:
    """However executions overlap, each takes at least its own time and all of them at least the device's."""
    ends = _executions(
        _shared(len(jobs), concurrency=speed),
        *((start, f"m{place}#1", rows) for place, (start, rows) in enumerate(jobs)),
    )
    for (start, rows), (end, _, failed) in zip(jobs, ends, strict=True):
        assert not failed
        assert end - start >= rows - 1e-6
    begin = min(start for start, _ in jobs)
    work = sum(rows for _, rows in jobs)
    finish = max(end for end, _, _ in ends)
    assert finish - begin >= work / speed - 1e-6
    assert finish <= max(start for start, _ in jobs) + work + 1e-6  # it is never idle while there is work


def test_a_replica_of_its_own_runs_one_batch_after_the_other() -> None:
    """It is busy in between, and what is begun then is refused."""
    scenario = make_scenario(models=(make_model(curve=ONE_SECOND),))
    with pytest.raises(ValueError, match="m#1 is busy"):
        _executions(scenario, (0.0, "m#1", 1), (0.5, "m#1", 1))
    assert [(1.0, 1.0, False), (2.5, 1.0, False)] == _executions(scenario, (0.0, "m#1", 1), (1.5, "m#1", 1))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda world, request, done: world.execute("m", "m#2", [request], 1, 0, done), "no replica m#2"),
        (lambda world, request, done: world.execute("m", "m#1", [request], 0, 0, done), "needs requests and rows"),
        (lambda world, request, done: world.execute("m", "m#1", [], 1, 0, done), "needs requests and rows"),
        (lambda world, request, done: world.execute("m", "m#1", [request], 1, 0, done, "int8"), "no variant 'int8'"),
    ],
)
def test_impossible_executions_are_refused(call: Any, message: str) -> None:
    """A system that asks for one has a fault, and is told which."""

    def script(world: World, system: Scripted) -> None:
        world.at(0.0, lambda: call(world, Request(0, "m", Priority.NORMAL, 0.0, 1.0), lambda _: None))

    with pytest.raises(ValueError, match=message):
        _run(make_scenario(), Scripted(script), make_arrivals((5.0, 6.0)))


def test_a_variant_takes_its_own_time() -> None:
    """Its curve counts instead of the exact model's."""
    ends: list[float] = []
    scenario = make_scenario(models=(make_model(curve=ONE_SECOND, variants={"int8": Affine(0.25, 0.0)}),))

    def script(world: World, system: Scripted) -> None:
        def start() -> None:
            world.execute("m", "m#1", [system.requests[0]], 1, 0, lambda _: ends.append(world.now), "int8")

        world.at(0.0, start)

    _run(scenario, Scripted(script), make_arrivals((0.0, 9.0)))
    assert [0.25] == ends


def test_server_time_is_charged_by_rows_and_padding_proportionally() -> None:
    """A batch of 1 and 3 rows padded to 8: a quarter and three quarters of its time."""
    scenario = make_scenario(models=(make_model(curve=Affine(0.0, 1.0)),), duration_s=20.0)

    def script(world: World, system: Scripted) -> None:
        def start() -> None:
            small, large = system.requests
            large.rows = 3
            world.execute("m", "m#1", [small, large], 8, 0, lambda _: world.answer(small))

        world.at(0.0, start)

    world, records = _run(scenario, Scripted(script), make_arrivals((0.0, 19.0), (0.0, 19.0)))
    assert [2.0, 6.0] == list(records.server_s)
    assert [IN_TIME, UNFINISHED] == list(records.outcome)
    assert (1, 8, 8.0, 20.0) == (
        world.usage.executions,
        world.usage.rows,
        world.usage.busy_s,
        world.usage.replica_s,
    )


def test_an_answer_counts_when_it_has_reached_the_client() -> None:
    """Its way back counts unless the system has waited for it; the first end of a request is its only one."""
    scenario = make_scenario(overheads=Overheads(answer_s=0.5))

    def script(world: World, system: Scripted) -> None:
        def end() -> None:
            in_time, late, left_before, dropped, replaced = system.requests
            world.answer(in_time)
            world.drop(in_time)
            world.answer(late)
            world.answer(left_before, left=0.7)
            world.drop(dropped)
            world.answer(dropped)
            replaced.replaced = True
            world.drop(replaced)

        world.at(1.0, end)

    arrivals = make_arrivals((0.0, 1.5), (0.0, 1.4), (0.0, 1.4), (0.0, 9.0), (0.0, 9.0))
    _, records = _run(scenario, Scripted(script), arrivals)
    assert [IN_TIME, LATE, IN_TIME, DROPPED, REPLACED] == list(records.outcome)
    assert [1.5, 1.5, 1.0] == pytest.approx(list(records.latency_s[:3]))


def test_what_runs_on_a_replica_that_dies_fails_and_is_run_again() -> None:
    """The replica leaves the list when that is noticed, and its successor comes after the down time."""
    scenario = make_scenario(
        models=(make_model(curve=ONE_SECOND, replicas=2),), failures=(Failure("m", 0, 0.5, 3.0, noticed_s=1.0),)
    )
    system = Fifo()
    world, records = _run(scenario, system, make_arrivals((0.0, 9.0), (0.0, 9.0), (0.0, 9.0), (2.0, 9.0)))
    assert [
        ("m#1", 0.0, 0.5, 1, True),
        ("m#2", 0.0, 1.0, 1, False),
        ("m#2", 1.0, 2.0, 1, False),
        ("m#2", 2.0, 3.0, 1, False),
        ("m#2", 3.0, 4.0, 1, False),
    ] == system.log
    assert [IN_TIME] * 4 == list(records.outcome)
    assert [(0.0, ("m#1", "m#2")), (1.5, ("m#2",)), (3.5, ("m#2", "m#3"))] == system.lists
    assert (0.5, 5) == (world.usage.failed_s, world.usage.executions)
    assert 0.5 + 10.0 + 6.5 == pytest.approx(world.usage.replica_s)


def test_a_dead_replica_ends_what_it_is_given_at_once() -> None:
    """Also before anybody has noticed its death."""
    scenario = make_scenario(models=(make_model(curve=ONE_SECOND),), failures=(Failure("m", 0, 1.0, 5.0),))
    assert [(1.0, 0.5, True), (1.5, 0.0, True)] == _executions(scenario, (0.5, "m#1", 1), (1.5, "m#1", 1))


def test_a_failure_of_a_replica_that_is_not_there_does_nothing() -> None:
    """Nobody dies in its place."""
    system = Fifo()
    _run(make_scenario(failures=(Failure("m", 1, 1.0, 5.0),)), system, make_arrivals((0.0, 9.0)))
    assert [(0.0, ("m#1",))] == system.lists


def test_a_stall_holds_up_what_runs_and_what_would_begin() -> None:
    """Each execution takes its own time and that of the stalls which fall in it."""
    noise = Noise(stall_every_s=7.0, stall_s=2.0)
    scenario = make_scenario(models=(make_model(curve=ONE_SECOND),), noise=noise, duration_s=100.0)
    system = Fifo()
    _run(scenario, system, make_arrivals(*((float(2 * number), 1000.0) for number in range(50))))
    took = [end - began for _, began, end, _, _ in system.log]
    assert 50 == len(took)
    assert all(seconds >= 1.0 - 1e-9 for seconds in took)
    stalled = [seconds - 1.0 for seconds in took if seconds > 1.0 + 1e-9]
    assert 3 <= len(stalled) < 40
    assert 2.0 == pytest.approx(sorted(stalled)[len(stalled) // 2], abs=2.0)
    assert any(abs(extra - 2.0) < 1e-9 for extra in stalled)  # one stall in the midst of an execution


@pytest.mark.parametrize("kind", ["uniform", "lognormal"])
def test_noise_keeps_the_mean_and_is_the_same_for_every_system(kind: Any) -> None:
    """Two systems meet the same time at a replica's n-th execution."""
    scenario = make_scenario(models=(make_model(curve=Affine(0.01, 0.0)),), noise=Noise(kind, 0.2), duration_s=40.0)
    arrivals = make_arrivals(*((number * 0.02, 1000.0) for number in range(2000)))
    logs = []
    for most in (1, 2):
        system = Fifo(most)
        _run(scenario, system, arrivals, seed=3)
        logs.append([end - began for _, began, end, _, _ in system.log])
    assert logs[0][:1500] == pytest.approx(logs[1][:1500])
    assert 0.01 == pytest.approx(sum(logs[0]) / len(logs[0]), rel=0.03)
    assert len(set(logs[0])) > 1900
    if kind == "uniform":
        assert 0.008 - 1e-9 <= min(logs[0]) < 0.0082
        assert 0.0118 < max(logs[0]) <= 0.012 + 1e-9


def test_replicas_come_after_their_start_up_and_go_when_there_are_too_many() -> None:
    """The load must have wished for it as long as the delay says; who goes finishes what it has."""
    scaling = SimulatedAutoscaling(1, 4, target_rows=1.0, upscale_delay_s=2.0, downscale_delay_s=5.0)
    model = make_model(curve=Affine(4.0, 0.0), startup_s=1.5, autoscaling=scaling)
    system = Fifo()
    scenario = make_scenario(models=(model,), duration_s=60.0)
    _, records = _run(scenario, system, make_arrivals(*[(0.5, 59.0)] * 8))
    assert (0.0, ("m#1",)) == system.lists[0]
    # Wished for at 1 s, granted at 3 s, up at 4.5 s, one after the other in the same instant.
    assert [4.5, 4.5, 4.5] == [when for when, _ in system.lists[1:4]]
    assert ("m#1", "m#2", "m#3", "m#4") == system.lists[3][1]
    fewer = system.lists[4:]
    assert [3, 2, 1] == [len(names) for _, names in fewer]
    assert all(name == "m#1" for _, names in fewer[-1:] for name in names)
    assert [IN_TIME] * 8 == list(records.outcome)
    assert not any(failed for *_, failed in system.log)


def test_a_wish_must_last_for_the_whole_delay() -> None:
    """A load that falls back in between starts the delay anew."""
    scaling = SimulatedAutoscaling(1, 4, target_rows=1.0, upscale_delay_s=2.0)
    scenario = make_scenario(models=(make_model(autoscaling=scaling),), duration_s=20.0)

    def script(world: World, system: Scripted) -> None:
        def queue(rows: int) -> Callable[[], None]:
            return lambda: setattr(system, "queued", rows)

        for when, rows in ((1.5, 4), (3.5, 1), (6.5, 4), (9.5, 1)):
            world.at(when, queue(rows))

    system = Scripted(script, queued=1)
    _run(scenario, system, make_arrivals((19.0, 20.0)))
    # Seen at 2 and 3 only, so nothing then; seen at 7, 8 and 9, so three more at 9.
    assert [(0.0, 1), (9.0, 2), (9.0, 3), (9.0, 4)] == [(when, len(names)) for when, names in system.lists]


def test_a_model_without_replicas_gets_one_when_somebody_waits() -> None:
    """Scaling from zero."""
    scaling = SimulatedAutoscaling(0, 2, target_rows=4.0, upscale_delay_s=0.0)
    scenario = make_scenario(
        Stream("periodic", "m", rate=1.0), models=(make_model(replicas=0, startup_s=2.0, autoscaling=scaling),)
    )
    system = Fifo()
    _, records = _run(scenario, system, make_arrivals((0.5, 9.0)))
    assert [(0.0, ()), (3.0, ("m#1",))] == system.lists[:2]
    assert [IN_TIME] == list(records.outcome)


def _contended(room: float, fixed: int = 0) -> Scenario:
    """Two models of up to six replicas: ``low`` wants about three all the time, ``high`` from 60 s on.

    Args:
        fixed: Replicas of a third model, which nobody asks.
    """
    scaling = SimulatedAutoscaling(1, 6)
    models = tuple(
        make_model(name, curve=Affine(0.1, 0.05), startup_s=5.0, autoscaling=scaling, needs={"cpus": 1.0}, slo_s=1.0)
        for name in ("low", "high")
    )
    if fixed:
        models += (make_model("fixed", replicas=fixed, needs={"cpus": 0.5}),)
    rate = 2.6 * 8 / models[0].curve(8, 0)
    return make_scenario(
        Stream("poisson", "low", Priority.LOW, rate=rate, timeout_s=3.0),
        Stream("poisson", "high", Priority.HIGH, rate=rate, timeout_s=3.0, start_s=60.0),
        models=models,
        duration_s=120.0,
        room={"cpus": room} if room else {},
    )


@pytest.mark.parametrize("room", [0.0, 5.0])
def test_models_share_the_room_by_what_replicas_save(room: float) -> None:
    """Where there is room both get the replicas that they ask for; otherwise the less urgent model gives some back."""
    result = simulate(_contended(room), ServeApp, 1)
    last = {name: steps[-1] for name, steps in result.scaling.items()}
    assert last["high"].replicas >= 3
    assert last["low"].replicas == (5 - last["high"].replicas if room else 3)
    assert last["low"].because == ("room" if room else "demand")
    assert len(result.scaling["low"]) <= 5
    assert result.classes["high"].attainment > 0.9


@pytest.mark.parametrize("fixed", [0, 2])
def test_the_room_is_never_exceeded(fixed: int) -> None:
    """At no time are more replicas wanted than there is room for beside models of a fixed number."""
    steps = simulate(_contended(5.0 + 0.5 * fixed, fixed), ServeApp, 1).scaling
    assert not steps.get("fixed")
    changes = sorted((step.at_s, step.replicas, name) for name in steps for step in steps[name])
    assert any(step.because == "room" for step in steps["low"])
    wanted = {"low": 1, "high": 1}
    for at_s in sorted({at_s for at_s, _, _ in changes}):
        wanted |= {name: replicas for when, replicas, name in changes if when == at_s}
        assert sum(wanted.values()) <= 5
