"""What the response cache costs and what it spares: ``python -m benchmarks.cache``.

The router alone (`benchmarks.cache_path`), and a real server under load (`benchmarks.cache_load`). Writes
``cache.json``, ``cache.md`` and ``cache.svg``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from matplotlib.figure import Figure
from rich.console import Console

from benchmarks import cache_load, cache_path, wrk
from benchmarks.cache_load import LOADS, Loaded
from benchmarks.cache_path import MODES, Cost
from benchmarks.machine import Machine
from benchmarks.publishing import measured_on, now, picture_style, publish_report, save_svg, table
from benchmarks.session import ending_in_order, measuring, steps

_COSTS = ("request", "no cache", "miss", "hit", "lowest to highest hit")
_LOADS = ("model", "requests", "found", "answers/s", "lowest to highest", "p50 / p99, ms", "server's CPU each, us")


@dataclass(frozen=True, slots=True)
class Report:
    """What was measured.

    Attributes:
        date: When.
        machine: On what.
        repetitions: Runs per line.
        connections: To the real server.
        seconds: Length of each run against it.
        costs: Of the router; empty if left out.
        loads: Of the real server; empty if left out.
    """

    date: str
    machine: Machine
    repetitions: int
    connections: int
    seconds: float
    costs: Sequence[Cost]
    loads: Sequence[Loaded]


def render(report: Report) -> str:
    """The report, in Markdown."""
    lines = [
        "# The response cache",
        "",
        f"Written by `make bench-cache`. Medians of {report.repetitions} repetitions, in turns; answers that are found",
        "were compared before and after.",
        "",
    ]
    if report.costs:
        cases = dict.fromkeys(each.case for each in report.costs)
        lines += [
            "## The router's own time",
            "",
            "Microseconds of the processor per request, without the HTTP server and without the way to the replica. A",
            "miss stores its answer, and another makes room for it.",
            "",
            table(_COSTS, [_cost_row(case, report.costs) for case in cases]),
            "",
        ]
    if report.loads:
        lines += [
            "## A server under load",
            "",
            f"{report.connections} connections in a closed loop, runs of {report.seconds:g} s, by the router's port.",
            "`minilm` gets token ids and `pool` 602 KB, both binary, and `tiny` JSON.",
            "",
            table(_LOADS, [_load_row(each) for each in report.loads]),
            "",
        ]
    lines += [
        "![Costs and rates](cache.svg)",
        "",
        "Cache the answers of models that compute. Beside a model that costs next to nothing a hit saves little, and a",
        "miss costs the router more than it did.",
        "",
        measured_on(report.date, report.machine),
        "",
    ]
    return "\n".join(lines)


def _cost_row(case: str, costs: Sequence[Cost]) -> list[str]:
    found = {each.mode: each for each in costs if each.case == case}
    hit = found["hit"]
    return [case, *(f"{found[mode].us:,.0f}" for mode in MODES), f"{hit.lowest_us:,.0f} to {hit.highest_us:,.0f}"]


def _load_row(each: Loaded) -> list[str]:
    return [
        each.model,
        LOADS[each.load],
        f"{each.hits:.0%}",
        f"{each.rate:,.0f}",
        f"{each.lowest:,.0f} to {each.highest:,.0f}",
        f"{each.p50_ms:.1f} / {each.p99_ms:.1f}",
        f"{each.server_us:,.0f}",
    ]


def draw(report: Report, path: Path) -> None:
    """Draw the router's time, and the rates of the real server."""
    with picture_style():
        figure = Figure(figsize=(10, 4), layout="constrained")
        left, right = figure.subplots(1, 2)
        names = dict(zip(MODES, _COSTS[1:], strict=False))
        costs = {(each.case, names[each.mode]): each.us for each in report.costs}
        loads = {(each.model, LOADS[each.load]): each.rate for each in report.loads}
        _bars(left, costs, "router's CPU per request, us")
        _bars(right, loads, "answers/s")
        save_svg(figure, path)


def _bars(axes: Any, heights: Mapping[tuple[str, str], float], what: str) -> None:
    groups, kinds = (list(dict.fromkeys(each)) for each in zip(*heights, strict=True)) if heights else ([], [])
    width = 0.8 / max(1, len(kinds))
    for number, kind in enumerate(kinds):
        places = [place for place, group in enumerate(groups) if (group, kind) in heights]
        values = [heights[groups[place], kind] for place in places]
        axes.bar([place + number * width for place in places], values, width, label=kind)
    axes.set_xticks([place + 0.4 - width / 2 for place in range(len(groups))], groups)
    axes.set_yscale("log")
    axes.set_ylabel(what)
    axes.grid(visible=False, axis="x")
    if heights:
        axes.legend(fontsize=8)


def main(
    repetitions: Annotated[int, typer.Option(min=1, help="Runs per line.")] = 5,
    seconds: Annotated[float, typer.Option(min=1, help="Length of each run against the real server.")] = 5.0,
    connections: Annotated[int, typer.Option(min=1, help="Connections to the real server.")] = 64,
    skip_server: Annotated[bool, typer.Option("--skip-server", help="Leave the real server out.")] = False,
    skip_router: Annotated[bool, typer.Option("--skip-router", help="Leave the router alone out.")] = False,
    publish: Annotated[bool, typer.Option(help="Write what was measured into docs/benchmarks too.")] = True,
) -> None:
    """Measure the response cache on this machine."""
    console = Console()
    with ending_in_order(console), measuring(console, {"wrk": wrk.version()}) as machine, steps(console) as progress:
        costs = [] if skip_router else cache_path.measure(repetitions, progress)
        loads = [] if skip_server else cache_load.measure(connections, seconds, repetitions, progress)
    report = Report(now(), machine, repetitions, connections, seconds, costs, loads)
    publish_report(console, "cache", report, render(report), partial(draw, report), publish=publish)


if __name__ == "__main__":
    typer.run(main)
