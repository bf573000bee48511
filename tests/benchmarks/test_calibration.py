"""Calibration: its workloads, what it tells the simulator, and its report. Nothing here starts a server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from benchmarks.calibration_cases import Case, Load, cases, routed_cases
from benchmarks.calibration_measure import Around, Observed, Predicted
from benchmarks.calibration_predict import predict, scenario_of
from benchmarks.calibration_report import draw, render
from benchmarks.calibration_results import Compared, Measured, Report, Run
from benchmarks.calibration_server import Cores, Counters, is_model, with_routers
from benchmarks.failure import BenchmarkError
from benchmarks.groups import Group
from benchmarks.machine import Machine
from benchmarks.server import ROOT
from serve_app.config.file import load_file
from serve_app.config.profile import FORMAT, Memory, Profile
from serve_app.config.profile import Machine as ProfiledMachine
from serve_app.config.profile_points import Point, fit_points
from serve_app.domain.priority import Priority
from serve_app_simulator.scenario import Affine, Overheads
from serve_app_simulator.workloads import generate

LOAD = Load("wide", rows=32, bucket=0, max_rows=128)
CURVE = Affine(0.003, 0.0002)
FILE = load_file(ROOT / "benchmarks" / "calibration.yaml")
FREE = Around(Overheads(), between_s=0.0)


def profile() -> Profile:
    """A profile without scatter that lies on `CURVE`."""
    points = tuple(Point.of([CURVE(rows)] * 20, (0.05, 0.5, 0.95), rows=rows) for rows in (1, 32, 64, 128))
    return Profile(
        format=FORMAT,
        serve_app="0",
        measured="2026-01-01T00:00:00+00:00",
        model="wide",
        task="tensors",
        version="1",
        files={"": "0" * 64},
        device="cpu",
        threads=1,
        machine=ProfiledMachine(cpu="a CPU", cores=1, system="Linux", python="3", runtime="1"),
        memory=Memory(),
        points=points,
        fits=fit_points(points),
    )


def case(name: str, seconds: float = 10.0) -> Case:
    """One of the workloads."""
    return next(each for each in cases(LOAD, CURVE, seconds) if each.name == name)


def simulated(name: str, around: Around, seconds: float = 10.0, seed: int = 1) -> Predicted:
    """What the simulator says of a workload."""
    chosen = case(name, seconds)
    arrivals = generate(scenario_of(chosen, FILE, profile(), around), seed)
    return predict(chosen, FILE, profile(), around, arrivals, seed)


def observed(attainment: float, status: dict[str, int] | None = None, foreign: float = 0.0) -> Observed:
    """A run on the server."""
    groups = {name: Group(1000, round(1000 * attainment), 0.05, 0.1) for name in ("all", "high", "low")}
    cpu = {"replica of wide": 0.7, "replica of router": 0.3, "Ray's own processes": 0.1}
    statuses = {name: status or {"200": 1000} for name in groups}
    return Observed(
        groups, 64.0, 0.6, {64: 100}, 1.1, statuses, 0.004, 0.002, 0.1, cpu, {"model": foreign, "rest": 0.0}
    )


def run(real: float, predicted: float, repetition: int = 0) -> Run:
    """A run on both."""
    groups = {name: Group(1000, round(1000 * predicted), 0.04, 0.12) for name in ("all", "high", "low")}
    return Run(case("flash crowd x3"), repetition, observed(real), Predicted(groups, 60.0, 0.5))


def report(*runs: Run) -> Report:
    """A report of these."""
    measured = Measured.of(LOAD, 0, profile(), FREE)
    machine = Machine("a CPU", 2, 16.0, "Linux 6", "3.11", {"ray": "2"}, 0.1)
    return Report("2026-01-01", machine, 10.0, len(runs), 0.01, (measured,), runs)


def test_loads_are_parts_of_the_capacity() -> None:
    """Full batches without a pause, in requests."""
    capacity = LOAD.capacity(CURVE)
    assert capacity == pytest.approx(128 / CURVE(128) / 32)
    rates = {each.name: each.stream.rate / capacity for each in cases(LOAD, CURVE, 30.0)}
    assert rates == pytest.approx({"Poisson": 0.7, "gamma, CV 4": 0.6, "flash crowd x3": 0.45})


def test_the_flash_crowd_has_every_class() -> None:
    """With deadlines of its own, and the middle third of the time."""
    stream = case("flash crowd x3", 30.0).stream
    assert (stream.surge_at_s, stream.surge_s) == (10.0, 10.0)
    assert sum(stream.share.values()) == pytest.approx(1.0)
    assert list(stream.timeouts_s) == list(Priority)


def test_one_and_two_routers_get_the_same_workloads() -> None:
    """They differ in the number of routers and in their names."""
    one, two = (routed_cases(LOAD, CURVE, 10.0, routers) for routers in (1, 2))
    assert [each.stream for each in one] == [each.stream for each in two]
    assert {each.routers for each in two} == {2}
    assert all(sum(each.stream.share.values()) == pytest.approx(1.0) for each in two)
    assert one[-1].tightest_s == pytest.approx(3 * CURVE(32))


def test_the_simulator_has_as_many_routers_as_the_server() -> None:
    """The case says it, and the file that is served."""
    (chosen, *_) = routed_cases(LOAD, CURVE, 10.0, 2)
    assert scenario_of(chosen, FILE, profile(), FREE).routers == 2
    args = with_routers(FILE.document, 2)["applications"][0]["args"]
    assert args["router"]["replicas"] == 2
    assert args["router"]["http"]["port"]
    assert "replicas" not in FILE.document["applications"][0]["args"]["router"]


def test_the_simulator_has_the_servers_settings() -> None:
    """Batching, classes and the models' cost come from the file and from what was measured."""
    around = Around(Overheads(0.001, 0.002, 0.003), between_s=0.001)
    scenario = scenario_of(case("Poisson"), FILE, profile(), around, 1.5)
    (model,) = scenario.models
    assert model.scheduling == FILE.args.model_scheduling()["wide"]
    assert scenario.classes == FILE.args.class_settings()
    assert scenario.overheads == around.overheads
    assert model.curve(64, 0) == pytest.approx(1.5 * CURVE(64) + 0.0005)


def test_a_lonely_request_pays_every_overhead_once() -> None:
    """The way there, its execution, and the way back."""
    busy = case("Poisson")
    lonely = replace(busy, stream=replace(busy.stream, kind="periodic", rate=1.0))
    around = Around(Overheads(0.002, 0.003, 0.004), between_s=0.0)
    arrivals = generate(scenario_of(lonely, FILE, profile(), around), 1)
    found = predict(lonely, FILE, profile(), around, arrivals, 1, 2.0).groups["all"]
    assert found.p50_s == pytest.approx(2 * CURVE(32) + 0.009)
    assert found.p99_s == pytest.approx(2 * CURVE(32) + 0.009)


def test_a_pause_between_batches_costs_throughput() -> None:
    """In an overload, fewer are answered in time; the session itself is less busy."""
    free, paused = (simulated("flash crowd x3", Around(Overheads(), between_s=pause_s)) for pause_s in (0.0, 0.03))
    assert paused.groups["all"].in_time < free.groups["all"].in_time
    assert paused.utilisation < free.utilisation


def test_a_prediction_is_the_same_every_time() -> None:
    """It depends on the seed alone."""
    assert simulated("gamma, CV 4", FREE) == simulated("gamma, CV 4", FREE)


def test_counters_that_begin_anew_are_an_error() -> None:
    """A router that is replaced counts from 0 again."""
    before = Counters({10: 8, 20: 1}, 1.0, 10, 2.0, 0.5, 1.0)
    added = Counters({10: 8, 20: 2, 32: 1}, 1.5, 12, 2.5, 0.5, 1.0).since(before)
    assert added == Counters({20: 1, 32: 1}, 0.5, 2, 0.5, 0.0, 0.0)
    assert (added.executions, added.rows) == (2, 52)
    with pytest.raises(BenchmarkError, match="replaced"):
        Counters({10: 2}, 0.5, 12, 0.5, 0.0, 0.0).since(before)


def test_cores_are_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """One for the models and one for the rest."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {5, 2, 7})
    assert Cores.choose() == Cores(model=5, rest=2)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {5})
    with pytest.raises(BenchmarkError, match="two cores"):
        Cores.choose()


def test_the_router_is_no_model() -> None:
    """Whose core a process is on follows from its role."""
    roles = ["replica of wide", "replica of router", "Ray's own processes"]
    assert [is_model(role) for role in roles] == [True, False, False]


def test_differences_are_of_means_in_points() -> None:
    """Simulated less real, over the repetitions; within 5 points it fits."""
    whole, high, low = report(run(0.9, 0.92), run(0.8, 0.86, 1)).compared()
    assert (whole.group, high.group, low.group) == ("all", "high", "low")
    assert whole.difference == pytest.approx(4.0)
    assert whole.fits
    assert not Compared("a", "all", (0.9,), (0.8,), (1.0, 1.0), (1.0, 1.0)).fits


def test_the_report_says_what_does_not_fit(tmp_path: Path) -> None:
    """In its first lines and in the table."""
    text = render(report(run(0.9, 0.8)), "calibration.svg")
    assert "0 of 1 workloads are within 5 points" in text
    assert "-10.0 (!)" in text
    assert "![Real and simulated](calibration.svg)" in text
    assert "32 rows each to `wide`" in text


def test_the_plot_is_the_same_every_time(tmp_path: Path) -> None:
    """The same bytes for the same figures."""
    for name in ("a.svg", "b.svg"):
        draw(report(run(0.9, 0.8), run(0.91, 0.85, 1)), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_the_report_has_a_json_form() -> None:
    """Enumerations as keys included."""
    options = orjson.OPT_NON_STR_KEYS
    read = orjson.loads(orjson.dumps(report(run(0.9, 0.8)), option=options))
    assert read["runs"][0]["observed"]["groups"]["all"]["in_time"] == 900


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        pytest.param(observed(0.9, {"200": 990, "0": 10}), "10 of 1000 requests got no answer", id="no answers"),
        pytest.param(
            replace(observed(0.9), late_p99_s=0.2288), "late by 100% of the tightest deadline", id="late generator"
        ),
        pytest.param(observed(0.9, foreign=0.4), "something else used 40% of a core", id="busy machine"),
    ],
)
def test_unsound_figures_are_said_to_be(bad: Observed, reason: str) -> None:
    """So that nobody publishes them."""
    good = run(0.9, 0.9)
    assert report(good).unsound() == ""
    assert reason in report(Run(good.case, 0, bad, good.predicted)).unsound()
