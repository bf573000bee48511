"""The report of a run: what came back for every kind of request, and the server's memory meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.machine import Machine
from benchmarks.publishing import measured_on, picture_style, save_svg, table
from hostile.asking import Findings
from hostile.server_process import Look

_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Run:
    """A run, as it is written down.

    Attributes:
        cases: Requests sent.
        seed: Of the cases.
        seconds: How long it took.
        statuses: How often each status came back, by kind of request; 0 where the server hung up.
        growth: What the process grew by between the halves of the run, its warm-up left out.
        plateau: By how many bytes it was larger in the last quarter than when its warm-up ended.
        looks: The process over the run.
        logged: Bytes of its log.
        faults: What went wrong, in words.
    """

    cases: int
    seed: int
    seconds: float
    statuses: dict[str, dict[int, int]]
    growth: Look
    plateau: int
    looks: Sequence[Look]
    logged: int
    faults: Sequence[str]


def statuses_of(findings: Findings) -> dict[str, dict[int, int]]:
    """By kind, each status with its count."""
    return {
        kind: {status: count for (of, status), count in sorted(findings.statuses.items()) if of == kind}
        for kind in sorted(findings.asked)
    }


def render(run: Run, machine: Machine, date: str) -> str:
    """The report as Markdown."""
    first, last = run.looks[0], run.looks[-1]
    good = (
        "Nothing went wrong: no 5xx, no hang, no crash, no traceback in the log, no file or address opened, and every\n"
        "good request answered correctly."
    )
    lines = [
        "# Hostile requests",
        "",
        f"Written by `make fuzz-hostile`: {run.cases:,} broken, lying and oversized requests in {run.seconds / 60:.0f}",
        "minutes, with good ones in between whose answers are compared. The server has models of all tasks and answers",
        f"as a router does. It and its clients share {machine.cores} cores ({machine.cpu}).",
        "",
        "\n".join(f"- {fault}" for fault in run.faults) or good,
        "",
        f"Memory of its process, models included: {first.rss / _MIB:.0f} MiB before, {last.rss / _MIB:.0f} MiB after,",
        f"{run.plateau / _MIB:+.0f} MiB from the end of the first fifth to the last quarter: every thread that decodes",
        "keeps what its largest payload so far took. Between the halves of the rest it grew by",
        f"{run.growth.rss / _MIB:+.1f} MiB, {run.growth.descriptors:+d} descriptors, {run.growth.threads:+d} threads.",
        "",
        "![Memory of the server over the run](hostile.svg)",
        "",
        "Answers by kind of request; 0: the server closed the connection, as it does where a request's end is unknown.",
        "",
        table(
            ("kind", "status: answers"),
            [
                [kind, "; ".join(f"{status}: {count:,}" for status, count in counts.items())]
                for kind, counts in run.statuses.items()
            ],
        ),
        "",
        "Give a router that faces the world memory for what its decoding threads keep.",
        "",
        measured_on(date, machine),
        "",
    ]
    return "\n".join(lines)


def draw(run: Run, path: Path) -> None:
    """Draw memory and descriptors over the run."""
    asked = [look.asked / 1000 for look in run.looks]
    with picture_style():
        figure = Figure(figsize=(8, 4), layout="constrained")
        memory, descriptors = figure.subplots(2, sharex=True, height_ratios=[3, 1])
        memory.plot(asked, [look.rss / _MIB for look in run.looks])
        memory.set_ylabel("resident MiB")
        memory.set_ylim(bottom=0)
        descriptors.plot(asked, [look.descriptors for look in run.looks], color="C1")
        descriptors.set_ylabel("descriptors")
        descriptors.set_ylim(bottom=0)
        descriptors.set_xlabel("thousand requests")
        save_svg(figure, path)
