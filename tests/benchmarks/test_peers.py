"""The comparison with other servers, as far as nothing is started."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.failure import BenchmarkError
from benchmarks.machine import Machine
from benchmarks.peers.__main__ import choose
from benchmarks.peers.alone import make_batches, ways
from benchmarks.peers.cases import CASES, OURS, OURS_PROXY, RAW, STOCK, TRITON, Aim, Case
from benchmarks.peers.environments import LOCKS, environment, is_stale
from benchmarks.peers.measure import Plan
from benchmarks.peers.plots import draw
from benchmarks.peers.report import render
from benchmarks.peers.results import Alone, CaseResult, LeftOut, Paced, Report, Run, failures_of_ours, findings
from benchmarks.peers.systems import PeerServer, Subject, endpoints, settings_of, versions, wire_of
from benchmarks.process import ROOT
from benchmarks.requests import Request, read_requests, write_requests
from benchmarks.server import DIRECT, PROXY, Server
from benchmarks.wires import WIRES
from benchmarks.wrk import Load

CASE = Case(
    "tiny", "tiny", "json", (1, 64), (OURS, STOCK, TRITON, RAW), (Aim(TRITON, 64, 1.5), Aim(STOCK, 64, 10.0)), "small"
)


def run(system: str, connections: int, repetition: int, per_second: float, bad_status: int = 0) -> Run:
    """One run."""
    load = Load(int(per_second * 10), 10.0, per_second, 1.0, 2.0, 3.0, 4.0, bad_status, 0, 0)
    return Run("tiny", system, connections, repetition, load, 0.1, {"server": 0.5, "worker": 0.75}, 0.01)


RUNS = [
    *(run(OURS, 64, number, rate) for number, rate in enumerate((300.0, 200.0, 400.0))),
    *(run(OURS_PROXY, 64, number, rate) for number, rate in enumerate((150.0, 150.0, 150.0))),
    *(run(TRITON, 64, number, rate) for number, rate in enumerate((100.0, 100.0, 160.0))),
    *(run(RAW, 64, number, 600.0) for number in range(3)),
    run(TRITON, 1, 0, 50.0),
]


def result(runs: list[Run]) -> CaseResult:
    """A case that was measured."""
    return CaseResult(
        name="tiny",
        body_bytes={"V2 JSON": 700},
        wires={OURS: "V2 JSON", TRITON: "V2 JSON"},
        settings={OURS: "as it comes", TRITON: "no delay"},
        searched=[(Alone(1, 2, 64), 1000.0), (Alone(2, 1, 1), 10.0)],
        single_ms=0.0125,
        timeout_s=60.0,
        runs=runs,
        paced=[
            Paced("tiny", system, 0.5, 50.0, number, 1.5, 2.5, 3.5, 500, 0, 0.25)
            for system in (OURS, TRITON)
            for number in range(3)
        ],
    )


@pytest.fixture
def report() -> Report:
    """A report of one case."""
    return Report(
        date="2026-01-01",
        machine=Machine("CPU", 2, 23.5, "Linux 6", "3.11.7", {"ray": "2.60.0"}, 0.1),
        versions={TRITON: "nvidia-pytriton==0.7.0"},
        seconds=10.0,
        warm_up_s=2.0,
        repetitions=3,
        findings=findings(CASE, RUNS),
        cases=[result(RUNS)],
        left_out=[LeftOut("tiny", "LitServe", "it has ended:\nTraceback\nOSError: a | b")],
    )


def test_ratios_are_of_the_same_repetition_and_their_median_counts() -> None:
    """For each way in; without the other system there is none."""
    direct, proxy = findings(CASE, RUNS)
    assert (direct.system, direct.against, direct.ratios, direct.median) == (OURS, TRITON, (3.0, 2.0, 2.5), 2.5)
    assert (proxy.system, proxy.ratios, proxy.at_least) == (OURS_PROXY, (1.5, 1.5, 0.9375), 1.5)


def test_a_repetition_that_one_of_them_missed_gives_no_ratio() -> None:
    """A server may end amid the runs."""
    partly = [each for each in RUNS if each.system != TRITON or each.repetition != 1]
    assert findings(CASE, partly)[0].ratios == (3.0, 2.5)


def test_failures_of_ours_are_counted_over_every_way_in() -> None:
    """Those of others are shown, and are no fault of ours."""
    runs = [run(OURS, 64, 0, 1.0, 2), run(OURS_PROXY, 64, 0, 1.0, 3), run(TRITON, 64, 0, 1.0, 100)]
    assert failures_of_ours([result(runs)]) == 5
    late = replace(RUNS[0], load=replace(RUNS[0].load, timeouts=7))
    assert failures_of_ours([result([late])]) == 7
    assert failures_of_ours([replace(result([late]), timeout_s=2.0)]) == 0


def test_systems_take_turns_and_the_first_one_changes() -> None:
    """So that a slower spell of the machine meets all."""
    assert list(Plan(1.0, 1.0, 2).turns((1, 64), ("a", "b"))) == [
        (0, 1, "a"),
        (0, 1, "b"),
        (0, 64, "a"),
        (0, 64, "b"),
        (1, 1, "b"),
        (1, 1, "a"),
        (1, 64, "b"),
        (1, 64, "a"),
    ]


def test_a_choice_narrows_cases_systems_and_connections() -> None:
    """Names may be in any case; serve_app is always measured."""
    assert choose("", "") == list(CASES)
    (case,) = choose("tiny", "triton,stock ray serve", "64,1000")
    assert (case.name, case.systems, case.connections) == ("tiny", (OURS, STOCK, TRITON), (64,))
    assert choose("pool", "", "64") == []


@pytest.mark.parametrize(("cases", "systems", "connections"), [("tini", "", ""), ("", "nginx", ""), ("", "", "63")])
def test_an_unknown_choice_is_refused_with_what_there_is(cases: str, systems: str, connections: str) -> None:
    """Before anything is started."""
    with pytest.raises(BenchmarkError, match=r"there is no .* there are: "):
        choose(cases, systems, connections)


def test_every_aim_can_be_measured() -> None:
    """Its system and its connections are among the case's."""
    for case in CASES:
        for aim in case.aims:
            assert aim.against in case.systems
            assert aim.connections in case.connections
        assert set(case.paced) <= set(case.systems)


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES])
def test_every_system_can_be_asked_and_described(case: Case) -> None:
    """In a form of requests that exists, and with the model of the configuration."""
    subject = Subject.of(case.model)
    for system in set(case.systems) - {RAW}:
        assert wire_of(system, case.wire) in WIRES.values()
        assert settings_of(system, subject)


def test_the_report_says_ratios_aims_and_what_is_missing(report: Report) -> None:
    """In one table each."""
    text = render(report, [CASE], [("Throughput", "a.svg")])
    assert "| `tiny`, 64 | Triton | 1.5 | 2.50 (2.00 to 3.00) | 1.50 (0.94 to 1.50) |" in text
    assert "300 (1.0/3.0)" in text
    assert "| Triton | 50.0 (" in text
    assert "| Triton | 1.5/3.5 (0.2) |" in text
    assert "| tiny | LitServe | it has ended: ... OSError: a / b |" in text
    assert "![Throughput](a.svg)" in text
    assert "nvidia-pytriton==0.7.0" in text
    assert not re.search(r"\{\w*\}", text)


def test_an_aim_that_is_missed_is_marked(report: Report) -> None:
    """It is the reason to measure."""
    missed = replace(report, findings=[replace(each, at_least=9.0) for each in report.findings])
    assert "| 9 | **2.50 (2.00 to 3.00)** |" in render(missed, [CASE], [])


def test_pictures_are_drawn_of_what_there_is(report: Report, tmp_path: Path) -> None:
    """The same bytes for the same figures; none of what was not measured."""
    made = [name for _, name in draw(report.cases, tmp_path)]
    assert made == ["performance_throughput.svg", "performance_latency.svg"]
    before = (tmp_path / made[0]).read_bytes()
    draw(report.cases, tmp_path)
    assert (tmp_path / made[0]).read_bytes() == before
    assert draw([result([])], tmp_path) == [("Latency at fixed rates", "performance_latency.svg")]


def test_efficiency_is_drawn_for_models_that_compute(report: Report, tmp_path: Path) -> None:
    """Beside `tiny`, the loop without a server says nothing."""
    renamed = [replace(case, name="wide") for case in report.cases]
    assert [name for _, name in draw(renamed, tmp_path)][-1] == "performance_efficiency.svg"


def test_an_environment_is_stale_until_it_is_finished_and_when_its_lock_changes(tmp_path: Path) -> None:
    """The stamp that finishes it is the lock's fingerprint."""
    lock, target = tmp_path / "a.txt", tmp_path / "a"
    lock.write_text("numpy==1\n")
    target.mkdir()
    assert is_stale(lock, target)
    (target / ".lock").write_text(hashlib.sha256(b"numpy==2\n").hexdigest())
    assert is_stale(lock, target)


def test_an_environment_of_the_same_lock_is_used_again(tmp_path: Path) -> None:
    """Nothing is run for it."""
    (tmp_path / "a.txt").write_bytes(b"numpy==1\n")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / ".lock").write_text(hashlib.sha256(b"numpy==1\n").hexdigest())
    assert environment("a", tmp_path, tmp_path) == tmp_path / "a" / "bin" / "python"


def test_a_missing_lock_is_said(tmp_path: Path) -> None:
    """It is the environment's name that is wrong."""
    with pytest.raises(BenchmarkError, match=r"no lock none\.txt"):
        environment("none", tmp_path, tmp_path)


def test_every_lock_has_the_servers_onnx_runtime() -> None:
    """Otherwise the comparison would be one of ONNX Runtime's versions."""
    ours = re.search(r"^onnxruntime-gpu==(\S+)", (ROOT / "requirements" / "serve.txt").read_text(), re.MULTILINE)
    assert ours is not None
    for lock in sorted(LOCKS.glob("*.txt")):
        found = re.search(r"^onnxruntime==(\S+)", lock.read_text(), re.MULTILINE)
        assert found is not None, lock
        assert found[1] == ours[1], lock


def test_versions_come_from_the_locks() -> None:
    """Of the package that the system is."""
    assert versions({TRITON, OURS}) == {TRITON: "nvidia-pytriton==0.7.0"}


def test_requests_survive_their_file(tmp_path: Path) -> None:
    """Newlines and tabs in bodies too."""
    requests = [
        *(wire.request({"x": np.arange(3, dtype=np.float32)[None]}) for wire in WIRES.values()),
        Request({"A": "b: c"}, b"\n\t1\t\n"),
        Request({}, b""),
    ]
    write_requests(tmp_path / "a", requests)
    assert read_requests(tmp_path / "a") == requests


@pytest.mark.parametrize(
    ("wire", "headers", "content"),
    [
        ("json", {}, b'{"outputs":[{"name":"y","data":[1.5,2.0]}]}'),
        (
            "binary",
            {"inference-header-content-length": "55"},
            b'{"outputs":[{"parameters":{"binary_data_size":8}}]}    ' + np.array([1.5, 2.0], np.float32).tobytes(),
        ),
        ("bytes", {}, np.array([1.5, 2.0], np.float32).tobytes()),
        ("base64", {}, b'{"data":"AADAPwAAAEA="}'),
        ("nested", {}, b"[[1.5, 2.0]]"),
    ],
)
def test_an_answer_is_read(wire: str, headers: dict[str, str], content: bytes) -> None:
    """Flat, in every form."""
    assert WIRES[wire].answer(headers, content).tolist() == [1.5, 2.0]


def test_batches_alone_are_padded_to_the_servers_buckets() -> None:
    """Requests of one bucket share a batch; padding is zeros, in the mask as well."""
    inputs = [
        {"ids": np.full((1, length), length), "mask": np.ones((1, length), np.int64)} for length in (3, 20, 15, 16)
    ]
    batches = make_batches(inputs, 2, (16, 32))
    assert [batch["ids"].shape for batch in batches] == [(2, 16), (1, 16), (1, 32)]
    assert sorted(int(batch["mask"].sum()) for batch in batches) == [16, 18, 20]


def test_batches_alone_of_one_size_are_always_full() -> None:
    """Few requests are repeated."""
    inputs = [{"x": np.full((1, 2), number)} for number in range(3)]
    assert [batch["x"][:, 0].tolist() for batch in make_batches(inputs, 4, ())] == [[0, 1, 2, 0]]
    assert [batch["x"][:, 0].tolist() for batch in make_batches(inputs, 2, ())] == [[0, 1]]
    assert len(make_batches(inputs, 1, ())) == 3


def test_alone_tries_all_cores_in_both_ways() -> None:
    """And with single rows, since batches are no gain for every model."""
    assert ways(8, cores=2) == [
        *(Alone(1, 2, rows) for rows in (1, 2, 8, 16)),
        *(Alone(2, 1, rows) for rows in (1, 2, 8, 16)),
    ]


def test_a_direct_port_becomes_a_second_way_in() -> None:
    """On a free port; without one there is only the proxy."""
    document: dict[str, Any] = {
        "grpc_options": {"port": 9001},
        "applications": [{"args": {"router": {"http": {"port": 8001}, "grpc": {"port": 9101}}}}],
    }
    server = Server(OURS, document, ())
    placed = server._on_free_ports()
    router = placed["applications"][0]["args"]["router"]
    direct = router["http"]["port"]
    assert server.urls == {
        PROXY: f"http://127.0.0.1:{placed['http_options']['port']}",
        DIRECT: f"http://127.0.0.1:{direct}",
    }
    assert server.grpc == {
        PROXY: f"127.0.0.1:{placed['grpc_options']['port']}",
        DIRECT: f"127.0.0.1:{router['grpc']['port']}",
    }
    assert (direct, router["grpc"]["port"], placed["grpc_options"]["port"]) != (8001, 9101, 9001)
    assert document["applications"][0]["args"]["router"] == {"http": {"port": 8001}, "grpc": {"port": 9101}}
    assert list(endpoints(server)) == [OURS, OURS_PROXY]
    plain = Server(OURS, {"applications": [{"args": {}}]}, ())
    plain._on_free_ports()
    assert list(endpoints(plain)) == [OURS_PROXY]


@pytest.mark.parametrize(
    ("command", "role"),
    [
        (["/x/bin/python", "-m", "benchmarks.peers.apps.fastapi_app", "{}"], "fastapi_app"),
        (["/x/tritonserver", "--id"], "tritonserver"),
        (["/x/bin/python3.11", "/x/bin/mlserver", "start"], "mlserver"),
        (["/x/bin/python", "-c", "from multiprocessing.spawn import spawn_main"], "worker"),
        ([], "unknown"),
    ],
)
def test_processes_of_other_servers_have_roles(command: list[str], role: str) -> None:
    """The program or the module, and workers."""
    assert PeerServer.role(command) == role
