"""A router that is killed in a real server: its successor serves what is agreed on, whatever lies on the disk."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from pool_models import write_member
from reload.test_replaced_router import MOODS, ask, break_tokenizer, is_ready, labels, load, moods, write_moods
from serve_process import ServeProcess

from serve_app.config.names import ROUTER

pytestmark = pytest.mark.cluster

WAIT_S = 240.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the models lie."""
    folder = tmp_path_factory.mktemp("replaced")
    for name in ("moods", "feelings"):
        write_moods(folder / name, 4)
    write_member(folder / "plain" / "model.onnx", 3.0)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServeProcess]:
    """A classifier of texts, and a pool of another one and a model of tensors."""
    models = [
        moods(folder / "moods", resources={"cpus": 0.1}),
        moods(folder / "feelings", pool="small") | {"name": "feelings"},
        {"name": "plain", "path": str(folder / "plain"), "pool": "small"},
    ]
    args = {
        "models": models,
        "pools": [{"name": "small", "memory": "7MiB", "cpus": 0.1}],
        "router": {"cpus": 0.1, "access": {"open_administration": True}},
        "classes": {"normal": {"timeout_ms": 60000}},
    }
    with ServeProcess(
        args, folder / "server", env={"SERVE_APP_CACHE": str(folder / "cache")}, graceful=True
    ) as running:
        yield running


def test_a_router_that_is_killed_is_replaced_whatever_lies_on_the_disk(server: ServeProcess, folder: Path) -> None:
    """Labels were loaded, then a file was broken; a member's folder is gone. That member alone is not served."""
    assert labels(ask(server)) == set(MOODS[:4])
    write_moods(folder / "moods", 6)
    assert load(server).status_code == 200
    break_tokenizer(folder / "moods")
    assert load(server).status_code == 400
    assert labels(ask(server)) == set(MOODS)
    shutil.rmtree(folder / "feelings")
    (before,) = server.replica_processes(ROUTER)
    before.kill()
    before.wait()
    until = time.monotonic() + WAIT_S
    while not _answers(server):
        assert time.monotonic() < until, server.log()[-5000:]
        time.sleep(0.2)
    assert labels(ask(server)) == set(MOODS)
    assert ask(server, "plain").json()["outputs"][0]["data"] == [8.0, 8.0]
    refused = httpx.post(f"{server.url}/v1/models/feelings/predict", json={"inputs": "the cat sat"})
    assert refused.status_code == 503, refused.text
    assert refused.json()["error"].endswith("; deploy it again")
    assert not is_ready(server, "feelings")
    assert is_ready(server)


def _answers(server: ServeProcess) -> bool:
    try:
        return is_ready(server) and is_ready(server, "moods")
    except httpx.HTTPError:
        return False
