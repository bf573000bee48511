"""Arrivals whose rate changes: a step, a sine, a flash crowd, a recorded trace."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt

from serve_app.domain.priority import Priority
from serve_app_simulator.workloads import Arrivals

Floats = npt.NDArray[np.float64]

STEP_S = 0.1
"""Rates are constant for so long."""
_SPREAD_S = 10.0
"""Each arrival of a trace stands for many, spread over this time."""


@dataclass(frozen=True, slots=True)
class Load:
    """How the load goes: in replicas that are always busy, one number for each `STEP_S`."""

    name: str
    replicas: Floats

    @property
    def seconds(self) -> float:
        """Its length."""
        return len(self.replicas) * STEP_S

    def arrivals(self, rate_of_one: float, timeout_s: float, seed: int, model: str, rows: int = 1) -> Arrivals:
        """Draw Poisson arrivals.

        Args:
            rate_of_one: Requests per second that keep one replica busy.
        """
        rng = np.random.default_rng(seed)
        counts = rng.poisson(self.replicas * rate_of_one * STEP_S)
        times = np.repeat(np.arange(len(counts)) * STEP_S, counts)
        times = np.sort(times + rng.uniform(0.0, STEP_S, len(times)))
        whole = np.ones(len(times), dtype=np.int64)
        return Arrivals(
            (model,),
            times,
            times + timeout_s,
            0 * whole,
            int(Priority.NORMAL) * whole,
            rows * whole,
            0 * whole,
            -whole,
            0 * whole,
        )


def step(low: float = 0.8, high: float = 4.0, part_s: float = 200.0) -> Load:
    """Low, five times as high, low again."""
    count = int(part_s / STEP_S)
    return Load("step x5", np.repeat([low, high, low], count))


def steady(level: float, seconds: float) -> Load:
    """The same all the time."""
    return Load("steady", np.full(int(seconds / STEP_S), level))


def sine(period_s: float = 400.0, periods: int = 2, low: float = 0.4, high: float = 4.4) -> Load:
    """Waves."""
    at = np.arange(int(periods * period_s / STEP_S)) * STEP_S
    return Load("sine", (low + high) / 2 - (high - low) / 2 * np.cos(2 * np.pi * at / period_s))


def flash(low: float = 0.5, high: float = 4.0, before_s: float = 150.0, surge_s: float = 60.0) -> Load:
    """A surge for a minute."""
    parts = [int(seconds / STEP_S) for seconds in (before_s, surge_s, before_s)]
    return Load("flash crowd", np.repeat([low, high, low], parts))


def trace(path: Path, mean: float = 1.5, seconds: float = 1200.0) -> Load:
    """The first part of a trace (a CSV file with a TIMESTAMP), as a rate.

    Args:
        path: File.
        mean: Load on average.
        seconds: Of the trace.
    """
    with path.open(encoding="utf-8") as file:
        stamps = [datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp() for row in csv.DictReader(file)]
    at = np.asarray(stamps) - stamps[0]
    count = int(seconds / STEP_S)
    arrived = np.bincount((at[at < seconds] / STEP_S).astype(int), minlength=count)[:count].astype(float)
    spread = int(_SPREAD_S / STEP_S)
    rate = np.convolve(arrived, np.ones(spread) / spread)[:count]
    return Load("code trace", rate / rate.mean() * mean)
