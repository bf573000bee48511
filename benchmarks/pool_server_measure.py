"""What is measured of a pool on the real server: costs, what became of requests, and what its host held."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import psutil

from benchmarks.calibration_server import Cores, PinnedServer
from benchmarks.failure import BenchmarkError
from benchmarks.niceness import session_first
from benchmarks.open_loop import send_apart
from benchmarks.open_loop_workload import Floats, Ints, Result, Workload
from benchmarks.pool_members import requests_and_answers
from benchmarks.pool_server_load import POOL, Beside, ask_once, capacity, named
from benchmarks.requests import write_requests
from benchmarks.server import OUT, is_ready, role
from serve_app.scheduling.entry import Priority
from serve_app.simulation.scenario import Affine, Overheads

_FOLDER = OUT / "pool-server"
_ALONE_PER_S = 10.0
_PATIENT_S = 30.0
_BUSY = 16
_SAMPLE_EVERY_S = 1.0
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


@dataclass(frozen=True, slots=True)
class Costs:
    """What everything around executions and loads costs, seconds.

    Attributes:
        overheads: Of requests that meet an idle server.
        first_load_s: The first load of each member.
        capacity: Right answers per second to clients that ask without a pause.
    """

    overheads: Overheads
    first_load_s: float
    capacity: float


@dataclass(frozen=True, slots=True)
class Group:
    """What became of the requests of one class, or of all.

    Attributes:
        offered: How many were sent.
        in_time: How many were answered by their deadline.
        p50_s: Median latency of the answers; ``None`` without answers.
        p99_s: 99th percentile.
    """

    offered: int
    in_time: int
    p50_s: float | None
    p99_s: float | None

    @property
    def attainment(self) -> float:
        """In time / offered."""
        return self.in_time / max(1, self.offered)


@dataclass(frozen=True, slots=True)
class Observed:
    """One workload on the real server.

    Attributes:
        groups: By class's label, and ``all``; of what counts.
        statuses: Requests by HTTP status; 0 where no answer came.
        wrong: Answers that are another member's, or to another request.
        counted: What the server has counted meanwhile.
        memory: Seconds since the start of the workload, and what its host held then beyond an empty one's, bytes.
        late_p99_s: How late the generator was.
        generator_cpu: Part of a core that it used.
        cpu: Part of a core that every kind of process used.
    """

    groups: dict[str, Group]
    statuses: dict[int, int]
    wrong: int
    counted: Counted
    memory: list[tuple[float, int]] = field(default_factory=list)
    late_p99_s: float = 0.0
    generator_cpu: float = 0.0
    cpu: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tails:
    """Latencies of class `high` at resident members.

    Attributes:
        loading: With loads going on, seconds.
        without: Without.
        wrong: Answers that were wrong, of all.
        failed: Requests of class `high` that were not answered.
        loads_per_s: Loads in times with loads.
    """

    loading: list[float]
    without: list[float]
    wrong: int
    failed: int
    loads_per_s: float

    def quantile_ms(self, quantile: float) -> tuple[float, float]:
        """With loads and without, milliseconds."""
        loading, without = (1e3 * float(np.quantile(each, quantile)) for each in (self.loading, self.without))
        return loading, without

    @property
    def ratio(self) -> float:
        """Of the 99th percentiles."""
        loading, without = self.quantile_ms(0.99)
        return loading / without


def measure_costs(server: PoolServer, members: int, connections: int, cores: Cores, seconds: float) -> Costs:
    """Load every member once; then measure single requests, one member that is busy, and all of them.

    Args:
        server: Ready and idle.
        members: How many there are.
        connections: Of the clients that ask all members without a pause.
        cores: Where the generator runs.
        seconds: Length of each measurement.

    Raises:
        BenchmarkError: Not all requests were answered, and rightly.
    """
    began = server.counted()
    asyncio.run(ask_once(server.asked_at, members))
    first = server.counted().since(began)
    count = round(seconds * _ALONE_PER_S)
    alone: Floats = np.linspace(0.0, seconds, count, endpoint=False)
    numbers = np.zeros(count, np.int64)
    patient = Workload(
        alone,
        named(numbers),
        np.full(count, int(Priority.NORMAL)),
        np.ones(count, np.int64),
        np.zeros(count, np.int64),
        np.full(count, _PATIENT_S),
    )
    send(server, patient, numbers, cores)  # loads it
    before = _times(server)
    result = send(server, patient, numbers, cores)
    times = _times(server) - before
    if (result.status != 200).any() or result.wrong:
        raise BenchmarkError("a request to an idle server was not answered rightly")
    total_s, queue_s, compute_s = (times / count).tolist()
    inside_s = max(0.0, total_s - queue_s - compute_s)
    outside_s = max(0.0, float(np.median(result.latency_s)) - total_s)
    counted = server.counted()
    asyncio.run(capacity(server.asked_at, 1, _BUSY, seconds))
    busy = server.counted().since(counted)
    between_s = max(0.0, seconds - busy.execution_s) / max(1, busy.executions)
    overheads = Overheads(outside_s / 2, inside_s / 2, (inside_s + outside_s) / 2, between_s)
    return Costs(
        overheads, first.mean_load_s, asyncio.run(capacity(server.asked_at, members, connections, 3 * seconds))
    )


def observe(
    server: PoolServer, workload: Workload, numbers: Ints, cores: Cores, warm_up_s: float, empty_bytes: int
) -> Observed:
    """Put a workload on the server.

    Args:
        server: Ready.
        workload: What is sent.
        numbers: Of the member that each request asks.
        cores: Where the generator runs.
        warm_up_s: Requests before this do not count, seconds.
        empty_bytes: What the host held when it was empty.

    Raises:
        BenchmarkError: The server or the generator failed.
    """
    before, cpu, began = server.counted(), server.cpu_s(), time.monotonic()
    with _sampled(server, empty_bytes) as memory:
        result = send(server, workload, numbers, cores)
    seconds = time.monotonic() - began
    spent = {name: (used - cpu.get(name, 0.0)) / seconds for name, used in server.cpu_s().items()}
    counts = workload.arrival_s >= warm_up_s
    in_time = result.in_time(workload)
    groups = {}
    for name, mask in {"all": counts, **{p.label: counts & (workload.priority == p) for p in Priority}}.items():
        latencies = result.latency_s[mask & (result.status == 200)]
        p50, p99 = np.quantile(latencies, (0.5, 0.99)).tolist() if len(latencies) else (None, None)
        groups[name] = Group(int(mask.sum()), int(in_time[mask].sum()), p50, p99)
    statuses = zip(*np.unique(result.status, return_counts=True), strict=True)
    return Observed(
        groups,
        {int(status): int(count) for status, count in statuses},
        result.wrong,
        server.counted().since(before),
        memory,
        result.late_p99_s,
        result.cpu,
        spent,
    )


def observe_tails(server: PoolServer, beside: Beside, cores: Cores) -> Tails:
    """Measure class `high` with and without loads going on.

    Raises:
        BenchmarkError: The server or the generator failed.
    """
    before = server.counted()
    result = send(server, beside.workload, beside.numbers, cores)
    counted = server.counted().since(before)
    answered = result.status == 200
    high = beside.workload.priority == Priority.HIGH
    return Tails(
        result.latency_s[beside.loading & answered].tolist(),
        result.latency_s[beside.without & answered].tolist(),
        result.wrong,
        int((high & ~answered).sum()),
        counted.loads / (float(beside.workload.arrival_s[-1]) / 2),
    )


def send(server: PoolServer, workload: Workload, numbers: Ints | Sequence[int], cores: Cores) -> Result:
    """Send a workload from a process of its own, and compare every answer with what is known of it."""
    _FOLDER.mkdir(parents=True, exist_ok=True)
    bodies, answers = requests_and_answers(np.asarray(numbers).tolist())
    file = _FOLDER / "bodies.requests"
    write_requests(file, bodies)
    result = send_apart(server.asked_at, workload, _FOLDER, cores.rest_command, file, answers)
    server.check_alive()
    return result


@contextmanager
def _sampled(server: PoolServer, empty_bytes: int) -> Iterator[list[tuple[float, int]]]:
    samples: list[tuple[float, int]] = []
    ended, began = threading.Event(), time.monotonic()

    def look() -> None:
        while not ended.wait(_SAMPLE_EVERY_S):
            samples.append((time.monotonic() - began, server.host_memory() - empty_bytes))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()


def _times(server: PoolServer) -> npt.NDArray[np.float64]:
    """Seconds of all answers of the first member: in all, in the queue, and in the session."""
    with httpx.Client(base_url=server.asked_at, timeout=_TIMEOUT_S) as client:
        (stats,) = client.get(f"/v2/models/{named([0])[0]}/stats").json()["model_stats"]
    inference: Mapping[str, Any] = stats["inference_stats"]
    return np.array([inference[name]["ns"] / 1e9 for name in ("success", "queue", "compute_infer")])


def _sum_of(page: str, name: str) -> float:
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", page, re.MULTILINE))


def _bins(page: str, name: str) -> dict[float, float]:
    found: dict[float, float] = {}
    for labels, value in re.findall(rf"^{name}{{([^}}]*)}} (\S+)$", page, re.MULTILINE):
        (most,) = re.findall(r'le="([^"]*)"', labels)
        found[float(most)] = found.get(float(most), 0.0) + float(value)
    return found
