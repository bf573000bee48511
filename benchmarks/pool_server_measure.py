"""What is measured of a pool on the real server: costs, what became of requests, and what its host held."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from benchmarks.calibration_server import Cores
from benchmarks.failure import BenchmarkError
from benchmarks.groups import Group, observed_groups
from benchmarks.open_loop import send_apart
from benchmarks.open_loop_workload import Floats, Ints, Result, Workload
from benchmarks.pool_members import member_name, requests_and_answers
from benchmarks.pool_server_counted import Counted, PoolServer
from benchmarks.pool_server_load import Beside, ask_once, capacity
from benchmarks.requests import write_requests
from benchmarks.server import OUT
from serve_app.domain.priority import Priority
from serve_app_simulator.scenario import Overheads

_FOLDER = OUT / "pool-server"
_ALONE_PER_S = 10.0
_PATIENT_S = 30.0
_BUSY = 16
_SAMPLE_EVERY_S = 1.0
_FIRST = 0
"""The member that is measured alone."""


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
    name, numbers = member_name(_FIRST), [_FIRST] * count
    patient = Workload.alike(alone, name, _PATIENT_S)
    send(server, patient, numbers, cores)  # loads it
    before = server.times(name)
    result = send(server, patient, numbers, cores)
    times = server.times(name) - before
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
    statuses = zip(*np.unique(result.status, return_counts=True), strict=True)
    return Observed(
        observed_groups(workload, result, workload.arrival_s >= warm_up_s),
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
