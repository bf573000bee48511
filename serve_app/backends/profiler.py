"""Measures the cost of batches: runs each shape warm, many times, and times it like the replica's worker.

Shapes take turns. In each round every shape gets its share of time, in the reverse order of the round before, so that
drift (clock speed, neighbours on the machine) affects all alike and no shape always follows the same other one.

Memory is read during each shape's first run, from the least work to the most: sessions keep the memory of their largest
batch, so a shape's figure is that of a replica serving batches up to it.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

from serve_app.backends.backend import Backend
from serve_app.backends.batch import run_entries
from serve_app.backends.warm_up import MakeInputs
from serve_app.domain.row_sizes import row_buckets
from serve_app.errors import InferenceFailed, ServeAppError
from serve_app.payloads import Execution, Tensors

ROUNDS = 20
MIN_RUNS = 5
"""Runs of a shape, however long they take: fewer say nothing about quantiles."""
MAX_RUNS = 20_000
"""Runs of a shape, however short they are."""

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
_TASKS = Path("/proc/self/task")


class Shape(NamedTuple):
    """What is measured.

    Attributes:
        variant: Empty for the exact model.
        bucket: Cost bucket; 0 without buckets.
    """

    variant: str
    rows: int
    bucket: int

    def __str__(self) -> str:
        size = f" of size {self.bucket}" if self.bucket else ""
        return f"{self.rows} rows{size}{f', variant {self.variant}' if self.variant else ''}"


@dataclass(frozen=True, slots=True)
class Measurement:
    """The measurements of one shape.

    Attributes:
        seconds: Duration of each warm run, in order.
        peak_rss_bytes: Largest resident set of the process during the first run; ``None`` if unknown.
        gpu_bytes: GPU memory in use by all processes after the first run; ``None`` on the CPU.
    """

    shape: Shape
    seconds: tuple[float, ...]
    peak_rss_bytes: int | None
    gpu_bytes: int | None


class ProfileProgress(NamedTuple):
    """Progress of a sweep.

    Attributes:
        shape: The last shape.
        measured_s: Seconds measured over all shapes.
        expected_s: Estimated seconds to measure in all.
    """

    shape: Shape
    measured_s: float
    expected_s: float


@dataclass(slots=True)
class _Series:
    seconds: list[float] = field(default_factory=list)
    spent_s: float = 0.0
    first_s: float = 0.0
    peak_rss_bytes: int | None = None
    gpu_bytes: int | None = None

    def is_due(self, round_number: int, rounds: int, seconds: float) -> bool:
        """Whether this round, counted from 1, needs another run."""
        share = round_number / rounds
        runs = len(self.seconds)
        if runs < MIN_RUNS * share:
            return True
        return self.spent_s < seconds * share and runs < MAX_RUNS * share

    def expected_s(self, seconds: float) -> float:
        """Estimated seconds of its measurement."""
        each = self.spent_s / len(self.seconds) if self.seconds else self.first_s
        return max(min(seconds, MAX_RUNS * each), MIN_RUNS * each)


def sweep_rows(max_rows: int) -> tuple[int, ...]:
    """Numbers of rows to measure: powers of two, the midpoints between them, and the maximum."""
    between = (3 << exponent for exponent in range(max_rows.bit_length()))
    return tuple(sorted({*row_buckets(max_rows), *(rows for rows in between if rows < max_rows)}))


def sweep(
    backends: Mapping[str, Backend],
    make_inputs: MakeInputs,
    *,
    rows: Sequence[int],
    buckets: Sequence[int] = (0,),
    seconds: float = 2.0,
    rounds: int = ROUNDS,
    on_progress: Callable[[ProfileProgress], None] | None = None,
    clock: Callable[[], float] = monotonic,
) -> list[Measurement]:
    """Measure every combination of backend, rows and bucket.

    Args:
        backends: Loaded, by variant; ``""`` is the exact model.
        make_inputs: E.g. `serve_app.backends.warm_up.tensor_inputs`, or a processor's own sample.
        buckets: ``(0,)`` for none.
        seconds: Seconds of warm runs per shape, for `MIN_RUNS` to `MAX_RUNS` runs.
        rounds: Turns of each shape.
        on_progress: Called after each turn.

    Returns:
        One per shape, ordered by variant as given, bucket, rows.

    Raises:
        InferenceFailed: The model failed at a shape, which the message names.
    """
    shapes = [
        Shape(variant, count, bucket) for variant in backends for bucket in sorted(set(buckets)) for count in
        sorted(set(rows))
    ]  # fmt: skip
    series = {shape: _Series() for shape in shapes}

    def report(shape: Shape) -> None:
        if on_progress is not None:
            expected = sum(one.expected_s(seconds) for one in series.values())
            on_progress(ProfileProgress(shape, sum(one.spent_s for one in series.values()), expected))

    for shape in sorted(shapes, key=lambda shape: shape.rows * max(shape.bucket, 1)):
        _run_cold(backends[shape.variant], make_inputs, shape, series[shape], clock)
        report(shape)
    for number in range(1, rounds + 1):
        for shape in shapes if number % 2 else reversed(shapes):
            one = series[shape]
            if one.is_due(number, rounds, seconds):
                inputs = make_inputs(shape.rows, shape.bucket)
                while one.is_due(number, rounds, seconds):
                    duration = _run(backends[shape.variant], inputs, shape, clock).seconds
                    one.seconds.append(duration)
                    one.spent_s += duration
                report(shape)
    return [Measurement(shape, tuple(one.seconds), one.peak_rss_bytes, one.gpu_bytes) for shape, one in series.items()]


def resident_bytes() -> int | None:
    """The resident set of this process; ``None`` if unknown."""
    return _status("VmRSS")


def waited_s() -> float | None:
    """Total seconds that this process's threads were ready but had no core; ``None`` if unknown.

    Reveals other work on the machine during a measurement.
    """
    nanoseconds = 0
    told = False
    for statistics in _TASKS.glob("*/schedstat"):
        try:
            nanoseconds += int(statistics.read_text(encoding="ascii").split()[1])
            told = True
        except (OSError, IndexError, ValueError):  # the thread has just ended, or the kernel keeps no statistics
            continue
    return nanoseconds / 1e9 if told else None


def gpu_bytes() -> int:
    """Memory in use by all processes on the first visible GPU. Makes a CUDA context if there is none.

    Backends do not report their allocators, so this asks the driver for the device's free memory.

    Raises:
        InferenceFailed: The driver does not answer.
    """
    driver, context = _cuda()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    _check_cuda(driver.cuCtxPushCurrent_v2(context))
    try:
        _check_cuda(driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
    finally:
        _check_cuda(driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p())))
    return total.value - free.value


def device_name(device: str) -> str:
    """The name of a backend's device, for operators: a GPU's index on the node, and what the driver calls it."""
    if device != "cuda":
        return device
    name, number = ctypes.create_string_buffer(256), ctypes.c_int()
    index = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]  # the first is the replica's
    try:
        driver, _ = _cuda()
        _check_cuda(driver.cuDeviceGet(ctypes.byref(number), 0))
        _check_cuda(driver.cuDeviceGetName(name, len(name), number))
    except InferenceFailed:
        return f"{device}:{index}"
    return f"{device}:{index} {name.value.decode('utf-8', 'replace')}"


def _run_cold(
    backend: Backend, make_inputs: MakeInputs, shape: Shape, one: _Series, clock: Callable[[], float]
) -> None:
    inputs = make_inputs(shape.rows, shape.bucket)
    can_reset = _reset_peak()
    one.first_s = _run(backend, inputs, shape, clock).seconds
    one.peak_rss_bytes = _status("VmHWM") if can_reset else resident_bytes()
    one.gpu_bytes = gpu_bytes() if backend.device == "cuda" else None


def _run(backend: Backend, inputs: Tensors, shape: Shape, clock: Callable[[], float]) -> Execution:
    """Run once, timed by the replica's code."""
    ran = run_entries(backend, [inputs], shape.rows, [shape.bucket], clock)
    (outcome,) = ran.outcomes
    if isinstance(outcome, ServeAppError):
        raise InferenceFailed(f"profile with {shape}: {outcome.message}") from outcome
    (execution,) = ran.executions
    return execution


def _reset_peak() -> bool:
    """Reset the kernel's peak resident set. Returns whether that worked."""
    try:
        _CLEAR_REFS.write_text(_RESET_PEAK, encoding="ascii")
    except OSError:
        return False
    return True


def _status(key: str) -> int | None:
    try:
        lines = _STATUS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:")), None)


@cache
def _cuda() -> tuple[Any, ctypes.c_void_p]:
    """The driver, and the context of the first visible device."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise InferenceFailed(f"the CUDA driver cannot be loaded: {error}") from error
    device, context = ctypes.c_int(), ctypes.c_void_p()
    _check_cuda(driver.cuInit(0))
    _check_cuda(driver.cuDeviceGet(ctypes.byref(device), 0))
    _check_cuda(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    return driver, context


def _check_cuda(code: int) -> None:
    if code != 0:
        raise InferenceFailed(f"the CUDA driver answered with error {code}")
