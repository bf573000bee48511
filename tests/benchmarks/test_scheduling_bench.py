"""The scheduler's experiments: parts are really taken away and put back, and the report tells what was measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from hypothesis_profiles import thorough

from benchmarks.scheduling import cases, fairness, faults, memory, parts, streams
from benchmarks.scheduling.__main__ import EXPERIMENTS, write
from benchmarks.scheduling.ablations import ABLATIONS, taken_away
from benchmarks.scheduling.comparison import HEADER, look, run_group
from benchmarks.scheduling.conditions import L1_S, MODEL, WIDE, one_model, rate_at, scenario
from benchmarks.scheduling.contenders import OURS, SLIDING, TRITON, Case, TritonWithoutCancels, ours
from benchmarks.scheduling.experiment import Experiment, Finding, Table
from benchmarks.scheduling.laboratory import Laboratory
from serve_app.domain.priority import Priority
from serve_app_simulator.check import check
from serve_app_simulator.run import simulate
from serve_app_simulator.scenario import Scenario, Stream
from serve_app_simulator.workloads import generate


def _overload(load: float = 2.0, seconds: float = 5.0) -> Scenario:
    model = one_model(10 * L1_S)
    stream = Stream("poisson", MODEL, rate=rate_at(load, model), timeout_s=10 * L1_S)
    return scenario("overload", model, [stream], seconds, warm_up_s=0.2)


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Laboratory:
    """Two seeds, very short workloads, all in this process, and nothing known from before."""
    monkeypatch.setattr(memory, "FOLDER", tmp_path / "known")
    return Laboratory((1, 2), (1001,), 0.02, processes=1)


@pytest.mark.parametrize("part", sorted(ABLATIONS))
def test_taking_a_part_away_touches_what_is_there_and_puts_it_back(part: str) -> None:
    """An ablation names attributes that exist, replaces them only for its time, and still serves."""
    before = [getattr(owner, name) for owner, name, _ in ABLATIONS[part].replaced]
    contender = ours(part)
    with taken_away(contender.without):
        assert [getattr(owner, name) for owner, name, _ in ABLATIONS[part].replaced] != before or not before
        result = simulate(contender.on(_overload(0.5, 2.5)), contender.make_system, 1)
    assert [getattr(owner, name) for owner, name, _ in ABLATIONS[part].replaced] == before
    assert result.total.unfinished == 0
    assert result.total.in_time > 0


def test_every_part_has_a_trial_in_a_possible_scenario(lab: Laboratory) -> None:
    """No ablation is forgotten, and all scenarios pass the check."""
    trials = parts.trials(lab)
    assert {trial.part for trial in trials} == set(ABLATIONS)
    for trial in trials:
        check(trial.scenario)


def test_the_best_run_is_what_saves_an_overloaded_server(lab: Laboratory) -> None:
    """A case compares contenders under the same arrivals, and the gain of a part is what it adds."""
    case = Case(_overload(), {OURS: ours(), "without": ours("best run")}, (), bound=True)
    measured = lab.run([case])[0]
    offered = [[result.total.offered for result in results] for results in measured.results.values()]
    assert offered[0] == offered[1]
    assert measured.gain(OURS, "without", lambda result: result.attainment).mean > 0.05
    assert 0.5 < measured.of_bound(OURS).mean <= 1.0
    assert sorted(measured.bounds) == [1, 2]


def test_the_same_seed_gives_the_same_result(lab: Laboratory) -> None:
    """A run is reproducible, the tuned baseline included."""
    case = Case(_overload(1.0, 2.0), tuned=(TRITON,), tune_s=0.5)
    one, two = lab.run([case, case])
    assert one.settings == two.settings
    for system in (OURS, TRITON):
        for first, second in zip(one.results[system], two.results[system], strict=True):
            assert first.total == second.total


def test_what_is_known_of_baselines_is_not_calculated_again(lab: Laboratory, tmp_path: Path) -> None:
    """Whatever the routers; another scenario is another matter."""
    calls: list[int] = []

    def calculate() -> int:
        calls.append(1)
        return len(calls)

    one, other = _overload(1.0), _overload(1.1)
    assert [memory.remembered(("a",), scenario, calculate) for scenario in (one, one, other, one)] == [1, 1, 2, 1]
    assert memory.remembered(("b",), one, calculate) == 3
    memory.forget()
    assert memory.remembered(("a",), one, calculate) == 4
    case = Case(_overload(1.0, 1.0), tuned=(SLIDING,), tune_s=0.5)
    (before,), files = lab.run([case]), len(list((tmp_path / "known").iterdir()))
    (after,) = lab.run([replace(case, scenario=replace(case.scenario, name="x", routers=4))])
    assert len(list((tmp_path / "known").iterdir())) == files
    assert [result.scenario for result in after.results[SLIDING]] == ["x", "x"]
    assert [result.total for result in after.results[SLIDING]] == [result.total for result in before.results[SLIDING]]


def test_a_setting_is_taken_away_in_the_scenario() -> None:
    """Parts that are settings change the scenario that the contender meets, and no other."""
    base = _overload()
    assert ours("waiting").on(base).models[0].scheduling.policy == "eager"
    assert base.models[0].scheduling.policy == "auto"
    assert all(settings.min_share == 0.0 for settings in ours("guaranteed share").on(base).classes.values())


def test_triton_without_cancels_answers_old_frames() -> None:
    """Where no client calls a frame back, none is replaced; here those are that wait for room at a replica."""
    model = one_model(0.1)
    stream = Stream("video", MODEL, streams=160, timeout_s=0.1)
    frames = scenario("frames", model, [stream], 1.0, warm_up_s=0.0)
    assert simulate(frames, TritonWithoutCancels, 1).total.replaced == 0
    crowded = replace(frames, models=(replace(model, scheduling=replace(model.scheduling, window=1)),))
    assert simulate(crowded, ours().make_system, 1).total.replaced > 0


def test_the_most_streams_are_interpolated_where_the_wanted_part_is_crossed() -> None:
    """Between 20 streams all in time and 22 with 0.98, 0.99 is at 21."""
    assert streams.most_of([(20.0, [1.0]), (22.0, [0.98])]) == [pytest.approx(21.0)]
    assert streams.most_of([(20.0, [1.0]), (22.0, [1.0])]) == [22.0]
    assert streams.most_of([(20.0, [0.5]), (22.0, [0.4])]) == [20.0]


def test_scenarios_that_no_other_test_runs_are_possible(lab: Laboratory, tmp_path: Path) -> None:
    """Every line of the table but the recorded hour's."""
    table = list(cases.settings(None))
    assert len({setting.name for setting in table}) == len(table)
    assert {setting.group for setting in table} == set(cases.GROUPS) - {"azure"}
    for setting in table:
        check(setting.make(1.0))


def test_a_recorded_hour_is_scaled_to_its_load(tmp_path: Path) -> None:
    """Twice the load is the same requests in half of the time; lengths become buckets."""
    recorded = tmp_path / "hour.csv"
    lines = [f"2023-11-16 18:17:{second:02d}.0000000,{2000 if second % 2 else 100},10" for second in range(60)]
    recorded.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]) + "\n")
    assert cases.read_recorded(recorded)[:2] == [(0.0, 256), (1.0, 2048)]
    made = {setting.name: setting.make(100.0) for setting in cases.settings(recorded) if setting.group == "azure"}
    slow, fast = (generate(made[name], 1).arrival for name in ("azure/0.7", "azure/1.1"))
    assert len(slow) == len(fast) == 60
    assert slow[-1] / fast[-1] == pytest.approx(1.1 / 0.7, rel=1e-3)


def test_a_quick_look_shows_every_system(lab: Laboratory) -> None:
    """One line per workload and system, with the tuned settings; the bound where there is one."""
    measured, table = look(["gamma/5x/0.5", "tenants/same"], (OURS, SLIDING), 1.0, None, lab)
    assert [row[:2] for row in table.rows] == [
        [name, system] for name in ("gamma/5x/0.5", "tenants/same") for system in (OURS, SLIDING)
    ]
    assert list(table.header) == list(HEADER)
    assert "max_batch_size=" in table.rows[1][-1]
    assert table.rows[0][2].endswith("%")
    assert not table.rows[2][2]
    assert "calm" in table.rows[2][4]
    assert all(0.0 < result.busy_part <= 1.0 for each in measured for result in each.results[OURS])
    with pytest.raises(ValueError, match="no workload is called nothing"):
        look(["nothing"], (OURS,), 1.0, None, lab)


def test_the_curve_of_wide_meets_its_points() -> None:
    """It passes through what the calibration measured and rises in between."""
    assert [round(1e3 * WIDE(rows), 2) for rows in (1, 8, 32, 64)] == [2.98, 4.8, 13.64, 26.09]
    seconds = [WIDE(rows) for rows in range(1, 65)]
    assert seconds == sorted(seconds)


def test_an_experiment_gives_findings_a_table_and_a_figure(lab: Laboratory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group of one family of workloads judges serve_app by both tuned baselines; nothing without a recorded hour."""
    few = [setting for setting in cases.settings(None) if setting.name in {"overload/1", "overload/2"}]
    monkeypatch.setattr("benchmarks.scheduling.comparison.settings", lambda _: iter(few))
    found = run_group("overload", lab)
    assert [finding.met is not None for finding in found.findings] == [True, True, True]
    assert [row[0] for row in found.tables[0].rows] == ["overload/1"] * 4 + ["overload/2"] * 4
    assert list(found.figures) == [""]
    assert [finding.met for finding in run_group("azure", lab).findings] == [None]


def test_the_report_keeps_what_is_not_run_again(tmp_path: Path) -> None:
    """A run of some experiments leaves the others' sections; each names its aims."""
    for name, met in (("poisson", True), ("gamma", False)):
        finding = Finding(name, f"aim of {name}", "measured", met)
        table = Table(["a", "b"], [["1", "2"]])
        write([Experiment(name, f"Title of {name}", "Text.", [finding], [table])], (1, 2), tmp_path, quick=False)
    written = (tmp_path / "scheduling.md").read_text()
    assert "- aim of poisson: measured (met)" in written
    assert "- aim of gamma: measured (**missed**)" in written
    assert written.index("## Title of poisson") < written.index("## Title of gamma")
    assert list(orjson.loads((tmp_path / "scheduling.json").read_bytes())["experiments"]) == ["poisson", "gamma"]
    assert set(EXPERIMENTS) >= {"poisson", "gamma"}


@thorough
def test_faults_are_measured_with_and_without_what_is_there_for_them(lab: Laboratory) -> None:
    """Every fault has a line for all that there is, in a possible scenario."""
    found = faults.run(lab)
    (table,) = found.tables
    assert all(len(row) == len(table.header) for row in table.rows)
    assert {f"{fault}, all" for fault in faults.FAULTS} <= set(found.data)
    for fault in faults.FAULTS:
        check(faults.faulty(fault, faults.WAYS["all"], 5.0))
    in_time = [faults.measure("fails", way, 4.0, 1)[0] for way in ("all", "no breaker")]
    assert in_time[0] > in_time[1] + 0.1


def test_a_polite_tenant_is_compared_with_being_alone_and_above(lab: Laboratory) -> None:
    """The same requests of the polite one everywhere; the server that knows no tenants still tells them apart."""
    beside = fairness.FloodCase(0.3, 3.0, 5.0, 5.0, 1.0)
    found = fairness.tenants(lab, [beside])
    (row,) = found.tables[0].rows
    assert len(row) == len(found.tables[0].header)
    values = found.data[beside.name]
    assert values["difference"]["mean"] == pytest.approx(values["polite"]["mean"] - values["alone"]["mean"])
    assert values["strict_priority"]["mean"] > values["strict_priority_in_time"]["mean"]
    same, alone, above = (
        generate(made, 1)
        for made in (beside.make(3.0), beside.make(3.0, alone=True), beside.make(3.0, polite=Priority.HIGH))
    )
    polite = same.tenant == same.tenants.index(fairness.POLITE)
    assert (above.arrival == same.arrival).all()
    assert (above.deadline == same.deadline).all()
    assert ((above.priority == Priority.HIGH) == polite).all()
    assert (alone.arrival == same.arrival[polite]).all()


def test_every_size_of_request_is_counted(lab: Laboratory) -> None:
    """By rows and cost bucket."""
    found = fairness.sizes(lab)
    assert list(found.tables[0].header[2:5]) == ["1x512", "4x2048", "8x8192"]
