"""Measure whole tasks beside other servers on this machine: ``python -m benchmarks.tasks``.

Writes ``tasks.json``, ``tasks.md`` and ``tasks.svg``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from benchmarks.failure import BenchmarkError
from benchmarks.publishing import now, publish_report
from benchmarks.session import ending_in_order, measuring, steps
from benchmarks.tasks.cases import MIXED, TASKS
from benchmarks.tasks.measure import Comparison, Plan
from benchmarks.tasks.report import draw, render
from benchmarks.tasks.results import CLOSED, OVERLOAD, PACED, Report, Tried, is_ours, medians, ratios
from benchmarks.tasks.systems import SYSTEMS

_KINDS = (CLOSED, PACED, OVERLOAD)


def choose(text: str, known: Sequence[str], what: str) -> list[str]:
    """Names out of a text with commas between them, in the order of ``known``; all where it is empty.

    A word that is no name itself stands for all names that begin with it, whatever the case of the letters.

    Raises:
        BenchmarkError: There is no such name.
    """
    found = set()
    for wanted in filter(None, (each.strip().lower() for each in text.split(","))):
        meant = [name for name in known if name.lower() == wanted]
        meant = meant or [name for name in known if name.lower().startswith(wanted)]
        if not meant:
            raise BenchmarkError(f"there is no {what} {wanted!r}; there are: {'; '.join(known)}")
        found |= set(meant)
    return [name for name in known if name in found or not found]


def main(
    tasks: Annotated[str, typer.Option(help="Tasks to measure, with commas between them.")] = "",
    systems: Annotated[str, typer.Option(help="Systems to measure, likewise, by the beginnings of their names.")] = "",
    kinds: Annotated[str, typer.Option(help="Kinds of load, likewise: closed, paced, overload.")] = "",
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each system and task.")] = 5,
    open_rounds: Annotated[
        int | None, typer.Option(min=1, help="The same for loads at a given rate; as many by default.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, help="Length of each run.")] = 8.0,
    warm_up_s: Annotated[
        float, typer.Option(min=0, help="Load before each run, long enough for more replicas to start.")
    ] = 8.0,
    tried_s: Annotated[
        float, typer.Option(min=0, help="Length of the runs that look for a rival's best setting; 0: its first one.")
    ] = 3.0,
    settings_of: Annotated[
        Path | None, typer.Option(help="An earlier report, tasks.json, whose settings are taken.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One run of 2 s each, first settings; not published.")] = False,
    publish: Annotated[bool, typer.Option("--publish", help="Write the report into docs/benchmarks too.")] = False,
) -> None:
    """Measure serve_app beside other servers, from media to answers."""
    console = Console()
    plan = Plan(
        seconds, warm_up_s, rounds, open_rounds or rounds, tried_s, tuple(choose(kinds, _KINDS, "kind of load"))
    )
    if quick:
        plan = Plan(2.0, 0.5, 1, 1, 0.0, plan.kinds)
    with ending_in_order(console):
        names = choose(tasks, [*TASKS, MIXED], "task")
        chosen = [SYSTEMS[name] for name in choose(systems, list(SYSTEMS), "system")]
        with measuring(console) as machine, steps(console) as progress:
            comparison = Comparison(chosen, names, plan, progress, progress.add_task("preparing", total=None))
            if settings_of is not None:
                comparison.tried += msgspec.json.decode(settings_of.read_bytes(), type=Tried).tried
            comparison.run()
        rates = medians(comparison.runs)
        report = Report(
            date=now(),
            machine=machine,
            versions={system.name: system.version for system in chosen if system.version},
            seconds=plan.seconds,
            warm_up_s=plan.warm_up_s,
            rounds=plan.rounds,
            open_rounds=plan.open_rounds,
            tried=comparison.tried,
            runs=comparison.runs,
            left_out=comparison.left_out,
            medians=rates,
            ratios=ratios(rates),
        )
        publish_report(
            console, "tasks", report, render(report), lambda file: draw(report, file), publish=publish and not quick
        )
        if any(is_ours(name) for name in comparison.left_out):
            raise BenchmarkError("serve_app could not be measured; see above")


if __name__ == "__main__":
    typer.run(main)
