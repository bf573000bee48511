"""Models that come and go, as clients see it: right answers of the right build, and a clear 404 in between."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import onnx_models
import pytest
from local_server import LocalServer

_BUILDS = range(1, 5)
_CLIENTS = 4


def build(folder: Path, number: int) -> dict[str, Any]:
    """A configuration of model `m`, whose answers are its inputs plus the number; they are cached."""
    onnx_models.adder(folder / str(number) / "1" / "model.onnx", number)
    return {"models": [{"name": "m", "path": str(folder / str(number)), "cache": {}}]}


def ask(client: httpx.Client, value: float) -> tuple[int, Any]:
    """The status of a request of one row, and its answer, or the message."""
    inputs = [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [value]}]
    reply = client.post("/v2/models/m/infer", json={"inputs": inputs})
    told = reply.json()
    return reply.status_code, told["outputs"][0]["data"][0] if reply.status_code == 200 else told["error"]


def test_each_request_gets_its_build_or_404(tmp_path: Path) -> None:
    """While clients ask, a model comes, goes, and comes again with other weights."""
    onnx_models.make(tmp_path / "stays" / "1" / "model.onnx", "add_one")
    history = [0]  # the build that is served, 0 for none, changed before the server is told to add and to remove
    ended = Event()

    def keep_asking(url: str, number: int) -> list[str]:
        faults = []
        with httpx.Client(base_url=url, timeout=30.0) as client:
            while not ended.is_set():
                before = len(history) - 1
                status, told = ask(client, float(number))
                during = set(history[before:])
                if status == 200 and told - number not in during - {0}:
                    faults.append(f"{told} while {during} were served")
                if status != 200 and (status, 0 in during) != (404, True):
                    faults.append(f"{status} {told!r} while {during} were served")
        return faults

    with (
        LocalServer({"models": [{"name": "stays", "path": str(tmp_path / "stays")}]}) as server,
        ThreadPoolExecutor(_CLIENTS) as pool,
        httpx.Client(base_url=server.url, timeout=30.0) as client,
    ):
        asking = [pool.submit(keep_asking, server.url, number) for number in range(_CLIENTS)]
        try:
            for number in _BUILDS:
                made = build(tmp_path, number)
                history.append(number)
                server.add_models(made)
                for _ in range(20):
                    assert ask(client, 100.0) == (200, 100.0 + number)
                assert client.get("/status").json()["models"].keys() == {"stays", "m"}
                assert 'model="m"' in client.get("/metrics").text
                history.append(0)
                server.remove_model("m").result(30.0)
                assert ask(client, 100.0)[0] == 404
                assert client.get("/v2/models/m/ready").status_code == 404
                assert client.get("/status").json()["models"].keys() == {"stays"}
                assert client.get("/v2/health/ready").status_code == 200
        finally:
            ended.set()
        assert [fault for each in asking for fault in each.result()] == []


@pytest.mark.parametrize("path", ["/v1/models", "/v2/repository/index", "/openapi.json"])
def test_lists_and_descriptions_follow(tmp_path: Path, path: str) -> None:
    """Whatever names the models names those that there are."""
    onnx_models.make(tmp_path / "stays" / "1" / "model.onnx", "add_one")
    with (
        LocalServer({"models": [{"name": "stays", "path": str(tmp_path / "stays")}]}) as server,
        httpx.Client(base_url=server.url, timeout=30.0) as client,
    ):

        def named() -> tuple[int, bool]:
            reply = client.request("POST" if "repository" in path else "GET", path)
            return reply.status_code, '"m"' in reply.text or "/models/m/" in reply.text

        assert named() == (200, False)
        server.add_models(build(tmp_path, 1))
        assert named() == (200, True)
        server.remove_model("m").result(30.0)
        assert named() == (200, False)
