"""The measurement of the response cache: every state of it is measured, and the report tells all of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hypothesis_profiles import thorough
from rich.progress import Progress

from benchmarks.cache import Report, draw, render
from benchmarks.cache_load import LOADS, Loaded
from benchmarks.cache_path import CASES, MODES, measure
from benchmarks.machine import Machine


@thorough
def test_the_cache_is_measured_in_every_state(tmp_path: Path) -> None:
    """A few requests; which state answered them, and with what, is checked while they are measured."""
    cases = [replace(case, concurrency=4, requests=40) for case in CASES[1:2]]
    costs = measure(1, Progress(disable=True), cases)
    assert [(each.case, each.mode) for each in costs] == [(case.title, mode) for case in cases for mode in MODES]
    loads = [Loaded("tiny", load, 1000.0, 900.0, 1100.0, 1.5, 9.0, 0.5, 250.0) for load in LOADS]
    machine = Machine("a CPU", 2, 8.0, "Linux 6", "3.11", {"ray": "2"}, 0.5)
    report = Report("2026-01-01", machine, 1, 64, 2.0, costs, loads)
    lines = render(report).splitlines()
    assert [sum(line.startswith(f"| {case.title} |") for line in lines) for case in cases] == [1]
    assert "| tiny | every other one is new | 50% | 1,000 | 900 to 1,100 | 1.5 / 9.0 | 250 |" in lines
    draw(report, tmp_path / "cache.svg")
    assert (tmp_path / "cache.svg").read_text().endswith("</svg>\n")
