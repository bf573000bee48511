"""The systems that are compared: how each is started, and in which settings it is tried."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.peers.environments import LOCKS, environment
from benchmarks.peers.systems import PeerServer
from benchmarks.ports import free_ports
from benchmarks.process import ROOT, ServerProcess
from benchmarks.server import DIRECT, PROXY, SERVE_APP_RUN, SERVE_RUN, Server, demo_document
from benchmarks.tasks.apps.work import Settings
from serve_app.config.file import read_document

OURS = "serve_app"
_TOGETHER = 16
_TASKS = {
    "digits": "image-classification",
    "spoken-digits": "audio-classification",
    "minilm": "feature-extraction",
    "resnet50": "image-classification",
}


@dataclass(frozen=True, slots=True)
class Setting:
    """How a rival is tuned; see `Settings`.

    Attributes:
        workers: Processes that run models.
        threads: Threads of a session.
        batches: Whether requests of different clients may share a run.
        rows: Rows of one run at most.
        fast: Ray Serve behind HAProxy, with its options for throughput.
    """

    workers: int = 1
    threads: int = 2
    batches: bool = False
    rows: int = 1
    fast: bool = False

    def __str__(self) -> str:
        return ", ".join(
            filter(
                None,
                (
                    "1 worker" if self.workers == 1 else f"{self.workers} workers",
                    "1 thread" if self.threads == 1 else f"{self.threads} threads",
                    "batches" if self.batches else "no batches",
                    "each row alone" if self.rows == 1 else f"runs of up to {self.rows} rows",
                    "HAProxy" if self.fast else "",
                ),
            )
        )


@dataclass(frozen=True, slots=True)
class System:
    """A system.

    Attributes:
        name: For the command line and the report.
        settings: It is tried in; the first one is what is taken without a try.
        start: Makes the server of a setting, not yet started, for models with these folders.
        lock: Name of its environment; empty for that of serve_app.
        package: What its version is that of.
    """

    name: str
    settings: Sequence[Setting]
    start: Callable[[Setting, Mapping[str, Path]], ServerProcess]
    lock: str = ""
    package: str = ""

    @property
    def version(self) -> str:
        """What it is pinned to; empty for serve_app's own environment."""
        if not self.lock:
            return ""
        lines = (LOCKS / f"{self.lock}.txt").read_text(encoding="utf-8").splitlines()
        return next((line.split()[0] for line in lines if line.startswith(f"{self.package}==")), "")


class Rival(ServerProcess):
    """Another server, in its own environment.

    Args:
        name: For messages and file names.
        program: Module below `benchmarks.tasks.apps`.
        lock: Name of the environment.
        setting: How it is tuned.
        folders: Of the models.
        ports: One for each worker, where they do not share one.
    """

    def __init__(
        self, name: str, program: str, lock: str, setting: Setting, folders: Mapping[str, Path], ports: int
    ) -> None:
        super().__init__(f"tasks {name}")
        self._program, self._lock = program, lock
        self._setting, self._folders, self._ports = setting, folders, ports

    def _prepare(self) -> tuple[Sequence[str], Mapping[str, str]]:
        python = environment(self._lock)
        ports = free_ports(self._ports)
        self.urls = {f"{DIRECT} {port}": f"http://127.0.0.1:{port}" for port in ports}
        told = json.dumps(asdict(_settings(self._setting, self._folders, ports)))
        variables = {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
        return [str(python), "-m", f"benchmarks.tasks.apps.{self._program}", told], variables

    role = staticmethod(PeerServer.role)


def _settings(setting: Setting, folders: Mapping[str, Path], ports: Sequence[int]) -> Settings:
    models = {name: str(folder) for name, folder in folders.items()}
    return Settings(models, tuple(ports), setting.workers, setting.threads, setting.batches, setting.rows)


def _rival(
    name: str, program: str, lock: str, shares_port: bool, setting: Setting, folders: Mapping[str, Path]
) -> ServerProcess:
    return Rival(name, program, lock, setting, folders, 1 if shares_port else setting.workers)


def _stock(setting: Setting, folders: Mapping[str, Path]) -> ServerProcess:
    demo = read_document(ROOT / "configs" / "demo.yaml")
    args = {"workers": setting.workers, "told": json.dumps(asdict(_settings(setting, folders, ())))}
    application = {
        "name": "stock",
        "route_prefix": "/",
        "import_path": "benchmarks.tasks.apps.ray_app:build",
        "logging_config": demo["applications"][0]["logging_config"],
        "args": args,
    }
    document = {"applications": [application]}
    if setting.fast:
        document["controller_options"] = demo["controller_options"]
    return Server("tasks stock Ray Serve", document, SERVE_RUN)


def _demo(_: Setting, folders: Mapping[str, Path]) -> ServerProcess:
    document = read_document(ROOT / "configs" / "demo.yaml")
    document["applications"][0]["args"]["models"].append(_five_lines("resnet50", folders["resnet50"]))
    return Server("tasks serve_app demo file", document, SERVE_APP_RUN)


def _minimal(_: Setting, folders: Mapping[str, Path]) -> ServerProcess:
    models = [_five_lines(name, folder) for name, folder in folders.items()]
    return Server("tasks serve_app five lines", demo_document(models=models), SERVE_APP_RUN)


def _five_lines(name: str, folder: Path) -> dict[str, Any]:
    return {"name": name, "task": _TASKS[name], "path": str(folder)}


# Batches with each row alone would be no batches.
_COMMON = tuple(
    Setting(workers, threads, batches, rows)
    for (workers, threads), (batches, rows) in product(
        ((2, 1), (1, 2), (1, 1)), ((False, 1), (False, _TOGETHER), (True, 4), (True, _TOGETHER))
    )
)
# One setting shows what Serve's own proxy, without HAProxy, costs.
_RAY = (*(Setting(each.workers, each.threads, each.batches, each.rows, fast=True) for each in _COMMON[:8]), _COMMON[0])

SYSTEMS = {
    system.name: system
    for system in (
        System(f"{OURS} (demo file)", (Setting(),), _demo),
        System(f"{OURS} (five lines)", (Setting(),), _minimal),
        System("FastAPI", _COMMON, partial(_rival, "FastAPI", "fastapi_app", "fastapi", False), "fastapi", "fastapi"),
        System(
            "LitServe", _COMMON, partial(_rival, "LitServe", "litserve_app", "litserve", True), "litserve", "litserve"
        ),
        System("BentoML", _COMMON, partial(_rival, "BentoML", "bentoml_app", "bentoml", True), "bentoml", "bentoml"),
        System("stock Ray Serve", _RAY, _stock),
    )
}

NOT_COMPARED = {
    "infinity-emb": "pools the tokens' vectors itself, and this model's graph has pooled them already: it fails with"
    " this file. It needs PyTorch, whose wheel on PyPI brings some GiB of CUDA's libraries."
}
"""Systems that cannot be measured here, and why."""


def ways(system: System, server: ServerProcess) -> dict[str, tuple[int, ...]]:
    """Ports of a running server, by the name that the report has for that way into it."""
    if not isinstance(server, Server):
        return {system.name: tuple(int(url.rpartition(":")[2]) for url in server.urls.values())}
    by_way = {way: (int(url.rpartition(":")[2]),) for way, url in server.urls.items()}
    if DIRECT not in by_way:
        return {system.name: by_way[PROXY]}
    return {system.name: by_way[DIRECT], f"{system.name}, Serve's port": by_way[PROXY]}
