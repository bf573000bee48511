"""What `resources.row_sizes` brings: batches of 1 to 32 rows at random, with one session and with one for each size.

Every case has a process of its own, as a replica has.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.gpu.apart import apart
from benchmarks.gpu.subjects import (
    MIB,
    SUBJECTS,
    Bench,
    Subject,
    distance,
    gpu_memory_used,
    make_inputs,
    percentiles,
)
from serve_app.backends.onnx.backend import OnnxBackend, OnnxSettings
from serve_app.backends.warm_up import shapes
from serve_app.domain.row_sizes import row_buckets
from serve_app.errors import InferenceFailed
from serve_app.payloads import Tensors

_MOST = 32
_SIZES = {"one session": (), "powers of four": row_buckets(_MOST)[::2], "powers of two": row_buckets(_MOST)}
_LIMITS_MIB = (512, 1024, 2048)
_MODELS = ("resnet50", "digits", "spoken-digits")


def check(bench: Bench) -> dict[str, Any]:
    """Random sizes for each model and set of sizes; then how small a limit may be for batches of 32 rows."""
    subjects = [subject for subject in bench.subjects() if subject.name in _MODELS]
    return {
        "random": {s.name: {kind: apart(_random, bench, s, kind) for kind in _SIZES} for s in subjects},
        "limits": [
            {"limit_mib": limit, "sizes": kind, **apart(_limited, bench, SUBJECTS[-1], kind, limit)}
            for limit in _LIMITS_MIB
            for kind in _SIZES
            if SUBJECTS[-1] in subjects
        ],
    }


def _load(bench: Bench, subject: Subject, kind: str, limit_mib: int | None = None) -> OnnxBackend:
    on_gpu = bench.device == "cuda"
    settings = OnnxSettings(
        model=subject.name,
        model_file=bench.file(subject.name),
        device=bench.device,
        gpu_available=on_gpu,
        gpu_memory_bytes=limit_mib * MIB if on_gpu and limit_mib is not None else None,
        row_sizes=_SIZES[kind],
    )
    backend = OnnxBackend(settings)
    backend.load()
    return backend


def _random(bench: Bench, subject: Subject, kind: str) -> dict[str, Any]:
    before = gpu_memory_used()
    started = perf_counter()
    backend = _load(bench, subject, kind)
    loaded = perf_counter() - started
    most = make_inputs(backend.signature, _MOST, subject.length)
    batches = {rows: {name: array[:rows] for name, array in most.items()} for rows in range(1, _MOST + 1)}
    first = {rows: _duration(backend, batches[rows]) for rows, _ in shapes(_MOST, ())}
    random = np.random.default_rng(0)
    found: dict[str, Any] = {
        "row_sizes": list(backend.row_sizes),
        "note": backend.note,
        "load_s": loaded,
        "warm_up_s": sum(first.values()),
        "always 8": _timed(backend, batches, iter(lambda: 8, 0), bench.seconds / 3),
        "always 32": _timed(backend, batches, iter(lambda: 32, 0), bench.seconds / 3),
        "any up to 32": _timed(backend, batches, iter(lambda: int(random.integers(1, _MOST + 1)), 0), bench.seconds),
        "mib": (gpu_memory_used() - before) / MIB,
    }
    # Every row's answer must be the same, whatever it was run with.
    expected = backend.run(most)
    worst = 0.0
    for rows in random.integers(1, _MOST + 1, 40).tolist():
        wanted = {name: array[:rows] for name, array in expected.items()}
        worst = max(worst, distance(backend.run(batches[rows]), wanted))
    found["distance_from_32_rows"] = worst
    reference = bench.load(subject.name, device="cpu", threads=8)
    found["distance_from_cpu"] = distance(expected, reference.run(most))
    backend.close()
    return found


def _limited(bench: Bench, subject: Subject, kind: str, limit_mib: int) -> dict[str, Any]:
    before = gpu_memory_used()
    backend = _load(bench, subject, kind, limit_mib)
    done = []
    fault = None
    for rows, _ in shapes(_MOST, ()):
        try:
            backend.run(make_inputs(backend.signature, rows, subject.length))
            done.append(rows)
        except InferenceFailed as error:
            fault = fault or f"{rows} rows: {error.message}"
    mib = (gpu_memory_used() - before) / MIB
    return {"row_sizes": list(backend.row_sizes), "note": backend.note, "ran": done, "fault": fault, "mib": mib}


def _duration(backend: OnnxBackend, inputs: Tensors) -> float:
    started = perf_counter()
    backend.run(inputs)
    return perf_counter() - started


def _timed(backend: OnnxBackend, batches: dict[int, Tensors], rows: Iterator[int], seconds: float) -> dict[str, float]:
    for _ in range(3):
        backend.run(batches[next(rows)])
    durations: list[float] = []
    total = 0
    until = perf_counter() + seconds
    while perf_counter() < until or len(durations) < 3:
        count = next(rows)
        durations.append(_duration(backend, batches[count]))
        total += count
    p50, p99 = percentiles(durations)
    return {"p50_ms": 1e3 * p50, "p99_ms": 1e3 * p99, "rows_per_second": total / sum(durations)}
