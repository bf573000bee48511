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

Medians of {rounds} fresh processes, milliseconds. The graphs are analysed where the server is built, once per start
({imports} more, once, for importing what that needs). The rest happens in each replica: its session is loaded and
warmed up, then rows are run alone and beside others. The digest of the model's files says whether the verdict of an
earlier start holds. *Share* is that of digest and experiment in what the start of a replica's process takes: imports,
session, warm-up and proof, without what Serve takes around it, so that the real share is smaller."""

_STARTS = """\
## Cold start of the demo

Seconds from `serve-app run configs/demo.yaml` to the first correct answer of every model, in turns. *Before* is the
other working tree, with whatever else differs in it. *No records*: the folder of verdicts was empty, so that the
experiments ran."""

_LOADS = """\
## Throughput

Three servers were up at once, and one at a time was under load, in turns of {seconds:g} s; {checked:,} answers were
compared with ONNX Runtime's before and after. A round loads each server once; the ratios are of the same round, the
median of all rounds with the quartiles behind it. *Processor* is what the router and the replicas take per answer; it
depends less than the rate on what else the machine does. Quartiles on both sides of 1 mean that a difference is smaller
than what the machine scatters."""


def render(report: Report) -> str:
    """The report as Markdown."""
    parts = ["# The proof that requests may share runs", "Written by `make bench-joining`."]
    if report.builds:
        parts += _proof(report)
    if report.starts:
        parts += _starts(report.starts)
    if report.turns:
        parts += _loads(report)
    busy = ", ".join(f"{part}: {each.date}, load average {each.load_before}" for part, each in report.measured.items())
    date = max((each.date for each in report.measured.values()), default="")
    parts += [
        "## Machine",
        f"Load average before each part, of whatever else ran: {busy}.",
        measured_on(date, report.machine),
    ]
    return "\n\n".join(parts) + "\n"


def _proof(report: Report) -> list[str]:
    verdicts, times = [], []
    for build in report.builds:
        told = build.verdict
        verdicts.append(
            [f"`{build.name}`", told.verdict, f"{told.deviation:.1e}" if told.deviation else "0", told.reason]
        )
        mine = [other for other in report.builds if other.model == build.model]
        own = build.key_s + build.experiment_s
        start = mine[0].imports_s + sum(each.load_s + each.warm_up_s + each.key_s + each.experiment_s for each in mine)
        of_build = (build.analysis_s, build.load_s, build.warm_up_s, build.key_s, build.experiment_s, build.found_s)
        times.append([f"`{build.name}`", *(f"{1e3 * each:,.1f}" for each in of_build), f"{own / start:.1%}"])
    header = ["build", "analysis of the graph", "session", "warm-up", "digest", "experiment", "kept verdict", "share"]
    return [
        _PROOF.format(rounds=report.measured["proof"].rounds, imports=f"{report.onnx_s * 1e3:,.0f} ms"),
        table(["build", "verdict", "largest deviation", "reason"], verdicts),
        table(header, times),
    ]


def _starts(starts: Sequence[Started]) -> list[str]:
    ways = [(BEFORE, False, "before"), (AFTER, False, "after, no records"), (AFTER, True, "after, with records")]
    rows = []
    models = list(starts[0].seconds)
    for system, kept, title in ways:
        found = [start for start in starts if (start.system, start.kept) == (system, kept)]
        if found:
            whole = [max(start.seconds.values()) for start in found]
            each = (f"{median(start.seconds[model] for start in found):.1f}" for model in models)
            rows.append([title, f"**{median(whole):.1f}**", ", ".join(f"{one:.1f}" for one in whole), *each])
    return [_STARTS, table(["", "all models, median", "every start", *(f"`{model}`" for model in models)], rows)]


def _loads(report: Report) -> list[str]:
    rows, ratios = [], []
    models = list(dict.fromkeys(turn.model for turn in report.turns))
    for model in models:
        by: dict[str, list[Turn]] = {}
        for turn in report.turns:
            if turn.model == model:
                by.setdefault(turn.system, []).append(turn)
        for system in (BEFORE, AFTER, UNVERIFIED):
            rates = [turn.per_second for turn in by[system]]
            cpu = [turn.cpu_us for turn in by[system]]
            rows.append(
                [
                    f"`{model}`",
                    system,
                    f"{median(rates):,.0f}",
                    f"{min(rates):,.0f} to {max(rates):,.0f}",
                    f"{median(turn.p50_ms for turn in by[system]):.1f}",
                    f"{median(turn.p99_ms for turn in by[system]):.1f}",
                    f"{median(cpu):,.0f}",
                ]
            )
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
        table(["model", "server", "answers/s", "of rounds", "p50, ms", "p99, ms", "processor, us"], rows),
        table(["model", "", "rounds", "answers/s", "processor per answer"], ratios),
    ]


def _spread(values: Sequence[float]) -> str:
    if len(values) <= _FEW:
        return f"**{median(values):.3f}** ({', '.join(f'{value:.3f}' for value in values)})"
    low, _, high = quantiles(values, n=4)
    return f"**{median(values):.3f}** ({low:.3f} to {high:.3f})"
