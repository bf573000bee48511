"""What TensorRT brings.

Every batch starts from its rows as they wait in a replica, apart, and ends with an answer of its own memory. Each model
has a process of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.gpu.apart import apart
from benchmarks.gpu.subjects import MIB, Bench, distance, gpu_memory_used, make_inputs, percentiles
from serve_app.backends.batch import assemble
from serve_app.backends.onnx.backend import OnnxBackend, OnnxSettings
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
    """

    settings: dict[str, Any] = field(default_factory=dict)


_WAYS = {
    "plain": _Way(),
    "tensorrt": _Way({"tensorrt": True}),
    "tensorrt, fp16": _Way({"tensorrt": True, "tensorrt_fp16": True}),
}


def check_tensorrt(bench: Bench) -> dict[str, Any]:
    """The ways of TensorRT, beside the plain one. Building its engines takes most of the time."""
    return _all(bench, ["plain", "tensorrt", "tensorrt, fp16"])


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
    before = gpu_memory_used()
    started = perf_counter()
    backend = _load(bench, name, file, sizes, way, folder)
    found: dict[str, Any] = {"providers": list(backend.providers), "note": backend.note, "rows": {}}
    found["load_s"] = perf_counter() - started
    for rows in sizes:
        inputs = make_inputs(backend.signature, rows, length)
        entries = [{key: array[row : row + 1].copy() for key, array in inputs.items()} for row in range(rows)]
        started = perf_counter()
        answer = backend.run(assemble(entries))
        first = perf_counter() - started
        timing = _timed(backend, entries, bench.seconds / 5)
        other = make_inputs(backend.signature, rows, length, seed=1)
        found["rows"][str(rows)] = {
            "bytes_in": sum(array.nbytes for array in inputs.values()),
            "bytes_out": sum(array.nbytes for array in answer.values()),
            "first_ms": 1e3 * first,
            **timing,
            "distance_from_cpu": distance(backend.run(other), reference.run(other)) if rows <= 32 else None,
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
        **way.settings,
    )
    backend = OnnxBackend(settings)
    backend.load()
    return backend


def _timed(backend: OnnxBackend, entries: list[Tensors], seconds: float) -> dict[str, float]:
    """Batches one after the other: how far apart they end, and rows per second."""
    for _ in range(5):
        backend.run(assemble(entries))
    ended = [perf_counter()]
    while len(ended) < 5 or ended[-1] - ended[0] < seconds:
        backend.run(assemble(entries))
        ended.append(perf_counter())
    apart_s = np.diff(ended).tolist()
    p50, p99 = percentiles(apart_s)
    rate = len(entries) * len(apart_s) / sum(apart_s)
    return {"p50_ms": 1e3 * p50, "p99_ms": 1e3 * p99, "runs": len(apart_s), "rows_per_second": rate}
