"""One server with two routers, for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx_models
import pytest
import slow_models
from reload.test_local_reload import write_constant
from serve_process import ROOT, ServeProcess

from benchmarks.ports import free_ports

SLOW_ROWS = 64
CALLER = """
from ray import serve
from serve_app.payloads import Texts
import numpy as np


@serve.deployment
class Caller:
    async def __call__(self, request):
        handle = serve.get_app_handle("serve-app")
        answer = await handle.infer.remote("tiny", {"x": np.ones((1, 2), np.float32)}, priority="high")
        return {"y": answer.value["y"].tolist(), "priority": answer.priority.label}


app = Caller.bind()
"""


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the models lie: `constant` answers 1 at first, each version of `several` its number."""
    folder = tmp_path_factory.mktemp("two_routers")
    onnx_models.make(folder / "tiny" / "1" / "model.onnx", "add_one")
    for version in (3, 4, 5):
        onnx_models.adder(folder / "adds" / str(version) / "model.onnx", version)
    write_constant(folder / "constant" / "model.onnx", 1.0)
    for version in (1, 2):
        write_constant(folder / "several" / str(version) / "model.onnx", version)
    (folder / "caller_app.py").write_text(CALLER)
    return folder


@pytest.fixture(scope="package")
def server(folder: Path) -> Iterator[ServeProcess]:
    """`serve-app run` of two routers with jobs, beside another application. The last test stops it."""
    direct_port, direct_grpc_port = free_ports(2)
    two = {"autoscaling": {"min_replicas": 2, "max_replicas": 2}, "health": {"check_period_s": 1.0}}
    models: list[dict[str, Any]] = [
        {"name": "tiny"},
        {"name": "adds", "batching": {"max_rows": 1}, "versions": {"latest": 2}, "aliases": {"stable": 4}},
        {"name": "constant", "batching": {"window": 4}, **two},
        {"name": "several", "batching": {"window": 4}, "versions": [1, 2], "aliases": {"stable": 1, "candidate": 2}},
    ]
    for model in models:
        model["path"] = str(folder / str(model["name"]))
    slow = slow_models.write(folder, "slow", seconds=0.2)
    models.append(slow | {"batching": {"max_rows": SLOW_ROWS, "slo_ms": 1000, "window": 16}})
    for model in models:
        model["resources"] = {"cpus": 0.1}
    args = {
        "models": models,
        "classes": {"normal": {"timeout_ms": 60000}, "low": {"queue": 512}},
        "router": {
            "replicas": 2,
            "cpus": 0.1,
            "http": {"port": direct_port},
            "grpc": {"port": direct_grpc_port},
            "access": {"open_administration": True},
            "jobs": {"path": str(folder / "jobs.sqlite"), "lease_s": 2, "batches": 1},
        },
    }
    env = {"PYTHONPATH": f"{ROOT}:{folder}", "SERVE_APP_CACHE": str(folder / "cache")}
    server = ServeProcess(args, folder / "server", env=env, graceful=True)
    del server.config["grpc_options"]  # as in configs/demo.yaml
    del server.config["http_options"]["host"]  # `serve-app run` listens on the loopback interface then
    variables = server.config["controller_options"]["runtime_env"]["env_vars"]
    # For the queues of two routers; HAProxy opens two and a half times as many files
    variables["RAY_SERVE_HAPROXY_MAXCONN"] = "7712"
    server.config["applications"].append({"name": "caller", "route_prefix": "/caller", "import_path": "caller_app:app"})
    with server as running:
        yield running
