"""What a Python model's own process costs: ``python -m benchmarks.environment``.

The same class is asked in the server's process and in one of its own, by the same interpreter, in turns. Writes
``environment.json`` and ``environment.md``.
"""

from __future__ import annotations

import datetime
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

from benchmarks.machine import Machine, describe
from benchmarks.publishing import folders, machine_table, table, write_report
from benchmarks.session import ending_in_order, quiet_machine, steps
from serve_app.backends.backend import Backend
from serve_app.backends.kind import BuildSettings
from serve_app.backends.python.kind import PYTHON

_WORK = {
    "nothing": "x.reshape(len(x), -1)[:, :10]",
    "mean and deviation": "np.stack([x.mean(axis=(1, 2, 3)), x.std(axis=(1, 2, 3))], axis=1)",
    "an embedding of 16x16 patches": "self.embedded(x).mean(axis=1)",
    "the same, and a dense layer": "(self.embedded(x) @ self.layer).mean(axis=1)",
}
"""What the class does with the picture."""

_SHAPE = (3, 224, 224)
_ROWS = (1, 8)


@dataclass(frozen=True, slots=True)
class Measured:
    """One kind of work and one number of rows; medians over the repetitions.

    Attributes:
        work: What the class does.
        rows: Pictures of a run.
        nbytes: Bytes of its input.
        in_process_us: One run in the server's process, microseconds.
        own_process_us: One in its own.
    """

    work: str
    rows: int
    nbytes: int
    in_process_us: float
    own_process_us: float

    @property
    def rate(self) -> float:
        """Runs per second in its own process, as a part of those in the server's."""
        return self.in_process_us / self.own_process_us


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


def run_us(backend: Backend, rows: int, seconds: float) -> float:
    """The least time of a run, microseconds: what it takes where other work on the machine does not interfere."""
    batch = {"x": np.random.default_rng(0).random((rows, *_SHAPE), np.float32)}
    times: list[float] = []
    until = time.perf_counter() + seconds
    while len(times) < 10 or time.perf_counter() < until:
        began = time.perf_counter()
        backend.run(batch)
        times.append(time.perf_counter() - began)
    return min(times) * 1e6


def render(measured: Sequence[Measured], machine: Machine, date: str, seconds: float, repetitions: int) -> str:
    """The report as Markdown."""
    rows = [
        [
            each.work,
            f"{each.rows} x 3x224x224 ({each.nbytes / 1000:,.0f} KB)",
            f"{each.in_process_us:,.0f}",
            f"{each.own_process_us:,.0f}",
            f"{each.own_process_us - each.in_process_us:,.0f}",
            f"{each.rate:.2f}",
        ]
        for each in measured
    ]
    header = [
        "the class does",
        "input",
        "server's process, us",
        "its own, us",
        "difference, us",
        "rate, of the server's",
    ]
    return "\n".join(
        [
            "# A Python model's own process",
            "",
            "Written by `make bench-environment`. One run at a time of the same class by the same interpreter, in the",
            "server's process and in [one of its own](../python-models.md#its-own-environment). The time of a run is the",
            "least of a repetition, which other work on the machine changes least; the figures are medians of",
            f"{repetitions} repetitions of {seconds:g} s, in turns. What is copied into shared memory and told on the",
            "socket costs the difference; the longer a run, the less it matters.",
            "",
            table(header, rows),
            "",
            machine_table(date, machine),
            "",
        ]
    )


def main(
    seconds: Annotated[float, typer.Option(min=0.01, help="Length of each measurement.")] = 1.0,
    repetitions: Annotated[int, typer.Option(min=1, help="Measurements of each.")] = 5,
    publish: Annotated[bool, typer.Option(help="Write the report into docs/benchmarks too.")] = False,
) -> None:
    """Measure what a process of its own costs a Python model."""
    console = Console()
    with ending_in_order(console), tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        machine = describe({"numpy": np.__version__})
        quiet_machine(console)
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        measured = []
        with steps(console) as progress:
            task = progress.add_task("measuring", total=len(_WORK) * len(_ROWS) * repetitions)
            for number, work in enumerate(_WORK):
                both = [
                    stack.enter_context(closing(load(Path(folder) / str(number), work, own_process=own)))
                    for own in (False, True)
                ]
                for rows in _ROWS:
                    found: list[tuple[float, float]] = []
                    for repetition in range(repetitions):
                        turn = (0, 1) if repetition % 2 == 0 else (1, 0)
                        taken = {which: run_us(both[which], rows, seconds) for which in turn}
                        found.append((taken[0], taken[1]))
                        progress.advance(task)
                    inside, outside = (median(side) for side in zip(*found, strict=True))
                    measured.append(Measured(work, rows, rows * int(np.prod(_SHAPE)) * 4, inside, outside))
        text = render(measured, machine, date, seconds, repetitions)
        for place in folders(publish=publish):
            write_report(place, "environment", {"date": date, "machine": machine, "measured": measured}, text)
    console.print(text, highlight=False, markup=False, soft_wrap=True)


if __name__ == "__main__":
    typer.run(main)
