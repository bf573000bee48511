"""The models that are measured, loaded as the server loads them, and the clock that they are measured with."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import numpy as np

from serve_app.backends.onnx.backend import OnnxBackend, OnnxSettings
from serve_app.payloads import DTYPES, ModelSignature, Tensors

Device = Literal["cpu", "cuda"]
MIB = 1024**2
_VOCABULARY = 30_000


@dataclass(frozen=True, slots=True)
class Subject:
    """One model.

    Attributes:
        name: Its folder under ``models/``.
        length: Size of the axes that may vary: tokens, samples.
        most_rows: The largest batch worth measuring.
    """

    name: str
    length: int = 1
    most_rows: int = 256


SUBJECTS = (
    Subject("tiny"),
    Subject("digits"),
    Subject("spoken-digits", length=16_000, most_rows=64),
    Subject("wide"),
    Subject("minilm", length=128),
    Subject("minilm-int8", length=128),
    Subject("resnet50"),
)


@dataclass(frozen=True, slots=True)
class Bench:
    """Where to look for models and what to run them on.

    Attributes:
        models: Folder of the models.
        device: ``cpu`` only tries the measurements out.
        seconds: Length of a steady measurement; shorter ones take a fraction of it.
    """

    models: Path
    device: Device
    seconds: float

    def file(self, name: str) -> Path:
        """The ONNX file of a model."""
        return self.models / name / "1" / "model.onnx"

    def subjects(self) -> list[Subject]:
        """The models that are there."""
        return [subject for subject in SUBJECTS if self.file(subject.name).exists()]

    def load(
        self, name: str, *, device: Device | None = None, memory: int | None = None, threads: int = 1
    ) -> OnnxBackend:
        """Load a model as a replica does that insists on its device.

        Args:
            name: The model's.
            device: Instead of the one that is measured.
            memory: Limit of the GPU arena, bytes.
            threads: For one operator, on the CPU.
        """
        chosen = device or self.device
        settings = OnnxSettings(
            model=name,
            model_file=self.file(name),
            device=chosen,
            gpu_available=chosen == "cuda",
            gpu_memory_bytes=memory if chosen == "cuda" else None,
            intra_op_threads=threads,
        )
        backend = OnnxBackend(settings)
        backend.load()
        return backend


def make_inputs(signature: ModelSignature, rows: int, length: int, seed: int = 0) -> Tensors:
    """Random inputs: noise, token ids, masks that hide nothing."""
    random = np.random.default_rng((seed, rows))
    tensors: Tensors = {}
    for spec in signature.inputs:
        shape = (rows, *(length if size < 0 else size for size in spec.shape[1:]))
        dtype = DTYPES[spec.datatype]
        if dtype.kind == "f":
            tensors[spec.name] = random.standard_normal(shape, dtype=np.float32).astype(dtype)
        elif "mask" in spec.name:
            tensors[spec.name] = np.ones(shape, dtype)
        else:
            tensors[spec.name] = random.integers(1000, _VOCABULARY, shape).astype(dtype)
    return tensors


@dataclass(frozen=True, slots=True)
class Timing:
    """How long repeated runs took.

    Attributes:
        first_ms: The first of all, which pays for what is set up on demand.
        p50_ms: Median of the others.
        p99_ms: Their 99th percentile.
        runs: How many there were.
    """

    first_ms: float
    p50_ms: float
    p99_ms: float
    runs: int

    def as_json(self) -> dict[str, Any]:
        """For the report."""
        return asdict(self)


def measure(run: Callable[[], object], seconds: float, *, most: int = 400, warm: int = 3) -> Timing:
    """Repeat a blocking call for about that long, at least three times after the first."""
    started = perf_counter()
    run()
    first = perf_counter() - started
    if first < seconds:
        for _ in range(warm):
            run()
    durations: list[float] = []
    until = perf_counter() + seconds
    while len(durations) < 3 or (len(durations) < most and perf_counter() < until):
        started = perf_counter()
        run()
        durations.append(perf_counter() - started)
    p50, p99 = percentiles(durations)
    return Timing(1e3 * first, 1e3 * p50, 1e3 * p99, len(durations))


def percentiles(seconds: list[float]) -> tuple[float, float]:
    """The 50th and the 99th."""
    p50, p99 = np.percentile(seconds, [50, 99])
    return float(p50), float(p99)


def distance(found: Tensors, expected: Tensors) -> float:
    """The largest ``|found - expected| / |expected|`` of any output, norms over all of it, in double precision."""
    worst = 0.0
    for name, array in expected.items():
        reference = array.astype(np.float64)
        gap = float(np.linalg.norm(found[name].astype(np.float64) - reference) / np.linalg.norm(reference))
        worst = gap if not gap <= worst else worst  # not a number is the worst of all
    return worst


def gpu_memory_used() -> int:
    """Memory in use on the first GPU by everything, bytes; 0 where there is none."""
    fields = _nvidia_smi("memory.used")
    return int(float(fields[0])) * MIB if fields else 0


def describe_gpu() -> dict[str, str]:
    """The GPU and its driver; empty where there is none."""
    names = ("name", "driver_version", "memory.total", "compute_mode", "clocks.max.sm")
    return dict(zip(names, _nvidia_smi(",".join(names)), strict=False))


def _nvidia_smi(query: str) -> list[str]:
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits", "--id=0"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return []
    return [field.strip() for field in found.stdout.splitlines()[0].split(",")]
