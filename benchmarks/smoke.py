"""Throughput and latency beside stock Ray Serve, and cold starts: ``python -m benchmarks.smoke``.

Writes ``smoke.json``, ``smoke.md`` and ``smoke.svg``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, TaskID

from benchmarks import cold_start, systems, wrk
from benchmarks.answers import Sample, make_samples, mistakes, open_session, session_rate
from benchmarks.failure import BenchmarkError
from benchmarks.publishing import folders, write_report
from benchmarks.report import draw, render
from benchmarks.requests import JSON_HEADERS, Request, write_requests
from benchmarks.results import Comparison, Report, Run, ratios, summarise
from benchmarks.server import OUT, ROOT, SERVE_APP_RUN, SERVE_RUN, Server
from benchmarks.session import ending_in_order, measuring, steps
from serve_app.composition.model import find_files
from serve_app.config.file import load_file

_CONFIG = ROOT / "configs" / "bench.yaml"
_MODEL = "tiny"
_CONNECTIONS = (1, 16, 64, 256)
_SAMPLES = 1024
_CHECKED_AT_ONCE = 32
_WARM_UP_S = 2.0


@dataclass(frozen=True, slots=True)
class _Plan:
    seconds: float
    repetitions: int

    def turns(self, servers: Sequence[Server]) -> list[tuple[int, int, Server]]:
        """(repetition, connections, system): the servers in turns, and which is first in turns too."""
        return [
            (repetition, connections, server)
            for repetition in range(self.repetitions)
            for connections in _CONNECTIONS
            for server in (servers if repetition % 2 == 0 else servers[::-1])
        ]


def compare(plan: _Plan, progress: Progress) -> Comparison:
    """Measure both servers in turns.

    Raises:
        BenchmarkError: A server did not start, or answered wrongly.
        ConfigError: The configuration is not valid or the model is not there.
    """
    task = progress.add_task("preparing", total=len(_CONNECTIONS) * plan.repetitions * 2)
    model = next(each for each in load_file(_CONFIG).args.models if each.name == _MODEL)
    session = open_session(find_files(model)[""].model_file)
    samples = make_samples(session, _SAMPLES)
    OUT.mkdir(parents=True, exist_ok=True)
    requests = OUT / "smoke.requests"
    write_requests(requests, (Request(JSON_HEADERS, sample.body) for sample in samples))
    rates = {rows: session_rate(session, rows, plan.seconds / 2) for rows in (1, model.batching.configured_rows)}

    ours = Server("serve_app", systems.ours(_CONFIG, _MODEL), SERVE_APP_RUN)
    stock = Server("stock Ray Serve", systems.stock(_CONFIG, _MODEL), SERVE_RUN)
    with ExitStack() as stack:
        for server in (ours, stock):
            progress.update(task, description=f"starting {server.name}")
            stack.enter_context(server)
            _wait(server, samples[0])
        for server in (ours, stock):
            progress.update(task, description=f"checking {server.name}")
            _check(server, samples)
        runs = [
            _run(server, requests, connections, repetition, plan.seconds, progress, task)
            for repetition, connections, server in plan.turns((ours, stock))
        ]
        for server in (ours, stock):
            progress.update(task, description=f"checking {server.name} again")
            _check(server, samples)
        progress.update(task, description="ending both")
    summaries = summarise(runs)
    return Comparison(
        ours=ours.name,
        stock=stock.name,
        model=_MODEL,
        seconds=plan.seconds,
        warm_up_s=_WARM_UP_S,
        repetitions=plan.repetitions,
        bodies=len(samples),
        body_bytes=round(sum(len(sample.body) for sample in samples) / len(samples)),
        checked=2 * len(samples),
        settings=systems.STOCK_SETTINGS,
        session_per_second=rates,
        runs=tuple(runs),
        summaries=summaries,
        ratios=ratios(summaries, ours.name, stock.name),
    )


def _run(
    server: Server, requests: Path, connections: int, repetition: int, seconds: float, progress: Progress, task: TaskID
) -> Run:
    progress.update(task, description=f"{server.name}, {connections} connections")
    wrk.run(_url(server), requests, connections, _WARM_UP_S)
    load, cpu = wrk.run(_url(server), requests, connections, seconds)
    server.check_alive()
    progress.console.print(
        f"{server.name:>16}  {connections:4} connections  {load.per_second:8,.0f} answers/s"
        f"  p50 {load.p50_ms:8.1f} ms  p99 {load.p99_ms:8.1f} ms"
        + (f"  [red]{load.failures} failures[/]" if load.failures else ""),
        highlight=False,
        soft_wrap=True,
    )
    progress.advance(task)
    return Run(server.name, connections, repetition, load, cpu)


def _wait(server: Server, sample: Sample) -> None:
    """Wait until a server answers."""
    server.wait_until(lambda: not asyncio.run(mistakes(_url(server), [sample], 1)))


def _check(server: Server, samples: Sequence[Sample]) -> None:
    found = asyncio.run(mistakes(_url(server), samples, _CHECKED_AT_ONCE))
    if found:
        raise BenchmarkError(f"{server.name} answers {len(found)} of {len(samples)} requests wrongly: {found[0]}")


def _url(server: Server) -> str:
    return f"{server.url}/v2/models/{_MODEL}/infer"


def main(
    seconds: Annotated[float, typer.Option(min=1, help="Length of each run.")] = 10.0,
    repetitions: Annotated[int, typer.Option(min=1, help="Runs per server and number of connections.")] = 3,
    quick: Annotated[
        bool, typer.Option("--quick", help="One run of 2 s each and one start; published nowhere.")
    ] = False,
    skip_cold_start: Annotated[bool, typer.Option("--skip-cold-start", help="Leave the cold starts out.")] = False,
    skip_comparison: Annotated[bool, typer.Option("--skip-comparison", help="Leave the comparison out.")] = False,
    publish: Annotated[bool, typer.Option(help="Write the report into docs/benchmarks too.")] = True,
) -> None:
    """Measure serve_app beside stock Ray Serve on this machine, and its cold start."""
    console = Console()
    plan = _Plan(2.0, 1) if quick else _Plan(seconds, repetitions)
    with ending_in_order(console), measuring(console, {"wrk": wrk.version()}) as machine:
        with steps(console) as progress:
            starts = None
            if not skip_cold_start:
                task = progress.add_task("cold start", total=None)
                starts = cold_start.measure(
                    cold_start.DEMO,
                    plan.repetitions,
                    max(plan.seconds / 2, 1.0),
                    lambda text: progress.update(task, description=f"cold start: {text}"),
                )
                progress.remove_task(task)
            comparison = None if skip_comparison else compare(plan, progress)
        report = Report(datetime.now(UTC).date().isoformat(), machine, starts, comparison)
        for folder in folders(publish=publish and not quick):
            write_report(folder, "smoke", report, render(report, "smoke.svg"))
            if comparison is not None:
                draw(comparison, folder / "smoke.svg")
        console.print(f"report: {folder.relative_to(ROOT)}/smoke.md")
        failures = sum(summary.failures for summary in comparison.summaries) if comparison else 0
        if failures:
            raise BenchmarkError(f"{failures} requests failed: these figures are worth nothing")


if __name__ == "__main__":
    typer.run(main)
