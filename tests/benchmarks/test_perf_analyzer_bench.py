"""The comparison by Triton's load generator: what it is told, and what is read from it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.failure import BenchmarkError
from benchmarks.machine import Machine
from benchmarks.perf_analyzer import Measured, Way, command, page, read_report

TABLE = """Concurrency,Inferences/Second,Client Send,p50 latency,p90 latency,p95 latency,p99 latency
64,2410.5,12,26100,30000,33000,41500
"""


def test_figures_are_read_by_name() -> None:
    """The rate, the median and the 99th percentile in milliseconds."""
    assert read_report(TABLE) == (2410.5, 26.1, 41.5)


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", TABLE + TABLE.splitlines()[1] + "\n"], ids=["no", "other", "two"])
def test_other_reports_are_refused(text: str) -> None:
    """Figures of something else must not be taken for those of a run."""
    with pytest.raises(BenchmarkError, match="reported something else"):
        read_report(text)


def test_every_run_has_the_same_length() -> None:
    """Three windows, whether they agree or not."""
    words = command(Way("serve_app", "grpc", "127.0.0.1:9100"), 64, 6.0, Path("out.csv"))
    told = dict(pairwise(words))
    assert (told["-i"], told["-u"], told["-m"]) == ("grpc", "127.0.0.1:9100", "tiny")
    assert (told["--measurement-interval"], told["--max-trials"], told["--concurrency-range"]) == ("2000", "3", "64")


def test_the_report_has_a_line_per_way() -> None:
    """With the spread of its runs."""
    machine = Machine("A CPU", 2, 8.0, "Linux 6", "3.11", {}, 0.0)
    settings = {"at_once": 64, "seconds": 6.0, "repetitions": 3}
    text = page(
        [Measured("serve_app", "grpc", 2000.0, (1900.0, 2000.0, 2100.0), 30.0, 45.0)], machine, "2026-01-31", settings
    )
    assert "| grpc | serve_app | 2,000 | 1,900 to 2,100 | 30.0 / 45.0 |" in text
    assert "Measured 2026-01-31 on " in text
