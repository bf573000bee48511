"""The report on jobs, as far as no server is needed."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from benchmarks.jobs.beside import Beside
from benchmarks.jobs.cleaning import Cleaning, measure_cleaning
from benchmarks.jobs.kills import Kill
from benchmarks.jobs.memory import Memory
from benchmarks.jobs.report import Report, render
from benchmarks.machine import Machine

MACHINE = Machine("a CPU", 2, 8.0, "Linux 6", "3.11", {}, 0.5, load_during=[1.5, 2.5])
KILL = Kill("router", "SQLite", 10_000, 3_400, 0, 0, 0, 41.2)


def test_the_report_has_what_was_measured() -> None:
    """With the conditions that a reader needs in order to judge it."""
    whole = Report(
        "2026-11-26 10:00 UTC",
        MACHINE,
        [KILL],
        Beside(3, 20.0, 10.0, 40.0, 44.0, 90.0, 0.995, 0.98, 100.0, 120.0),
        Memory(1_000_000, 20.0, 200.0, 210.0, 260.0, 900.0),
        Cleaning(36_500, 365_000, 2_010, 21.0, 40.0),
    )
    text = render(whole)
    assert "| router | SQLite | 10,000 | 3,400 | 0 | 0 | 0 | 41 |" in text
    assert "each p99 is of 200 requests" in text
    assert "| items per second beside class `high` | 90 |" in text
    assert "at most in the 20 s after that" in text
    assert ", during 1.5 to 2.5." in text
    assert re.findall("^## (.*)$", render(Report(whole.date, MACHINE)), re.MULTILINE) == []


@pytest.mark.parametrize("broken", [replace(KILL, lost=1), replace(KILL, wrong=1), replace(KILL, twice=1)])
def test_items_that_did_not_end_as_promised_are_told(broken: Kill) -> None:
    """They make the benchmark fail."""
    assert Report("2026-11-26", MACHINE, [KILL, broken]).broken() == [broken]


async def test_expired_jobs_are_cleaned_up_in_steps() -> None:
    """Until nothing is left."""
    found = await measure_cleaning(40)
    assert (found.jobs, found.items) == (40, 400)
    assert found.steps > 2
    assert 0.0 < found.longest_ms / 1e3 <= found.seconds
