"""Measure what hostile clients cost requests of class `high`: ``python -m benchmarks.overload.hostile``.

Some connections send `high` requests at a low constant rate (`load.c`): alone, then beside each hostile load. Each
round measures all of them, and differences are those from `high` alone in the same round. Writes ``hostile_high.json``
and ``hostile_high.md``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated

import httpx
import msgspec
import typer
from rich.console import Console

from benchmarks.overload.__main__ import started
from benchmarks.overload.generator import Answers, Generator, Offer
from benchmarks.overload.slow_connections import SlowConnections
from benchmarks.peers.traffic import make_samples
from benchmarks.publishing import measured_on, now, publish_report, table
from benchmarks.server import DIRECT, ROOT
from benchmarks.session import ending_in_order, measuring, steps
from benchmarks.slow_clients import raise_open_files
from benchmarks.trees import AFTER
from benchmarks.turns import newest_file
from benchmarks.wires import Json
from serve_app.http.http1 import Limits

ALONE = "nothing"
_MODEL = "tiny"
_DEADLINE_MS = 1000.0
_FLOOD_LASTS_S = 1.0
"""How much longer than the measurement a flood lasts: it begins before, and `high` may be late."""
_SPARE = 64
"""Connections of the server that are left to others."""

Hostile = Callable[[], AbstractContextManager[Callable[[], str]]]
"""Loads the server while its context lasts. Entering gives what tells, after the context, what became of it."""


class Run(msgspec.Struct):
    """`high` beside one hostile load.

    Attributes:
        beside: The load; `ALONE` for none.
        round: Number of the round.
        told: What became of the hostile load.
        high: What became of `high`.
    """

    beside: str
    round: int
    told: str
    high: Answers


@contextmanager
def slow(port: int, number: int, head: bytes, drip: bytes) -> Iterator[Callable[[], str]]:
    """As `SlowConnections`."""
    connections = SlowConnections(port, number, head, drip)
    with ThreadPoolExecutor(1) as pool:
        acting = pool.submit(connections.act)
        try:
            yield lambda: f"{number:,} connections, of which the server ended {connections.cut:,}"
        finally:
            connections.ended.set()
    acting.result()


@contextmanager
def flood(generator: Generator, url: str, request: bytes, seconds: float) -> Iterator[Callable[[], str]]:
    """256 connections that send a request as soon as the one before it is answered."""
    offers, lasts_s = [Offer(256, request, 1.0)], seconds + _FLOOD_LASTS_S

    def told() -> str:
        _, (of, *_) = running.result()
        return f"{of.other / lasts_s:,.0f}/s answered, {of.full / lasts_s:,.0f}/s turned down"

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(generator.offer, url, offers, 60_000.0, 0.0, lasts_s, shared=True)
        yield told


def request_of(path: str, body: bytes, *fields: str) -> bytes:
    """A whole request."""
    head = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json"]
    return "\r\n".join((*head, f"Content-Length: {len(body)}", *fields, "", "")).encode() + body


def hostile_loads(
    generator: Generator, url: str, path: str, body: bytes, number: int, seconds: float
) -> Mapping[str, Hostile]:
    """What stands beside `high`, by name; so many connections are slow."""
    port = httpx.URL(url).port or 80
    without_body = request_of(path, body)[: -len(body)]
    unknown, too_late = (request_of(path, body, field) for field in ("X-Priority: urgent", "X-Timeout-Ms: 0"))
    return {
        ALONE: lambda: nullcontext(str),
        "heads without a body": partial(slow, port, number, without_body, b""),
        "heads byte by byte": partial(slow, port, number, b"", without_body),
        "a class that does not exist": partial(flood, generator, url, unknown, seconds),
        "a deadline of 0": partial(flood, generator, url, too_late, seconds),
    }


def measure(
    generator: Generator, url: str, load: Hostile, offer: Offer, rate: float, seconds: float
) -> tuple[str, Answers]:
    """Measure `high` beside a load. Returns what became of both."""
    with load() as told:
        _, answers = generator.offer(url, [offer], _DEADLINE_MS, rate, seconds, shared=False)
    return told(), answers[0]


def report(runs: Sequence[Run]) -> str:
    """A line for each load: medians of the rounds."""
    alone = {run.round: run.high for run in runs if run.beside == ALONE}
    lines = []
    for beside in dict.fromkeys(run.beside for run in runs):
        own, line = [run for run in runs if run.beside == beside], [beside]
        for name in ("p50_ms", "p99_ms", "max_ms"):
            seen = median(getattr(run.high, name) for run in own)
            more = median(getattr(run.high, name) - getattr(alone[run.round], name) for run in own)
            line.append(f"{seen:.1f}" if beside == ALONE else f"{seen:.1f} ({more:+.1f})")
        in_time = median(100.0 * run.high.in_time / max(1, run.high.offered) for run in own)
        lines.append([*line, f"{in_time:.1f}", own[-1].told or "-"])
    head = [f"`high` {name}, ms (more than alone)" for name in ("p50", "p99", "largest")]
    return table(["beside", *head, "in time, %", "the hostile load, last round"], lines)


def page(runs: Sequence[Run], how: str) -> str:
    """The report as Markdown; ``how`` is what was measured on, and how."""
    return (
        "# `high` beside hostile clients\n\nWhat do clients cost that are slow, or whose requests are turned down?"
        f" `make bench-hostile-high` measures it.\n\n{report(runs)}\n\nNo guard before the router is needed for"
        f" clients like these: `high` stays in time.\n\n{how}\n"
    )


def main(
    rate: Annotated[float, typer.Option(min=1, help="`high` requests per second.")] = 200.0,
    connections: Annotated[int, typer.Option(min=1, help="Connections of `high`.")] = 8,
    slow_connections: Annotated[
        int, typer.Option("--slow", min=1, help="Slow connections, as far as there may be so many.")
    ] = 10_000,
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each load.")] = 3,
    seconds: Annotated[float, typer.Option(min=1, help="Length of each run.")] = 10.0,
    publish: Annotated[bool, typer.Option("--publish", help="Write the report into docs/benchmarks too.")] = False,
) -> None:
    """Measure `high` beside hostile clients."""
    console = Console()
    with ending_in_order(console), ExitStack() as stack:
        number = raise_open_files(min(slow_connections, Limits().connections - connections - _SPARE))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="serve-app-")))
        generator = Generator(folder)
        machine = stack.enter_context(measuring(console))
        progress = stack.enter_context(steps(console))
        task = progress.add_task("starting", total=5 * rounds)
        server = started(stack, AFTER, ROOT, [{"name": _MODEL, "path": f"models/{_MODEL}"}], folder)
        url, body = server.urls[DIRECT], Json().request(make_samples(newest_file(_MODEL))[0].inputs).body
        path, fields = f"/v2/models/{_MODEL}/infer", ("X-Priority: high", f"X-Timeout-Ms: {_DEADLINE_MS:g}")
        offer = Offer(connections, request_of(path, body, *fields), 1.0)
        loads = hostile_loads(generator, url, path, body, number, seconds)
        runs: list[Run] = []
        for each in range(rounds):
            for beside, load in loads.items():
                runs.append(Run(beside, each, *measure(generator, url, load, offer, rate, seconds)))
                server.check_alive()
                done = f"beside {beside}: p99 {runs[-1].high.p99_ms:.1f} ms"
                progress.update(task, advance=1, description=done)
        what = f"{rounds} runs of {seconds:g} s each; {rate:g} `high` requests per second by {connections} connections."
        text = page(runs, f"{what} {measured_on(now(), machine)}")
        figures = {"machine": asdict(machine), "runs": msgspec.to_builtins(runs)}
        publish_report(console, "hostile_high", figures, text, publish=publish)


if __name__ == "__main__":
    typer.run(main)
