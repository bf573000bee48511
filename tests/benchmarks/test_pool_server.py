"""The benchmark of pools on the real server, as far as no server is needed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from benchmarks.groups import Group
from benchmarks.machine import Machine
from benchmarks.pool_members import answer, member_name, requests_and_answers, write_members
from benchmarks.pool_server import document_of
from benchmarks.pool_server_counted import Counted
from benchmarks.pool_server_load import beside_loads, popularity
from benchmarks.pool_server_measure import Costs, Observed, Tails
from benchmarks.pool_server_predict import load_spread, predict, scenario_of
from benchmarks.pool_server_report import Report, draw, render
from serve_app.composition import describe_models, expand_models, read_args, with_versions
from serve_app.config.args import AppArgs
from serve_app.domain.priority import Priority
from serve_app.pipelines.composition import pipeline_infos
from serve_app_simulator.scenario import Overheads
from serve_app_simulator.workloads import generate

MEMBERS = 3
COUNTED = Counted(
    loads=10,
    failed_loads=0,
    evictions=8,
    hits=90,
    misses=10,
    load_s=0.4,
    load_bins={0.025: 1.0, 0.05: 8.0, 0.1: 10.0},
    runs={1: (80, 0.4), 2: (10, 0.08)},
    used_bytes=9_000_000 * 3,
    resident=3,
)


def test_every_member_gives_an_answer_of_its_own(tmp_path: Path) -> None:
    """What the answers are compared with is what the models compute, bit for bit."""
    nbytes = write_members(tmp_path, MEMBERS)
    assert 8_000_000 < nbytes < 10_000_000
    for number in range(MEMBERS):
        session = onnxruntime.InferenceSession(tmp_path / member_name(number) / "1" / "model.onnx")
        (found,) = session.run(None, {"x": np.full((1, 16), 7, np.float32)})
        assert found.tobytes() == answer(number, 7)
    bodies, answers = requests_and_answers([2, 0])
    assert bodies[0].body != bodies[1].body
    assert answers == [answer(2, 0), answer(0, 1)]


def test_the_server_is_told_of_nothing_but_the_pool(tmp_path: Path) -> None:
    """Neither models nor pipelines of the demonstration, whose file it is."""
    nbytes = write_members(tmp_path, MEMBERS)
    document = document_of(tmp_path, MEMBERS * nbytes)
    config = with_versions(expand_models(read_args(document["applications"][0]["args"])))
    infos = describe_models(config)
    assert {info.name for info in infos.values()} == {member_name(number) for number in range(MEMBERS)}
    assert pipeline_infos(config, infos) == ()


def test_members_are_asked_by_zipfs_law() -> None:
    """The second half as often as the first."""
    parts = popularity(10)
    assert parts.sum() == pytest.approx(1.0)
    assert parts[0] == pytest.approx(2 * parts[1])


def test_class_high_meets_loads_and_none_by_turns() -> None:
    """In both it asks the same members; nobody else asks those that are not resident while it meets none."""
    beside = beside_loads(members=100, places=12, high_rate=50.0, other_rate=20.0, turns=4)
    high = beside.workload.priority == Priority.HIGH
    assert set(beside.numbers[high]) == {0, 1, 2, 3}
    turn = (beside.workload.arrival_s / 2.0).astype(int)
    assert set(turn[beside.loading]) == {2, 4, 6, 8}
    assert set(turn[beside.without]) == {3, 5, 7, 9}
    cold = beside.numbers >= 8
    assert set(turn[cold]) == {2, 4, 6, 8}
    assert not high[cold].any()
    names = beside.numbers[cold].tolist()
    assert len(set(names)) == min(92, len(names))


def test_what_was_counted_becomes_costs() -> None:
    """A line through the executions; the loads' median and their tail."""
    curve = COUNTED.curve()
    assert curve(1) == pytest.approx(0.005)
    assert curve(2) == pytest.approx(0.008)
    assert COUNTED.mean_load_s == pytest.approx(0.04)
    assert COUNTED.member_bytes == 9_000_000
    assert 0.0 < load_spread(COUNTED) <= 1.0
    none = COUNTED.since(COUNTED)
    assert (none.loads, none.runs, none.resident) == (0, {}, 3)


def test_a_report_tells_what_misses_its_aim(tmp_path: Path) -> None:
    """With the simulator's answer to the same arrivals."""
    nbytes = write_members(tmp_path / "models", 20)
    args = expand_models(
        AppArgs.model_validate(document_of(tmp_path / "models", 3 * nbytes)["applications"][0]["args"])
    )
    costs = Costs(Overheads(0.001, 0.001, 0.002, 0.0005), 0.1, 100.0)
    arrivals = generate(scenario_of(args, None, None, 40.0, 10.0, 2.0), 1)
    predicted = predict(scenario_of(args, costs, COUNTED, 40.0, 10.0, 2.0), 0.002, arrivals)
    assert predicted.groups["all"].offered == (arrivals.arrival >= 2.0).sum()
    assert predicted.usage.loads > 0
    groups = {name: Group(group.offered, 0, 0.01, 0.1) for name, group in predicted.groups.items()}
    observed = Observed(groups, {200: 90, 504: 9, 500: 1}, 0, COUNTED, [(1.0, 4 * nbytes)])
    tails = Tails([0.01, 0.02], [0.01, 0.01], 0, 0, 3.0)
    report = Report(
        date="2026-01-01",
        machine=Machine("CPU", 2, 8.0, "Linux", "3.11", {}, 0.1),
        members=20,
        file_bytes=nbytes,
        memory=3 * nbytes,
        load=0.65,
        rate=40.0,
        seconds=8.0,
        start_s=30.0,
        empty_bytes=80_000_000,
        costs=costs,
        observed=observed,
        predicted=predicted,
        tails=tails,
        took_s=60.0,
    )
    text = render(report, "pool_server.svg")
    assert "points (!)" in text
    assert "1.33" in text
    assert "| failures | 0 | 1 |" in text
    draw(report, tmp_path / "pool_server.svg")
    assert (tmp_path / "pool_server.svg").read_text(encoding="utf-8").startswith("<?xml")
