"""Asks a server a million hostile requests: ``python -m hostile --help``.

Nothing may be answered by a 5xx, hang, crash, leak memory or descriptors, tell of the server's insides, or make the
server open a file or an address. In between, good requests must be answered correctly.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple
from urllib.parse import urlsplit

import psutil
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from hostile.asking import Asker, Findings

_TESTS = Path(__file__).resolve().parents[1]
_MIB = 2**20
_LOOKS = 100
"""How often memory is looked at over the run."""
_WARM_UP = 0.2
"""Part of the run after which memory should not grow any more."""
_END_WITHIN_S = 20.0


class Look(NamedTuple):
    """The server process at one moment."""

    asked: int
    rss: int
    descriptors: int
    threads: int


class Server:
    """`hostile.server` in a process of its own, from `__enter__` to `__exit__`.

    Args:
        opens: A file that it opens at its end, to see whether this is told.

    Attributes:
        opened: What it opened, in words.
        tracebacks: The last lines of tracebacks in its log.
        logged: Bytes of its log.
        url: Where it listens.
    """

    url: str

    def __init__(self, opens: Path | None = None) -> None:
        self._arguments = [] if opens is None else [str(opens)]
        self.opened: list[str] = []
        self.tracebacks: Counter[str] = Counter()
        self.logged = 0
        self._ready = threading.Event()

    def __enter__(self) -> Server:
        environment = {**os.environ, "PYTHONPATH": f"{_TESTS.parent}{os.pathsep}{_TESTS}"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "hostile.server", *self._arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=environment,
            cwd=_TESTS.parent,
            start_new_session=True,  # Ctrl-C is for the run, which then ends its server
        )
        self._threads = [threading.Thread(target=listen, daemon=True) for listen in (self._listen, self._read_log)]
        for thread in self._threads:
            thread.start()
        self._ready.wait()
        if not hasattr(self, "url"):
            raise SystemExit("the server did not start")
        self.watched = psutil.Process(self._process.pid)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_END_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for thread in self._threads:
            thread.join()
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()

    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def look(self, asked: int) -> Look:
        """Its size now."""
        watched = self.watched
        return Look(asked, watched.memory_info().rss, watched.num_fds(), watched.num_threads())

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            if "url" in said:
                self.url = said["url"]
                self._ready.set()
            else:
                self.opened.append(said["opened"])
        self._ready.set()

    def _read_log(self) -> None:
        assert self._process.stderr is not None
        inside = False
        for line in self._process.stderr:
            self.logged += len(line)
            if line.startswith("Traceback"):
                inside = True
            elif inside and not line.startswith(" "):
                self.tracebacks[line.strip()] += 1
                inside = False


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
    early, late = ([median(column) for column in zip(*half, strict=True)] for half in (first, second))
    return Look(*(int(after - before) for before, after in zip(early, late, strict=True)))


def faults(findings: Findings, server: Server, looks: Sequence[Look], most_growth: int) -> list[str]:
    """Everything that went wrong, in words."""
    found = list(findings.faults)
    if findings.faulty > len(found):
        found.append(f"... and {findings.faulty - len(found)} more")
    found += [f"the server opened something: {what}" for what in sorted(set(server.opened))[:20]]
    found += [f"{times} tracebacks in its log: {line}" for line, times in server.tracebacks.most_common(20)]
    if not server.alive():
        found.append("the server has ended")
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
    parser.add_argument("--out", type=Path, help="where the figures go, as JSON")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    numbers = range(options.first, options.first + options.cases)
    with Server() as server:
        findings, looks = run(server, numbers, options.seed, options.connections)
        took_s = time.monotonic() - began
        found = faults(findings, server, looks, int(options.most_growth * _MIB))
    _show(findings, looks, took_s, server.logged)
    for fault in found:
        print(f"FAULT: {fault}", file=sys.stderr)
    if options.out is not None:
        options.out.write_text(json.dumps(_figures(findings, looks, took_s, options.seed, found), indent=1) + "\n")
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


def _figures(
    findings: Findings, looks: Sequence[Look], took_s: float, seed: int, found: Sequence[str]
) -> dict[str, object]:
    kinds = {
        kind: {str(status): count for (of, status), count in sorted(findings.statuses.items()) if of == kind}
        for kind in sorted(findings.asked)
    }
    return {
        "cases": findings.asked.total(),
        "seed": seed,
        "seconds": round(took_s, 1),
        "statuses": kinds,
        "growth_over_second_half": growth(looks)._asdict(),
        "process": [look._asdict() for look in looks],
        "faults": list(found),
    }


if __name__ == "__main__":
    sys.exit(main())
