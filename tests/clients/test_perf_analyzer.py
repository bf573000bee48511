"""NVIDIA's load tester over HTTP: it reads metadata, configuration and statistics, and fails where one is amiss."""

from __future__ import annotations

import csv
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from client_models import TYPES
from external_clients import needs_perf_analyzer

pytestmark = needs_perf_analyzer

_WHATEVER_COMES = ("--stability-percentage", "999", "--max-trials", "3")
"""This is no measurement."""

Run = Callable[..., list[dict[str, str]]]


@pytest.fixture
def run(address: str, root: Path, tmp_path: Path) -> Run:
    """Runs it and gives its report: a row for each level of load."""
    environment = root / ".venv-perf-analyzer"
    program = environment / "bin" / "perf_analyzer"

    def run(*arguments: str) -> list[dict[str, str]]:
        libraries = [str(path) for path in environment.glob("lib/python3*/site-packages/nvidia/*/lib")]
        report = tmp_path / "report.csv"
        done = subprocess.run(
            [program, "-i", "http", "-u", address, "-f", report, *arguments],
            env={**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(libraries)},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        with report.open(newline="") as lines:
            return list(csv.DictReader(lines))

    return run


def test_statistics_are_read(run: Run) -> None:
    """For every level of load there is a share for the queue and for the parts of the computation."""
    windows = ("--measurement-mode", "count_windows", "--measurement-request-count", "50")
    rows = run("-m", "wide", "--shape", "x:4", "--concurrency-range", "1:4:3", *windows, *_WHATEVER_COMES)

    assert sorted(row["Concurrency"] for row in rows) == ["1", "4"]
    for row in rows:
        assert float(row["Inferences/Second"]) > 0
        assert {"Server Queue", "Server Compute Input", "Server Compute Infer", "Server Compute Output"} <= set(row)
    assert any(int(row["Server Compute Infer"]) > 0 for row in rows)


@pytest.mark.parametrize(
    "arguments",
    [
        ("-m", "simple", "-b", "4"),
        ("-m", "simple", "--input-tensor-format", "json", "--output-tensor-format", "json"),
        ("-m", "mirror", "--input-data", "zero", *(part for name in TYPES for part in ("--shape", f"in_{name}:2"))),
    ],
    ids=["batches", "JSON", "every datatype"],
)
def test_its_forms_of_requests_are_answered(run: Run, arguments: tuple[str, ...]) -> None:
    """Binary and JSON, one row and more."""
    (row,) = run(*arguments, "--request-count", "100")

    assert float(row["Inferences/Second"]) > 0
