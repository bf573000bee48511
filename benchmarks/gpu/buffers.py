"""What buffers that stay, copies beside the computing, page-locked memory, CUDA graphs, FP16 and TensorRT bring.

Every batch starts from its rows as they wait in a replica, apart, and ends with an answer of its own memory. Each model
has a process of its own.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.gpu.apart import apart
from benchmarks.gpu.subjects import MIB, Bench, distance, gpu_memory_used, make_inputs, percentiles
from serve_app.inference.backend import Prepared
from serve_app.inference.batch import assemble
from serve_app.inference.half import convert_to_fp16
from serve_app.inference.memory import CudaMemory, HostMemory, Memory
from serve_app.inference.onnx import OnnxBackend, OnnxSettings
from serve_app.payloads import Tensors

_CASES = (
    ("tiny", 1, (1, 32)),
    ("digits", 1, (1, 32, 256)),
    ("wide", 1, (1, 8, 64, 256)),
    ("pool", 1, (1, 8, 32, 128)),
    ("minilm", 128, (1, 8, 32)),
    ("resnet50", 1, (1, 8, 32, 128)),
)
"""Models, the size of their varying axes, and rows."""


@dataclass(frozen=True, slots=True)
class _Way:
    """One way to run a batch.

    Attributes:
        settings: Of the backend.
        page_locked: Whether rows are gathered in page-locked memory.
        overlapped: Whether the next batch is prepared while one runs.
        bound: Whether buffers stay.
        fp16: Whether the model was converted.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    page_locked: bool = True
    overlapped: bool = False
    bound: bool = True
    fp16: bool = False


_WAYS = {
    "plain": _Way(bound=False),
    "buffers, pageable": _Way(page_locked=False),
    "buffers": _Way(),
    "buffers, pageable, overlapped": _Way(page_locked=False, overlapped=True),
    "buffers, overlapped": _Way(overlapped=True),
    "graphs": _Way({"cuda_graphs": True}),
    "graphs, overlapped": _Way({"cuda_graphs": True}, overlapped=True),
    "fp16": _Way(bound=False, fp16=True),
    "fp16, graphs, overlapped": _Way({"cuda_graphs": True}, overlapped=True, fp16=True),
    "tensorrt": _Way({"tensorrt": True}, bound=False),
    "tensorrt, fp16": _Way({"tensorrt": True, "tensorrt_fp16": True}, bound=False),
    "tensorrt, fp16, buffers, overlapped": _Way({"tensorrt": True, "tensorrt_fp16": True}, overlapped=True),
}


class _Pageable(CudaMemory):
    """CUDA's memory, with ordinary memory on the host."""

    def host(self, nbytes: int) -> npt.NDArray[np.uint8]:
        return HostMemory().host(nbytes)


def check(bench: Bench) -> dict[str, Any]:
    """Every way but TensorRT, for several models and sizes."""
    return _all(bench, [kind for kind, way in _WAYS.items() if "tensorrt" not in way.settings])


def check_tensorrt(bench: Bench) -> dict[str, Any]:
    """The ways of TensorRT, beside the plain one. Building its engines takes most of the time."""
    return _all(bench, ["plain", *(kind for kind, way in _WAYS.items() if "tensorrt" in way.settings)])


def _all(bench: Bench, kinds: list[str]) -> dict[str, Any]:
    return {
        name: apart(_model, bench, name, length, sizes, kinds)
        for name, length, sizes in _CASES
        if bench.file(name).exists()
    }


def _model(bench: Bench, name: str, length: int, sizes: tuple[int, ...], kinds: list[str]) -> dict[str, Any]:
    """One model. A way that fails is its result: the others are measured all the same."""
    reference = bench.load(name, device="cpu", threads=8)
    found = {}
    with TemporaryDirectory() as folder:
        for kind in kinds:
            try:
                found[kind] = _measure(bench, name, length, sizes, _WAYS[kind], Path(folder), reference)
            except Exception as error:
                found[kind] = {"fault": f"{type(error).__name__}: {error}"}
    return found


def _measure(
    bench: Bench,
    name: str,
    length: int,
    sizes: tuple[int, ...],
    way: _Way,
    folder: Path,
    reference: OnnxBackend,
) -> dict[str, Any]:
    file = bench.file(name)
    if way.fp16:
        file = folder / "model.onnx"
        convert_to_fp16(bench.file(name), file, model=name)
    before = gpu_memory_used()
    started = perf_counter()
    backend = _load(bench, name, file, sizes, way, folder)
    found: dict[str, Any] = {"providers": list(backend.providers), "note": backend.note, "rows": {}}
    found["load_s"] = perf_counter() - started
    for rows in sizes:
        inputs = make_inputs(backend.signature, rows, length)
        entries = [{key: array[row : row + 1].copy() for key, array in inputs.items()} for row in range(rows)]
        started = perf_counter()
        answer = _once(backend, way, entries)
        first = perf_counter() - started
        timing = _timed(backend, way, entries, bench.seconds / 5)
        # Other rows than those that a graph was recorded with.
        other = make_inputs(backend.signature, rows, length, seed=1)
        found["rows"][str(rows)] = {
            "bytes_in": sum(array.nbytes for array in inputs.values()),
            "bytes_out": sum(array.nbytes for array in answer.values()),
            "first_ms": 1e3 * first,
            **timing,
            "distance_from_cpu": distance(_once(backend, way, [other]), reference.run(other)) if rows <= 32 else None,
        }
    found["mib"] = (gpu_memory_used() - before) / MIB
    backend.close()
    return found


def _load(bench: Bench, name: str, file: Path, sizes: tuple[int, ...], way: _Way, folder: Path) -> OnnxBackend:
    on_gpu = bench.device == "cuda"
    settings = OnnxSettings(
        model=name,
        model_file=file,
        device=bench.device,
        gpu_available=on_gpu,
        row_sizes=sizes,
        only_for_convolutions=True,
        max_rows=sizes[-1],
        tensorrt_cache=folder / "engines",
        device_buffers=way.bound,
        **way.settings,
    )
    make_memory: Callable[[], Memory] | None = None
    if way.bound and not on_gpu:
        make_memory = HostMemory
    elif way.bound and not way.page_locked:
        make_memory = _Pageable
    backend = OnnxBackend(settings, make_memory)
    backend.load()
    return backend


def _once(backend: OnnxBackend, way: _Way, entries: list[Tensors]) -> Tensors:
    return backend.run_prepared(backend.prepare(entries)) if way.bound else backend.run(assemble(entries))


def _timed(backend: OnnxBackend, way: _Way, entries: list[Tensors], seconds: float) -> dict[str, float]:
    """Batches one after the other: how far apart they end, and rows per second."""
    batches = _prepared(backend, entries) if way.overlapped else None

    def run() -> None:
        if batches is None:
            _once(backend, way, entries)
        else:
            backend.run_prepared(next(batches))

    for _ in range(5):
        run()
    ended = [perf_counter()]
    while len(ended) < 5 or ended[-1] - ended[0] < seconds:
        run()
        ended.append(perf_counter())
    if batches is not None:
        batches.close()
    apart_s = np.diff(ended).tolist()
    p50, p99 = percentiles(apart_s)
    rate = len(entries) * len(apart_s) / sum(apart_s)
    return {"p50_ms": 1e3 * p50, "p99_ms": 1e3 * p99, "runs": len(apart_s), "rows_per_second": rate}


def _prepared(backend: OnnxBackend, entries: list[Tensors]) -> Generator[Prepared]:
    """Batches that another thread prepares, one ahead of the one that runs."""
    ready: queue.Queue[Prepared | BaseException] = queue.Queue(maxsize=1)
    ended = threading.Event()

    def prepare() -> None:
        try:
            while not ended.is_set():
                ready.put(backend.prepare(entries))
        except BaseException as error:
            ready.put(error)

    thread = threading.Thread(target=prepare, daemon=True)
    thread.start()
    try:
        while True:
            batch = ready.get()
            if isinstance(batch, BaseException):
                raise batch
            yield batch
    finally:
        ended.set()
        while thread.is_alive():
            try:
                ready.get(timeout=0.1)
            except queue.Empty:
                continue
