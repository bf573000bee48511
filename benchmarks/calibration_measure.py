"""What calibration measures on the real server: costs of a batch, everything around it, and what became of a load."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from benchmarks.calibration_cases import Case, Load
from benchmarks.calibration_server import Cores, Counters, PinnedServer, is_model
from benchmarks.failure import BenchmarkError
from benchmarks.groups import Group, masks, observed_groups
from benchmarks.open_loop import send_apart
from benchmarks.open_loop_workload import Floats, Result, Workload
from benchmarks.server import OUT, ROOT
from serve_app.config.profile import Profile, read_profile
from serve_app_simulator.measured_curve import MeasuredCurve
from serve_app_simulator.scenario import Curve, Overheads

_FOLDER = OUT / "calibration"
_ALONE_PER_S = 10.0
_PATIENT_S = 60.0
_OVERLOAD = 1.5


@dataclass(frozen=True, slots=True)
class Around:
    """What a request and a batch pay besides executions, measured; seconds.

    Attributes:
        overheads: Of a request that meets an idle server.
        between_s: From the end of a full batch's execution to the beginning of the next while requests wait.
    """

    overheads: Overheads
    between_s: float


@dataclass(frozen=True, slots=True)
class Predicted:
    """What the simulator says.

    Attributes:
        groups: As of `Observed`.
        batch_rows: As of `Observed`.
        utilisation: As of `Observed`.
    """

    groups: dict[str, Group]
    batch_rows: float
    utilisation: float


@dataclass(frozen=True, slots=True)
class Observed:
    """One run of the real server.

    Attributes:
        groups: By class's label, and ``all``.
        batch_rows: Mean rows of an execution.
        utilisation: Part of the workload's time that the session ran.
        runs: Executions, by their rows.
        slowdown: Time of all executions as a multiple of the profile's.
        statuses: Requests by group and HTTP status; 0 where no answer came.
        stall_p99_s: What the router and its core made a question wait that costs nothing; 99th percentile.
        late_p99_s: How late the generator was.
        generator_cpu: Part of a core that it used.
        cpu: Part of a core that every kind of process used.
        foreign: Part of the models' core and of the other that somebody else used: other programs, and other tenants
            of the machine.
        first: Whether the server got the processor before them.
    """

    groups: dict[str, Group]
    batch_rows: float
    utilisation: float
    runs: dict[int, int]
    slowdown: float
    statuses: dict[str, dict[str, int]]
    stall_p99_s: float
    late_p99_s: float
    generator_cpu: float
    cpu: dict[str, float]
    foreign: dict[str, float]
    first: bool = False


def measure_profile(config: Path, load: Load, cores: Cores, seconds: float) -> Profile:
    """Profile a model on its core, with ``serve-app profile``.

    Args:
        config: The Serve file.
        load: Of the model.
        cores: Which core it is.
        seconds: Time for each shape.

    Raises:
        BenchmarkError: It failed.
    """
    _FOLDER.mkdir(parents=True, exist_ok=True)
    path = _FOLDER / f"profile-{load.model}.json"
    command = [*cores.model_command, sys.executable, "-m", "serve_app.cli", "profile", str(config)]
    command += ["--model", load.model, "--output", str(path), "--seconds", f"{seconds:g}"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if finished.returncode != 0:
        raise BenchmarkError(f"serve-app profile failed: {(finished.stderr or finished.stdout).strip()[-2000:]}")
    return read_profile(path)


def measure_around(server: PinnedServer, load: Load, profile: Profile, cores: Cores, seconds: float) -> Around:
    """Measure everything around executions: with single requests, and with more than the model can do for a while.

    The way to the router and back is the client's latency less the router's time; the way to the replica and back is
    the router's time less queue and execution. Each is split in halves.

    Args:
        server: Ready and idle.
        load: Of the model.
        profile: Of the model, just measured.
        cores: Where the generator runs.
        seconds: Length of each of the two measurements.

    Raises:
        BenchmarkError: Not all requests were answered.
    """
    alone: Floats = np.linspace(0.0, seconds, max(10, round(seconds * _ALONE_PER_S)), endpoint=False)
    result, counted = _patient(server, load, alone, cores)
    client_s = float(np.median(result.latency_s))
    router_s = counted.total_s / counted.answered
    inside_s = max(0.0, router_s - (counted.queue_s + counted.compute_s) / counted.answered)
    outside_s = max(0.0, client_s - router_s)
    overheads = Overheads(request_s=outside_s / 2, send_s=inside_s / 2, answer_s=(inside_s + outside_s) / 2)

    curve = MeasuredCurve.of(profile)
    many = max(4 * load.max_rows // load.rows, round(seconds * load.capacity(curve)))
    arrival_s: Floats = np.linspace(0.0, seconds / _OVERLOAD, many, endpoint=False)
    result, counted = _patient(server, load, arrival_s, cores)
    # From the first answer, of a request that ran alone, to the last: the ways in and out cancel out.
    span_s = float(result.latency_s[-1] + arrival_s[-1] - result.latency_s[0])
    solo_s = curve(load.rows, load.bucket) * slowdown(counted, load, curve)
    pauses_s = span_s - (counted.execution_s - solo_s)
    return Around(overheads, max(0.0, pauses_s) * load.max_rows / (counted.rows - load.rows))


def slowdown(counted: Counters, load: Load, curve: Curve) -> float:
    """Time of executions as a multiple of the profile's; 1.0 where there were none."""
    expected_s = sum(count * curve(rows, load.bucket) for rows, count in counted.runs.items())
    return counted.execution_s / expected_s if expected_s else 1.0


def observe(server: PinnedServer, case: Case, workload: Workload, curve: Curve, cores: Cores) -> Observed:
    """Put one workload on the real server.

    Args:
        server: Ready and idle.
        case: The workload.
        workload: Its requests.
        curve: What the model's batches cost by its profile.
        cores: Where the generator runs.

    Raises:
        BenchmarkError: The server or the generator failed.
    """
    model = case.load.model
    before = server.counters(model)
    spent = _Spent.until_now(server, cores)
    result = send_apart(server.asked_at, workload, _FOLDER, cores.rest_command)
    server.check_alive()
    counted = server.counters(model).since(before)
    spent = _Spent.until_now(server, cores).since(spent)
    statuses = {}
    for name, mask in masks(workload).items():
        counts = zip(*np.unique(result.status[mask], return_counts=True), strict=True)
        statuses[name] = {str(status): int(count) for status, count in counts}
    return Observed(
        groups=observed_groups(workload, result),
        batch_rows=counted.rows / counted.executions if counted.executions else 0.0,
        utilisation=counted.execution_s / case.seconds,
        runs=dict(counted.runs),
        slowdown=slowdown(counted, case.load, curve),
        statuses=statuses,
        stall_p99_s=float(np.quantile(result.probe_s, 0.99)) if len(result.probe_s) else 0.0,
        late_p99_s=result.late_p99_s,
        generator_cpu=result.cpu,
        cpu={role: seconds / case.seconds for role, seconds in spent.roles.items()},
        foreign=spent.foreign(),
        first=server.first,
    )


@dataclass(frozen=True, slots=True)
class _Spent:
    """CPU time, cumulative, seconds: of the server by role, of this process and its children, and of whole cores."""

    at: float
    roles: dict[str, float]
    own: float
    model_core: float
    rest_core: float

    @classmethod
    def until_now(cls, server: PinnedServer, cores: Cores) -> _Spent:
        own = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        busy = [sum(core) - core.idle - core.iowait - core.guest - core.guest_nice for core in psutil.cpu_times(True)]
        return cls(time.monotonic(), server.cpu_s(), own, busy[cores.model], busy[cores.rest])

    def since(self, before: _Spent) -> _Spent:
        roles = {role: seconds - before.roles.get(role, 0.0) for role, seconds in self.roles.items()}
        return _Spent(
            self.at - before.at,
            roles,
            self.own - before.own,
            self.model_core - before.model_core,
            self.rest_core - before.rest_core,
        )

    def foreign(self) -> dict[str, float]:
        """What is left of each core's busy time. This process may run on either core; it does next to nothing."""
        models = sum(seconds for role, seconds in self.roles.items() if is_model(role))
        rest = sum(self.roles.values()) - models + self.own
        return {
            "model": max(0.0, self.model_core - models) / self.at,
            "rest": max(0.0, self.rest_core - rest) / self.at,
        }


def _patient(server: PinnedServer, load: Load, arrival_s: Floats, cores: Cores) -> tuple[Result, Counters]:
    """Send requests with plenty of time, all of which must be answered."""
    workload = Workload.alike(arrival_s, load.model, _PATIENT_S, rows=load.rows, bucket=load.bucket)
    before = server.counters(load.model)
    result = send_apart(server.asked_at, workload, _FOLDER, cores.rest_command)
    if (result.status != 200).any():
        raise BenchmarkError(f"{load.model}: {(result.status != 200).sum()} of {len(workload)} patient requests failed")
    return result, server.counters(load.model).since(before)
