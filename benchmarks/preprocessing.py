"""What preprocessing costs, per kind and size of media: ``make bench-preprocessing``.

Every measurement runs in a process of its own; with another checkout to compare with, in turns. Writes
docs/benchmarks/preprocessing.{json,md,svg}.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.machine import describe, watched_load
from benchmarks.preprocessing_gap import measure_gaps
from benchmarks.preprocessing_report import Figures, Report, draw, render
from benchmarks.publishing import PUBLISHED, write_report

_ROOT = Path(__file__).resolve().parents[1]
_LIBRARIES = ("pillow", "tokenizers", "soundfile", "soxr")


def main(
    before: Annotated[Path | None, typer.Option(help="Root of another checkout, to compare with.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Processes per checkout.")] = 3,
    seconds: Annotated[float, typer.Option(min=0.001, help="Length of every repetition.")] = 0.005,
    only: Annotated[str, typer.Option(help="Only the cases whose kind and title contain this. Writes nothing.")] = "",
    to: Annotated[Path, typer.Option(help="Folder for the report.")] = PUBLISHED,
) -> None:
    """Measure what preprocessing costs."""
    console = Console(stderr=True)
    machine = describe({name: version(name) for name in _LIBRARIES})
    checkouts = {"after": _ROOT} if before is None else {"before": before.resolve(), "after": _ROOT}
    measured: dict[str, dict[str, Figures]] = {}
    with watched_load(machine):
        for turn, (name, checkout) in product(range(rounds), checkouts.items()):
            console.print(f"round {turn + 1} of {rounds}, {name}: {checkout}")
            for line in _measured(checkout, seconds, only):
                console.print_json(line)
                figures = Figures.of(json.loads(line))
                sides = measured.setdefault(f"{figures.modality}: {figures.title}", {})
                sides[name] = figures if name not in sides else sides[name].best(figures)
    if only:
        return
    report = Report(datetime.now(UTC).date().isoformat(), machine, rounds, [*measured.values()], measure_gaps())
    write_report(to, "preprocessing", report, render(report, "preprocessing.svg"))
    draw(report, to / "preprocessing.svg")


def _measured(checkout: Path, seconds: float, only: str) -> list[str]:
    # The processors' own threads only: the library's would hide what a text costs.
    environment = {**os.environ, "PYTHONPATH": str(checkout), "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, str(_ROOT / "benchmarks" / "preprocessing_cases.py"), str(seconds), only]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.splitlines()


if __name__ == "__main__":
    typer.run(main)
