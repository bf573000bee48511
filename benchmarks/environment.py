"""What a Python model's own process costs: ``python -m benchmarks.environment``.

The same class is asked in the server's process and in one of its own, by the same interpreter, in turns. Writes
``environment.json`` and ``environment.md``.
"""

from __future__ import annotations

import itertools
import math
import sys
import tempfile
import textwrap
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

import numpy as np
import typer
from rich.console import Console

from benchmarks.machine import Machine
from benchmarks.publishing import measured_on, now, publish_report, table
from benchmarks.session import ending_in_order, measuring, steps
from serve_app.backends.backend import Backend
from serve_app.backends.kind import BuildSettings
from serve_app.backends.python.kind import PYTHON

_WORK = {
    "nothing": "x.reshape(len(x), -1)[:, :10]",
    "mean and deviation": "np.stack([x.mean(axis=(1, 2, 3)), x.std(axis=(1, 2, 3))], axis=1)",
    "an embedding of 16x16 patches": "self.embedded(x).mean(axis=1)",
    "the same, and six dense layers": "self.deep(self.embedded(x)).mean(axis=1)",
}
"""What the class does with the picture."""

_SHAPE = (3, 224, 224)
_ROWS = (1, 8)
_TURN = 5
_PICTURES = 64
"""So many in turns: one that comes to a server is in no core's cache yet."""

_LEAST_RUNS = 50


@dataclass(frozen=True, slots=True)
class Measured:
    """One kind of work and one number of rows. Pairs are of the server's process and of its own.

    Attributes:
        work: What the class does.
        rows: Pictures of a run.
        nbytes: Bytes of its input.
        least_us: The shortest run, microseconds.
        median_us: The median.
        rate: Runs per second in its own process, as a part of those in the server's.
    """

    work: str
    rows: int
    nbytes: int
    least_us: tuple[float, float]
    median_us: tuple[float, float]
    rate: float


def load(folder: Path, work: str, *, own_process: bool) -> Backend:
    """A model that does this work, loaded."""
    folder.mkdir(exist_ok=True)
    code = f"""
        import numpy as np

        class Model:
            inputs = {{"x": ("float32", [-1, 3, 224, 224])}}
            outputs = {{"y": ("float32", [-1, -1])}}

            def setup(self, context):
                self.patch = np.full((768, 384), 0.001, np.float32)
                self.layer = np.full((384, 384), 0.001, np.float32)

            def embedded(self, x):
                patches = x.reshape(len(x), 3, 14, 16, 14, 16).transpose(0, 2, 4, 1, 3, 5)
                return patches.reshape(len(x), 196, 768) @ self.patch

            def deep(self, hidden):
                for _ in range(6):
                    hidden = np.maximum(hidden @ self.layer, 0)
                return hidden

            def predict(self, batch):
                x = batch["x"]
                return {{"y": {_WORK[work]}}}
    """
    file = folder / "model.py"
    file.write_text(textwrap.dedent(code))
    options = {"environment": {"python": sys.executable}} if own_process else {}
    backend = PYTHON.create(BuildSettings("model", file), PYTHON.options.model_validate(options))
    backend.load()
    return backend


def run_us(backends: Sequence[Backend], rows: int, seconds: float) -> list[list[float]]:
    """The times of runs of each backend, microseconds; in turns of a few, so that the machine is the same for both."""
    pictures = np.random.default_rng(0).random((_PICTURES // rows, rows, *_SHAPE), np.float32)
    batches = itertools.cycle({"x": each} for each in pictures)
    times: list[list[float]] = [[] for _ in backends]
    until = time.perf_counter() + seconds
    while len(times[0]) < _LEAST_RUNS or time.perf_counter() < until:
        for backend, taken in zip(backends, times, strict=True):
            for _ in range(_TURN):
                batch = next(batches)
                began = time.perf_counter()
                backend.run(batch)
                taken.append((time.perf_counter() - began) * 1e6)
    return times


def render(measured: Sequence[Measured], machine: Machine, date: str, seconds: float) -> str:
    """The report as Markdown."""
    rows = [
        [
            each.work,
            f"{each.rows} x 3x224x224 ({each.nbytes / 1000:,.0f} KB)",
            *(f"{taken:,.0f}" for taken in (*each.least_us, *each.median_us)),
            f"{each.rate:.2f}",
        ]
        for each in measured
    ]
    times = ["least, server's", "least, its own", "median, server's", "median, its own"]
    header = ["the class does", "input", *times, "part of the rate"]
    return "\n".join(
        [
            "# A Python model's own process",
            "",
            "Written by `make bench-environment`. One run at a time of the same class by the same interpreter, in",
            "the server's process and in [one of its own](../python-models.md#its-own-environment). Microseconds;",
            f"{seconds:g} s for each row, in turns. The difference is what is",
            "copied into shared memory. A process of its own suits runs of a few milliseconds or more.",
            "",
            table(header, rows),
            "",
            measured_on(date, machine),
            "",
        ]
    )


def main(
    seconds: Annotated[float, typer.Option(min=0.01, help="Length of each measurement.")] = 10.0,
    publish: Annotated[bool, typer.Option(help="Write the report into docs/benchmarks too.")] = False,
) -> None:
    """Measure what a process of its own costs a Python model."""
    console = Console()
    date = now()
    with (
        ending_in_order(console),
        measuring(console, {"numpy": np.__version__}) as machine,
        tempfile.TemporaryDirectory() as folder,
    ):
        measured = []
        with steps(console) as progress:
            task = progress.add_task("measuring", total=len(_WORK) * len(_ROWS))
            for number, work in enumerate(_WORK):
                with ExitStack() as stack:
                    both = [
                        stack.enter_context(closing(load(Path(folder) / str(number), work, own_process=own)))
                        for own in (False, True)
                    ]
                    for rows in _ROWS:
                        times = run_us(both, rows, seconds)
                        least, medians = ((of(times[0]), of(times[1])) for of in (min, median))
                        rate = sum(times[0]) / sum(times[1])
                        measured.append(Measured(work, rows, rows * math.prod(_SHAPE) * 4, least, medians, rate))
                        progress.advance(task)
    figures = {"date": date, "machine": machine, "measured": measured}
    publish_report(console, "environment", figures, render(measured, machine, date, seconds), publish=publish)


if __name__ == "__main__":
    typer.run(main)
