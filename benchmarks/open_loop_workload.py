"""What an open-loop load generator sends, and what became of it: columns of equal length."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from benchmarks.failure import BenchmarkError
from serve_app.domain.priority import Priority
from serve_app_simulator.trace import read_trace
from serve_app_simulator.workloads import Arrivals

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Workload:
    """What is sent, one element per request in the order of arrival.

    Attributes:
        arrival_s: When it is due, seconds from the start; never falling.
        model: Name.
        priority: The class's number.
        rows: Rows of the body.
        bucket: Size of the body's free dimensions, e.g. tokens; 0 for a model without any.
        timeout_s: Deadline, from when it is due.
    """

    arrival_s: Floats
    model: npt.NDArray[np.str_]
    priority: Ints
    rows: Ints
    bucket: Ints
    timeout_s: Floats

    def __post_init__(self) -> None:
        if {len(getattr(self, field.name)) for field in fields(self)} != {len(self.arrival_s)}:
            raise ValueError("the columns of a workload must be of one length")
        if (np.diff(self.arrival_s) < 0).any():
            raise ValueError("arrivals must not run backwards")

    def __len__(self) -> int:
        return len(self.arrival_s)

    @classmethod
    def alike(
        cls,
        arrival_s: Floats,
        model: str,
        timeout_s: float,
        priority: Priority = Priority.NORMAL,
        rows: int = 1,
        bucket: int = 0,
    ) -> Workload:
        """Requests that differ in when they are due, and in nothing else."""
        count = len(arrival_s)
        return cls(
            arrival_s,
            np.full(count, model),
            np.full(count, int(priority)),
            np.full(count, rows),
            np.full(count, bucket),
            np.full(count, timeout_s),
        )

    @classmethod
    def of(cls, arrivals: Arrivals) -> Workload:
        """What the simulator's generators made."""
        return cls(
            arrivals.arrival,
            np.array(arrivals.models)[arrivals.model],
            arrivals.priority,
            arrivals.rows,
            arrivals.bucket,
            arrivals.deadline - arrivals.arrival,
        )

    def write(self, path: Path) -> None:
        """Write it as a trace, exactly: a simulation of the file meets the same arrivals."""
        with path.open("w", encoding="utf-8", newline="") as file:
            lines = csv.writer(file)
            lines.writerow(("arrival", "model", "class", "rows", "deadline", "bucket"))
            lines.writerows(
                zip(
                    self.arrival_s.tolist(),
                    self.model.tolist(),
                    (Priority(number).label for number in self.priority.tolist()),
                    self.rows.tolist(),
                    self.timeout_s.tolist(),
                    self.bucket.tolist(),
                    strict=True,
                )
            )

    @classmethod
    def read(cls, path: Path, models: Sequence[str]) -> Workload:
        """Read a trace; see `serve_app_simulator.trace`.

        Args:
            path: The file.
            models: Names that it may hold.

        Raises:
            ConfigError: It is no trace; names line and column.
        """
        trace = read_trace(path, models)
        return cls(
            trace.arrival, np.array(models)[trace.model], trace.priority, trace.rows, trace.bucket, trace.timeout_s
        )


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a workload, one element per request in its order.

    Attributes:
        status: HTTP status; 0 where no answer came.
        latency_s: From when it was due until its answer was read.
        late_s: How long after it was due the generator sent it.
        cpu: How much of one core the generator used, 0 to 1.
        in_flight: Most requests in flight at once.
        probe_s: How long each of the questions took that were asked beside the load and cost nothing to answer: what
            the core and the event loop of the router made everybody wait.
        wrong: How many answers were not those that were expected, where that was asked for.
    """

    status: Ints
    latency_s: Floats
    late_s: Floats
    cpu: float
    in_flight: int
    probe_s: Floats
    wrong: int = 0

    def in_time(self, workload: Workload) -> npt.NDArray[np.bool_]:
        """Which were answered before their deadlines."""
        in_time: npt.NDArray[np.bool_] = (self.status == 200) & (self.latency_s <= workload.timeout_s)
        return in_time

    @property
    def late_p99_s(self) -> float:
        """99th percentile of the generator's own lateness; more than a few milliseconds and it fell behind."""
        return float(np.quantile(self.late_s, 0.99))

    def save(self, path: Path) -> None:
        """Write it as an ``.npz`` file."""
        np.savez(
            path,
            status=self.status,
            latency_s=self.latency_s,
            late_s=self.late_s,
            cpu=self.cpu,
            in_flight=self.in_flight,
            probe_s=self.probe_s,
            wrong=self.wrong,
        )

    @classmethod
    def load(cls, path: Path) -> Result:
        """Read what `save` wrote.

        Raises:
            BenchmarkError: It is no result.
        """
        try:
            with np.load(path) as file:
                found: dict[str, Any] = {field.name: file[field.name] for field in fields(cls)}
        except (OSError, ValueError, KeyError) as error:
            raise BenchmarkError(f"{path}: {error}") from error
        numbers = {"cpu": float(found["cpu"]), "in_flight": int(found["in_flight"]), "wrong": int(found["wrong"])}
        return cls(**{**found, **numbers})


def poisson(rate: float, seconds: float, seed: Sequence[int]) -> Floats:
    """Arrivals at random, seconds from the start.

    Args:
        rate: How many per second on average.
        seconds: How long, on average: their number is what is fixed.
        seed: Chooses the times.
    """
    gaps = np.random.default_rng(seed).exponential(1 / rate, max(1, round(rate * seconds)))
    arrival_s: Floats = np.cumsum(gaps)
    return arrival_s


def summary(workload: Workload, result: Result) -> str:
    """A few lines for people."""
    in_time = result.in_time(workload)
    lines = [
        f"{len(workload):,} requests, {in_time.mean():.2%} in time, generator late by p99 {_ms(result.late_p99_s)}"
    ]
    for priority in Priority:
        chosen = workload.priority == priority
        if chosen.any():
            answered = result.latency_s[chosen & (result.status == 200)]
            p50, p99 = np.quantile(answered, (0.5, 0.99)) if len(answered) else (np.nan, np.nan)
            lines.append(f"{priority.label:>7}: {in_time[chosen].mean():.2%} in time, p50 {_ms(p50)}, p99 {_ms(p99)}")
    counts = zip(*np.unique(result.status, return_counts=True), strict=True)
    lines.append(", ".join(f"status {status}: {count:,}" for status, count in counts))
    return "\n".join(lines)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"
