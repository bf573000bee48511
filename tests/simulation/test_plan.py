"""Plans: the least number of replicas, what to expect, what does not fit, and the settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from plan_builders import CLASSES, GIB, LARGE, load, make, profile, stream, write_config

from serve_app.config.file import parse_document
from serve_app.domain.priority import Priority
from serve_app.errors import ConfigError
from serve_app_simulator.plan.command import make_setup
from serve_app_simulator.plan.costs import CUDA
from serve_app_simulator.plan.demand import Demanded, Sources, read_demand
from serve_app_simulator.plan.devices import Devices
from serve_app_simulator.plan.document import filled_in
from serve_app_simulator.plan.expectation import Setup, expect
from serve_app_simulator.plan.planner import Plan, make_plan, router_problem
from serve_app_simulator.plan.search import least
from serve_app_simulator.plan.uncertainty import DRAWS, SLOWDOWNS, Interval, attainment, latency, slowdown, utilisation
from serve_app_simulator.scenario import Stream

_TARGET = 0.99


def plan(setup: Setup, *streams: Stream, devices: Devices = LARGE) -> Plan:
    """A plan for 99% in time."""
    return make_plan(setup, streams, devices, _TARGET)


def setting(found: Plan, key: str) -> object:
    """The value of a setting."""
    (choice,) = (choice for choice in found.choices if choice.key == key)
    return choice.value


@given(threshold=st.integers(1, 50), start=st.integers(-2, 60), most=st.integers(1, 40))
def test_the_search_finds_the_least_number_that_holds(threshold: int, start: int, most: int) -> None:
    """Wherever it begins; each number is asked about once."""
    asked: list[int] = []

    def holds(number: int) -> bool:
        asked.append(number)
        return number >= threshold

    assert least(holds, start, most) == (threshold if threshold <= most else None)
    assert len(asked) == len(set(asked))
    assert set(asked) <= set(range(1, most + 1))


def test_more_requests_never_need_fewer_replicas(tmp_path: Path) -> None:
    """A replica does 190 rows per second."""
    numbers = []
    for rate in (12.0, 100.0, 200.0, 400.0):
        asked = stream(rate)
        numbers.append(plan(make(tmp_path, asked, seconds=2.0), asked).replicas["images"])
    assert numbers == sorted(numbers)
    assert (numbers[0], numbers[-1]) == (1, 3)


def test_a_plan_says_what_its_number_is_due_to(tmp_path: Path) -> None:
    """One replica less misses the target."""
    asked = stream(150.0, 0.15)
    found = plan(make(tmp_path, asked, seconds=2.0), asked)
    reasons = {choice.key: choice.because for choice in found.choices}
    assert found.replicas == {"images": 2}
    assert reasons["autoscaling.min_replicas"].startswith("1 have ")
    assert reasons["autoscaling.min_replicas"].endswith("of class normal in time")
    assert reasons["batching.max_rows"] == "as configured"
    assert found.placed == {"node 1": ["images", "images"]}
    assert found.problems == ()


def test_every_class_has_an_expectation_whose_interval_holds_its_median(tmp_path: Path) -> None:
    """And the medians of the seeds' own figures."""
    asked = stream(150.0, 0.24, share=CLASSES, timeouts_s={Priority.HIGH: 0.2, Priority.NORMAL: 0.24})
    setup = make(tmp_path, asked, seconds=2.0)
    arrivals = [setup.arrivals([asked], draw) for draw in range(DRAWS)]
    found = expect(setup, {"images": 1}, arrivals)
    alone = [expect(setup, {"images": 1}, [each]) for each in arrivals]
    assert [(each.model, each.label) for each in found.classes] == [("images", "high"), ("images", "normal")]
    for place, each in enumerate(found.classes):
        assert each.p50_s is not None
        assert each.in_time.low <= each.in_time.value <= each.in_time.high
        assert each.p50_s.low < each.p50_s.value < each.p50_s.high
        assert each.in_time.low <= median(one.classes[place].in_time.value for one in alone) <= each.in_time.high
    assert 0.6 < found.utilisation["images"].value <= 1.0


@given(draws=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=30))
def test_intervals_hold_the_median_of_the_draws(draws: list[float]) -> None:
    """And stay parts of one, or positive."""
    for interval, most in ((attainment(draws), 1.0), (utilisation(draws), 1.0), (latency(draws), float("inf"))):
        assert isinstance(interval, Interval)
        assert 0.0 <= interval.low <= interval.value + 1e-12
        assert interval.value <= interval.high + 1e-12
        assert interval.high <= most


def test_the_draws_slowdowns_are_spread_over_those_measured() -> None:
    """Each part of the distribution once."""
    found = sorted(slowdown(draw) for draw in range(DRAWS))
    assert len(set(found)) == DRAWS
    assert SLOWDOWNS[0] < found[0] < found[-1] < SLOWDOWNS[-1]
    assert median(found) == pytest.approx(SLOWDOWNS[len(SLOWDOWNS) // 2], rel=0.02)


def test_a_deadline_shorter_than_a_lone_request_is_held_by_no_number(tmp_path: Path) -> None:
    """The line names both times and the remedy; what to expect is still said."""
    asked = stream(10.0, 0.02)
    found = plan(make(tmp_path, asked), asked)
    (problem,) = found.problems
    assert problem == (
        "images: no number of replicas holds class normal: its deadline of 20 ms is shorter than a request alone takes,"
        " 26.2 ms; allow more time, or give it a faster variant"
    )
    assert found.expectation.classes[0].in_time.value < 0.5


def test_a_deadline_without_time_to_wait_is_held_by_no_number(tmp_path: Path) -> None:
    """Longer than a lone request takes, but not by as much as executions scatter."""
    asked = stream(12.0, 0.0275)
    (problem,) = plan(make(tmp_path, asked, seconds=1.0), asked).problems
    assert problem.startswith("images: no number of replicas holds class normal: ")
    assert "allow more time" in problem


def test_what_does_not_fit_is_said_with_what_would_do(tmp_path: Path) -> None:
    """The expectation is for the replicas that fit."""
    asked = stream(480.0, 0.2)
    small = Devices(cores=3, memory=64 * GIB)
    found = plan(make(tmp_path, asked, seconds=2.0), asked, devices=small)
    (problem,) = found.problems
    assert problem.startswith("images: 1 more of its replicas would not fit: ")
    assert "--cpus 4" in problem
    assert found.replicas == {"images": 2}
    assert found.expectation.classes[0].in_time.value < _TARGET


def test_protected_requests_have_their_own_target(tmp_path: Path) -> None:
    """`protect` of class `high` counts instead of the general one."""
    asked = stream(150.0, 0.15, priority=Priority.HIGH)
    setup = make(tmp_path, asked, seconds=2.0)
    protected = replace(setup.classes[Priority.HIGH], protect=0.2)
    eased = replace(setup, classes={**setup.classes, Priority.HIGH: protected})
    assert plan(eased, asked).replicas["images"] < plan(setup, asked).replicas["images"]


def test_models_on_a_gpu_get_shares_and_memory(tmp_path: Path) -> None:
    """By the larger of time and memory; the configuration stays valid."""
    config = write_config(tmp_path, {"images": profile(device=CUDA)})
    file, asked = load(config), stream(225.0)
    devices = Devices(cores=8, memory=64 * GIB, gpus=(16 * GIB,) * 2)
    setup = make_setup(config, file, Demanded((asked,), ("images",)), devices, 2.0)
    found = plan(setup, asked, devices=devices)
    assert set(found.placed) <= {"GPU 0", "GPU 1"}
    assert setting(found, "resources.gpu_memory") == 2 * GIB
    share = setting(found, "resources.gpus")
    assert isinstance(share, float)
    assert 0.3 < share <= 1.0
    (model,) = parse_document(filled_in(file, found.choices)).args.models
    assert (model.resources.gpus, model.autoscaling.min_replicas) == (share, found.replicas["images"])


def test_a_profile_of_a_gpu_needs_one(tmp_path: Path) -> None:
    """One line with the remedy."""
    config = write_config(tmp_path, {"images": profile(device=CUDA)})
    with pytest.raises(ConfigError, match="is of a GPU, and there is none: say --gpus, or profile on the CPU"):
        make_setup(config, load(config), Demanded((stream(),), ("images",)), LARGE, 1.0)


@pytest.mark.parametrize("measured", [None, profile("another")])
def test_a_model_without_a_profile_is_told_how_to_get_one(tmp_path: Path, measured: object) -> None:
    """Also where the file is another model's."""
    config = write_config(tmp_path, {"images": measured})  # type: ignore[dict-item]
    with pytest.raises(ConfigError) as caught:
        make_setup(config, load(config), Demanded((stream(),), ("images",)), LARGE, 1.0)
    (line,) = caught.value.problems
    assert line.startswith("model 'images' has no usable profile (")
    assert line.endswith(f"measure it: serve-app profile {config} --model images")


def test_automatic_rows_are_chosen_by_what_they_save(tmp_path: Path) -> None:
    """Without a fixed cost, batches gain nothing."""
    config = write_config(tmp_path, {"images": profile(alpha_s=1e-6, beta_s=0.001)})
    document = yaml.safe_load(config.read_text(encoding="utf-8"))
    document["applications"][0]["args"]["models"][0]["batching"]["max_rows"] = "auto"
    config.write_text(yaml.safe_dump(document), encoding="utf-8")
    setup = make_setup(config, load(config), Demanded((stream(),), ("images",)), LARGE, 1.0)
    assert setup.models[0].scheduling.max_rows == 1


def test_many_requests_shorten_the_simulated_time(tmp_path: Path) -> None:
    """So that a plan takes seconds."""
    assert make(tmp_path, stream(10.0), seconds=None).duration_s == 60.0
    assert make(tmp_path, stream(40_000.0), seconds=None).duration_s == pytest.approx(0.1)
    assert make(tmp_path, stream(2_000.0), seconds=4.0).duration_s == 4.0


@pytest.mark.parametrize(
    ("asked", "seconds", "expected"),
    [
        (stream(1e6), 4.0, "--seconds 4: about 4,000,000 requests would arrive, more than 200,000; say less"),
        (stream(start_s=70.0), None, "no request to images arrives within 60 s; say a longer time with --seconds"),
        (
            stream(kind="flash_crowd", surge_at_s=5.0),
            2.0,
            "2 s are simulated, and a stream or its surge begins at 5 s; say a longer time with --seconds",
        ),
    ],
)
def test_a_time_that_does_not_suit_the_demand_is_refused(
    tmp_path: Path, asked: Stream, seconds: float | None, expected: str
) -> None:
    """One line with the remedy."""
    with pytest.raises(ConfigError) as caught:
        make(tmp_path, asked, seconds=seconds)
    assert caught.value.problems == (expected,)


def traced(folder: Path, *requests: tuple[float, str, int]) -> tuple[Demanded, Path]:
    """The demand of a trace: arrival, model, rows; and the configuration of two models."""
    config = write_config(folder, {"images": profile(), "speech": profile("speech")})
    lines = ["arrival,model,class,rows,deadline", *(f"{at},{name},normal,{rows},1" for at, name, rows in requests)]
    (folder / "trace.csv").write_text("\n".join(lines), encoding="utf-8")
    return read_demand(Sources(trace=folder / "trace.csv"), load(config), folder), config


def test_of_a_long_trace_the_busiest_time_is_simulated(tmp_path: Path) -> None:
    """Measured by its work: a request of 16 rows is more than two of one."""
    requests = [(float(at), "images", 16 if 100 <= at < 110 else 1) for at in range(200)]
    demanded, config = traced(tmp_path, *requests)
    setup = make_setup(config, load(config), demanded, LARGE, 10.0)
    assert setup.begin_s == 100.0
    found = setup.arrivals(demanded.streams, 0)
    assert found.rows.tolist() == [16] * 10
    assert found.arrival.tolist() == [float(at) for at in range(10)]
    assert setup.duration_s == 10.0


def test_many_requests_of_a_trace_shorten_the_time_to_its_busiest(tmp_path: Path) -> None:
    """And the routers are counted for the time that is left."""
    quiet = [(at / 100, "images", 1) for at in range(6_000)]
    busy = [(60.0 + at / 1000, "images", 1) for at in range(10_000)]
    demanded, config = traced(tmp_path, *quiet, *busy)
    setup = make_setup(config, load(config), demanded, LARGE, None)
    found = setup.arrivals(demanded.streams, 0)
    assert setup.begin_s >= 60.0 - setup.duration_s
    assert len(found) / setup.duration_s == pytest.approx(1000.0, rel=0.01)
    at_once, config = traced(tmp_path, *[(0.0, "images", 1)] * 9_000)
    assert make_setup(config, load(config), at_once, LARGE, None).duration_s > 0.0


def test_a_model_that_nothing_is_simulated_of_is_named(tmp_path: Path) -> None:
    """It would be planned for no requests."""
    requests = [*((float(at), "images", 1) for at in range(70)), (200.0, "speech", 1)]
    demanded, config = traced(tmp_path, *requests)
    with pytest.raises(ConfigError) as caught:
        make_setup(config, load(config), demanded, LARGE, None)
    expected = "no request to speech arrives within 60 s; say a longer time with --seconds"
    assert caught.value.problems == (expected,)
    assert make_setup(config, load(config), demanded, LARGE, 201.0).duration_s == pytest.approx(200.0)


def test_a_short_trace_does_not_cut_other_demand(tmp_path: Path) -> None:
    """And is simulated for a second at least."""
    demanded, config = traced(tmp_path, (0.0, "images", 1), (0.05, "images", 1))
    assert make_setup(config, load(config), demanded, LARGE, None).duration_s == 1.0
    both = replace(demanded, streams=(*demanded.streams, stream(30.0)))
    assert make_setup(config, load(config), both, LARGE, None).duration_s == 60.0


def test_work_that_grows_for_as_long_as_it_lasts_is_not_held_by_one(tmp_path: Path) -> None:
    """Deadlines beyond the simulated time would hide it: executions take longer than the profile's."""
    asked = stream(0.95 / 0.084, timeout_s=60.0, kind="periodic", rows=16)
    found = plan(make(tmp_path, asked, seconds=10.0), asked)
    assert found.replicas == {"images": 2}


def test_routers_that_are_too_few_are_named(tmp_path: Path) -> None:
    """`auto` starts more, up to half of the cores; a configured number is a limit."""
    setup = make(tmp_path, stream(40_000.0), seconds=1.0)
    assert setup.routers == 4
    assert router_problem(setup, 40_000.0) == ""
    assert router_problem(replace(setup, routers=1), 40_000.0) == (
        "router: 40000 requests per second keep 1 router processes 300% busy; set router.replicas to 4 on as many cores"
        " more, or send more rows per request"
    )
