"""The report of `benchmarks.preprocessing`: Markdown and a plot of one measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from benchmarks.machine import Machine
from benchmarks.preprocessing_gap import Gap
from benchmarks.publishing import measured_on, picture_style, save_svg, table

_COLOURS = {"before": "#9aa5ab", "after": "#1f6f8b"}
_TITLES = {"image": "Pictures", "text": "Texts", "audio": "Sounds"}
_UNITS = {"image": "picture", "text": "text", "audio": "sound"}

_INTRODUCTION = """\
# Preprocessing

What does a replica's processor take to decode, resize or resample, normalize and tokenize, before the model runs?
`make bench-preprocessing` measures processor time per item in one thread, padding included; every case is in
`preprocessing.json`."""

_GAPS = """\
## JPEG pictures decoded smaller than they are

JPEG pictures are decoded at 1/2, 1/4 or 1/8 where at least `processor.reducing_gap` times the pixels wanted are left
per edge. Compared with decoding every pixel (0): two large photographs to 224 x 224, pixels of one at {sizes} sizes,
and the answers of the `digits` model.

{table}

Keep the default, 0, for the pixels that the model's library makes. `processor: {{reducing_gap: 2}}` is the fast
setting: less saves little more and shows at edges, more costs up to twice the time."""

_METHOD = """\
Each figure is the best of all repetitions in {rounds} processes. Pictures are one photograph, cut and scaled; sounds
are brown noise for a model that takes 16 kHz; texts are English words for MiniLM's tokenizer, all in one request."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One case: see `benchmarks.preprocessing_cases.measure`."""

    modality: str
    title: str
    us: float
    pad_us: float
    per_second: dict[int, float]

    @classmethod
    def of(cls, line: dict[str, Any]) -> Figures:
        """Read what a process printed."""
        return cls(**{**line, "per_second": {int(threads): rate for threads, rate in line["per_second"].items()}})

    def best(self, other: Figures) -> Figures:
        """The better of both, figure by figure."""
        rates = {threads: max(rate, other.per_second[threads]) for threads, rate in self.per_second.items()}
        return Figures(self.modality, self.title, min(self.us, other.us), min(self.pad_us, other.pad_us), rates)


@dataclass(frozen=True, slots=True)
class Report:
    """One measurement.

    Attributes:
        date: ISO 8601.
        machine: What it ran on.
        rounds: Processes per checkout.
        cases: Per case its figures: ``after``, and ``before`` where another checkout was measured, too.
        gaps: Settings of `processor.reducing_gap`.
    """

    date: str
    machine: Machine
    rounds: int
    cases: list[dict[str, Figures]]
    gaps: list[Gap]


def render(report: Report, plot: str) -> str:
    """The report as Markdown.

    Args:
        report: What was measured.
        plot: Path of the picture, relative to the report.
    """
    sections = [_INTRODUCTION, f"![Processor time per item]({plot})"]
    compared = [case for case in report.cases if "before" in case]
    if compared:
        sections.append(_compared(compared))
    sections += [
        _GAPS.format(table=_gaps(report.gaps), sizes=15),
        _METHOD.format(rounds=report.rounds),
        measured_on(report.date, report.machine),
    ]
    return "\n\n".join(sections) + "\n"


def draw(report: Report, path: Path) -> None:
    """Draw processor time per item as SVG, the same bytes for the same figures."""
    with picture_style(8):
        figure = Figure(figsize=(10.0, 7.0), layout="constrained")
        for axes, (modality, title) in zip(figure.subplots(1, 3), _TITLES.items(), strict=True):
            cases = [case for case in report.cases if case["after"].modality == modality]
            sides = [side for side in _COLOURS if any(side in case for case in cases)]
            for place, side in enumerate(sides):
                offset = (place - (len(sides) - 1) / 2) * 0.4
                axes.barh(
                    [at + offset for at, case in enumerate(cases) if side in case],
                    [case[side].us for case in cases if side in case],
                    height=0.8 / len(sides),
                    color=_COLOURS[side],
                    label=side,
                )
            axes.set_yticks(range(len(cases)), [case["after"].title for case in cases])
            axes.invert_yaxis()
            axes.set(xscale="log", xlabel=f"microseconds per {_UNITS[modality]}", title=title)
            axes.xaxis.set_minor_formatter(NullFormatter())
            if len(sides) > 1:
                axes.legend(fontsize="small")
        save_svg(figure, path)


def _compared(cases: Sequence[Mapping[str, Figures]]) -> str:
    """How many times as fast as before, by modality, and what is slower."""
    ratios = {case["after"].title: case["before"].us / case["after"].us for case in cases}
    rows = []
    for modality, title in _TITLES.items():
        own = [ratios[case["after"].title] for case in cases if case["after"].modality == modality]
        if own:
            rows.append([title, str(len(own)), f"{median(own):.2f}", f"{min(own):.2f} to {max(own):.2f}"])
    slower = [f"{title} ({ratio:.2f})" for title, ratio in ratios.items() if ratio < 1.0]
    text = table(["times as fast as before", "cases", "median", "least to most"], rows)
    return f"{text}\n\nSlower than before: {', '.join(slower) or 'nothing'}."


def _gaps(gaps: list[Gap]) -> str:
    header = ["`reducing_gap`", "4000 x 3000, ms", "1600 x 1200, ms", "mean difference, levels of 255", "largest"]
    header += ["other answers", "right answers"]
    rows = [
        [
            f"{each.gap:g}",
            f"{each.large_ms:.1f}",
            f"{each.medium_ms:.1f}",
            f"{each.mean_levels:.2f}",
            f"{each.most_levels:.0f}",
            f"{each.other_answers:.1%}",
            f"{each.correct:.1%}",
        ]
        for each in gaps
    ]
    return table(header, rows)
