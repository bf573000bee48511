"""What it costs when batches differ in their number of rows, and whether a session for each of a few sizes helps.

ONNX Runtime prepares every convolution for the exact shape of its input and keeps only the last one prepared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Any

import numpy as np
import onnxruntime

from benchmarks.gpu.subjects import (
    MIB,
    Bench,
    Device,
    Subject,
    distance,
    gpu_memory_used,
    make_inputs,
    measure,
    percentiles,
)
from serve_app.backends.onnx.backend import OnnxBackend
from serve_app.backends.onnx.device import preload_cuda, providers_for
from serve_app.payloads import ModelSignature, Tensors

SIZES = (1, 8, 32)
"""Row counts that have a session of their own."""
_SEARCHES = ("HEURISTIC", "EXHAUSTIVE", "DEFAULT")


class SessionPerSize:
    """A `Backend` with one session for each of a few row counts; a batch is filled up to the next one.

    Args:
        bench: Where the model is.
        name: The model's name.
        device: Where to run.
        sizes: Row counts, ascending. A larger batch is run in pieces of the largest.
    """

    def __init__(self, bench: Bench, name: str, device: Device, sizes: Sequence[int] = SIZES) -> None:
        self._bench = bench
        self._name = name
        self.device = device
        self._sizes = tuple(sizes)
        self._sessions: dict[int, OnnxBackend] = {}

    @property
    def signature(self) -> ModelSignature:
        """As the model has it."""
        return self._sessions[self._sizes[0]].signature

    def load(self) -> None:
        """Make the sessions."""
        self._sessions = {size: self._bench.load(self._name, device=self.device) for size in self._sizes}

    def run(self, inputs: Tensors) -> Tensors:
        """Run one batch. Missing rows are copies of its last one, and are cut off the answer."""
        rows = len(next(iter(inputs.values())))
        parts = []
        for start in range(0, rows, self._sizes[-1]):
            piece = {name: array[start : start + self._sizes[-1]] for name, array in inputs.items()}
            count = min(rows - start, self._sizes[-1])
            size = next(size for size in self._sizes if size >= count)
            if size > count:
                piece = {
                    name: np.concatenate([array, np.repeat(array[-1:], size - count, axis=0)])
                    for name, array in piece.items()
                }
            parts.append({name: array[:count] for name, array in self._sessions[size].run(piece).items()})
        return parts[0] if len(parts) == 1 else {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}

    run_whole = run

    def close(self) -> None:
        """Free the sessions."""
        for session in self._sessions.values():
            session.close()


def check(bench: Bench) -> dict[str, Any]:
    """Every model: always the same number of rows, two in turns, any up to 32; one session, and one per size."""
    return {subject.name: _model(bench, subject) for subject in bench.subjects() if subject.name != "minilm-int8"}


def _model(bench: Bench, subject: Subject) -> dict[str, Any]:
    before = gpu_memory_used()
    backend = bench.load(subject.name)
    batches = {rows: make_inputs(backend.signature, rows, subject.length) for rows in range(1, SIZES[-1] + 1)}
    single = {
        "always 8": _timed(backend, batches, _always(8), bench.seconds / 3),
        "8 and 16 in turns": _timed(backend, batches, _in_turns(8, 16), bench.seconds / 3),
        "any up to 32": _timed(backend, batches, _any(), bench.seconds / 3),
    }
    single_mib = (gpu_memory_used() - before) / MIB
    expected = backend.run(batches[5])
    backend.close()

    before = gpu_memory_used()
    several = SessionPerSize(bench, subject.name, bench.device)
    several.load()
    for size in SIZES:
        several.run(batches[size])
    per_size = {
        "8 and 16 in turns": _timed(several, batches, _in_turns(8, 16), bench.seconds / 3),
        "any up to 32": _timed(several, batches, _any(), bench.seconds / 3),
    }
    found = {
        "single": single,
        "single_mib": single_mib,
        "per_size": per_size,
        "per_size_mib": (gpu_memory_used() - before) / MIB,
        "distance": distance(several.run(batches[5]), expected),
    }
    several.close()
    if bench.device == "cuda":
        found["searches"] = {search: _search(bench, subject, search, batches) for search in _SEARCHES}
    return found


def _search(bench: Bench, subject: Subject, search: str, batches: dict[int, Tensors]) -> dict[str, Any]:
    """The same with another way for cuDNN to choose its algorithms."""
    preload_cuda()
    providers = providers_for("cuda", None)
    providers[0][1]["cudnn_conv_algo_search"] = search
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(bench.file(subject.name), options, providers=providers, enable_fallback=0)
    steady = measure(lambda: session.run(None, batches[8]), bench.seconds / 10)
    durations = []
    for rows in (16, 8, 16, 8, 16, 8):
        started = perf_counter()
        session.run(None, batches[rows])
        durations.append(perf_counter() - started)
    return {"steady_ms": steady.p50_ms, "changed_ms": 1e3 * percentiles(durations)[0]}


def _timed(
    backend: OnnxBackend | SessionPerSize, batches: dict[int, Tensors], rows: Iterator[int], seconds: float
) -> dict[str, float]:
    for _ in range(3):
        backend.run(batches[next(rows)])
    durations: list[float] = []
    total = 0
    until = perf_counter() + seconds
    while perf_counter() < until or len(durations) < 3:
        count = next(rows)
        started = perf_counter()
        backend.run(batches[count])
        durations.append(perf_counter() - started)
        total += count
    p50, p99 = percentiles(durations)
    return {"p50_ms": 1e3 * p50, "p99_ms": 1e3 * p99, "rows_per_second": total / sum(durations)}


def _always(rows: int) -> Iterator[int]:
    while True:
        yield rows


def _in_turns(*counts: int) -> Iterator[int]:
    while True:
        yield from counts


def _any() -> Iterator[int]:
    random = np.random.default_rng(0)
    while True:
        yield int(random.integers(1, SIZES[-1] + 1))
