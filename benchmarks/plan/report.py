"""The report of the planner's cases: every figure, how many intervals hold it, and a picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from matplotlib.figure import Figure as Picture

from benchmarks.machine import Machine
from benchmarks.plan.cases import Case
from benchmarks.publishing import measured_on, picture_style, save_svg, table
from serve_app_simulator.plan.expectation import ClassExpectation
from serve_app_simulator.plan.uncertainty import COVERED, Interval

_MOST_ERROR = 3.0
"""Points: the aim for the median error of attainment."""
_MANY = 50
"""Requests of a class: fewer are in time by chance."""
_COLOURS: Final = {"high": "#c8553d", "normal": "#1f6f8b", "low": "#6a8d3a"}
_ROUNDING = 1e-9
_NEARLY_ALL = 0.9995

_INTRODUCTION = """\
# The planner beside the real server

Written by `python -m benchmarks.plan --cases {cases} --seed {seed}`. Each case is a run of {seconds:g} s on the real
server with models, rates, mixes, classes, burstiness, deadlines and settings drawn at random. Before it, the
[planner](../planning.md) gives its expectation. Its constants are from other cases. All cases are here, misses, too,
but for {plain} of which everything was in time as expected: these are in `plan.json`.

{verdict}"""

_METHOD = """\
Expected values are medians with {covered:.0%} intervals; (!) marks a figure outside of its interval. `CV` is the
coefficient of variation of the gaps between requests, 1 (Poisson) where it is not given; a load of 1 is what full
batches do. *As a trace*: the planner was given the arrivals, otherwise only their distribution. The models share
one core with one replica each; the router, Ray and the generator share the other. Deadlines are 2 to 20 times what a
lone request takes, and at least 30 ms. A run in which the generator was late by half of the tightest deadline was made
again ({again} of {cases}). Latencies, utilisation, deadlines and numbers of requests are in `plan.json`. Settings by
number of the case, modulo {settings_count}: {settings}."""


@dataclass(frozen=True, slots=True)
class Figure:
    """What became of one class of a model, and what was expected.

    Attributes:
        offered: Requests.
        in_time: Part of them.
        p50_s: Of the answers; ``None`` without any.
    """

    model: str
    label: str
    offered: int
    in_time: float
    p50_s: float | None
    p99_s: float | None
    expected: ClassExpectation

    @property
    def error(self) -> float:
        """Of attainment, points: expected less real."""
        return 100.0 * (self.expected.in_time.value - self.in_time)


@dataclass(frozen=True, slots=True)
class Run:
    """A case, what was expected of it and what became of it.

    Attributes:
        busy: By model, part of the time that its session ran.
        expected_busy: Likewise.
        slowdown: By model, time of its executions as a multiple of the profile's.
        late_p99_s: How late the generator was.
        again: Whether it was made once again, since the generator was late.
    """

    case: Case
    figures: tuple[Figure, ...]
    busy: Mapping[str, float]
    expected_busy: Mapping[str, Interval]
    slowdown: Mapping[str, float]
    late_p99_s: float
    again: bool

    def line(self) -> str:
        """For people."""
        parts = [
            f"{each.model} {each.label} {each.in_time:.1%} ({_interval(each.expected.in_time, 100)})"
            for each in self.figures
        ]
        busy = [f"{part:.0%} ({_interval(self.expected_busy[model], 100)})" for model, part in self.busy.items()]
        slower = ", ".join(f"{factor:.2f}" for factor in self.slowdown.values())
        after = f"busy {', '.join(busy)}; slower {slower}; late {1000 * self.late_p99_s:.1f} ms"
        return f"{self.case.title}: {'; '.join(parts)}; {after}"


@dataclass(frozen=True, slots=True)
class Report:
    """All cases."""

    date: str
    machine: Machine
    seed: int
    seconds: float
    runs: tuple[Run, ...]

    def figures(self) -> list[Figure]:
        """Of all cases."""
        return [figure for run in self.runs for figure in run.figures]


def covered(value: float | None, interval: Interval | None) -> bool | None:
    """Whether an interval holds what happened; ``None`` where nothing was answered or expected to be."""
    if value is None or interval is None:
        return None
    return interval.low - _ROUNDING <= value <= interval.high + _ROUNDING


def _is_plain(figure: Figure) -> bool:
    """Whether all were in time as expected."""
    return figure.in_time == 1.0 and figure.expected.in_time.value > _NEARLY_ALL


def render(report: Report) -> str:
    """The report as Markdown."""
    figures = report.figures()
    checks = {
        "in time": [covered(each.in_time, each.expected.in_time) for each in figures],
        "p50": [covered(each.p50_s, each.expected.p50_s) for each in figures],
        "p99": [covered(each.p99_s, each.expected.p99_s) for each in figures],
        "utilisation": [covered(run.busy[name], run.expected_busy[name]) for run in report.runs for name in run.busy],
    }
    known = {name: [each for each in found if each is not None] for name, found in checks.items()}
    parts = [
        f"{name} {sum(found)} of {len(found)} ({sum(found) / max(1, len(found)):.0%})" for name, found in known.items()
    ]
    error = median(abs(each.error) for each in figures)
    many = [abs(each.error) for each in figures if each.offered >= _MANY]
    of_many = f", {median(many):.1f} for classes with {_MANY} requests or more" if many else ""
    verdict = (
        f"**The median error of attainment is {error:.1f} points** (aim: at most {_MOST_ERROR:g}){of_many}.\n"
        f"**Intervals hold** (aim: {COVERED:.0%}): {'; '.join(parts)}."
    )
    settings = list(dict.fromkeys((run.case.number % 4, run.case.configuration) for run in report.runs))
    method = _METHOD.format(
        covered=COVERED,
        again=sum(run.again for run in report.runs),
        cases=len(report.runs),
        settings_count=4,
        settings="; ".join(f"{place}, {name}" for place, name in sorted(settings)),
    )
    header = ["case", "class", "in time, %", "expected"]
    shown = [run for run in report.runs if not all(map(_is_plain, run.figures))]
    body = [row for run in shown for row in _rows(run)]
    introduction = _INTRODUCTION.format(
        cases=len(report.runs),
        seed=report.seed,
        seconds=report.seconds,
        plain=len(report.runs) - len(shown),
        verdict=verdict,
    )
    picture = "![Expected and real](plan.svg)"
    return (
        "\n\n".join([introduction, picture, table(header, body), method, measured_on(report.date, report.machine)])
        + "\n"
    )


def draw(report: Report, path: Path) -> None:
    """Draw expected over real attainment with intervals as SVG."""
    with picture_style():
        picture = Picture(figsize=(6.4, 5.6), layout="constrained")
        axes = picture.subplots()
        axes.plot([0, 100], [0, 100], color="#888888", linewidth=0.8)
        for label, colour in _COLOURS.items():
            figures = [each for each in report.figures() if each.label == label]
            points = [each.expected.in_time for each in figures]
            bars = [
                [100 * (each.value - each.low) for each in points],
                [100 * (each.high - each.value) for each in points],
            ]
            axes.errorbar(
                [100 * each.in_time for each in figures],
                [100 * each.value for each in points],
                bars,
                fmt="o",
                markersize=4,
                linewidth=0.8,
                color=colour,
                label=label,
            )
        axes.set(title="In time, %", xlabel="real", ylabel="expected, with intervals", xlim=(-2, 102), ylim=(-2, 102))
        axes.legend()
        save_svg(picture, path)


def _rows(run: Run) -> Iterator[list[str]]:
    title = run.case.title
    for each in run.figures:
        mark = " (!)" if covered(each.in_time, each.expected.in_time) is False else ""
        real = f"{_number(100 * each.in_time)}{mark}"
        yield [title, f"{each.model} {each.label}", real, _interval(each.expected.in_time, 100)]
        title = ""


def _interval(given: Interval | None, unit: float) -> str:
    if given is None:
        return "-"
    return f"{_number(unit * given.value)} ({_number(unit * given.low)}-{_number(unit * given.high)})"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}"
