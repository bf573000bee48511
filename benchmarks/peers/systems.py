"""The systems that are compared: how each is started, and what it is asked in."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import systems
from benchmarks.failure import BenchmarkError
from benchmarks.peers.cases import (
    BENTOML,
    FASTAPI,
    LITSERVE,
    MLSERVER,
    OURS,
    OURS_PROXY,
    STOCK,
    SYNC,
    TRITON,
    Case,
)
from benchmarks.peers.environments import LOCKS, environment
from benchmarks.ports import free_ports
from benchmarks.process import ROOT, ServerProcess
from benchmarks.server import DIRECT, PROXY, SERVE_APP_RUN, SERVE_RUN, Server
from benchmarks.wires import WIRES, Wire
from serve_app.backends.onnx.signature import read_signature
from serve_app.composition.model import find_files, make_processor
from serve_app.config.file import load_file
from serve_app.config.model import ModelConfig

CONFIG = ROOT / "configs" / "bench.yaml"

_ONE_THREAD = frozenset({"tiny", "pool", "wide"})
"""Models whose session gets one core, on every system: the others are for the server and the load generator. More
threads would only slow `tiny` and `pool` down, and `wide`, which is bound by memory, gains little."""


@dataclass(frozen=True, slots=True)
class _Peer:
    """How another server is run.

    Attributes:
        lock: Name of its environment.
        package: What its version is that of.
        program: Module of its server.
        wires: What it speaks, by the form that a case asks for; another one where it does not speak that one.
        waits_ms: How long a batch waits for more rows.
    """

    lock: str
    package: str
    program: str
    wires: Mapping[str, str]
    waits_ms: float = 0.0


_PEERS: Mapping[str, _Peer] = {
    # Triton's guide to its dynamic batcher starts from no delay at all, and one only made it slower here.
    TRITON: _Peer("triton", "nvidia-pytriton", "triton_app", {"json": "json", "binary": "binary"}),
    FASTAPI: _Peer("fastapi", "fastapi", "fastapi_app", {"json": "json", "binary": "bytes"}),
    SYNC: _Peer("fastapi", "fastapi", "sync_app", {"json": "json", "binary": "bytes"}),
    # LitServe's guide to batching: a timeout in the order of a prediction.
    LITSERVE: _Peer("litserve", "litserve", "litserve_app", {"json": "json", "binary": "base64"}, 2.0),
    # BentoML learns how long to wait.
    BENTOML: _Peer("bentoml", "bentoml", "bentoml_app", {"json": "nested", "binary": "nested"}),
    # MLServer batches only where a time is given.
    MLSERVER: _Peer("mlserver", "mlserver", "mlserver_app", {"json": "json", "binary": "json"}, 2.0),
}


@dataclass(frozen=True, slots=True)
class Subject:
    """The model of a case, as all systems are told to run it.

    Attributes:
        model: As `configs/bench.yaml` has it.
        threads: Threads of a session.
    """

    model: ModelConfig
    threads: int

    @classmethod
    def of(cls, name: str) -> Subject:
        """A model of `configs/bench.yaml`.

        Raises:
            ConfigError: The file is not valid.
            BenchmarkError: It has no such model.
        """
        found = next((each for each in load_file(CONFIG).args.models if each.name == name), None)
        if found is None:
            raise BenchmarkError(f"{CONFIG.name} has no model {name}")
        return cls(found, 1 if name in _ONE_THREAD else len(os.sched_getaffinity(0)))

    @property
    def model_file(self) -> Path:
        """Its ``.onnx`` file. Raises `ConfigError`."""
        return find_files(self.model)[""].model_file

    def buckets(self) -> tuple[int, ...]:
        """Lengths that serve_app pads token ids to; empty for a model without a task. Raises `ConfigError`."""
        location = find_files(self.model)[""]
        processor = make_processor(self.model, read_signature(location.model_file, model=self.model.name), location)
        return () if processor is None else processor.buckets


class PeerServer(ServerProcess):
    """Another server, in its own environment.

    Args:
        name: For messages and file names.
        subject: The model.
        wire: Name of the form of requests.
        program: Module of the server, if it is another one than that of the comparison.

    Attributes:
        grpc: Ways into it by gRPC, by name: ``host:port``.
    """

    def __init__(self, name: str, subject: Subject, wire: str, program: str | None = None) -> None:
        super().__init__(name)
        self._peer = _PEERS[name]
        self._program = program or self._peer.program
        self._subject = subject
        self._wire = wire
        self._folder: Path | None = None
        self.grpc: dict[str, str] = {}

    def _prepare(self) -> tuple[Sequence[str], Mapping[str, str]]:
        python = environment(self._peer.lock)
        port, *more = free_ports(3)
        self.urls = {DIRECT: f"http://127.0.0.1:{port}"}
        if self.name == TRITON:
            self.grpc = {DIRECT: f"127.0.0.1:{more[0]}"}  # as its program takes it
        self._folder = Path(tempfile.mkdtemp(prefix="serve-app-bench-"))
        told = {
            "model": self._subject.model.name,
            "model_file": str(self._subject.model_file),
            "port": port,
            "more_ports": more,
            "threads": self._subject.threads,
            "max_rows": self._subject.model.batching.configured_rows,
            "max_wait_ms": self._peer.waits_ms,
            "wire": self._wire,
            "folder": str(self._folder),
        }
        return [str(python), "-m", f"benchmarks.peers.apps.{self._program}", json.dumps(told)], {}

    def _clean_up(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    @staticmethod
    def role(command: list[str]) -> str:
        """The program, or the module that Python runs."""
        name = Path(command[0]).name if command else "unknown"
        if not name.startswith("python"):
            return name
        if "-m" in command[:-1]:
            return command[command.index("-m") + 1].rpartition(".")[2]
        script = next((word for word in command[1:] if not word.startswith("-")), name)
        # Workers of `multiprocessing` are told what to do by a program text.
        return Path(script).name if "\n" not in script and "multiprocessing" not in script else "worker"


def make(system: str, subject: Subject, case: Case) -> ServerProcess:
    """A server, not yet started.

    Raises:
        ConfigError: The configuration cannot be read.
    """
    name = subject.model.name
    if system == OURS:
        return Server(system, _ours(subject), SERVE_APP_RUN)
    if system == STOCK:
        return Server(system, systems.stock(CONFIG, name), SERVE_RUN)
    return PeerServer(system, subject, wire_of(system, case.wire).name)


def wire_of(system: str, form: str) -> Wire:
    """The form of requests that a system gets where this one is asked for, ``json`` or ``binary``."""
    peer = _PEERS.get(system)
    return WIRES[form if peer is None else peer.wires[form]]


def endpoints(server: ServerProcess) -> dict[str, str]:
    """URLs of a running server by the name that the report has for that way into it."""
    if server.name != OURS:
        return {server.name: server.url}
    names = {DIRECT: OURS, PROXY: OURS_PROXY}
    return {names[way]: server.urls[way] for way in names if way in server.urls}


def settings_of(system: str, subject: Subject) -> str:
    """How a system was set, for people."""
    batches = f"{subject.model.batching.max_rows} rows per batch"
    if system == OURS:
        return f"`configs/bench.yaml`, {batches}, {_threads(subject.threads)}"
    if system == STOCK:
        return ", ".join(f"`{name}={value}`" for name, value in systems.STOCK_SETTINGS.items())
    if system == SYNC:
        return "a pool of 40 threads, no batches, ONNX Runtime's own choice of threads"
    if system == FASTAPI:
        return f"one process, no batches, {_threads(subject.threads)}"
    waits = "as long as it has learned" if system == BENTOML else f"{_PEERS[system].waits_ms:g} ms at most"
    return f"{batches}, which wait {waits}, {_threads(subject.threads)}"


def _threads(count: int) -> str:
    return f"{count} thread{'s' if count > 1 else ''} per session"


def _ours(subject: Subject) -> dict[str, Any]:
    document = systems.ours(CONFIG, subject.model.name)
    for application in document["applications"]:
        for model in application["args"]["models"]:
            model["resources"] = {**model.get("resources", {}), "threads": subject.threads}
    return document


def versions(names: Collection[str]) -> dict[str, str]:
    """What other servers are pinned to, by system."""
    found = {}
    for name, peer in _PEERS.items():
        if name in names:
            pinned = (LOCKS / f"{peer.lock}.txt").read_text(encoding="utf-8").splitlines()
            found[name] = next((line.split()[0] for line in pinned if line.startswith(f"{peer.package}==")), "")
    return found
