"""How well the number of replicas follows the demand.

python -m benchmarks.scaling judge --publish    # simulated, beside others: docs/benchmarks/scaling.md
python -m benchmarks.scaling room               # simulated: models that share too little room
python -m benchmarks.scaling real               # a real server beside its simulation
python -m benchmarks.scaling kills              # a real server whose processes are killed
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.machine import describe
from benchmarks.publishing import measured_on, now, publish_report, table
from benchmarks.scaling import judge_report
from benchmarks.scaling.judge import Cell, Score, read_settings, run
from benchmarks.scaling.real import MODEL, Followed, measure, simulated
from benchmarks.scaling.room import ROOM, Shared, best_split, contests, share
from benchmarks.scaling.workloads import Load, flash, sine, steady, step, trace
from benchmarks.scheduling.conditions import MINILM, WIDE
from serve_app.config.names import ROUTER
from serve_app_simulator.scenario import Affine, Curve

app = typer.Typer(add_completion=False, help=__doc__)

CURVES: dict[str, tuple[Curve, int]] = {
    "minilm": (MINILM, 4),
    "wide": (WIDE, 32),
    "GPU-like": (Affine(0.02, 0.0005), 32),
}
"""The cost of a batch, and rows of a request."""
TIMEOUTS_S = (0.1, 1.0, 5.0)
STARTS_S = (10.0, 30.0)
_HEADER = ("in time %", "replica-seconds", "changes, turns", "target")
_REAL_PARTS_S = 60.0


def cells(curves: list[str], trace_file: Path | None) -> list[Cell]:
    """The grid."""
    loads: list[Load] = [step(), sine(), flash()]
    if trace_file is not None:
        loads.append(trace(trace_file))
    return [
        Cell(load, name, *CURVES[name], timeout_s, start_s)
        for name in curves
        for load in loads
        for timeout_s in TIMEOUTS_S
        for start_s in STARTS_S
    ]


@app.command()
def judge(
    curve: Annotated[list[str] | None, typer.Option(help="Of the models; by default all.")] = None,
    trace_file: Annotated[Path | None, typer.Option("--trace", help="A CSV file with a TIMESTAMP.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="By default 2.")] = None,
    processes: int = 1,
    tuned: Annotated[Path | None, typer.Option(help="A scaling.json whose settings rivals have, not tuned.")] = None,
    publish: Annotated[bool, typer.Option(help="Into docs/benchmarks, too.")] = False,
) -> None:
    """Compare with other policies, each with its best settings, and with one that sees the future."""
    console = Console()
    grid, seeds = cells(curve or list(CURVES), trace_file), seed or [2]
    settings = {} if tuned is None else read_settings(tuned)
    found: dict[str, list[Score]] = {}
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        runs = {pool.submit(run, cell, seeds, settings.get(cell.name)): cell.name for cell in grid}
        for number, done in enumerate(as_completed(runs), 1):
            found[runs[done]] = scores = done.result()
            console.print(f"{number}/{len(runs)} {runs[done]}: {judge_report.line(scores)}", highlight=False)
    ordered = {cell.name: found[cell.name] for cell in grid}
    figures = [{"cell": name, "scores": [asdict(score) for score in scores]} for name, scores in ordered.items()]
    draw = partial(judge_report.draw, ordered)
    text = judge_report.text(ordered, seeds)
    publish_report(console, "scaling", {"seeds": seeds, "cells": figures}, text, draw, publish=publish)


@app.command()
def room(seed: int = 1, publish: Annotated[bool, typer.Option(help="Into docs/benchmarks, too.")] = False) -> None:
    """Let two models share too little room, beside the best fixed split of it."""
    console = Console()
    figures: dict[str, dict[str, Shared]] = {}
    rows: list[tuple[str, ...]] = []
    for contest in contests():
        ours, fixed = share(contest, seed), best_split(contest, seed)
        figures[contest.name] = {"shared": ours, "fixed": fixed}
        split = f"{fixed.split[0]} and {fixed.split[1]}"
        rows.append((contest.name, *_of_each(ours), str(ours.changes), *_of_each(fixed), split))
        console.print(f"{len(rows)}/{len(contests())} {contest.name}", highlight=False)
    says = (
        f"Simulated: two models may have {ROOM} replicas together. In time %, by weight (high 4, normal 2, low 1), and"
        " of each model. The fixed split is the best of all for that load; with it each model follows its demand up to"
        " its part. `python -m benchmarks.scaling room`."
    )
    header = ("load", "shared", "of each", "changes", "fixed", "of each", "split")
    text = "\n".join(["# Models that share room", "", says, "", table(header, rows), "", f"Seed {seed}.", ""])
    publish_report(console, "scaling_room", {"seed": seed, "contests": figures}, text, publish=publish)


def _of_each(shared: Shared) -> tuple[str, str]:
    first, second = shared.of_each
    return f"{100 * shared.in_time:.1f}", f"{100 * first:.1f} and {100 * second:.1f}"


@app.command()
def real(seed: int = 1, publish: Annotated[bool, typer.Option(help="Into docs/benchmarks, too.")] = False) -> None:
    """Let a real server of 1 to 4 replicas follow a step, and simulate the same."""
    console, machine, date = Console(), describe({}), now()
    load = step(0.7, 2.6, _REAL_PARTS_S)
    figures: dict[str, dict[str, Followed]] = {}
    for timeout_s in (0.3, 1.0):
        server = measure(load, timeout_s, seed)
        figures[f"{timeout_s:g} s"] = {"server": server, "simulation": simulated(load, timeout_s, seed, server.start_s)}
        console.print(f"{timeout_s:g} s measured", highlight=False)
    text = _real_text(figures, measured_on(date, machine))
    publish_report(console, "scaling_real", {"date": date, "machine": machine, "runs": figures}, text, publish=publish)


def _real_text(figures: Mapping[str, Mapping[str, Followed]], measured: str) -> str:
    says = (
        "A server of 1 to 4 replicas of a model that sleeps for 50 ms and 20 ms a row, beside the simulation with the"
        " measured time of a start. The demand is 0.7 busy replicas for a minute, 2.6 for another, and 0.7 again;"
        " `slo_ms` is the deadline. `python -m benchmarks.scaling real`."
    )
    rows = [_row(name, what, found) for name, runs in figures.items() for what, found in runs.items()]
    header = ("deadline", "", "in time %", "replica-seconds", "a start takes")
    return "\n".join(["# A real server that follows a step", "", says, "", table(header, rows), "", measured, ""])


@app.command()
def kills(seed: int = 1, publish: Annotated[bool, typer.Option(help="Into docs/benchmarks, too.")] = False) -> None:
    """Kill a replica and then the router under a steady demand: the number of replicas is to stay."""
    console, machine, date = Console(), describe({}), now()
    found = measure(steady(1.6, 3 * _REAL_PARTS_S), 1.0, seed, {MODEL: _REAL_PARTS_S, ROUTER: 2 * _REAL_PARTS_S})
    says = (
        "A steady demand of 1.6 busy replicas, deadline 1 s. After one minute of three a replica is killed, after"
        f" two the only router. Decided on: {', then '.join(map(str, found.decided))} replicas."
        f" In time, with the pause of the router: {found.in_time:.1%}. `python -m benchmarks.scaling kills`."
    )
    text = f"# Replicas while processes die\n\n{says}\n\n{measured_on(date, machine)}\n"
    publish_report(console, "scaling_kills", {"date": date, "machine": machine, "run": found}, text, publish=publish)


def _row(timeout: str, what: str, found: Followed) -> tuple[str, ...]:
    return timeout, what, f"{100 * found.in_time:.1f}", f"{found.replica_s:.0f}", f"{found.start_s:.1f} s"


if __name__ == "__main__":
    app()
