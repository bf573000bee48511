"""Faults on purpose against the real server: ``python -m benchmarks.chaos``.

Each scenario puts load on a server with real models, breaks something on time, compares every answer with ONNX
Runtime's, and notes whether its aims were met. Writes ``reliability.json``, ``.md`` and ``.svg``; the exit code is 1
where an aim was not met or a fault could not be shown.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer
import uvloop
from rich.console import Console

from benchmarks.chaos import report
from benchmarks.chaos.play import SCENARIOS, play
from benchmarks.chaos.scenario import Scenario
from benchmarks.chaos.stage import Played
from benchmarks.failure import BenchmarkError
from benchmarks.niceness import go_first
from benchmarks.publishing import folders
from benchmarks.session import ending_in_order, measuring, steps


def chosen(only: str | None) -> list[Scenario]:
    """The scenarios of these names, in the catalogue's order; all without any.

    Raises:
        BenchmarkError: There is no such scenario.
    """
    if not only:
        return list(SCENARIOS)
    names = [name.strip() for name in only.split(",") if name.strip()]
    known = {each.name for each in SCENARIOS}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise BenchmarkError(f"there is no scenario {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    return [each for each in SCENARIOS if each.name in names]


def _say(console: Console, played: Played) -> None:
    """What a scenario gave, in a few lines."""
    console.print(report.line(played), highlight=False)
    for aim in played.aims:
        console.print(f"  {'[green]met[/]' if aim.met else '[red]NOT MET[/]'}  ", end="", highlight=False)
        console.print(f"{aim.says}: {aim.found}", markup=False, highlight=False, soft_wrap=True)
    for example in () if played.met else played.examples:
        console.print(f"    {example}", markup=False, highlight=False, soft_wrap=True)


def main(
    only: Annotated[str | None, typer.Option(help="Scenarios, separated by commas. Default: all.")] = None,
    show: Annotated[bool, typer.Option("--list", help="List the scenarios and end.")] = False,
    quick: Annotated[bool, typer.Option(help="Hit less often and wait less: does everything work?")] = False,
    publish: Annotated[bool, typer.Option(help="Write the report into docs/benchmarks too.")] = False,
) -> None:
    """Break a server on purpose, and count what that costs its clients."""
    console = Console()
    if show:
        for each in SCENARIOS:
            console.print(f"{each.name:<16} {each.says}", highlight=False)
        return
    with ending_in_order(console), measuring(console) as machine:
        scenarios = chosen(only)
        if not go_first():
            console.print("[yellow]note[/]: as another user than root, the load generator may itself be what is late")
        found: list[Played] = []
        with steps(console) as progress:
            task = progress.add_task("", total=len(scenarios))

            def done(played: Played) -> None:
                found.append(played)
                for folder in folders(publish=publish):  # now: what comes later may go wrong
                    report.write(folder, found, [each.name for each in SCENARIOS], machine, quick=quick)
                progress.advance(task)
                _say(progress.console, played)

            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(
                    play(
                        scenarios,
                        quick=quick,
                        tell=lambda line: progress.update(task, description=line[:48]),
                        done=done,
                    )
                )
        missed = [played.name for played in found if not played.met]
        if missed:
            raise BenchmarkError(f"aims were missed: {', '.join(missed)}")


if __name__ == "__main__":
    typer.run(main)
