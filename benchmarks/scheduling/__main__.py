"""The scheduler's experiments: ``python -m benchmarks.scheduling``.

Writes ``scheduling.json``, ``scheduling.md`` and plots.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Annotated

import orjson
import typer
from rich.console import Console
from rich.table import Table as RichTable

from benchmarks.machine import revision
from benchmarks.scheduling import (
    backlog,
    caps,
    fairness,
    faults,
    flash_crowd,
    frontier,
    parts,
    pools,
    shares,
    speed,
    streams,
    target,
)
from benchmarks.scheduling.baselines import BASELINES
from benchmarks.scheduling.cases import GROUPS, settings
from benchmarks.scheduling.comparison import BEST, look, run_group
from benchmarks.scheduling.contenders import OURS
from benchmarks.scheduling.experiment import Experiment
from benchmarks.scheduling.laboratory import Laboratory
from benchmarks.scheduling.memory import forget
from benchmarks.scheduling.report import render, save_figures, to_json
from benchmarks.session import steps

EXPERIMENTS: dict[str, Callable[[Laboratory], Experiment]] = {
    **{group: partial(run_group, group) for group in GROUPS},
    "flash_crowd": flash_crowd.run,
    "streams": streams.run,
    "shares": shares.run,
    "fairness": fairness.tenants,
    "sizes": fairness.sizes,
    "caps": caps.run,
    "target": target.run,
    "backlog": backlog.run,
    "frontier": frontier.run,
    "faults": faults.run,
    "pools": partial(pools.run, "page cache"),
    "pools_remote": partial(pools.run, "remote"),
    "parts": parts.run,
    "speed": speed.run,
}
PUBLISHED = Path(__file__).resolve().parents[2] / "docs" / "benchmarks"
_SEEDS = (1, 2, 3, 4, 5)
_TUNING_SEEDS = (1001, 1002)
_QUICK_SCALE = 0.2


_LINES = (
    (
        "95% confidence intervals (Student's t) over seeds; all systems meet the same arrivals. Attainment is answers "
        "in time over requests offered: a rejection is a miss."
    ),
    (
        "Baselines are emulated from their sources and tuned with other seeds on the very scenario that is measured. "
        "`sliding` is a batcher in the server's process with early drop by a sliding window."
    ),
    (
        "Unless said otherwise a batch of b rows takes 25 ms + b x 5 ms, 32 rows at most, with 8% of scatter; L(1) is "
        "30 ms. Ways have the medians that the calibration measured. Systems that compose batches in the server's "
        "process pay no way from a router to a replica and back, and no 130 us of a router's processor per request."
    ),
    (
        "Load 1 is what all replicas do in batches with the most rows per second that take no longer than the "
        "deadline, the pause after each included."
    ),
)


def main(
    only: Annotated[str, typer.Option(help="names of experiments, joined by commas; others keep their results")] = "",
    cases: Annotated[
        str, typer.Option(help="globs of workloads, joined by commas: shows them and writes nothing")
    ] = "",
    systems: Annotated[str, typer.Option(help="of --cases, joined by commas; ours is serve-app")] = ",".join(
        (OURS, *BEST)
    ),
    seeds: Annotated[str, typer.Option(help="of --cases, joined by commas")] = "1,2",
    seconds: Annotated[float, typer.Option(help="length of --cases", min=1.0)] = 10.0,
    trace: Annotated[
        Path | None, typer.Option(help="recorded hour: CSV with TIMESTAMP, ContextTokens, GeneratedTokens")
    ] = None,
    fresh: Annotated[bool, typer.Option(help="calculate baselines and bounds anew")] = False,
    list_cases: Annotated[bool, typer.Option("--list", help="name all workloads")] = False,
    quick: Annotated[bool, typer.Option(help="two seeds and short workloads, for trying")] = False,
    processes: Annotated[int, typer.Option(help="simulations at once")] = 2,
    out: Annotated[Path, typer.Option(help="folder of the report")] = PUBLISHED,
) -> None:
    """Run the experiments and write the report."""
    if fresh:
        forget()
    if list_cases:
        for setting in settings(trace):
            print(setting.name)
        return
    if cases:
        _look(cases, systems, tuple(int(seed) for seed in seeds.split(",")), seconds, trace, processes)
        return
    names = [name for name in only.split(",") if name] or list(EXPERIMENTS)
    unknown = [name for name in names if name not in EXPERIMENTS]
    if unknown:
        raise typer.BadParameter(f"unknown: {', '.join(unknown)}; there are: {', '.join(EXPERIMENTS)}")
    warnings.simplefilter("error", RuntimeWarning)
    console = Console()
    all_seeds = _SEEDS[:2] if quick else _SEEDS
    found: list[Experiment] = []
    with steps(console) as progress:
        task = progress.add_task("starting")

        def on_step(done: int, total: int, what: str) -> None:
            progress.update(task, completed=done, total=total, description=f"{name}: {what}")

        tuning_seeds = _TUNING_SEEDS[:1] if quick else _TUNING_SEEDS
        scale = _QUICK_SCALE if quick else 1.0
        with Laboratory(all_seeds, tuning_seeds, scale, processes, trace, on_step) as lab:
            for name in names:
                started = perf_counter()
                found.append(EXPERIMENTS[name](lab))
                console.print(f"[bold]{name}[/] in {perf_counter() - started:.0f} s")
                for finding in found[-1].findings:
                    mark = {True: "[green]met[/]", False: "[red]not met[/]", None: ""}[finding.met]
                    console.print(f"  {finding.experiment}: {finding.aim}: {finding.measured} {mark}", highlight=False)
                write(found, all_seeds, out, quick=quick)


def _look(cases: str, systems: str, seeds: tuple[int, ...], seconds: float, trace: Path | None, processes: int) -> None:
    """Show some workloads."""
    names = tuple(OURS if name == "ours" else name for name in systems.split(","))
    known = (OURS, *BASELINES)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise typer.BadParameter(f"unknown: {', '.join(unknown)}; there are: {', '.join(known)}")
    started = perf_counter()
    with Laboratory(seeds, _TUNING_SEEDS[:1], processes=processes) as lab:
        try:
            measured, found = look(cases.split(","), names, seconds, trace, lab)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
    shown = RichTable(*found.header)
    before = ""
    for row in found.rows:
        if before and row[0] != before:
            shown.add_section()
        shown.add_row(row[0] if row[0] != before else "", *row[1:])
        before = row[0]
    console = Console(width=200)
    console.print(shown, highlight=False)
    console.print(f"{len(measured)} workloads in {perf_counter() - started:.0f} s")


def write(found: list[Experiment], seeds: tuple[int, ...], out: Path, *, quick: bool) -> None:
    """Write the report of these experiments, and of the others as they are in the folder."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "scheduling.json"
    former = orjson.loads(path.read_bytes())["experiments"] if path.exists() else {}
    document = orjson.loads(to_json(found, _LINES, seeds, quick=quick, commit=revision()))
    merged = {**former, **document["experiments"]}
    document["experiments"] = {name: merged[name] for name in EXPERIMENTS if name in merged}
    path.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")
    save_figures(found, out)
    (out / "scheduling.md").write_text(render(document), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
