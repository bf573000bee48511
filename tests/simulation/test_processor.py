"""What a simulated router's processor does first, what it refuses, and how long each thing takes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples
from simulation_builders import HIGH, LOW, NORMAL, Scripted, make_arrivals, make_model, make_scenario

from benchmarks.scheduling.baselines.serial import Serial
from serve_app.domain.priority import Priority
from serve_app_simulator.ours import ServeApp
from serve_app_simulator.processor import Processor
from serve_app_simulator.results import Result
from serve_app_simulator.run import simulate
from serve_app_simulator.scenario import Affine, Noise, Overheads, Stream
from serve_app_simulator.scenarios import load_scenario
from serve_app_simulator.system import Request, World
from serve_app_simulator.world import SimulatedWorld

ROUTER = Path(__file__).parents[2] / "configs" / "scenarios" / "router.yaml"
SHARE = {HIGH: 0.2, NORMAL: 0.6, LOW: 0.2}
LIGHT = make_model(max_rows=32, curve=Affine(0.00005, 0.000002))
CALM = Noise()
MEASURED = Overheads(router_s=55e-6, router_read_s=5e-6, router_refusal_s=15e-6, router_answer_s=15e-6)

Coming = list[tuple[float, Priority, float]]
"""When requests reach a router, seconds, their classes, and the time that each has."""


def asked(number: int, priority: Priority, arrival: float, seconds: float) -> Request:
    """One of them."""
    return Request(number, "m", priority, arrival, arrival + seconds)


def processed(coming: Coming, overheads: Overheads, noise: Noise = CALM) -> list[tuple[float, int, str]]:
    """What became of requests, and when: each is begun or refused."""
    seen: list[tuple[float, int, str]] = []

    def script(world: World, _: Scripted) -> None:
        def note(what: str, request: Request) -> None:
            seen.append((round(world.now, 9), request.id, what))

        processor = Processor(world, {}, partial(note, "begun"), partial(note, "refused"))
        for number, (at, priority, seconds) in enumerate(coming):
            world.at(at, partial(processor.arrive, asked(number, priority, at, seconds)))

    SimulatedWorld(make_scenario(overheads=overheads, noise=noise), 0, 1.0).run(Scripted(script), make_arrivals())
    return seen


def overloaded(rate: float, overheads: Overheads = MEASURED) -> Result:
    """A light model for a second, with deadlines of 100 ms."""
    stream = Stream("poisson", "m", rate=rate, timeout_s=0.1, share=SHARE)
    return simulate(make_scenario(stream, models=(LIGHT,), duration_s=1.0, overheads=overheads), ServeApp, 1)


def test_each_thing_takes_its_time() -> None:
    """Reading counts for all that come together, and what was done takes effect together."""
    costs = Overheads(router_s=0.1, router_read_s=0.01)
    found = processed([(0.0, NORMAL, 9.0), (0.05, NORMAL, 9.0), (0.06, LOW, 9.0)], costs)
    assert found == [(0.11, 0, "begun"), (0.33, 1, "begun"), (0.33, 2, "begun")]


def test_refusals_take_their_time_and_go_first() -> None:
    """The first is begun alone, 32 when it has been, and the last 7 are too late after that."""
    found = processed([(0.0, NORMAL, 0.3)] * 40, Overheads(router_s=0.01, router_refusal_s=0.02))
    begun = [(0.01 if number == 0 else 0.33, number, "begun") for number in range(33)]
    assert found == [*begun, *((0.47, number, "refused") for number in range(33, 40))]


def test_answers_take_their_time_before_new_work() -> None:
    """Those of one bundle go together."""
    seen: list[tuple[float, str]] = []

    def script(world: World, _: Scripted) -> None:
        def note(what: str, *_: object) -> None:
            seen.append((round(world.now, 9), what))

        processor = Processor(world, {}, partial(note, "begun"), partial(note, "refused"))
        processor.arrive(asked(0, HIGH, 0.0, 9.0))
        world.at(0.05, partial(processor.answer, 3, partial(note, "answered")))
        world.at(0.06, partial(processor.arrive, asked(1, HIGH, 0.06, 9.0)))

    scenario = make_scenario(overheads=Overheads(router_s=0.1, router_answer_s=0.01))
    SimulatedWorld(scenario, 0, 1.0).run(Scripted(script), make_arrivals())
    assert seen == [(0.1, "begun"), (0.23, "answered"), (0.23, "begun")]


def test_without_costs_everything_is_done_at_once() -> None:
    """However many come."""
    found = processed([(0.5, LOW, 0.0)] * 100, Overheads())
    assert found == [(0.5, number, "begun") for number in range(100)]


def test_the_most_urgent_are_begun_first() -> None:
    """But for those that are begun as they come: 32, as long as none waits."""
    classes = [(LOW, NORMAL, HIGH)[number % 3] for number in range(120)]
    found = processed([(0.0, priority, 1000.0) for priority in classes], Overheads(router_s=0.001))
    later = [classes[number] for _, number, what in found if what == "begun"][32:]
    assert len(later) > 60
    assert later == sorted(later)


def test_stalls_hold_up_the_processor() -> None:
    """One request takes as much longer as the stalls in its time."""
    noise = Noise(router_stall_every_s=0.5, router_stall_s=0.25)
    ((end, _, _),) = processed([(0.0, NORMAL, 99.0)], Overheads(router_s=4.0), noise)
    assert end > 4.0
    assert (end - 4.0) % 0.25 == pytest.approx(0.0, abs=1e-6)


@settings(max_examples=examples(50))
@given(
    st.lists(st.tuples(st.floats(0.0, 0.05), st.sampled_from(list(Priority)), st.floats(0.001, 0.2)), max_size=150),
    st.builds(
        Overheads,
        router_s=st.sampled_from([0.0, 0.0001, 0.002]),
        router_read_s=st.sampled_from([0.0, 0.0001]),
        router_refusal_s=st.sampled_from([0.0, 0.0001]),
    ),
)
def test_nothing_is_lost_and_nothing_is_done_twice(coming: Coming, overheads: Overheads) -> None:
    """Each request is begun or refused, and none before it has come."""
    found = processed(coming, overheads)
    assert Counter(number for _, number, _ in found) == Counter(range(len(coming)))
    assert all(at >= coming[number][0] - 1e-9 for at, number, _ in found)


@settings(max_examples=examples(50))
@given(st.lists(st.floats(0.0, 0.1), max_size=60), st.sampled_from([0.00013, 0.001]))
def test_the_time_per_request_alone_means_the_same_as_before(times: list[float], router_s: float) -> None:
    """While no more come together than are begun in one round, in the order of their arrival."""
    times = sorted(times)
    before: list[tuple[float, int, str]] = []

    def script(world: World, _: Scripted) -> None:
        serial = Serial(world, router_s)

        def note(number: int) -> None:
            before.append((round(world.now, 9), number, "begun"))

        for number, at in enumerate(times):
            world.at(at, partial(serial.take, partial(note, number)))

    SimulatedWorld(make_scenario(), 0, 1.0).run(Scripted(script), make_arrivals())
    found = processed([(at, NORMAL, 9.0) for at in times], Overheads(router_s=router_s))
    together = max(Counter(at for at, _number, _what in before).values(), default=0)
    if together <= 32:
        assert found == before
    assert len(found) == len(before)


def test_urgent_requests_are_in_time_under_a_flood() -> None:
    """A processor that can begin 13,000 requests per second gets 20,000: the others are refused, not late."""
    found = overloaded(20_000.0)
    assert found.classes["high"].attainment > 0.99
    assert found.classes["low"].attainment < 0.3
    assert found.total.dropped == pytest.approx(found.total.offered - found.total.in_time, rel=0.02)
    assert found.total.unfinished == 0


def test_below_overload_nothing_is_refused() -> None:
    """With all costs, or with the same in one figure."""
    for overheads in (MEASURED, Overheads(router_s=75e-6)):
        assert overloaded(9_000.0, overheads).total.attainment > 0.999


def test_the_scenario_of_the_measured_overload_comes_out_as_measured() -> None:
    """Within 10 points for one seed, at 1 and 1.5 times; `docs/performance.md` has the means of five."""
    for case, high, normal, low in zip(
        load_scenario(ROUTER).cases[1:3], (100, 99.8), (82.8, 39.0), (43.1, 12.5), strict=True
    ):
        found = simulate(replace(case.scenario, duration_s=2.0), ServeApp, 1).classes
        assert [100 * found[name].attainment for name in ("high", "normal", "low")] == pytest.approx(
            [high, normal, low], abs=10
        )
