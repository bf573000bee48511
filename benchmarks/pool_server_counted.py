"""The server of a measured pool, and what it counts of itself."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import psutil

from benchmarks.calibration_server import PinnedServer
from benchmarks.failure import BenchmarkError
from benchmarks.niceness import session_first
from benchmarks.pool_server_load import POOL
from benchmarks.server import is_ready, role
from serve_app_simulator.scenario import Affine

_START_WITHIN_S = 900.0
"""A thousand models are read several times until it is ready."""
_TIMEOUT_S = 60.0


class PoolServer(PinnedServer):
    """A server of one pool, whose host has a core of its own."""

    def wait_ready(self) -> None:
        """See `PinnedServer.wait_ready`. It gets the processor before other programs from its start on."""
        if self._process is not None:
            session_first(self._process.pid)
        self.wait_until(lambda: is_ready(self.url), _START_WITHIN_S)
        super().wait_ready()

    def host_memory(self) -> int:
        """Proportional set size of the hosts' processes, bytes: what they share with others counts in part."""
        found = 0
        for process in self._processes():
            try:
                if role(process.cmdline()) == f"replica of {POOL}":
                    found += process.memory_full_info().pss
            except psutil.Error:  # it has ended meanwhile
                continue
        return found

    def counted(self) -> Counted:
        """What it has counted since it started."""
        with httpx.Client(base_url=self.asked_at, timeout=_TIMEOUT_S) as client:
            pool = client.get("/status").json()["pools"][POOL]
            models = client.get("/v2/models/stats").json()["model_stats"]
            page = client.get("/metrics").text
        runs: dict[int, tuple[int, float]] = {}
        for model in models:
            for batch in model["batch_stats"]:
                took = batch["compute_infer"]
                count, seconds = runs.get(batch["batch_size"], (0, 0.0))
                runs[batch["batch_size"]] = (count + took["count"], seconds + took["ns"] / 1e9)
        return Counted(
            loads=pool["loads"],
            failed_loads=pool["failed_loads"],
            evictions=pool["evictions"],
            hits=pool["hits"],
            misses=pool["misses"],
            load_s=_sum_of(page, "serve_app_pool_load_seconds_sum"),
            load_bins=_bins(page, "serve_app_pool_load_seconds_bucket"),
            runs=runs,
            used_bytes=sum(host["used_bytes"] for host in pool["hosts"].values()),
            resident=sum(host["resident"] for host in pool["hosts"].values()),
        )

    def times(self, model: str) -> npt.NDArray[np.float64]:
        """Seconds of all answers of a member: in all, in the queue, and in the session."""
        with httpx.Client(base_url=self.asked_at, timeout=_TIMEOUT_S) as client:
            (stats,) = client.get(f"/v2/models/{model}/stats").json()["model_stats"]
        inference: Mapping[str, Any] = stats["inference_stats"]
        return np.array([inference[name]["ns"] / 1e9 for name in ("success", "queue", "compute_infer")])


@dataclass(frozen=True, slots=True)
class Counted:
    """What a server has counted of its pool.

    Attributes:
        loads: That have ended well.
        failed_loads: Others.
        evictions: Members unloaded.
        hits: Requests for members that were resident.
        misses: Requests for others.
        load_s: What the loads took together, seconds.
        load_bins: How many of them took at most so many seconds.
        runs: By rows, how many executions there were, and seconds of all of them.
        used_bytes: What the resident members hold, as the host has measured it.
        resident: How many those are.
    """

    loads: int
    failed_loads: int
    evictions: int
    hits: int
    misses: int
    load_s: float
    load_bins: Mapping[float, float]
    runs: Mapping[int, tuple[int, float]]
    used_bytes: int
    resident: int

    def since(self, before: Counted) -> Counted:
        """What came in addition; `used_bytes` and `resident` as they are."""
        none = (0, 0.0)
        runs = {
            rows: (count - before.runs.get(rows, none)[0], seconds - before.runs.get(rows, none)[1])
            for rows, (count, seconds) in self.runs.items()
        }
        return Counted(
            loads=self.loads - before.loads,
            failed_loads=self.failed_loads - before.failed_loads,
            evictions=self.evictions - before.evictions,
            hits=self.hits - before.hits,
            misses=self.misses - before.misses,
            load_s=self.load_s - before.load_s,
            load_bins={most: count - before.load_bins.get(most, 0.0) for most, count in self.load_bins.items()},
            runs={rows: run for rows, run in sorted(runs.items()) if run[0]},
            used_bytes=self.used_bytes,
            resident=self.resident,
        )

    @property
    def executions(self) -> int:
        """Runs of any member."""
        return sum(count for count, _ in self.runs.values())

    @property
    def execution_s(self) -> float:
        """Seconds of all of them."""
        return sum(seconds for _, seconds in self.runs.values())

    @property
    def mean_load_s(self) -> float:
        """What a load took, seconds."""
        return self.load_s / max(1, self.loads)

    @property
    def member_bytes(self) -> int:
        """What a member holds, bytes."""
        return round(self.used_bytes / max(1, self.resident))

    def curve(self) -> Affine:
        """What an execution took, by its rows: a line through the means, by least squares.

        Raises:
            BenchmarkError: Nothing ran.
        """
        if not self.runs:
            raise BenchmarkError("no member ran")
        rows = np.array([*self.runs], np.float64)
        counts, seconds = np.array([*self.runs.values()], np.float64).T
        if len(rows) == 1:
            return Affine(0.0, float(seconds[0] / counts[0] / rows[0]))
        weights = np.sqrt(counts)
        terms = np.stack([np.ones_like(rows), rows], axis=1) * weights[:, None]
        alpha, beta = np.linalg.lstsq(terms, seconds / counts * weights, rcond=None)[0].tolist()
        return Affine(max(0.0, alpha), max(1e-6, beta))


def _sum_of(page: str, name: str) -> float:
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", page, re.MULTILINE))


def _bins(page: str, name: str) -> dict[float, float]:
    found: dict[float, float] = {}
    for labels, value in re.findall(rf"^{name}{{([^}}]*)}} (\S+)$", page, re.MULTILINE):
        (most,) = re.findall(r'le="([^"]*)"', labels)
        found[float(most)] = found.get(float(most), 0.0) + float(value)
    return found
