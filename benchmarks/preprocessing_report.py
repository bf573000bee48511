"""The report of `benchmarks.preprocessing`: Markdown and a plot of one measurement."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from benchmarks.machine import Machine
from benchmarks.preprocessing_gap import Gap
from benchmarks.publishing import measured_on, picture_style, save_svg, table

_COLOURS = {"before": "#9aa5ab", "after": "#1f6f8b"}
_TITLES = {"image": "Pictures", "text": "Texts", "audio": "Sounds"}
_UNITS = {"image": "picture", "text": "text", "audio": "sound"}
_THREADS = (1, 2)

_INTRODUCTION = """\
# Preprocessing

Written by `make bench-preprocessing`; the figures behind it are in `preprocessing.json`.

What a replica's processor does with media before the model runs: decode, resize or resample, normalize, tokenize. It
works in a pool of threads, `resources.preprocess_threads`, while the previous batch runs; only padding to the bucket
waits in the session's thread. Microseconds are processor time per item in one thread, padding included."""

_RATES = "Items per second count time on the clock."
_NO_RATES = "Items per second were measured, too, but the machine was busy: they are in the JSON file and say nothing."

_GAPS = """\
## JPEG pictures decoded smaller than they are

A decoder can leave out detail that resizing would remove: JPEG pictures are decoded at 1/2, 1/4 or 1/8 where at least
`processor.reducing_gap` times the pixels wanted are left per edge. Grey models then decode brightness only. This table
compares with decoding every pixel (0): processor time of two large photographs to 224 x 224, pixels of a photograph
at {sizes} sizes, and the scores of the `digits` model for its held-out digits as pictures of 150 to 1,200 pixels.

{table}

**The default is 0**, so that a model gets the pixels that its library makes. `processor: {{reducing_gap: 2}}` is the
fast setting, as for Pillow's thumbnails: less saves little more and shows at edges, more costs up to twice the time.
With any of them the centre is cut out in the same step as resizing, which is faster and a level off for some pixels.
Other formats have no such decoder; shrinking their pixels in steps would save a tenth of a large PNG picture's time and
change more, so it is not done."""

_METHOD = """\
## How it was measured

- Each figure is the best of all repetitions in {rounds} processes, since everything else on a machine only adds.{turns}
- Pictures are one real photograph, cut, scaled and, where enlarged, given grain; JPEG quality is 90. Sounds are brown
  noise, for a model that takes 16 kHz. Texts are English words for MiniLM's tokenizer, all in one request.
- The tokenizer's own threads are off (`TOKENIZERS_PARALLELISM=false`). On, they tokenize the texts of one request on
  all cores; one request after the other, they cost up to a fifth more processor time and gain nothing where the pool
  is busy. They are left to the operator.
- Tokenizing the texts of all requests of a bundle in one call was tried: it saves less than 5% for texts of 16 tokens
  and nothing for longer ones, and was left out.
- `PILLOW_BLOCKS_MAX=8` (Pillow's own setting) keeps up to 128 MiB for the next large picture: in a trial that saved a
  fifth of the decoding of PNG pictures of 12 megapixels, the operating system's work for new memory.
- Pillow, soxr, libsndfile and the tokenizer work without Python's lock. In a trial with both cores nearly idle, two
  threads did 1.8 to 2 times the work of one for pictures of every size and for texts of 64 tokens, and up to 1.9 times
  for FLAC and Ogg, whose decoder asks Python for every few kilobytes. Texts of 16 tokens and WAV sounds of a second,
  0.1 ms each, gained nothing: their threads wait for each other's lock. Giving libsndfile a file in memory instead of
  Python's bytes cost more than it saved."""


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

    @property
    def quiet(self) -> bool:
        """Whether half of the cores or more were idle before the measurement."""
        return 2 * self.machine.load_before <= self.machine.cores


def render(report: Report, plot: str) -> str:
    """The report as Markdown.

    Args:
        report: What was measured.
        plot: Path of the picture, relative to the report.
    """
    compared = any("before" in case for case in report.cases)
    turns = "\n  The processes of both checkouts ran in turns." if compared else ""
    introduction = f"{_INTRODUCTION}\n{_RATES if report.quiet else _NO_RATES}"
    sections = [introduction, f"![Processor time per item]({plot})"]
    sections += [f"## {title}\n\n{_cases(report, modality, compared)}" for modality, title in _TITLES.items()]
    sections += [
        _GAPS.format(table=_gaps(report.gaps), sizes=15),
        _METHOD.format(rounds=report.rounds, turns=turns),
        "## Machine\n\n" + measured_on(report.date, report.machine),
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


def _cases(report: Report, modality: str, compared: bool) -> str:
    unit = _UNITS[modality]
    header = [unit, *(["before, us", "us", "ratio"] if compared else ["us"]), "of this padding, us"]
    threads_shown = _THREADS if report.quiet else ()
    header += [f"{unit}s/s, {threads} thread{'s' * (threads > 1)}" for threads in threads_shown]
    rows = []
    for case in report.cases:
        after, before = case["after"], case.get("before")
        if after.modality != modality:
            continue
        times = [_us(after.us)]
        if compared:
            times = [_us(before.us), _us(after.us), f"**{before.us / after.us:.2f}**"] if before else ["", *times, ""]
        padding = _us(after.pad_us) + (f" (before {_us(before.pad_us)})" if before else "")
        rates = [f"{after.per_second[threads]:,.0f}" for threads in threads_shown]
        rows.append([after.title, *times, padding if modality != "image" else "-", *rates])
    return table(header, rows)


def _gaps(gaps: list[Gap]) -> str:
    header = ["`reducing_gap`", "4000 x 3000, ms", "1600 x 1200, ms", "mean difference, levels of 255", "largest"]
    header += ["mean difference of a score", "largest", "other answers", "right answers"]
    rows = [
        [
            f"{each.gap:g}",
            f"{each.large_ms:.1f}",
            f"{each.medium_ms:.1f}",
            f"{each.mean_levels:.2f}",
            f"{each.most_levels:.0f}",
            f"{each.mean_score:.5f}",
            f"{each.most_score:.4f}",
            f"{each.other_answers:.1%}",
            f"{each.correct:.1%}",
        ]
        for each in gaps
    ]
    return table(header, rows)


def _us(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
