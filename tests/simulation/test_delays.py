"""What messages, pauses and executions really take, and how much of a wait replicas are busy."""

from __future__ import annotations

import numpy as np
import pytest
from baselines_runs import Ask, run
from simulation_builders import Fifo, Scripted, make_arrivals, make_model, make_scenario

from benchmarks.scheduling.baselines import SlidingWindow, Triton
from benchmarks.scheduling.baselines.serial import Serial
from serve_app_simulator.delays import SampledDelays
from serve_app_simulator.machine import NoiseSource
from serve_app_simulator.results import IN_TIME, LATE, Waiting
from serve_app_simulator.run import simulate
from serve_app_simulator.scenario import Affine, Noise, Overheads, Stream
from serve_app_simulator.system import World
from serve_app_simulator.world import SimulatedWorld

TAILED = Overheads(0.002, 0.003, 0.005, 0.004, 0.5)


def test_ways_have_their_median_and_a_tail_and_follow_the_seed() -> None:
    """The 99th percentile of sigma 0.5 is 3.2 times the median; without scatter all are the median."""
    drawn = [way() for way in [SampledDelays(0.002, 0.5, (1, 2))] for _ in range(20_000)]
    assert 0.002 == pytest.approx(np.median(drawn), rel=0.03)
    assert 3.2 == pytest.approx(np.quantile(drawn, 0.99) / np.median(drawn), rel=0.1)
    again, other = SampledDelays(0.002, 0.5, (1, 2)), SampledDelays(0.002, 0.5, (1, 3))
    assert [again() for _ in range(2000)] == drawn[:2000]
    assert other() != drawn[0]
    assert [0.002] * 3 == [way() for way in [SampledDelays(0.002, 0.0, (1,))] for _ in range(3)]


def test_overheads_know_their_mean_and_the_way_without_a_router() -> None:
    """exp(sigma^2 / 2); the way back less the hop to the router, never below 0."""
    assert np.exp(0.125) == pytest.approx(TAILED.mean_factor)
    assert 0.002 == pytest.approx(TAILED.direct_s)
    assert Overheads(send_s=0.002, answer_s=0.001).direct_s == 0.0


def test_every_system_meets_the_same_ways_to_it() -> None:
    """Two idle systems of one kind of way answer each request after the same time."""
    asked = [Ask(200.0 * number) for number in range(50)]
    scenario = make_scenario(overheads=TAILED, duration_s=20.0)
    one, two = (run(system, asked, scenario).latency_ms for system in (Triton(), SlidingWindow()))
    assert one == two
    assert np.std(one) > 0.5


def test_a_request_has_reached_the_system_when_it_arrives_there() -> None:
    """What the system sees of the overheads is without that way."""
    seen: list[tuple[float, float]] = []

    class Watched(Fifo):
        def arrive(self, request: object) -> None:
            seen.append((self._world.now, self._world.overheads.request_s))

    world = SimulatedWorld(make_scenario(overheads=Overheads(request_s=0.25)), 0, 1.0)
    world.run(Watched(), make_arrivals((1.0, 2.0)))
    assert [(1.25, 0.0)] == seen


def test_a_replica_is_ready_after_its_pause() -> None:
    """An execution that is begun before it runs after it."""
    found: list[float] = []

    def script(world: World, system: Scripted) -> None:
        def ended(_: object) -> None:
            found.extend((world.now, world.ready_at("m#1")))

        world.at(1.0, lambda: world.execute("m", "m#1", [system.requests[0]], 1, 0, ended))

    scenario = make_scenario(models=(make_model(curve=Affine(1.0, 0.0)),), overheads=Overheads(between_s=0.5))
    SimulatedWorld(scenario, 0, 1.0).run(Scripted(script), make_arrivals((0.0, 9.0)))
    assert [2.0, 2.5] == found


def test_a_serial_processor_takes_turns() -> None:
    """The first is done alone, what has come meanwhile together; without a cost nothing waits."""
    done: list[float] = []

    def script(world: World, _: Scripted) -> None:
        processor, free = Serial(world, 0.1), Serial(world, 0.0)
        for _number in range(3):
            processor.take(lambda: done.append(round(world.now, 9)))
        free.take(lambda: done.append(-1.0))
        world.at(1.0, lambda: processor.take(lambda: done.append(round(world.now, 9))))

    SimulatedWorld(make_scenario(), 0, 1.0).run(Scripted(script), make_arrivals())
    assert [-1.0, 0.1, 0.3, 0.3, 1.1] == done


def test_executions_in_an_episode_take_longer() -> None:
    """Over a long time the part that does is that of the episodes; they are the same whatever is executed."""
    noise = Noise(drift=1.5, drift_every_s=8.0, drift_s=2.0)
    source = NoiseSource(noise, (1,))
    factors = {at: source.factor(at) for at in np.arange(0.0, 20_000.0, 0.5)}
    assert {1.0, 1.5} == set(factors.values())
    assert 0.2 == pytest.approx(np.mean([factor > 1.0 for factor in factors.values()]), abs=0.03)
    again = NoiseSource(noise, (1,))
    assert all(again.factor(at) == factors[at] for at in np.arange(0.0, 20_000.0, 7.0))


def test_the_busy_part_counts_executions_while_somebody_waits() -> None:
    """Of 0 to 4 s two run one after the other with 1 s between; the second waits until 3 s, in 2 of which one ran."""
    scenario = make_scenario(
        models=(make_model(curve=Affine(2.0, 0.0)),), overheads=Overheads(between_s=1.0), duration_s=10.0
    )
    world = SimulatedWorld(scenario, 0, 1.0)
    records = world.run(SlidingWindow(1), make_arrivals((0.0, 9.0), (0.0, 9.0)))
    assert [IN_TIME, IN_TIME] == list(records.outcome)
    assert (3.0, 2.0) == pytest.approx((world.usage.waited_s, world.usage.busy_waited_s))


def test_waiting_counts_within_the_counted_time_only() -> None:
    """And replicas by how many there are."""
    waiting = Waiting(1.0, 5.0)
    waiting.list(1, 0.0)
    waiting.add(2, 0.0)
    waiting.list(3, 2.0)
    waiting.add(-2, 3.0)
    waiting.add(1, 4.0)
    waiting.note(9.0)
    assert (3.0, 1.0 + 3.0 + 3.0) == (waiting.waited_s, waiting.replica_s)


def test_results_tell_tenants_apart() -> None:
    """Only those that have a name."""
    streams = (
        Stream("poisson", "m", rate=20.0, timeout_s=0.1, tenant="calm"),
        Stream("poisson", "m", rate=20.0, timeout_s=0.1),
    )
    result = simulate(make_scenario(*streams), SlidingWindow, 1)
    assert ["calm"] == list(result.tenants)
    assert 0 < result.tenants["calm"].offered < result.total.offered
    assert result.to_dict()["tenants"]["calm"]["attainment"] == result.tenants["calm"].attainment


def test_late_answers_of_long_ways_are_waited_for() -> None:
    """Nothing stays unfinished because its way back had a tail."""
    scenario = make_scenario(Stream("poisson", "m", rate=200.0, timeout_s=0.02), overheads=TAILED, duration_s=5.0)
    result = simulate(scenario, Triton, 1)
    assert (0, True) == (result.total.unfinished, result.total.late > 0)
    assert LATE != IN_TIME
