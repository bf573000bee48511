"""Measures a GPU and the server's use of it: ``python -m benchmarks.gpu.checks --out DIR``.

Every part runs in a process of its own, so that a fault of one, or the memory that it keeps, is not another's. What is
found is written to ``gpu.json`` after each.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import onnxruntime
import typer
from rich.console import Console

from benchmarks.gpu import arena, curve, placement, rows, serving, shapes, sharing
from benchmarks.gpu.subjects import Bench, describe_gpu
from training.paths import MODELS, ROOT

PARTS: dict[str, Callable[[Bench], Any]] = {
    "placement": placement.check,
    "arena": arena.check,
    "shapes": shapes.check,
    "rows": rows.check,
    "sharing": sharing.check,
    "serving": serving.check,
    "curve": curve.check,
}
_LONGEST_S = 400.0


def main(
    out: Annotated[Path, typer.Option(help="Folder for gpu.json.")],
    models: Annotated[Path, typer.Option(help="Folder of the models; those that are missing are left out.")] = MODELS,
    only: Annotated[list[str] | None, typer.Option(help="Parts to run (repeatable); all by default.")] = None,
    seconds: Annotated[float, typer.Option(min=0.05, help="Length of a steady measurement.")] = 3.0,
    cpu: Annotated[bool, typer.Option("--cpu", help="Only try the measurements out, on the CPU.")] = False,
    inside: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Measure the GPU."""
    if inside is not None:
        found = PARTS[inside](Bench(models, "cpu" if cpu else "cuda", seconds))
        out.write_text(json.dumps(found), encoding="utf-8")
        return
    console = Console()
    for name in only or ():
        if name not in PARTS:
            raise typer.BadParameter(f"there is no part {name!r}; there are {', '.join(PARTS)}")
    out.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {"date": datetime.now(UTC).date().isoformat(), "machine": _machine(), "parts": {}}
    faults = 0
    for name in only or PARTS:
        started = time.monotonic()
        found, fault = _run(name, out / f"{name}.json", models, seconds, cpu)
        report["parts"][name] = found if fault is None else {"fault": fault}
        (out / "gpu.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        console.print(
            f"{name}: {'done' if fault is None else fault} ({time.monotonic() - started:.0f} s)", markup=False
        )
        faults += fault is not None
    if faults:
        sys.exit(1)


def _run(name: str, file: Path, models: Path, seconds: float, cpu: bool) -> tuple[Any, str | None]:
    """One part in a process of its own: what it found, or what went wrong."""
    command = [sys.executable, "-m", "benchmarks.gpu.checks", "--inside", name, "--out", str(file)]
    command += ["--models", str(models), "--seconds", str(seconds), *(["--cpu"] if cpu else [])]
    try:
        environment = {**os.environ, "_TYPER_STANDARD_TRACEBACK": "1"}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, timeout=_LONGEST_S, capture_output=True, text=True, check=False
        )
    except subprocess.TimeoutExpired:
        return None, f"not done within {_LONGEST_S:.0f} s"
    if done.returncode != 0:
        return None, f"exit status {done.returncode}: {done.stderr.strip()[-2000:]}"
    found = json.loads(file.read_text(encoding="utf-8"))
    file.unlink()
    return found, None


def _machine() -> dict[str, Any]:
    return {
        "gpu": describe_gpu(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "onnxruntime": onnxruntime.__version__,
        "cuda": onnxruntime.cuda_version,
        "available_providers": onnxruntime.get_available_providers(),
    }


if __name__ == "__main__":
    typer.run(main)
