"""All that needs a GPU, in one command within ten minutes: ``python -m benchmarks.gpu``.

It serves models as a user does, measures them, runs the tests marked ``gpu``, and writes ``gpu_served.json`` and
``gpu_served.md``. What there was no time for, or what failed, is a line of the report and ends nothing else.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks.failure import BenchmarkError
from benchmarks.gpu.served import (
    AIM,
    CONNECTIONS,
    FACTOR,
    Served,
    compare,
    configured,
    load,
    load_together,
    look,
    measure_bare,
)
from benchmarks.gpu.subjects import Bench, describe_gpu
from benchmarks.overload.generator import CLASSES, Generator
from benchmarks.publishing import measured_on, now, publish_report, table
from benchmarks.server import DIRECT, SERVE_APP_RUN, Server, demo_document, is_ready
from benchmarks.session import ending_in_order, measuring
from serve_app.config.files import CACHE_VARIABLE
from training.paths import MODELS, ROOT

_MODELS = {"cuda": ("resnet50", "minilm", "digits"), "cpu": ("tiny", "wide", "digits")}
_TESTS_S = 150.0
_START_WITHIN_S = 240.0


class Steps:
    """Runs one step after the other while there is time, and notes what went wrong.

    Args:
        until: When no other step begins, on the monotonic clock.
    """

    def __init__(self, console: Console, until: float) -> None:
        self._console = console
        self._until = until
        self.faults: list[str] = []

    def run(self, name: str, step: Callable[[], str | None]) -> None:
        """Run a step, which returns what is wrong, if anything is."""
        began = time.monotonic()
        if began > self._until:
            fault: str | None = "no time was left"
        else:
            try:
                fault = step()
            except Exception as error:  # whatever it is, the others are measured all the same
                fault = f"{type(error).__name__}: {error}"
        if fault:
            self.faults.append(f"{name}: {fault}")
        self._console.print(f"{name}: {fault or 'done'} ({time.monotonic() - began:.0f} s)", markup=False)


def run_tests(python: Sequence[str], said: list[str]) -> str | None:
    """Run the tests marked ``gpu``."""
    command = [*python, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider"]
    command += ["tests/backends", "tests/composition"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=_TESTS_S, check=False)
    except subprocess.TimeoutExpired:
        return f"not done within {_TESTS_S:.0f} s"
    lines = re.findall(r"^(?:=+ )?(\d+ (?:passed|failed|skipped|error).*?)(?: =+)?$", done.stdout, re.MULTILINE)
    said.append(lines[-1] if lines else done.stdout[-300:])
    return None if done.returncode in {0, 5} else said[-1]


def page(models: Sequence[Served], gpu: str, tests: Sequence[str], faults: Sequence[str], how: str) -> str:
    """The report as Markdown."""
    most = max(CONNECTIONS)
    rows = [
        [
            each.name,
            ", ".join(each.devices) or "unknown",
            ", ".join(map(str, each.row_sizes)) or "any",
            each.verdict,
            f"{each.distance:.1e}",
            *(f"{each.closed.get(number, 0.0):,.0f} / {each.bare.get(number, 0.0):,.0f}" for number in CONNECTIONS),
            f"{each.share:.0%}{'' if each.share >= AIM else f', below the aim of {AIM:.0%}'}",
            f"{each.expected:,.0f}",
            "/".join(f"{each.in_time.get(name, 0.0):.1f}" for name in CLASSES),
            f"{each.together:,.0f}",
        ]
        for each in models
    ]
    header = [
        "model", "device", "row sizes", "rows share runs", "distance to the CPU",
        *(f"{number} connections: answers/s / bare session" for number in CONNECTIONS),
        f"of the bare session, {most}", "rows/s expected of full batches",
        f"in time at {FACTOR:g} x, {'/'.join(CLASSES)}, %", "answers/s, all models at once",
    ]  # fmt: skip
    parts = ["# The server on a GPU", gpu or "No GPU: this only tries the measurement out.", table(header, rows)]
    parts.append(f"Tests marked `gpu`: {', '.join(tests) or 'not run'}.")
    if faults:
        parts.append("\n".join(f"- {fault}" for fault in faults))
    return "\n\n".join([*parts, how]) + "\n"


def main(
    device: Annotated[str, typer.Option(help="cuda, or cpu to try the measurement out.")] = "cuda",
    models: Annotated[str, typer.Option(help="Names of models, with commas; by default what suits the device.")] = "",
    seconds: Annotated[float, typer.Option(min=0.5, help="Length of a load.")] = 5.0,
    within: Annotated[float, typer.Option(help="Seconds after which no other step begins.")] = 480.0,
    publish: Annotated[bool, typer.Option("--publish", help="Write the report into docs/benchmarks too.")] = False,
) -> None:
    """Measure the server on a GPU."""
    console = Console()
    with ending_in_order(console), ExitStack() as stack:
        if device not in _MODELS:
            raise BenchmarkError("--device cuda|cpu")
        wanted = tuple(filter(None, models.split(","))) or _MODELS[device]
        names = [name for name in wanted if (MODELS / name).is_dir()]
        if not names:
            raise BenchmarkError("none of the models is there: make models")
        steps = Steps(console, time.monotonic() + within)
        steps.faults += [f"{name}: there is no such model: make models" for name in wanted if name not in names]
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="serve-app-")))
        machine = stack.enter_context(measuring(console))
        bench = Bench(MODELS, "cuda" if device == "cuda" else "cpu", seconds)
        found: dict[str, Served] = {}
        tests: list[str] = []
        began = time.monotonic()
        started = ""
        with ExitStack() as serving:

            def start() -> None:
                nonlocal started
                document = demo_document(models=configured(names, device))
                variables = {CACHE_VARIABLE: str(folder / "cache")}
                server = serving.enter_context(Server("gpu", document, SERVE_APP_RUN, ROOT, variables))
                server.wait_until(partial(is_ready, server.urls[DIRECT]), _START_WITHIN_S)
                started = server.urls[DIRECT]
                found.update(look(started, names))

            generator = Generator(folder)
            steps.run("start", start)
            ready_s = time.monotonic() - began
            for served in found.values():
                steps.run(f"{served.name}: answers", partial(compare, started, served))
                steps.run(f"{served.name}: bare session", partial(measure_bare, bench, served))
                steps.run(f"{served.name}: load", partial(load, started, served, generator, seconds))
            if len(found) > 1:
                steps.run("all at once", partial(load_together, started, [*found.values()], generator, seconds))
        steps.run("tests", partial(run_tests, [sys.executable], tests))
        gpu = describe_gpu()
        what = ", ".join(f"{key} {value}" for key, value in gpu.items())
        how = f"Loads of {seconds:g} s, a request repeated; ready after {ready_s:.0f} s. {measured_on(now(), machine)}"
        text = page([*found.values()], what, tests, steps.faults, how)
        figures: dict[str, Any] = {
            "machine": asdict(machine), "gpu": gpu, "ready_s": ready_s, "tests": tests, "faults": steps.faults,
            "models": [{**asdict(each), "share_of_bare": each.share} for each in found.values()],
        }  # fmt: skip
        publish_report(console, "gpu_served", figures, text, publish=publish)
    if steps.faults:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
