"""The server beside Triton as Triton's own load generator sees them: ``python -m benchmarks.perf_analyzer``.

perf_analyzer sends the model `tiny` one row per request, 64 at once, by gRPC and by binary HTTP. Both servers are up,
and one way into one of them is under load at a time, in turns. Triton is PyTriton's, as in `benchmarks.peers`. What
counts is what perf_analyzer reports; every run is of the same length, whether its windows agree or not. Writes
``perf_analyzer.json`` and ``perf_analyzer.md``.
"""

from __future__ import annotations

import csv
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from rich.console import Console

from benchmarks import systems
from benchmarks.failure import BenchmarkError
from benchmarks.machine import Machine
from benchmarks.peers.cases import TRITON
from benchmarks.peers.systems import CONFIG, PeerServer, Subject
from benchmarks.publishing import measured_on, now, publish_report, table
from benchmarks.server import DIRECT, PROXY, ROOT, SERVE_APP_RUN, Server
from benchmarks.session import ending_in_order, measuring

MODEL = "tiny"
ENVIRONMENT = ROOT / ".venv-perf-analyzer"

_HEADER = ("protocol", "server", "answers/s", "lowest to highest run", "p50 / p99, ms")
_WINDOWS = 3
_START_WITHIN_S = 300.0
_ASK_EVERY_S = 1.0
_BESIDES_S = 120.0


@dataclass(frozen=True, slots=True)
class Way:
    """A way into a server.

    Attributes:
        name: For people.
        protocol: ``grpc`` or ``http``.
        address: Host and port.
    """

    name: str
    protocol: str
    address: str


@dataclass(frozen=True, slots=True)
class Measured:
    """One way, medians over the repetitions.

    Attributes:
        name: Of the way.
        protocol: ``grpc`` or ``http``.
        rate: Answers per second.
        rates: Of every repetition.
        p50_ms: Median latency.
        p99_ms: Latency that one in 100 exceeds.
    """

    name: str
    protocol: str
    rate: float
    rates: tuple[float, ...]
    p50_ms: float
    p99_ms: float


def command(way: Way, at_once: int, seconds: float, output: Path) -> list[str]:
    """How perf_analyzer is started for one run of `_WINDOWS` windows, which need not agree."""
    window_ms = round(seconds / _WINDOWS * 1000)
    return [
        str(ENVIRONMENT / "bin" / "perf_analyzer"),
        *("-i", way.protocol, "-u", way.address, "-m", MODEL, "-b", "1", "--async"),
        *("--concurrency-range", str(at_once), "--measurement-interval", str(window_ms)),
        *("--stability-percentage", "999", "--max-trials", str(_WINDOWS), "--percentile", "50", "-f", str(output)),
    ]


def read_report(text: str) -> tuple[float, float, float]:
    """Answers per second, median latency and 99th percentile in ms, from perf_analyzer's table of one concurrency.

    Raises:
        BenchmarkError: It is no such table.
    """
    rows = list(csv.DictReader(text.splitlines()))
    try:
        (row,) = rows
        return float(row["Inferences/Second"]), float(row["p50 latency"]) / 1e3, float(row["p99 latency"]) / 1e3
    except (KeyError, ValueError):
        raise BenchmarkError(f"perf_analyzer reported something else than a line of figures:\n{text}") from None


def run(way: Way, at_once: int, seconds: float) -> tuple[float, float, float]:
    """One run; figures as `read_report`.

    Raises:
        BenchmarkError: perf_analyzer failed, or is not there.
    """
    if not ENVIRONMENT.exists():
        raise BenchmarkError("perf_analyzer is not there; `make clients` makes its environment")
    libraries = next(ENVIRONMENT.glob("lib/python3*/site-packages")) / "nvidia" / "cuda_runtime" / "lib"
    path = os.pathsep.join(filter(None, (str(libraries), os.environ.get("LD_LIBRARY_PATH"))))
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "report.csv"
        try:
            done = subprocess.run(
                command(way, at_once, seconds, output),
                env={**os.environ, "LD_LIBRARY_PATH": path},
                capture_output=True,
                text=True,
                check=False,
                timeout=4 * seconds + _BESIDES_S,
            )
        except subprocess.TimeoutExpired:
            raise BenchmarkError(f"perf_analyzer did not end its run against {way.name} ({way.protocol})") from None
        if done.returncode != 0 or not output.exists():
            raise BenchmarkError(f"perf_analyzer failed against {way.name} ({way.protocol}):\n{done.stdout[-2000:]}")
        return read_report(output.read_text(encoding="utf-8"))


def _wait_for(way: Way, server: Server | PeerServer) -> None:
    """Wait until a way answers."""
    ends = time.monotonic() + _START_WITHIN_S
    while True:
        server.check_alive()
        try:
            run(way, 1, 0.3)
            return
        except BenchmarkError:
            if time.monotonic() > ends:
                raise
            time.sleep(_ASK_EVERY_S)


def _ways(ours: Server, triton: PeerServer) -> dict[Way, Server | PeerServer]:
    def http(url: str) -> str:
        return url.removeprefix("http://")

    return {
        Way("serve_app", "grpc", ours.grpc[DIRECT]): ours,
        Way("serve_app (HAProxy)", "grpc", ours.grpc[PROXY]): ours,
        Way(TRITON, "grpc", triton.grpc[DIRECT]): triton,
        Way("serve_app", "http", http(ours.urls[DIRECT])): ours,
        Way(TRITON, "http", http(triton.urls[DIRECT])): triton,
    }


def measure(at_once: int, seconds: float, repetitions: int, console: Console) -> list[Measured]:
    """Start both servers and measure every way in turns.

    Raises:
        BenchmarkError: A server or the load generator failed.
        ConfigError: The configuration is not valid, or the model is not there.
    """
    with ExitStack() as stack:
        ours = stack.enter_context(Server("serve_app", systems.ours(CONFIG, MODEL), SERVE_APP_RUN))
        triton = stack.enter_context(PeerServer(TRITON, Subject.of(MODEL), "binary"))
        ways = _ways(ours, triton)
        for way, server in ways.items():
            _wait_for(way, server)
            run(way, at_once, min(1.0, seconds))  # warms up what is made for so many requests
        runs: dict[Way, list[tuple[float, float, float]]] = {way: [] for way in ways}
        for repetition in range(repetitions):
            for way in ways if repetition % 2 == 0 else reversed(ways):
                runs[way].append(run(way, at_once, seconds))
                console.print(f"{way.protocol}  {way.name:20}  {runs[way][-1][0]:10,.0f} /s", highlight=False)
    return [_medians(way, figures) for way, figures in runs.items()]


def _medians(way: Way, figures: Sequence[tuple[float, float, float]]) -> Measured:
    rates, p50s, p99s = zip(*figures, strict=True)
    return Measured(way.name, way.protocol, median(rates), rates, median(p50s), median(p99s))


def page(measured: Sequence[Measured], machine: Machine, date: str, settings: Mapping[str, float]) -> str:
    """The report, in Markdown."""
    how = (
        f"{settings['at_once']:.0f} requests at once, {settings['repetitions']:.0f} runs of {settings['seconds']:g} s"
        " per line, in turns; the load generator shares the cores."
    )
    lines = [
        "# Beside Triton, by Triton's load generator",
        "",
        f"Made by `python -m benchmarks.perf_analyzer`. `tiny` (64-128-10, float32), one row per request, {how}",
        "",
    ]
    rows = [
        [
            each.protocol,
            each.name,
            f"{each.rate:,.0f}",
            f"{min(each.rates):,.0f} to {max(each.rates):,.0f}",
            f"{each.p50_ms:.1f} / {each.p99_ms:.1f}",
        ]
        for each in measured
    ]
    decided = "Send small requests by HTTP: calls by gRPC are slower here, and slower than Triton's."
    return "\n".join([*lines, table(_HEADER, rows), "", decided, "", measured_on(date, machine), ""])


def main(
    at_once: Annotated[int, typer.Option(min=1, help="Requests at once.")] = 64,
    seconds: Annotated[float, typer.Option(min=1, help="Length of a run.")] = 6.0,
    repetitions: Annotated[int, typer.Option(min=1, help="Runs per way.")] = 5,
    publish: Annotated[bool, typer.Option("--publish", help="Write into docs/benchmarks.")] = False,
) -> None:
    """Measure, print and write the report."""
    console = Console()
    date = now()
    with ending_in_order(console), measuring(console) as machine:
        measured = measure(at_once, seconds, repetitions, console)
    settings = {"at_once": at_once, "seconds": seconds, "repetitions": repetitions}
    figures = {"date": date, "machine": machine, "settings": settings, "measured": measured}
    publish_report(console, "perf_analyzer", figures, page(measured, machine, date, settings), publish=publish)


if __name__ == "__main__":
    typer.run(main)
