"""Asks a server a million hostile requests: ``python -m hostile --help``.

Nothing may be answered by a 5xx, hang, crash, leak memory or descriptors, tell of the server's insides, or make the
server open a file or an address. In between, good requests must be answered correctly.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

import psutil
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from benchmarks.machine import describe, watched_load
from benchmarks.process import OUT
from benchmarks.publishing import folders, write_report
from hostile.asking import Asker, Findings
from hostile.report import Run, draw, render, statuses_of
from hostile.server_process import Look, Server

_MIB = 2**20
_LOOKS = 100
"""How often memory is looked at over the run."""
_WARM_UP = 0.2
"""Part of the run after which memory should not grow any more."""
_LONG_ENOUGH = 10_000
"""Cases before which growth says nothing: pools of threads are still filling."""


def run(server: Server, numbers: range, seed: int, connections: int) -> tuple[Findings, list[Look]]:
    """Ask all cases of these numbers, with progress shown.

    Returns:
        What came back, and what the server's process looked like meanwhile.
    """
    findings, looks = Findings(), [server.look(0)]
    every = max(1, len(numbers) // _LOOKS)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        shown = progress.add_task("hostile requests", total=len(numbers))
        asked = 0

        def told() -> None:
            nonlocal asked
            asked += 1
            if asked % every == 0:
                if server.alive():
                    with contextlib.suppress(psutil.NoSuchProcess):  # it has ended since
                        looks.append(server.look(asked))
                progress.update(shown, completed=asked, description=f"hostile requests, {findings.faulty} faults")

        # What was found until then is worth knowing
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(_ask_all(server.url, numbers, seed, connections, findings, told))
    return findings, looks


async def _ask_all(
    url: str, numbers: range, seed: int, connections: int, findings: Findings, told: Callable[[], None]
) -> None:
    address = urlsplit(url)
    assert address.hostname is not None
    assert address.port is not None
    shared = iter(numbers)
    async with asyncio.TaskGroup() as askers:
        for _ in range(connections):
            asker = Asker(address.hostname, address.port, seed, findings)
            askers.create_task(asker.run(shared, told))


def growth(looks: Sequence[Look]) -> Look:
    """How much the process grew after the warm-up: the median over the later half of the rest less the earlier's."""
    steady = looks[int(len(looks) * _WARM_UP) :]
    if len(steady) < 2:  # the server did not live to see more
        return Look(0, 0, 0, 0)
    first, second = steady[: len(steady) // 2], steady[len(steady) // 2 :]
    early, late = ([median(column) for column in zip(*map(astuple, half), strict=True)] for half in (first, second))
    return Look(*(int(after - before) for before, after in zip(early, late, strict=True)))


def plateau(looks: Sequence[Look]) -> int:
    """By how many bytes the process is larger in the last quarter than when its warm-up ended.

    Not all of that is growth: every thread that decodes keeps what its largest payload so far took.
    """
    return int(median(look.rss for look in looks[-max(1, len(looks) // 4) :])) - looks[int(len(looks) * _WARM_UP)].rss


def faults(
    findings: Findings, server: Server, looks: Sequence[Look], most_growth: int, most: int, *, ended: bool
) -> list[str]:
    """Everything that went wrong, in words.

    Args:
        findings: What came back.
        server: Was asked, and has told everything: it has been ended since.
        looks: At its process.
        most_growth: Most bytes by which it may grow between the halves of the run.
        most: Most bytes that it may take.
        ended: Whether it had ended by itself.
    """
    found = list(findings.faults)
    if findings.faulty > len(found):
        found.append(f"... and {findings.faulty - len(found)} more")
    found += [f"the server opened something: {what}" for what in sorted(set(server.opened))[:20]]
    found += [f"{times} tracebacks in its log: {line}" for line, times in server.tracebacks.most_common(20)]
    if ended:
        found.append("the server has ended")
    largest = max(look.rss for look in looks)
    if largest > most:
        found.append(f"it took {largest / _MIB:.0f} MiB")
    if looks[-1].asked < _LONG_ENOUGH:
        return found
    grown = growth(looks)
    if grown.rss > most_growth:
        found.append(f"memory grew by {grown.rss / _MIB:.1f} MiB over half of the run")
    if grown.descriptors > 0 or grown.threads > 0:
        found.append(f"it holds {grown.descriptors} more descriptors and {grown.threads} more threads")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; the exit code says whether everything went well."""
    parser = argparse.ArgumentParser(prog="python -m hostile", description=__doc__)
    parser.add_argument("--cases", type=int, default=1_000_000, help="how many (1,000,000)")
    parser.add_argument("--first", type=int, default=0, help="number of the first, to ask one again (0)")
    parser.add_argument("--seed", type=int, default=0, help="of the cases (0)")
    parser.add_argument("--connections", type=int, default=16, help="at once (16)")
    parser.add_argument("--most-growth", type=float, default=32.0, help="MiB that memory may grow after warm-up (32)")
    parser.add_argument("--most", type=float, default=1024.0, help="MiB that the server may take (1,024)")
    parser.add_argument("--into", type=Path, default=OUT, help="folder for the report (benchmarks/out)")
    parser.add_argument("--publish", action="store_true", help="write the report into docs/benchmarks, too")
    options = parser.parse_args(arguments)
    machine = describe({})
    began = time.monotonic()
    numbers = range(options.first, options.first + options.cases)
    with watched_load(machine), Server() as server:
        findings, looks = run(server, numbers, options.seed, options.connections)
        took_s = time.monotonic() - began
        ended = not server.alive()
    most_growth, most = int(options.most_growth * _MIB), int(options.most * _MIB)
    found = faults(findings, server, looks, most_growth, most, ended=ended)
    _show(findings, looks, took_s, server.logged)
    told = Run(
        findings.asked.total(),
        options.seed,
        round(took_s, 1),
        statuses_of(findings),
        growth(looks),
        plateau(looks),
        looks,
        server.logged,
        found,
    )
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    for folder in folders(publish=options.publish, own=options.into):
        write_report(folder, "hostile", {"machine": machine, "date": date, "run": told}, render(told, machine, date))
        draw(told, folder / "hostile.svg")
    for fault in found:
        print(f"FAULT: {fault}", file=sys.stderr)
    return 1 if found else 0


def _show(findings: Findings, looks: Sequence[Look], took_s: float, logged: int) -> None:
    statuses = sorted({status for _, status in findings.statuses})
    table = Table(title=f"{findings.asked.total():,} hostile requests in {took_s:.0f} s")
    table.add_column("kind")
    for status in statuses:
        table.add_column(str(status) if status else "hung up", justify="right")
    for kind in sorted(findings.asked):
        table.add_row(kind, *(f"{findings.statuses[kind, status]:,}" for status in statuses))
    console = Console()
    console.print(table)
    grown = growth(looks)
    console.print(
        f"memory {looks[0].rss / _MIB:.0f} MiB before, {looks[-1].rss / _MIB:.0f} MiB after,"
        f" {grown.rss / _MIB:+.1f} MiB over the second half;"
        f" descriptors {looks[-1].descriptors - looks[0].descriptors:+d},"
        f" threads {looks[-1].threads - looks[0].threads:+d}; {logged / 1024:.0f} KiB of log"
    )


if __name__ == "__main__":
    sys.exit(main())
