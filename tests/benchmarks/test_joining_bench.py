"""The measurement of the proof: a replica's start is timed step by step, and the report compares rounds with rounds."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from benchmarks.joining_load import AFTER, BEFORE, UNVERIFIED, Started
from benchmarks.joining_replica import Work, start_replica
from benchmarks.joining_report import Build, Measured, Report, render
from benchmarks.machine import Machine
from benchmarks.server import ROOT
from benchmarks.turns import Turn
from serve_app.composition.model import find_files, read_builds
from serve_app.config.file import load_file
from serve_app.config.files import HOME_VARIABLE
from serve_app.payloads import Joinable

_MACHINE = Machine("a CPU", 2, 8.0, "Linux 6", "3.11", {"ray": "2"}, 0.5)


def test_a_replica_is_started_and_its_verdict_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The start of a committed model gives one set of times, and a record of the verdict that it told."""
    monkeypatch.setenv(HOME_VARIABLE, str(ROOT))
    model = next(each for each in load_file(ROOT / "configs" / "demo.yaml").args.models if each.name == "digits")
    (times,) = start_replica(Work(model, read_builds(model, find_files(model)), tmp_path))
    (record,) = tmp_path.iterdir()
    assert msgspec.json.decode(record.read_bytes(), type=Joinable) == times.verdict
    assert times.verdict.joins


def test_the_report_compares_rounds_with_rounds() -> None:
    """The share counts all builds of a replica, and each round's rates are divided by those of the same round."""
    exact = Joinable("exact", "the same bit for bit")
    builds = [
        Build("one", "one", exact, 0.25, 0.5, 0.1, 0.2, 0.05, 0.05, 0.001),
        Build("one/int8", "one", Joinable("close", "nearly", 1e-6), 0.25, 0.5, 0.0, 0.0, 0.05, 0.05, 0.001),
    ]
    starts = [Started(BEFORE, kept=False, seconds={"one": 9.0}), Started(AFTER, kept=False, seconds={"one": 10.0})]
    turns = [
        Turn("one", system, number, rate * (number + 1), 1.0, 2.0, 50.0)
        for number in range(4)
        for system, rate in ((BEFORE, 1000.0), (AFTER, 990.0), (UNVERIFIED, 1000.0))
    ]
    measured = {"proof": Measured("2026-01-01", 0.5, 3)}
    lines = render(Report(_MACHINE, measured, 0.1, builds, starts, turns, 5.0, {"one": 64})).splitlines()
    assert "| `one/int8` | close | 1.0e-06 | 0.0 | 50.0 | 50.0 | 10.0% |" in lines
    assert "| `one` | exact | 0 | 300.0 | 50.0 | 50.0 | 10.0% |" in lines
    assert "| before | 9.0 | 9.0 |" in lines
    assert "| after, no records | 10.0 | 10.0 |" in lines
    assert "| `one` | after / before | 4 | **0.990** (0.990 to 0.990) | **1.000** (1.000 to 1.000) |" in lines
