"""The benchmark of preprocessing: its cases run, and its report renders."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from benchmarks.machine import Machine
from benchmarks.preprocessing_cases import Case, encoded, image_processor, measure, photograph
from benchmarks.preprocessing_gap import Gap
from benchmarks.preprocessing_report import Figures, Report, draw, render

MACHINE = Machine("a CPU", 2, 8.0, "Linux 6", "3.11", {"pillow": "1"}, 0.5)


def figures(modality: str, us: float) -> Figures:
    """One case."""
    return Figures(modality, f"a {modality}", us, 2.0, {1: 1e6 / us, 2: 1.9e6 / us})


def report(compared: bool) -> Report:
    """One case of every kind."""
    cases = [{"after": figures(modality, 100.0)} for modality in ("image", "text", "audio")]
    if compared:
        cases = [{"before": figures(each["after"].modality, 250.0), **each} for each in cases]
    return Report("2026-01-01", MACHINE, 3, cases, [Gap(2, 30.0, 8.0, 0.2, 14.0, 0.0003, 0.002, 0.0, 1.0)])


def test_a_case_is_measured_and_read_back() -> None:
    """What a process prints is what the report is made of."""
    case = Case("image", "a title", 1, image_processor(1, 8, {}), encoded(photograph(32, 24), "JPEG"))

    found = Figures.of(json.loads(json.dumps(measure(case, 0.0001))))

    assert (found.modality, found.title, list(found.per_second)) == ("image", "a title", [1, 2])
    assert found.us > found.pad_us > 0


def test_the_better_of_two_rounds_counts() -> None:
    """Figure by figure: the least time and the highest rate."""
    one, other = figures("text", 100.0), figures("text", 80.0)

    assert one.best(other) == other == other.best(one)


def test_photographs_have_the_size_asked_for() -> None:
    """Cut, not squeezed, and grain only where it was enlarged."""
    assert photograph(640, 480).size == (640, 480)
    assert np.asarray(photograph(64, 64)).shape == (64, 64, 3)


def test_the_report_compares_where_there_is_something_to_compare() -> None:
    """Ratios by modality; without another checkout, none."""
    assert "| Pictures | 1 | 2.50 | 2.50 to 2.50 |" in render(report(compared=True), "plot.svg")
    assert "as before" not in render(report(compared=False), "plot.svg")


def test_the_same_figures_give_the_same_plot(tmp_path: Path) -> None:
    """A measurement that is rendered again changes no byte."""
    draw(report(compared=True), tmp_path / "one.svg")
    draw(report(compared=True), tmp_path / "two.svg")

    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
