"""The server under test: its processes by what they are there for, and the signals that they get."""

from __future__ import annotations

import re
import signal
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import yaml
from typing_extensions import override

from benchmarks.process import OUT, ROOT
from benchmarks.server import DIRECT, SERVE_APP_RUN, Server
from serve_app.cli.processes import Process, end
from serve_app.config.args import AppArgs, parse_args
from serve_app.config.file import IMPORT_PATH, read_document

APPLICATION = "serve-app"
ROUTER = "router"
CONTROLLER, HAPROXY, PROXY_MANAGER, GCS, RAYLET = "controller", "haproxy", "proxy manager", "gcs", "raylet"
LOG_MONITOR = "Ray's log monitor"
HOST = "own process of a Python model"

_WITH_DASHBOARD = tuple(part for part in SERVE_APP_RUN if part != "--no-dashboard")
_TITLES = {"ray::ServeController": CONTROLLER, "ray::HAProxyManager": PROXY_MANAGER, "ray::ProxyActor": PROXY_MANAGER}
_PROGRAMS = {"haproxy": HAPROXY, "gcs_server": GCS, "raylet": RAYLET}


@dataclass(frozen=True, slots=True)
class Reading:
    """One process at one moment.

    Attributes:
        pid: Its number.
        role: What it is there for.
        mib: Proportional set size, MiB.
        descriptors: Open file descriptors.
        threads: Threads.
    """

    pid: int
    role: str
    mib: float
    descriptors: int
    threads: int


@dataclass(frozen=True, slots=True)
class Setup:
    """What is served.

    Attributes:
        name: For files and messages.
        models: Under ``models:``.
        router: Under ``router:``, ports apart.
        classes: Under ``classes:``.
        further: Other keys under ``args:``.
        variables: Added to the environment of the server.
        serve_variables: Added to the variables of Serve's own processes.
        dashboard: Whether Ray's dashboard runs, through which a configuration is replaced.
        prepare: Makes what the models need, such as their files.
        settings: Other keys of the Serve file.
        server: What runs it; `FaultyServer` by default.
    """

    name: str
    models: Sequence[Mapping[str, Any]]
    router: Mapping[str, Any] = field(default_factory=dict)
    classes: Mapping[str, Any] = field(default_factory=dict)
    further: Mapping[str, Any] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    serve_variables: Mapping[str, str] = field(default_factory=dict)
    dashboard: bool = False
    prepare: Callable[[], None] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    server: Callable[[Setup], FaultyServer] | None = None

    def document(self) -> dict[str, Any]:
        """The demo's Serve file with these models."""
        document = read_document(ROOT / "configs" / "demo.yaml")
        application = next(each for each in document["applications"] if each["import_path"] == IMPORT_PATH)
        application["args"] = {
            **self.further,
            "router": {"cpus": 0.1, "http": {"port": 1}, "grpc": {"port": 2}, **self.router},
            "classes": dict(self.classes),
            "models": [dict(model) for model in self.models],
        }
        document["controller_options"]["runtime_env"]["env_vars"].update(self.serve_variables)
        return {**document, "grpc_options": _grpc_options(), **self.settings}

    def make_server(self) -> FaultyServer:
        """What serves it."""
        return (self.server or FaultyServer)(self)

    def args(self) -> AppArgs:
        """The same, validated."""
        document = self.document()
        return parse_args(document["applications"][0]["args"])


def _grpc_options() -> dict[str, Any]:
    """Serve's own way in by gRPC, which the demo does without; its port is chosen when the server starts."""
    grpc_options: dict[str, Any] = read_document(ROOT / "configs" / "bench.yaml")["grpc_options"]
    return grpc_options


class FaultyServer(Server):
    """A server whose processes can be found and hit.

    Args:
        setup: What it serves.
    """

    def __init__(self, setup: Setup) -> None:
        super().__init__(f"chaos {setup.name}", setup.document(), _WITH_DASHBOARD if setup.dashboard else SERVE_APP_RUN)
        self.setup = setup

    @property
    def direct(self) -> str:
        """Address of the routers' own port."""
        return self.urls[DIRECT]

    @override
    def _prepare(self) -> tuple[Sequence[str], Mapping[str, str]]:
        command, environment = super()._prepare()
        return command, {**environment, "RAY_AUTH_MODE": "disabled", **self.setup.variables}

    def log(self) -> str:
        """What it has printed so far."""
        return self._log_file.read_text(encoding="utf-8", errors="replace")

    def find(self, role: str) -> list[Process]:
        """Its living processes of a role: a model's name, `ROUTER`, or one of the names above."""
        found = []
        for process in self._processes():
            try:
                if part_of(process.cmdline()) == role and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(Process.of(process.pid))
            except psutil.Error:  # it has ended meanwhile
                continue
        return sorted((each for each in found if each is not None), key=lambda each: each.started)

    def kill(self) -> None:
        """Kill all its processes, and those that they start meanwhile."""
        while processes := self._processes():
            for process in processes:
                with suppress(psutil.Error):  # it has ended meanwhile
                    process.kill()

    def listening(self, role: str) -> int:
        """How many processes of a role take connections on the routers' own port."""
        port, found = urlsplit(self.direct).port, 0
        for process in self._processes():
            try:
                if part_of(process.cmdline()) == role:
                    connections = process.net_connections("tcp")
                    found += any(each.status == psutil.CONN_LISTEN and each.laddr.port == port for each in connections)
            except psutil.Error:  # it has ended meanwhile
                continue
        return found

    def readings(self) -> list[Reading]:
        """All its processes now."""
        found = []
        for process in self._processes():
            try:
                role = part_of(process.cmdline())
                mib = process.memory_full_info().pss / 1024**2
                found.append(Reading(process.pid, role, mib, process.num_fds(), process.num_threads()))
            except psutil.Error:  # it has ended meanwhile
                continue
        return found

    def processor_s(self) -> dict[str, float]:
        """Processor time that its processes have had so far, by role, seconds."""
        found: defaultdict[str, float] = defaultdict(float)
        for process in self._processes():
            with suppress(psutil.Error):  # it has ended meanwhile
                found[part_of(process.cmdline())] += sum(process.cpu_times()[:2])
        return found

    def snapshot(self) -> dict[str, Any]:
        """What one of the routers says of itself; empty where none answers."""
        try:
            answer = httpx.get(f"{self.direct}/status", timeout=5.0)
        except httpx.TransportError:
            return {}
        found: dict[str, Any] = answer.json() if answer.status_code == 200 else {}
        return found

    def status(self) -> dict[str, Any]:
        """What one of the routers says of the models; empty where none answers."""
        models: dict[str, Any] = self.snapshot().get("models", {})
        return models

    def replicas(self, model: str) -> int:
        """How many replicas of a model one of the routers can reach."""
        return len(self.status().get(model, {}).get("replicas", ()))

    def deploy(self, document: Mapping[str, Any]) -> None:
        """Replace the configuration while it runs, as ``serve deploy`` does. Needs the dashboard."""
        address = re.search(r"(http://[\d.]+:\d+)", self.log())
        assert address is not None
        httpx.put(f"{address[1]}/api/serve/applications/", json=document, timeout=60.0).raise_for_status()

    def served_document(self) -> dict[str, Any]:
        """The Serve file as it was started with, on its ports."""
        document: dict[str, Any] = yaml.safe_load((OUT / f"{self._file_name}.yaml").read_text(encoding="utf-8"))
        return document


def part_of(command: list[str]) -> str:
    """What a process of the server is there for, from its command line: the name of a model for its replicas."""
    first = command[0] if command else ""
    replica = re.match(rf"ray::ServeReplica:{APPLICATION}:([^\s.]+)", first)
    if replica is not None:
        return replica[1]
    for title, name in _TITLES.items():
        if first.startswith(title):
            return name
    if any(part.endswith("/log_monitor.py") for part in command):
        return LOG_MONITOR
    if any(part.endswith("/backends/python/host.py") for part in command):
        return HOST
    return _PROGRAMS.get(Path(first).name, "Ray's other processes")


def hit(process: Process, with_signal: signal.Signals) -> None:
    """Send a signal to exactly this process."""
    end(process, with_signal)
