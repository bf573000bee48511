"""The scheduler's experiments: ``python -m benchmarks.scheduling``.

Writes ``scheduling.json``, ``scheduling.md`` and plots.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Annotated

import orjson
import typer
from rich.console import Console

from benchmarks.scheduling import (
    bursts,
    flash_crowd,
    noise,
    overload,
    parts,
    poisson,
    policies,
    routers,
    shared_device,
    shares,
    streams,
    variety,
)
from benchmarks.scheduling.experiment import Experiment
from benchmarks.scheduling.laboratory import Laboratory
from benchmarks.scheduling.report import render, save_figures, to_json
from benchmarks.session import steps

EXPERIMENTS: dict[str, Callable[[Laboratory], Experiment]] = {
    "poisson": poisson.run,
    "bursts": bursts.run,
    "flash_crowd": flash_crowd.run,
    "overload": overload.run,
    "streams": streams.run,
    "shares": shares.run,
    "noise": noise.run,
    "shared_device": shared_device.run,
    "policies": policies.run,
    "parts": parts.run,
    "routers": routers.run,
    "variety": variety.run,
}
PUBLISHED = Path(__file__).resolve().parents[2] / "docs" / "benchmarks"
_SEEDS = (1, 2, 3, 4, 5)
_TUNING_SEEDS = (1001, 1002)
_QUICK_SCALE = 0.2


_LINES = (
    "95% confidence intervals (Student's t) over seeds; all systems meet the same arrivals.",
    (
        "Baselines are emulated from their sources and tuned with other seeds on the very scenario that is measured; "
        "Triton's sweep covers delays, queue time-outs that are really enabled, and batch sizes."
    ),
    (
        "Unless said otherwise: a batch of b rows takes 5 ms + b x 1 ms, 32 rows at most; L(1) is 6 ms; a request pays "
        "0.2 ms to the queue, a batch 0.5 ms to the server and 0.5 ms back, with every system, and in the bounds."
    ),
    "Load 1 is what all replicas do in batches with the most rows per second that take no longer than the deadline.",
    "Attainment is answers in time over requests offered: a rejection is a miss.",
)


def main(
    only: Annotated[str, typer.Option(help="names of experiments, joined by commas; others keep their results")] = "",
    quick: Annotated[bool, typer.Option(help="two seeds and short workloads, for trying")] = False,
    processes: Annotated[int, typer.Option(help="simulations at once")] = 2,
    out: Annotated[Path, typer.Option(help="folder of the report")] = PUBLISHED,
) -> None:
    """Run the experiments and write the report."""
    names = [name for name in only.split(",") if name] or list(EXPERIMENTS)
    unknown = [name for name in names if name not in EXPERIMENTS]
    if unknown:
        raise typer.BadParameter(f"unknown: {', '.join(unknown)}; there are: {', '.join(EXPERIMENTS)}")
    warnings.simplefilter("error", RuntimeWarning)
    console = Console()
    seeds = _SEEDS[:2] if quick else _SEEDS
    found: list[Experiment] = []
    with steps(console) as progress:
        task = progress.add_task("starting")

        def on_step(done: int, total: int, what: str) -> None:
            progress.update(task, completed=done, total=total, description=f"{name}: {what}")

        tuning_seeds = _TUNING_SEEDS[:1] if quick else _TUNING_SEEDS
        scale = _QUICK_SCALE if quick else 1.0
        with Laboratory(seeds, tuning_seeds, scale, processes, on_step) as lab:
            for name in names:
                started = perf_counter()
                found.append(EXPERIMENTS[name](lab))
                console.print(f"[bold]{name}[/] in {perf_counter() - started:.0f} s")
                for finding in found[-1].findings:
                    mark = {True: "[green]met[/]", False: "[red]not met[/]", None: ""}[finding.met]
                    console.print(f"  {finding.experiment}: {finding.aim}: {finding.measured} {mark}", highlight=False)
                write(found, seeds, out, quick=quick)


def write(found: list[Experiment], seeds: tuple[int, ...], out: Path, *, quick: bool) -> None:
    """Write the report of these experiments, and of the others as they are in the folder."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "scheduling.json"
    former = orjson.loads(path.read_bytes())["experiments"] if path.exists() else {}
    document = orjson.loads(to_json(found, _LINES, seeds, quick=quick))
    merged = {**former, **document["experiments"]}
    document["experiments"] = {name: merged[name] for name in EXPERIMENTS if name in merged}
    path.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")
    save_figures(found, out)
    (out / "scheduling.md").write_text(render(document), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
