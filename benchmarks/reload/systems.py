"""What is measured: each backend of this server, several versions, and the servers that can load a model anew."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.cases import MLSERVER, TRITON
from benchmarks.peers.systems import PeerServer, Subject
from benchmarks.process import ServerProcess
from benchmarks.reload.loading import load_by_grpc, load_by_http
from benchmarks.reload.models import KINDS, MODEL, Kind
from benchmarks.reload.swapping import Memory
from benchmarks.server import DIRECT, HOSTS, ROOT, SERVE_APP_RUN, Server, demo_document, is_ready
from benchmarks.wires import WIRES, Wire
from serve_app.config.files import CACHE_VARIABLE
from serve_app.config.model import ModelConfig

_VERSIONS = ("1", "2")
VERSIONED: Mapping[str, Any] = {"versions": {"latest": len(_VERSIONS)}}
"""Settings of a model that is served in all of its versions."""

_INFER = f"/v2/models/{MODEL}/infer"


@dataclass(frozen=True, slots=True)
class System:
    """A server with a model that is loaded anew.

    Attributes:
        kind: What the model's files are.
        folders: Below the model's folder, where a swap writes them.
        make: Makes the server for a folder that holds the model's folder; not yet started.
        wire: What it speaks.
        ask: Paths of requests.
        how: How it was set, for people.
        by_grpc: Whether it is told to load by gRPC.
    """

    kind: Kind
    folders: Sequence[str]
    make: Callable[[Path], ServerProcess]
    wire: Wire
    how: str
    ask: Sequence[str] = (_INFER,)
    by_grpc: bool = False

    def write(self, folder: Path, number: int) -> int:
        """Write the files that answer with this number. Returns their bytes."""
        return sum(self.kind.write(folder / MODEL / each, number) for each in self.folders)

    def load(self, server: ServerProcess) -> None:
        """Have a server load its model anew. Raises `BenchmarkError` if it does not."""
        if self.by_grpc:
            assert isinstance(server, PeerServer)
            load_by_grpc(server.grpc[DIRECT], MODEL)
        else:
            load_by_http(server.urls[DIRECT], MODEL)


def ours(models: Mapping[str, Any], folder: Path) -> Server:
    """This server with these arguments, besides those of the demonstration; not yet started."""
    document = demo_document(**models)
    document["applications"][0]["args"]["router"]["access"] = {"open_administration": True}
    return Server("reload", document, SERVE_APP_RUN, ROOT, {CACHE_VARIABLE: str(folder / "cache")})


def model_memory(by_role: Mapping[str, int]) -> int:
    """Of what this server's processes hold, the part of those that run models: replicas and hosts."""
    return sum(nbytes for role, nbytes in by_role.items() if role == HOSTS or _runs_models(role))


def _runs_models(role: str) -> bool:
    return role.startswith("replica of ") and role != "replica of router"


def arguments(kind: Kind, folder: Path, **settings: Any) -> dict[str, Any]:
    """What this server is told of a model of this kind in a folder that holds the model's folder."""
    batching = {"verify": 0, **kind.settings.get("batching", {})}
    entry = {"name": MODEL, "path": str(folder / MODEL), **kind.settings, "batching": batching, **settings}
    return {"models": [entry]}


def _own(kind: Kind, folders: Sequence[str] = ("",), ask: Sequence[str] = (_INFER,), **settings: Any) -> System:
    def make(folder: Path) -> ServerProcess:
        return ours(arguments(kind, folder, **settings), folder)

    return System(kind, folders, make, WIRES["binary"], "one replica, one thread", ask)


def _peer(name: str, program: str, wire: str, how: str, *, by_grpc: bool = False) -> System:
    kind = KINDS["onnx"]

    def make(folder: Path) -> ServerProcess:
        model = ModelConfig(name=MODEL, path=str(folder / MODEL))
        return PeerServer(name, Subject(model, 1), wire, program)

    return System(kind, ("1",), make, WIRES[wire], how, by_grpc=by_grpc)


SYSTEMS: Mapping[str, System] = {
    **{name: _own(kind) for name, kind in KINDS.items()},
    "versions": _own(
        KINDS["onnx"],
        _VERSIONS,
        [f"/v2/models/{MODEL}/versions/{each}/infer" for each in _VERSIONS],
        **VERSIONED,
    ),
    "triton": _peer(
        TRITON,
        "triton_repository_app",
        "binary",
        "Triton's Python backend with an ONNX Runtime session, a repository in explicit mode, dynamic batches, one"
        " instance, one thread; loads by gRPC, as one by HTTP holds up the connections of its thread. What PyTriton"
        " serves from a process of one's own has no load (triton-inference-server/pytriton#21)",
        by_grpc=True,
    ),
    "mlserver": _peer(
        MLSERVER,
        "mlserver_app",
        "json",
        "a model class with an ONNX Runtime session, made in a thread beside the event loop, adaptive batches of 2 ms,"
        " no workers, one thread; V2 JSON, as it has no binary form",
    ),
}
"""By name: a backend, or another server."""

LABELS: Mapping[str, str] = {
    "onnx": "ONNX Runtime",
    "python": "a Python class",
    "python-own": "a Python class in its own process",
    "torchscript": "TorchScript",
    "torch-export": "torch.export",
    "versions": "ONNX Runtime, two versions",
    "pool": "a pool of ONNX models",
    "triton": "Triton",
    "mlserver": "MLServer",
}

PEERS = ("triton", "mlserver")


def memory(server: ServerProcess) -> Memory:
    """Memory of its processes. Raises `BenchmarkError` where it has ended."""
    server.check_alive()
    return Memory(server.memory(), server.memory("uss"))


def ready(server: ServerProcess) -> bool:
    """Whether it can be asked."""
    return is_ready(server.urls[DIRECT])
