"""What jobs promise, and what they cost: ``python -m benchmarks.jobs``.

- Items of one job run while a process is killed with SIGKILL: a router, a replica, Serve's controller, the Redis server
  that keeps the jobs, all processes at once. Every item must end, with the answer that a direct request gets.
- Requests of class ``high`` beside a backlog and without one, in turns; items per second beside those of live requests.
- Memory of a router before a backlog of a million items, with it, and while it is worked on.
- The cleaning of a year's expired jobs: how long the longest of its steps keeps others from the store.

Writes ``jobs.json`` and ``jobs.md``.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.failure import BenchmarkError
from benchmarks.jobs.beside import measure_beside
from benchmarks.jobs.cleaning import measure_cleaning
from benchmarks.jobs.kills import measure_kills
from benchmarks.jobs.memory import measure_memory
from benchmarks.jobs.report import Report, render
from benchmarks.publishing import now, publish_report
from benchmarks.session import ending_in_order, measuring


def main(
    only: Annotated[
        str, typer.Option(help="Of kills, beside, memory, cleaning: those, with commas between them.")
    ] = "kills,beside,memory,cleaning",
    victims: Annotated[str, typer.Option(help="Of kills, only of these, e.g. router,Redis.")] = "",
    items: Annotated[int, typer.Option(min=10, help="Items that run while something is killed.")] = 10_000,
    backlog: Annotated[int, typer.Option(min=10, help="Items of the backlog for memory.")] = 1_000_000,
    old: Annotated[int, typer.Option(min=1, help="Expired jobs to clean.")] = 36_500,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds beside live requests.")] = 5,
    seconds: Annotated[float, typer.Option(min=1, help="Length of each.")] = 20.0,
    rate: Annotated[float, typer.Option(min=0.1, help="Requests per second of class high.")] = 10.0,
    publish: Annotated[bool, typer.Option(help="Write what was measured into docs/benchmarks too.")] = False,
) -> None:
    """Measure jobs on this machine."""
    console, parts = Console(), only.split(",")
    with ending_in_order(console):
        with measuring(console) as machine:
            report = Report(now(), machine)
            if "kills" in parts:
                report.kills = measure_kills(items, [each for each in victims.split(",") if each], console)
            if "beside" in parts:
                report.beside = measure_beside(rounds, seconds, rate)
                console.print(report.beside)
            if "memory" in parts:
                report.memory = measure_memory(backlog, seconds)
                console.print(report.memory)
            if "cleaning" in parts:
                report.cleaning = asyncio.run(measure_cleaning(old))
                console.print(report.cleaning)
        publish_report(console, "jobs", report, render(report), publish=publish)
        if broken := report.broken():
            raise BenchmarkError(f"items were lost, wrong or twice: {broken}")


if __name__ == "__main__":
    typer.run(main)
