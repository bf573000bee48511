"""One real server for all tests that only ask it things."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import onnx_models
import pytest
import yaml
from deployments.own_models import bring
from serve_process import ROOT, ServeProcess

from benchmarks.ports import free_ports


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    """The demo's models, as configured, three tiny ones, and three as users bring them."""
    folder = tmp_path_factory.mktemp("server")
    demo = yaml.safe_load((ROOT / "configs" / "demo.yaml").read_text())
    args = demo["applications"][0]["args"]
    kinds: tuple[onnx_models.Kind, ...] = ("sum_diff", "fail_on_negative", "string_identity")
    for kind in kinds:
        onnx_models.make(folder / "models" / kind / "1" / "model.onnx", kind)
        args["models"].append({"name": kind, "path": str(folder / "models" / kind), "resources": {"cpus": 0.1}})
    args["models"] += bring(folder / "own")
    direct, direct_grpc = free_ports(2)
    args["router"] = {"max_body": "4MiB", "direct_port": direct, "direct_grpc_port": direct_grpc}
    for model in args["models"]:
        model.setdefault("resources", {})["cpus"] = 0.1
        model["autoscaling"] = {"min_replicas": 1, "max_replicas": 1}
    with ServeProcess(args, folder) as running:
        yield running


@pytest.fixture(scope="session")
def client(server: ServeProcess) -> Iterator[httpx.Client]:
    """An HTTP client of that server."""
    with httpx.Client(base_url=server.url, timeout=30.0) as made:
        yield made


@pytest.fixture(scope="session", params=["direct", "serve"])
def grpc_address(request: pytest.FixtureRequest, server: ServeProcess) -> str:
    """Where that server speaks gRPC: on the router's own port, and on Ray Serve's."""
    router = server.config["applications"][0]["args"]["router"]
    return f"127.0.0.1:{router['direct_grpc_port'] if request.param == 'direct' else server.grpc_port}"


@pytest.fixture(scope="session")
def direct(server: ServeProcess) -> Iterator[httpx.Client]:
    """An HTTP client of that server's router, past Ray Serve's way in."""
    args = server.config["applications"][0]["args"]
    with httpx.Client(base_url=f"http://127.0.0.1:{args['router']['direct_port']}", timeout=30.0) as made:
        yield made


def held_out(kind: str) -> list[Path]:
    """Committed test media; a file's name starts with its label."""
    return sorted(path for path in (ROOT / "tests" / "data" / kind).iterdir() if path.suffix not in {".md", ".npz"})
