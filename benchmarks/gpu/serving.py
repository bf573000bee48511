"""The worker of a replica with its models on the GPU: media and tensors in, answers out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np

from benchmarks.gpu.shapes import SIZES, SessionPerSize
from benchmarks.gpu.subjects import Bench, Device, make_inputs
from serve_app.backends.backend import Backend
from serve_app.domain.row_sizes import row_buckets
from serve_app.payloads import Bundle, Media, Payload, Success, Texts, WireEntry
from serve_app.processors.processor import Processor
from serve_app.processors.registry import create_processor
from serve_app.replica.staged import Staged
from serve_app.replica.worker import RunBatch, RunOne, Worker
from serve_app.scheduling.settings import ModelScheduling
from training.paths import TEST_DATA

_ENTRIES = 16
_AT_ONCE = 8
_MOST_ROWS = SIZES[-1]
_THREADS = 4
_TEXT = "the quick brown fox jumps over the lazy dog and runs through the forest until night falls "


def check(bench: Bench) -> list[dict[str, Any]]:
    """Pictures for `digits`, texts for `minilm`, tensors for `resnet50`: on the GPU and, for comparison, the CPU."""
    found = []
    for name, kind in (("digits", "pictures"), ("minilm", "texts"), ("resnet50", "tensors"), ("wide", "tensors")):
        if not bench.file(name).exists():
            continue
        reference, expected = asyncio.run(_serve(bench, name, kind, "cpu", 1))
        found.append(reference)
        if bench.device == "cuda":
            for sizes in (1, len(SIZES)):
                result, answers = asyncio.run(_serve(bench, name, kind, "cuda", sizes))
                pairs = list(zip(answers, expected, strict=True))
                found.append({**result, "agrees_with_cpu": all(_agree(ours, theirs) for ours, theirs in pairs)})
    return found


async def _serve(bench: Bench, name: str, kind: str, device: Device, sessions: int) -> tuple[dict[str, Any], list[Any]]:
    backend: Backend
    if sessions == 1:
        backend = bench.load(name, device=device)
    else:
        backend = SessionPerSize(bench, name, device)
        backend.load()
    processor = _processor(bench, name, kind, backend)
    payloads = _payloads(name, kind, backend)
    worker = Worker(
        scheduling=ModelScheduling(name, _MOST_ROWS, slo_s=60.0),
        backends={"": backend},
        processor=processor,
        preprocess_threads=_THREADS,
        batch=_same_turn,
    )
    if device == "cuda":
        bucket = max(processor.buckets) if processor else 1
        for rows in row_buckets(_MOST_ROWS):
            backend.run(processor.example(rows, bucket) if processor else make_inputs(backend.signature, rows, 1))
    entries = [WireEntry(2, 120.0, 1, "", payload) for payload in payloads]
    first = await worker.run(Bundle(entries))
    results = []
    started = time.monotonic()
    until = started + bench.seconds

    async def client() -> None:
        while time.monotonic() < until:
            results.append(await worker.run(Bundle(entries)))

    await asyncio.gather(*(client() for _ in range(_AT_ONCE)))
    seconds = time.monotonic() - started
    worker.close()
    executions = {id(execution): execution for result in results for execution in result.executions}
    good = sum(isinstance(each, Success) for result in results for each in result.results)
    failed = sum(len(result.results) for result in results) - good
    summary = {
        "model": name,
        "payload": kind,
        "device": device,
        "sessions": sessions,
        "entries": good,
        "failed": failed,
        "entries_per_second": good / seconds,
        "rows_per_run": median(execution.rows for execution in executions.values()),
        "run_p50_ms": 1e3 * median(execution.seconds for execution in executions.values()),
        "busy": sum(execution.seconds for execution in executions.values()) / seconds,
        "preprocess_p50_ms": 1e3 * median(result.preprocess_s for result in results),
        "wait_p50_ms": 1e3 * median(result.wait_s for result in results),
        "postprocess_p50_ms": 1e3 * median(result.postprocess_s for result in results),
    }
    return summary, [each.value if isinstance(each, Success) else each for each in first.results]


def _processor(bench: Bench, name: str, kind: str, backend: Backend) -> Processor | None:
    tasks = {"pictures": "image-classification", "texts": "feature-extraction"}
    if kind not in tasks:
        return None
    return create_processor(tasks[kind], backend.signature, bench.models / name, {})


def _payloads(name: str, kind: str, backend: Backend) -> list[Payload]:
    if kind == "pictures":
        files = sorted((TEST_DATA / name).glob("*_28px_*.png"))[:_ENTRIES]
        contents = [path.read_bytes() for path in files]
        return [Media(contents[index % len(contents)], "image/png", {}) for index in range(_ENTRIES)]
    if kind == "texts":
        return [Texts([_TEXT * (1 + index % 5)], {}) for index in range(_ENTRIES)]
    return [make_inputs(backend.signature, 1, 1, seed=index) for index in range(_ENTRIES)]


def _agree(ours: Any, theirs: Any) -> bool:
    """The same label; vectors and tensors within the reduced precision of the GPU's matrix units."""
    if isinstance(ours, list):
        return bool(ours[0]["label"] == theirs[0]["label"])
    first = ours.vectors if hasattr(ours, "vectors") else next(iter(ours.values()))
    second = theirs.vectors if hasattr(theirs, "vectors") else next(iter(theirs.values()))
    return bool(np.linalg.norm(first - second) <= 1e-2 * np.linalg.norm(second))


def _same_turn(run_batch: RunBatch) -> RunOne:
    """Runs together what is asked for in one turn of the event loop, as ``@serve.batch`` does in a deployment."""
    waiting: list[tuple[Staged, asyncio.Future[Staged]]] = []
    tasks: set[asyncio.Task[None]] = set()

    async def flush(batch: Sequence[tuple[Staged, asyncio.Future[Staged]]]) -> None:
        done = await run_batch([staged for staged, _ in batch])
        for (_, future), staged in zip(batch, done, strict=True):
            future.set_result(staged)

    def start() -> None:
        batch = waiting.copy()
        waiting.clear()
        task = asyncio.ensure_future(flush(batch))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def run_one(staged: Staged) -> Staged:
        future: asyncio.Future[Staged] = asyncio.get_running_loop().create_future()
        if not waiting:
            asyncio.get_running_loop().call_soon(start)
        waiting.append((staged, future))
        return await future

    return run_one
