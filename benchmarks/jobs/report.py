"""The report on jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.jobs.beside import CONNECTIONS, LIMIT, Beside
from benchmarks.jobs.cleaning import Cleaning
from benchmarks.jobs.kills import Kill
from benchmarks.jobs.memory import Memory
from benchmarks.machine import Machine
from benchmarks.publishing import measured_on, table


@dataclass(slots=True)
class Report:
    """What was measured.

    Attributes:
        date: When.
        machine: On what.
        kills: By what was killed; empty if left out.
        beside: ``None`` if left out, as the others.
        memory: Of the router.
        cleaning: Of the store.
    """

    date: str
    machine: Machine
    kills: list[Kill] = field(default_factory=list)
    beside: Beside | None = None
    memory: Memory | None = None
    cleaning: Cleaning | None = None

    def broken(self) -> list[Kill]:
        """Where jobs did not keep what they promise."""
        return [each for each in self.kills if each.lost or each.wrong or each.twice]


def render(report: Report) -> str:
    """The report, in Markdown."""
    parts = ["# Jobs", "Written by `make bench-jobs`; how jobs work is in [jobs](../jobs.md)."]
    if report.kills:
        parts += _kills(report.kills)
    if report.beside is not None:
        parts += _beside(report.beside)
    if report.memory is not None:
        parts += _memory(report.memory)
    if report.cleaning is not None:
        parts += _cleaning(report.cleaning)
    return "\n\n".join([*parts, measured_on(report.date, report.machine)]) + "\n"


def _kills(kills: Sequence[Kill]) -> list[str]:
    rows = [
        [
            *(each.victim, each.store, f"{each.items:,}", f"{each.done_before:,}"),
            *(f"{each.lost}", f"{each.wrong}", f"{each.twice}", f"{each.seconds:.0f}"),
        ]
        for each in kills
    ]
    header = ["killed", "store", "items", "done before", "lost", "wrong", "ended twice", "seconds"]
    return [
        "## Processes killed with SIGKILL while items run",
        """\
Two routers and two replicas of `digits`. *Lost* has no answer in the end, *wrong* another one than a direct request
gets; seconds are from submission to the end of the job. An item may run twice.""",
        table(header, rows),
        "Submit once, and wait: what is killed costs a job time, and no item.",
    ]


def _beside(beside: Beside) -> list[str]:
    rows = [
        ["p99 of class `high`, no backlog, ms", f"{beside.alone_ms:.1f}"],
        ["the same beside a backlog, ms", f"{beside.beside_ms:.1f}"],
        ["ratio", f"{beside.beside_ms / beside.alone_ms:.2f}"],
        [f"in time, with {LIMIT:g} times the first line as deadline, no backlog", f"{beside.kept_alone:.1%}"],
        ["the same beside a backlog", f"{beside.kept_beside:.1%}"],
        ["items per second beside class `high`", f"{beside.items_beside_per_s:.0f}"],
        ["live requests per second", f"{beside.live_per_s:.0f}"],
        ["items per second, nothing else", f"{beside.items_per_s:.0f}"],
        ["ratio", f"{beside.items_per_s / beside.live_per_s:.2f}"],
    ]
    return [
        "## Beside live requests",
        f"""\
`minilm` at one replica, medians of {beside.rounds} rounds in turns, each of {beside.seconds:g} s. Class `high` comes at
{beside.rate:g} requests/s at random times, so that each p99 is of {beside.rate * beside.seconds:.0f} requests. Live
requests are those of {CONNECTIONS} connections without a pause, whose client shares the cores.""",
        table(["", ""], rows),
        "Leave a backlog beside live requests: `high` hardly notices it.",
    ]


def _memory(memory: Memory) -> list[str]:
    return [
        f"""\
## Memory

The only router holds {memory.before_mib:.0f} MiB before, {memory.kept_mib:.0f} when {memory.items:,} items were taken,
and {memory.working_mib:.0f} at most in the {memory.seconds:g} s after that, while it works on them. Their store takes
{memory.store_mib:.0f} MiB.""",
    ]


def _cleaning(cleaning: Cleaning) -> list[str]:
    return [
        f"""\
## Cleaning

{cleaning.jobs:,} expired jobs of {cleaning.items:,} items leave a SQLite store in {cleaning.seconds:.0f} s, in
{cleaning.steps:,} steps of {cleaning.longest_ms:.0f} ms at most, between which others get at it.""",
    ]
