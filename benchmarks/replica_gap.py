"""What passes between two runs in a replica, and what a bundle costs it: ``python -m benchmarks.replica_gap``.

The worker runs in this process, without Ray's calls around it but with the real ``@serve.batch``. Two bundles always
wait at its gate, so every moment between two runs is lost. "Busy" is an event loop that has 1 ms of work in every turn,
like one that decodes bundles and packs answers. Writes nothing.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from typing import Annotated

import typer
from msgspec.structs import replace
from ray.serve._private.common import DeploymentID, ReplicaID
from ray.serve._private.config import DeploymentConfig
from ray.serve.context import _set_internal_replica_context
from ray.serve.schema import ReplicaRank
from rich.console import Console
from rich.table import Table

from benchmarks.server import ROOT
from benchmarks.session import quiet_machine
from serve_app.backends.onnx.backend import OnnxBackend, OnnxSettings
from serve_app.backends.warm_up import tensor_inputs, warm_up
from serve_app.deployments.batching import batch_with_serve
from serve_app.domain.row_sizes import row_buckets
from serve_app.payloads import Bundle, Execution, ModelSignature, Success, Tensors, WireEntry
from serve_app.replica.worker import Worker
from serve_app.scheduling.settings import ModelScheduling

_WAITING = 2
_LEAST_RUNS = 12
_BUSY_S = 0.001
_POOL = 8
_US = 1e6
_WIDTH = 110


@dataclass(frozen=True, slots=True)
class Case:
    """One model and its bundles.

    Attributes:
        model: Its folder's name.
        entries: Entries of a bundle, of one row each.
        merged: Bundles that fit into one batch.
        adjacent: Whether the entries' tensors lie one behind the other, as the transport delivers them.
    """

    model: str
    entries: int
    merged: int = 1
    adjacent: bool = False

    def __str__(self) -> str:
        merged = f", {self.merged} merged" if self.merged > 1 else ""
        return f"{self.model} x{self.entries}{merged}{', adjacent' if self.adjacent else ''}"


_CASES = (
    Case("wide", 8),
    Case("wide", 8, merged=2),
    Case("wide", 32),
    Case("wide", 64),
    Case("wide", 64, adjacent=True),
    Case("resnet50", 8),
    Case("resnet50", 8, adjacent=True),
)
_SMALL = (Case("tiny", 1), Case("tiny", 20), Case("wide", 1), Case("wide", 20))


class Timed:
    """A backend that notes when its runs begin and end."""

    def __init__(self, backend: OnnxBackend) -> None:
        self._backend = backend
        self.signature: ModelSignature = backend.signature
        self.device = backend.device
        self.runs: list[tuple[float, float]] = []

    def load(self) -> None:
        """It is loaded."""

    def run(self, inputs: Tensors) -> Tensors:
        """Run, between two looks at the clock."""
        start = time.perf_counter()
        outputs = self._backend.run(inputs)
        self.runs.append((start, time.perf_counter()))
        return outputs

    run_whole = run

    def close(self) -> None:
        """Free the session."""
        self._backend.close()


def load(model: str) -> Timed:
    """Load a benchmark model."""
    path: Path = ROOT / "models" / model / "1" / "model.onnx"
    backend = OnnxBackend(OnnxSettings(model=model, model_file=path, device="cpu"))
    backend.load()
    return Timed(backend)


def measured(backend: Timed, rows: int) -> list[Execution]:
    """What a replica knows of its model after the warm-up."""
    return warm_up(backend, tensor_inputs(backend.signature), max_rows=max(row_buckets(rows)), budget_s=5.0)


def make_bundles(signature: ModelSignature, case: Case) -> list[Bundle]:
    """Bundles of memory of their own."""
    return [Bundle(_entries(signature, case), f"router-{number}") for number in range(_POOL)]


def _entries(signature: ModelSignature, case: Case) -> list[WireEntry]:
    whole = tensor_inputs(signature)(case.entries, 0)
    rows: list[Tensors] = [{name: array[row : row + 1] for name, array in whole.items()} for row in range(case.entries)]
    if not case.adjacent:
        rows = [{name: array.copy() for name, array in tensors.items()} for tensors in rows]
    return [WireEntry(2, 60.0, 1, "", tensors) for tensors in rows]


def make_worker(case: Case, backend: Timed) -> Worker:
    """A worker whose batches hold so many bundles."""
    rows = case.entries * case.merged
    return Worker(
        scheduling=ModelScheduling(case.model, rows, slo_s=60.0),
        backends={"": backend},
        processor=None,
        preprocess_threads=1,
        batch=batch_with_serve(rows),
        warm_up=measured(backend, rows),
    )


async def gaps(case: Case, backend: Timed, seconds: float, *, busy: bool) -> list[float]:
    """Seconds between the end of a run and the start of the next, with bundles always waiting."""
    worker = make_worker(case, backend)
    bundles = [replace(bundle, sender="") for bundle in make_bundles(backend.signature, case)]
    until = time.perf_counter() + seconds

    async def client(number: int) -> None:
        while time.perf_counter() < until or len(backend.runs) < _LEAST_RUNS:
            result = await worker.run(bundles[number % len(bundles)])
            assert all(isinstance(each, Success) for each in result.results)

    spinning = asyncio.ensure_future(_keep_busy()) if busy else None
    clients = (_WAITING + 1) * case.merged
    backend.runs.clear()
    await asyncio.gather(*(client(number) for number in range(clients)))
    if spinning is not None:
        spinning.cancel()
    runs = backend.runs[_WAITING : -_WAITING or None]
    return [after[0] - before[1] for before, after in pairwise(runs)]


async def _keep_busy() -> None:
    while True:
        until = time.perf_counter() + _BUSY_S
        while time.perf_counter() < until:
            pass
        await asyncio.sleep(0)


async def alone(case: Case, backend: Timed, seconds: float) -> tuple[list[float], float]:
    """One bundle at a time: how long each takes, and the processor's time per bundle, both without the run."""
    worker = make_worker(case, backend)
    bundles = make_bundles(backend.signature, case)
    bundle = bundles[0]
    backend.runs.clear()
    took: list[float] = []
    used = time.process_time()
    until = time.perf_counter() + seconds
    while (start := time.perf_counter()) < until:
        await worker.run(bundle)
        took.append(time.perf_counter() - start)
    used = time.process_time() - used
    runs = [end - start for start, end in backend.runs]
    return [each - run for each, run in zip(took, runs, strict=True)], used / len(took) - median(runs)


def in_a_replica() -> None:
    """Let ``@serve.batch`` find what it asks its replica for."""
    _set_internal_replica_context(
        replica_id=ReplicaID("benchmark", DeploymentID("benchmark")),
        servable_object=lambda: None,
        _deployment_config=DeploymentConfig(max_ongoing_requests=1_000_000),
        rank=ReplicaRank(rank=0, node_rank=0, local_rank=0),
        world_size=1,
    )


def main(
    seconds: Annotated[float, typer.Option(min=0.1, help="Length of each measurement.")] = 2.0,
    only: Annotated[str, typer.Option(help="Only cases whose title contains this.")] = "",
    switch_interval_ms: Annotated[float, typer.Option(help="Of Python's threads; 0 leaves it.")] = 0.0,
) -> None:
    """Microseconds between runs, and of a bundle besides its run."""
    console = Console(width=_WIDTH)
    quiet_machine(console)
    in_a_replica()
    if switch_interval_ms:
        sys.setswitchinterval(switch_interval_ms / 1000)
    between = Table(title="Between two runs, two bundles waiting (µs)")
    for column in ("bundles", "run", "loop idle: median", "p90", "lost", "loop busy: median", "p90", "lost"):
        between.add_column(column, justify="right" if column != "bundles" else "left")
    for case in _CASES:
        if only in str(case):
            backend = load(case.model)
            cells: list[str] = []
            for busy in (False, True):
                found = asyncio.run(gaps(case, backend, seconds, busy=busy))
                run = median(end - start for start, end in backend.runs)
                cells += _between(found, run)
            between.add_row(str(case), f"{run * _US:,.0f}", *cells)
    console.print(between)
    single = Table(title="One bundle at a time, besides its run (µs)")
    for column in ("bundle", "median", "p90", "processor"):
        single.add_column(column, justify="right" if column != "bundle" else "left")
    for case in _SMALL:
        if only in str(case):
            latencies, used = asyncio.run(alone(case, load(case.model), seconds))
            single.add_row(str(case), *_summary(latencies), f"{used * _US:,.0f}")
    console.print(single)


def _summary(seconds: Sequence[float]) -> list[str]:
    return [f"{median(seconds) * _US:,.0f}", f"{quantiles(seconds, n=10)[-1] * _US:,.0f}"]


def _between(found: Sequence[float], run: float) -> list[str]:
    return [*_summary(found), f"{sum(found) / (sum(found) + run * len(found)):.1%}"]


if __name__ == "__main__":
    typer.run(main)
