"""The server that calibration measures: its model replicas tied to one core, everything else to another."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx

from benchmarks.failure import BenchmarkError
from benchmarks.niceness import session_first
from benchmarks.server import DIRECT, SERVE_APP_RUN, Server, is_ready, role

_START_WITHIN_S = 300.0
_DIRECT_PORT = 8100
_ASK_EVERY_S = 0.2
_SETTLE_WITHIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Cores:
    """Which core does what.

    Attributes:
        model: Of the replicas of the models.
        rest: Of the router, the proxy, Ray's own processes and the load generator.
    """

    model: int
    rest: int

    @classmethod
    def choose(cls) -> Cores:
        """The first two that this process may use.

        Raises:
            BenchmarkError: There is only one.
        """
        usable = sorted(os.sched_getaffinity(0))
        if len(usable) < 2:
            raise BenchmarkError("calibration needs two cores, one of them for the model alone")
        return cls(model=usable[1], rest=usable[0])

    @property
    def rest_command(self) -> tuple[str, ...]:
        """Put before a command that shall share the core of the rest."""
        return ("taskset", "--cpu-list", str(self.rest))

    @property
    def model_command(self) -> tuple[str, ...]:
        """Put before a command that shall have the model's core."""
        return ("taskset", "--cpu-list", str(self.model))


@dataclass(frozen=True, slots=True)
class Counters:
    """Cumulative numbers of one model over all routers, from its V2 statistics. Times in seconds.

    Attributes:
        runs: Runs of the model, by their rows.
        execution_s: Their time in the session.
        answered: Requests answered.
        total_s: Time of those requests from the arrival at the scheduler to the answer, in sum.
        queue_s: The part of it in the router's queue.
        compute_s: The part of it in the session.
    """

    runs: Mapping[int, int]
    execution_s: float
    answered: float
    total_s: float
    queue_s: float
    compute_s: float

    def since(self, before: Counters) -> Counters:
        """What was added since then.

        Raises:
            BenchmarkError: They began anew meanwhile, because the router was replaced.
        """
        times = (f.name for f in fields(self) if f.name != "runs")
        added = {name: getattr(self, name) - getattr(before, name) for name in times}
        runs = {rows: self.runs.get(rows, 0) - before.runs.get(rows, 0) for rows in {**before.runs, **self.runs}}
        if min(runs.values(), default=0) < 0 or added["answered"] < 0:
            raise BenchmarkError("a router was replaced while it was measured; its log says why")
        return Counters({rows: runs[rows] for rows in sorted(runs) if runs[rows]}, **added)

    @property
    def executions(self) -> int:
        """Runs of the model."""
        return sum(self.runs.values())

    @property
    def rows(self) -> int:
        """Rows that ran."""
        return sum(rows * count for rows, count in self.runs.items())


class PinnedServer(Server):
    """A `Server` whose models have a core of their own.

    Ray starts its workers with niceness 15, so that whatever else runs on the machine would hold them up: here they
    are as nice as everybody.

    Attributes:
        first: Whether all of its processes get the processor before other programs, once it is ready.
    """

    def __init__(
        self,
        name: str,
        document: Mapping[str, Any],
        cores: Cores,
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(name, document, ("env", "RAY_worker_niceness=0", *SERVE_APP_RUN), variables=variables)
        self._cores = cores
        self.first = True
        self._models = [model["name"] for model in document["applications"][0]["args"]["models"]]

    @property
    def asked_at(self) -> str:
        """Where the load goes: the routers' own port if the file names one, else Serve's proxy."""
        return self.urls.get(DIRECT, self.url)

    def wait_ready(self) -> None:
        """Wait until every model can take work, then tie every process to its core, and put them before other programs.

        It starts on all cores: Serve gives up on a start that takes too long.

        Raises:
            BenchmarkError: It has ended, or takes too long.
        """
        self.wait_until(lambda: is_ready(self.url), _START_WITHIN_S)
        processes = {process: role(process.cmdline()) for process in self._processes()}
        missing = {f"replica of {model}" for model in self._models} - set(processes.values())
        if missing:
            raise BenchmarkError(f"no process of {self.name} is the {missing.pop()}")
        for process, what in processes.items():
            _pin(process.pid, self._cores.model if is_model(what) else self._cores.rest)
            self.first = bool(session_first(process.pid)) and self.first

    def counters(self, model: str) -> Counters:
        """The model's counters, once nothing of it is queued or running.

        Raises:
            BenchmarkError: It does not come to rest.
        """
        until = time.monotonic() + _SETTLE_WITHIN_S
        with httpx.Client(timeout=_SETTLE_WITHIN_S) as client:
            while time.monotonic() < until:
                state = client.get(f"{self.url}/status").json()["models"][model]
                if not state["running_rows"] and not any(queue["rows"] for queue in state["queues"].values()):
                    stats = client.get(f"{self.url}/v2/models/{model}/stats").json()["model_stats"][0]
                    return _counters(stats)
                time.sleep(_ASK_EVERY_S)
        raise BenchmarkError(f"{model} is still busy {_SETTLE_WITHIN_S:.0f} s after the last request")


def with_routers(document: Mapping[str, Any], routers: int) -> dict[str, Any]:
    """The same file with so many routers, which share a port of their own."""
    changed = deepcopy(dict(document))
    for application in changed["applications"]:
        application["args"]["router"] |= {"replicas": routers, "http": {"port": _DIRECT_PORT}}
    return changed


def is_model(role: str) -> bool:
    """Whether this role (see `benchmarks.server.role`) is the replica of a model."""
    return role.startswith("replica of ") and role != "replica of router"


def _counters(stats: Mapping[str, Any]) -> Counters:
    """From an object of V2's ``model_stats``. Runs that bundles or routers share are counted once there."""
    times = stats["inference_stats"]
    runs = {each["batch_size"]: each["compute_infer"] for each in stats["batch_stats"]}
    return Counters(
        runs={rows: run["count"] for rows, run in runs.items()},
        execution_s=sum(run["ns"] for run in runs.values()) / 1e9,
        answered=times["success"]["count"],
        total_s=times["success"]["ns"] / 1e9,
        queue_s=times["queue"]["ns"] / 1e9,
        compute_s=times["compute_infer"]["ns"] / 1e9,
    )


def _pin(pid: int, core: int) -> None:
    """Tie every thread of a process to a core. Threads made meanwhile are found in the next round."""
    tied: set[int] = set()
    with suppress(FileNotFoundError):  # the process has ended meanwhile
        while found := {int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir()} - tied:
            for thread in found:
                with suppress(ProcessLookupError):  # the thread has ended meanwhile
                    os.sched_setaffinity(thread, {core})
            tied |= found
