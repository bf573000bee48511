"""What pipelines bring: ``python -m benchmarks.pipelines``.

Deadlines of two and three steps in the simulator, by how much of the whole each step is given; and on a real server
what a pipeline costs beside calls of its models. Writes ``pipelines.json``, ``pipelines.md`` and ``pipelines.svg``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Annotated, Final

import typer
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import Progress

from benchmarks.machine import Machine
from benchmarks.pipelines.served import LONGER, Served, measure
from benchmarks.pipelines.simulated import ALPHA_S, BETA_S, MAX_ROWS, POLICIES, SLACK, attainment
from benchmarks.publishing import measured_on, now, picture_style, publish_report, save_svg, table
from benchmarks.session import ending_in_order, measuring, steps

STEPS: Final = (2, 3)
LOADS: Final = (0.5, 0.7, 0.8, 0.9, 1.0)
_SHOWN: Final = 0.9
_FIRST_SEED: Final = 10
"""The lenience of a pipeline's steps was chosen with smaller ones."""
_AGAIN: Final = "pipeline, a dropped step tried again"


@dataclass(frozen=True, slots=True)
class Report:
    """What was found.

    Attributes:
        date: Of the measurement.
        machine: Of the part on a server.
        seeds: Runs of each case in the simulator.
        seconds: Length of each, virtual.
        simulated: By steps, way and load, the percent of requests in time.
        served: On a server; ``None``: that was left out.
    """

    date: str
    machine: Machine
    seeds: int
    seconds: float
    simulated: Mapping[int, Mapping[str, Mapping[float, float]]]
    served: Served | None


def simulate(seeds: int, seconds: float, progress: Progress) -> dict[int, dict[str, dict[float, float]]]:
    """By steps, way and load, the percent of requests in time, over the seeds."""
    tried = range(_FIRST_SEED, _FIRST_SEED + seeds)
    task = progress.add_task("in the simulator", total=len(STEPS) * (len(POLICIES) * len(LOADS) + 1))
    found: dict[int, dict[str, dict[float, float]]] = {}
    for number in STEPS:
        found[number] = {}
        for policy in POLICIES:
            found[number][policy] = {}
            for load in LOADS:
                runs = [attainment(number, load, seed, policy, seconds=seconds) for seed in tried]
                found[number][policy][load] = 100.0 * mean(runs)
                progress.advance(task)
        runs = [attainment(number, _SHOWN, seed, "pipeline", seconds=seconds, again=True) for seed in tried]
        found[number][_AGAIN] = {_SHOWN: 100.0 * mean(runs)}
        progress.advance(task)
    return found


def render(report: Report) -> str:
    """The report, in Markdown."""
    shown: dict[str, list[str]] = {}
    for ways in report.simulated.values():
        for way, loads in ways.items():
            shown.setdefault(way, []).append(f"{loads[_SHOWN]:.1f}" if _SHOWN in loads else "")
    lines = [
        "# Pipelines",
        "",
        "Written by `make bench-pipelines`; every load is in `pipelines.json`.",
        "",
        "## Deadlines in the simulator",
        "",
        f"Models in sequence, one replica each: {ALPHA_S * 1e3:g} ms per batch and {BETA_S * 1e3:g} ms per row, up to",
        f"{MAX_ROWS} rows; gamma arrivals with a coefficient of variation of 2; a deadline of {SLACK:g} times what the",
        f"steps take alone. Percent in time at a load of {_SHOWN:.0%}, means of {report.seeds} runs of",
        f"{report.seconds:g} virtual seconds, by what each step is given: the whole timeout, what is left of it, the",
        "same less what later steps take alone, its share and no more, or its share and some lenience (*pipeline*, as",
        "[pipelines](../pipelines.md#deadlines) do it).",
        "",
        table(["", *(f"{number} steps" for number in report.simulated)], [[way, *of] for way, of in shown.items()]),
        "",
        "![Percent in time by load](pipelines.svg)",
        "",
    ]
    if report.served is not None:
        lines += _served(report.served)
    lines += ["Ask a pipeline rather than its models: one call, and a deadline that is shared out.", ""]
    return "\n".join([*lines, measured_on(report.date, report.machine), ""])


def _served(served: Served) -> Sequence[str]:
    sequence = [
        [way.name, f"{way.p50_ms:.2f}", f"{way.p99_ms:.2f}", f"{way.per_second:,.0f}"] for way in served.sequence
    ]
    kept = [[each.name, f"{each.attainment:.1%}", f"{each.lowest:.1%} to {each.highest:.1%}"] for each in served.kept]
    return [
        "## On a server",
        "",
        "The benchmark model `wide` twice, one row of 8 KiB in binary, on the router's own port; medians of",
        f"{served.rounds} rounds of {served.seconds:g} s in turns. The client is in Python and shares the cores.",
        "",
        table(("two steps", "p50, ms", "p99, ms", f"answers/s, {served.connections} connections"), sequence),
        "",
        f"A branch beside a longer one costs {served.beside_ms:.2f} ms. Deadlines under load, with two models that",
        f"wait, 32 ms per batch and 8 ms per row: {served.rate:,.0f} requests/s, 90% of what full batches bring, each",
        f"with {served.deadline_ms:.0f} ms from when it was due; rounds of {LONGER * served.seconds:g} s:",
        "",
        table(("two steps", "in time", "lowest to highest"), kept),
        "",
    ]


def draw(report: Report, path: Path) -> None:
    """Draw the percent in time by load."""
    with picture_style():
        figure = Figure(figsize=(9, 3.4), layout="constrained")
        for axes, (number, ways) in zip(
            figure.subplots(1, len(STEPS), sharey=True), report.simulated.items(), strict=True
        ):
            for way in POLICIES:
                axes.plot([100 * load for load in LOADS], list(ways[way].values()), marker="o", label=way)
            axes.set(title=f"{number} steps", xlabel="load, %", ylabel="in time, %", ylim=(0, 102))
        axes.legend(loc="lower left", fontsize=8)
        save_svg(figure, path)


def main(
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each case in the simulator.")] = 3,
    virtual_seconds: Annotated[float, typer.Option(min=10, help="Length of each.")] = 20.0,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each way on the server.")] = 5,
    seconds: Annotated[float, typer.Option(min=0.5, help="Length of each.")] = 5.0,
    server: Annotated[bool, typer.Option(help="Also measure on a server.")] = True,
    publish: Annotated[bool, typer.Option(help="Write what was found into docs/benchmarks too.")] = False,
) -> None:
    """Measure pipelines in the simulator and on this machine."""
    console = Console()
    with ending_in_order(console), measuring(console) as machine, steps(console) as progress:
        served = measure(rounds, seconds, progress) if server else None
        simulated = simulate(seeds, virtual_seconds, progress)
    report = Report(now(), machine, seeds, virtual_seconds, simulated, served)
    publish_report(console, "pipelines", report, render(report), partial(draw, report), publish=publish)


if __name__ == "__main__":
    typer.run(main)
