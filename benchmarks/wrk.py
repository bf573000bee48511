"""The load generator: ``wrk``, one thread, a closed loop of connections that each send their next request at once."""

from __future__ import annotations

import resource
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.failure import BenchmarkError

_SCRIPT = Path(__file__).with_name("requests.lua")
_ANSWER_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Load:
    """What one run of the load generator saw.

    Attributes:
        requests: Answers received.
        duration_s: Length of the run, seconds.
        per_second: Good answers per second.
        p50_ms: Median latency of the answers that came in time, milliseconds.
        p90_ms: 90th percentile.
        p99_ms: 99th percentile.
        max_ms: Longest latency.
        bad_status: Answers whose status was not 2xx.
        socket_errors: Connections refused, broken or cut.
        timeouts: Answers that came later than the client would have waited.
    """

    requests: int
    duration_s: float
    per_second: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float
    bad_status: int
    socket_errors: int
    timeouts: int

    @property
    def failures(self) -> int:
        """Everything that was not a good answer."""
        return self.bad_status + self.socket_errors + self.timeouts


class _Summary(msgspec.Struct):
    requests: int
    duration_us: int
    p50_us: int
    p90_us: int
    p99_us: int
    max_us: int
    status: int
    connect: int
    read: int
    write: int
    timeout: int


def find() -> str:
    """The path of ``wrk``.

    Raises:
        BenchmarkError: It is not installed.
    """
    path = shutil.which("wrk")
    if path is None:
        raise BenchmarkError("wrk, the load generator, is not installed; on Debian and Ubuntu: apt-get install wrk")
    return path


def version() -> str:
    """The version of ``wrk`` as it says itself."""
    # Asked for its version, it also prints its usage and exits with 1.
    said = subprocess.run([find(), "--version"], capture_output=True, text=True, check=False).stdout
    return said.split()[1]


def run(
    url: str, requests: Path, connections: int, seconds: float, timeout_s: float = _ANSWER_TIMEOUT_S
) -> tuple[Load, float]:
    """Load a server.

    Args:
        url: Where the requests are posted.
        requests: A file of requests, which are sent in turn; see `benchmarks.requests`.
        connections: Connections kept busy.
        seconds: Length of the run; whole seconds, at least 1.
        timeout_s: An answer that takes longer counts as a timeout, not as an answer; whole seconds.

    Returns:
        What it saw, and how much of one core the load generator itself used (0 to 1).

    Raises:
        BenchmarkError: ``wrk`` failed.
    """
    command = [
        find(),
        *("--threads", "1", "--connections", str(connections), "--duration", f"{max(1, round(seconds))}s"),
        *("--latency", "--timeout", f"{timeout_s:.0f}s", "--script", str(_SCRIPT), url, "--", str(requests)),
    ]
    began, cpu_before = time.monotonic(), _children_cpu_s()
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    cpu = (_children_cpu_s() - cpu_before) / (time.monotonic() - began)
    if finished.returncode != 0:
        raise BenchmarkError(f"wrk failed: {finished.stderr.strip() or finished.stdout.strip()}")
    return parse(finished.stdout), cpu


def parse(output: str) -> Load:
    """Read what ``wrk`` printed, whose last line is the script's JSON.

    Raises:
        BenchmarkError: There is no such line.
    """
    lines = output.strip().splitlines()
    try:
        summary = msgspec.json.decode(lines[-1] if lines else "", type=_Summary)
    except msgspec.DecodeError as error:
        raise BenchmarkError(f"wrk's output is not understood ({error}):\n{output}") from error
    return Load(
        requests=summary.requests,
        duration_s=summary.duration_us / 1e6,
        # wrk counts an answer that came too late both as a request and as a timeout.
        per_second=max(0, summary.requests - summary.status - summary.timeout) / (summary.duration_us / 1e6),
        p50_ms=summary.p50_us / 1e3,
        p90_ms=summary.p90_us / 1e3,
        p99_ms=summary.p99_us / 1e3,
        max_ms=summary.max_us / 1e3,
        bad_status=summary.status,
        socket_errors=summary.connect + summary.read + summary.write,
        timeouts=summary.timeout,
    )


def _children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
