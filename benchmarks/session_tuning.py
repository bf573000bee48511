"""Which options of an ONNX Runtime session pay on the CPU: ``python -m benchmarks.session_tuning``.

Every setting runs the same batches as the others, a round of each in turn, so that what slows the machine down hits all
alike: with the machine to itself, and beside a process that keeps one core busy, as a router does. Writes nothing.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import onnxruntime
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.server import ROOT
from benchmarks.session import quiet_machine
from serve_app.backends.onnx.signature import signature_of
from serve_app.backends.warm_up import tensor_inputs
from serve_app.payloads import Tensors

_WIDTH = 110
_PIECE_S = 0.01


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to make a session; what it does not name is as the replica has it.

    Attributes:
        name: For the table.
        threads: For one operator.
        entries: Of the session's configuration.
        memory_pattern: Whether memory is planned by the shapes of the inputs.
        arena: Whether memory is kept between runs.
    """

    name: str
    threads: int = 1
    entries: Mapping[str, str] = field(default_factory=dict)
    memory_pattern: bool = True
    arena: bool = True

    def open(self, model: str) -> Any:
        """Load a model so."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.inter_op_num_threads = 1
        options.enable_mem_pattern = self.memory_pattern
        options.enable_cpu_mem_arena = self.arena
        options.log_severity_level = 3
        for key, value in {"session.intra_op.allow_spinning": "0", **self.entries}.items():
            options.add_session_config_entry(key, value)
        file = ROOT / "models" / model / "1" / "model.onnx"
        return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


_SPINNING = {"session.intra_op.allow_spinning": "1"}
_SETTINGS = (
    Setting("1 thread"),
    Setting("1 thread, denormals as zero", entries={"session.set_denormal_as_zero": "1"}),
    Setting("1 thread, no memory pattern", memory_pattern=False),
    Setting("1 thread, no arena", arena=False),
    Setting("2 threads", threads=2),
    Setting("2 threads, spinning", threads=2, entries=_SPINNING),
    Setting("2 threads, block base 4", threads=2, entries={"session.dynamic_block_base": "4"}),
    Setting("2 threads, spinning, block base 4", threads=2, entries={**_SPINNING, "session.dynamic_block_base": "4"}),
    Setting("2 threads, bound to cores", threads=2, entries={"session.intra_op_thread_affinities": "2"}),
)
_CASES = (("tiny", 1), ("tiny", 32), ("wide", 1), ("wide", 8), ("wide", 64), ("minilm", 1), ("minilm", 8))


def _spin() -> None:
    while True:
        pass


@contextmanager
def competitor(*, present: bool) -> Iterator[None]:
    """A process that keeps a core busy."""
    process = multiprocessing.get_context("spawn").Process(target=_spin, daemon=True)
    if present:
        process.start()
        time.sleep(0.5)
    try:
        yield
    finally:
        if present:
            process.kill()
            process.join()


class Cost(NamedTuple):
    """What a run costs, seconds: on the clock, and of all threads of this process."""

    wall: float
    used: float


def compare(model: str, rows: int, rounds: int) -> list[Cost]:
    """The cost of a run per setting: the lower quartile of rounds that take turns, since others can only add to it."""
    sessions = [setting.open(model) for setting in _SETTINGS]
    inputs = tensor_inputs(signature_of(sessions[0], model=model).signature, free_size=64)(rows, 0)
    found: list[list[Cost]] = [[] for _ in sessions]
    for _ in range(rounds + 1):
        for session, costs in zip(sessions, found, strict=True):
            costs.append(_piece(session, inputs))
    return [
        Cost(_lower_quartile([each.wall for each in costs[1:]]), _lower_quartile([each.used for each in costs[1:]]))
        for costs in found
    ]


def _lower_quartile(seconds: Sequence[float]) -> float:
    return sorted(seconds)[len(seconds) // 4]


def _piece(session: Any, inputs: Tensors) -> Cost:
    runs = 0
    used, started = time.process_time(), time.perf_counter()
    now = started
    while now - started < _PIECE_S:
        session.run(None, inputs)
        runs += 1
        now = time.perf_counter()
    return Cost((now - started) / runs, (time.process_time() - used) / runs)


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of every setting.")] = 15,
    only: Annotated[str, typer.Option(help="Only models whose name contains this.")] = "",
) -> None:
    """Time of a run by setting, in comparison with the first."""
    console = Console(width=_WIDTH)
    quiet_machine(console)
    cases = [(model, rows) for model, rows in _CASES if only in model]
    for present in (False, True):
        with competitor(present=present):
            columns = [compare(model, rows, rounds) for model, rows in cases]
        place = "beside a busy process" if present else "alone"
        console.print(_table(cases, [[cost.wall for cost in column] for column in columns], f"Time of a run, {place}"))
        console.print(_table(cases, [[cost.used for cost in column] for column in columns], f"Processor, {place}"))


def _table(cases: Sequence[tuple[str, int]], columns: Sequence[Sequence[float]], title: str) -> Table:
    table = Table(title=f"{title}: the first in ms, the others as multiples of it")
    table.add_column("session")
    for model, rows in cases:
        table.add_column(f"{model} x{rows}", justify="right")
    for number, setting in enumerate(_SETTINGS):
        cells = [
            f"{1000 * column[0]:.3f}" if number == 0 else f"{column[number] / column[0]:.2f}" for column in columns
        ]
        table.add_row(setting.name, *cells)
    return table


if __name__ == "__main__":
    typer.run(main)
