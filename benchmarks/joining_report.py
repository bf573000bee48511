"""The report of ``benchmarks.joining``: plain values, and Markdown of them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median, quantiles

import msgspec

from benchmarks.joining_load import AFTER, BEFORE, UNVERIFIED, Started
from benchmarks.machine import Machine
from benchmarks.publishing import measured_on, table
from benchmarks.turns import Turn
from serve_app.payloads import Joinable

_FEW = 3
"""Rounds up to which all of them are told, in place of quartiles."""


class Build(msgspec.Struct):
    """One build of a model; medians, seconds.

    Attributes:
        name: Of the model and the variant.
        model: Of the model.
        verdict: With the largest deviation that was seen.
        analysis_s: Of its graph, when the server is built.
        imports_s: What a replica's process takes until it has imported everything.
        load_s: The session.
        warm_up_s: The warm-up.
        key_s: The digest of its files, by which its verdict is kept.
        experiment_s: The experiment.
        found_s: Reading the verdict of an earlier start instead.
    """

    name: str
    model: str
    verdict: Joinable
    analysis_s: float
    imports_s: float
    load_s: float
    warm_up_s: float
    key_s: float
    experiment_s: float
    found_s: float

    @property
    def start_s(self) -> float:
        """What else the start of a replica with this build takes, seconds."""
        return self.imports_s + self.load_s + self.warm_up_s


class Measured(msgspec.Struct):
    """When a part was measured, the load average before, and how often it was repeated."""

    date: str
    load_before: float
    rounds: int


class Report(msgspec.Struct):
    """Everything that is known.

    Attributes:
        machine: What it was measured on.
        measured: By part, when.
        onnx_s: Importing what the analysis needs, seconds.
        builds: The proofs.
        starts: Cold starts of the demo.
        turns: Loads.
        seconds: Length of a load.
        checked: By model, answers that were compared with ONNX Runtime's.
    """

    machine: Machine
    measured: dict[str, Measured] = {}
    onnx_s: float = 0.0
    builds: list[Build] = []
    starts: list[Started] = []
    turns: list[Turn] = []
    seconds: float = 0.0
    checked: dict[str, int] = {}


_PROOF = """\
## The proof

What does the proof add to a replica's start? Medians of {rounds} fresh processes, milliseconds. *Share*: digest and
experiment, in what the start of the replica's process takes: imports, session, warm-up and proof. An earlier start's
verdict is read in under a millisecond where the digest of the model's files is the same."""

_STARTS = """\
## Cold start of the demo

Seconds from `serve-app run configs/demo.yaml` to the first correct answer of every model, in turns. *Before* is another
working tree, with whatever else differs in it. *No records*: no verdicts of earlier starts."""

_LOADS = """\
## Throughput

Three servers were up at once, one of them under load, in turns of {seconds:g} s; {checked:,} answers were compared with
ONNX Runtime's. Ratios are of the same round: the median of all rounds, and the quartiles. Quartiles on both sides of 1
mean that a difference is smaller than what the machine scatters. *Processor*: of the router and the replicas."""

_DECIDED = """\
Leave the proof on: it costs a small part of a start, the most for ResNet-50, and no throughput beyond the machine's
scatter. `wide` takes a little more processor time with it."""


def render(report: Report) -> str:
    """The report as Markdown."""
    parts = [
        "# The proof that requests may share runs",
        "Written by `make bench-joining`; reasons, parts of a start, rates and latencies are in `joining.json`.",
    ]
    if report.builds:
        parts += _proof(report)
    if report.starts:
        parts += _starts(report.starts)
    if report.turns:
        parts += _loads(report)
    busy = ", ".join(f"{part} {each.load_before}" for part, each in report.measured.items())
    date = max((each.date for each in report.measured.values()), default="")
    parts += [_DECIDED, f"{measured_on(date, report.machine)} Before each part: {busy}."]
    return "\n\n".join(parts) + "\n"


def _proof(report: Report) -> list[str]:
    rows = []
    for build in report.builds:
        told = build.verdict
        mine = [other for other in report.builds if other.model == build.model]
        own = build.key_s + build.experiment_s
        start = mine[0].imports_s + sum(each.load_s + each.warm_up_s + each.key_s + each.experiment_s for each in mine)
        times = (build.load_s + build.warm_up_s, build.key_s, build.experiment_s)
        deviation = f"{told.deviation:.1e}" if told.deviation else "0"
        rows.append(
            [
                f"`{build.name}`",
                told.verdict,
                deviation,
                *(f"{1e3 * each:,.1f}" for each in times),
                f"{own / start:.1%}",
            ]
        )
    header = ["build", "verdict", "largest deviation", "session and warm-up", "digest", "experiment", "share"]
    return [_PROOF.format(rounds=report.measured["proof"].rounds), table(header, rows)]


def _starts(starts: Sequence[Started]) -> list[str]:
    ways = [(BEFORE, False, "before"), (AFTER, False, "after, no records"), (AFTER, True, "after, with records")]
    rows = []
    for system, kept, title in ways:
        found = [max(start.seconds.values()) for start in starts if (start.system, start.kept) == (system, kept)]
        if found:
            rows.append([title, f"{median(found):.1f}", ", ".join(f"{one:.1f}" for one in found)])
    return [_STARTS, table(["", "all models, median", "every start"], rows)]


def _loads(report: Report) -> list[str]:
    ratios = []
    for model in dict.fromkeys(turn.model for turn in report.turns):
        by: dict[str, list[Turn]] = {}
        for turn in report.turns:
            if turn.model == model:
                by.setdefault(turn.system, []).append(turn)
        for one, other in ((AFTER, BEFORE), (AFTER, UNVERIFIED)):
            pairs = list(zip(by[one], by[other], strict=True))
            ratios.append(
                [
                    f"`{model}`",
                    f"{one} / {other}",
                    str(len(pairs)),
                    _spread([mine.per_second / theirs.per_second for mine, theirs in pairs]),
                    _spread([mine.cpu_us / theirs.cpu_us for mine, theirs in pairs]),
                ]
            )
    return [
        _LOADS.format(seconds=report.seconds, checked=sum(report.checked.values())),
        table(["model", "", "rounds", "answers/s", "processor per answer"], ratios),
    ]


def _spread(values: Sequence[float]) -> str:
    if len(values) <= _FEW:
        return f"**{median(values):.3f}** ({', '.join(f'{value:.3f}' for value in values)})"
    low, _, high = quantiles(values, n=4)
    return f"**{median(values):.3f}** ({low:.3f} to {high:.3f})"
