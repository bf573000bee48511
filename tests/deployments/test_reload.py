"""Models that are loaded anew in a real server: two routers, two replicas, and one of these killed during a load."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from reload.test_local_reload import write_constant
from serve_process import ServeProcess

from benchmarks.ports import free_ports

pytestmark = pytest.mark.cluster

WAIT_S = 240.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the models lie: one that answers 1 at first, and one in two versions that answer their numbers."""
    folder = tmp_path_factory.mktemp("reload")
    write_constant(folder / "model" / "model.onnx", 1.0)
    for version in (1, 2):
        write_constant(folder / "several" / str(version) / "model.onnx", version)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServeProcess]:
    """Two routers, two replicas of the model, and one of each version of the other one."""
    model = {
        "name": "constant",
        "path": str(folder / "model"),
        "autoscaling": {"min_replicas": 2, "max_replicas": 2},
        "resources": {"cpus": 0.1},
        "health": {"check_period_s": 1.0},
    }
    several = {
        "name": "several",
        "path": str(folder / "several"),
        "versions": [1, 2],
        "aliases": {"stable": 1, "candidate": 2},
        "resources": {"cpus": 0.1},
    }
    direct_port = free_ports(1)[0]
    router = {"cpus": 0.1, "replicas": 2, "http": {"port": direct_port}, "access": {"open_administration": True}}
    args = {"models": [model, several], "router": router, "classes": {"normal": {"timeout_ms": 60000}}}
    with ServeProcess(
        args, folder / "server", env={"SERVE_APP_CACHE": str(folder / "cache")}, graceful=True
    ) as running:
        yield running


def ask(client: httpx.Client, url: str, model: str = "constant") -> tuple[int, float]:
    """Status, and the constant of the answer; -1 where there is none."""
    tensor = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [5, 5]}
    answer = client.post(f"{url}/v2/models/{model}/infer", json={"inputs": [tensor]}, timeout=60.0)
    return answer.status_code, answer.json()["outputs"][0]["data"][0] if answer.status_code == 200 else -1.0


def change(server: ServeProcess, verb: str = "load", model: str = "constant") -> httpx.Response:
    """Load or unload a model."""
    return httpx.post(f"{server.url}/v2/repository/models/{model}/{verb}", timeout=WAIT_S)


def urls(server: ServeProcess) -> list[str]:
    """The server's port in front of both routers, and the routers' own."""
    direct = server.config["applications"][0]["args"]["router"]["http"]["port"]
    return [server.url, f"http://127.0.0.1:{direct}"]


def test_two_routers_and_two_replicas_change_as_one(server: ServeProcess, folder: Path) -> None:
    """What is asked after a load is answered by it, whichever router and replica it comes to; nothing fails."""
    stop, newest = threading.Event(), [1.0]

    def keep_asking(url: str) -> list[str]:
        wrong = []
        with httpx.Client() as client:
            while not stop.is_set():
                oldest = newest[0]
                status, value = ask(client, url)
                if status != 200 or not oldest <= value <= newest[0] + 1.0:
                    wrong.append(f"{url}: {status}, {value} after {oldest}")
        return wrong

    with ThreadPoolExecutor(4) as pool:
        clients = [pool.submit(keep_asking, url) for url in urls(server) * 2]
        try:
            for number in (2.0, 3.0, 4.0, 5.0):
                write_constant(folder / "model" / "model.onnx", number)
                told = change(server)
                assert told.status_code == 200, told.text
                assert told.json()["replicas"] == 2
                newest[0] = number
            (folder / "model" / "model.onnx").write_bytes(b"no model")
            told = change(server)
            assert told.status_code == 400, told.text
            assert "model 'constant'" in told.json()["error"]
        finally:
            stop.set()
        for each in clients:
            assert each.result() == []


def test_a_replica_that_is_killed_during_a_load_comes_back_with_what_was_agreed_on(
    server: ServeProcess, folder: Path
) -> None:
    """Its successor starts from the loaded files although others lie on the disk meanwhile."""
    write_constant(folder / "model" / "model.onnx", 6.0)
    before = server.replica_processes("constant")
    assert len(before) == 2
    with ThreadPoolExecutor(1) as pool, httpx.Client() as client:
        loading = pool.submit(change, server)
        before[0].kill()
        told = loading.result()
        if told.status_code != 200:  # it died in a step in which nobody could tell why it did not answer
            told = change(server)
        assert told.status_code == 200, told.text
        write_constant(folder / "model" / "model.onnx", 7.0)  # which nobody loads
        until = time.monotonic() + WAIT_S
        while len(server.replica_processes("constant")) < 2 or not _both_run(server):
            assert time.monotonic() < until, server.log()[-5000:]
            time.sleep(0.2)
        for url in urls(server) * 20:
            assert ask(client, url) == (200, 6.0)


def _both_run(server: ServeProcess) -> bool:
    status = httpx.get(f"{server.url}/status", timeout=60.0).json()["models"]["constant"]
    return len(status["replicas"]) == 2


def test_an_unloaded_model_is_unknown_to_all_routers_until_it_is_loaded(server: ServeProcess) -> None:
    """And then it is served from the files that are there."""
    assert change(server, "unload").status_code == 200
    with httpx.Client() as client:
        for url in urls(server) * 5:
            assert ask(client, url)[0] == 404
        told = change(server)
        assert told.status_code == 200, told.text
        for url in urls(server) * 5:
            assert ask(client, url) == (200, 7.0)


def test_versions_are_loaded_together_and_keep_their_traffic(server: ServeProcess, folder: Path) -> None:
    """By both routers: what was set at run time counts on after a load, and after an unload and a load."""
    with httpx.Client() as client:
        promoted = client.post(f"{server.url}/v2/models/several/traffic/promote", json={}, timeout=WAIT_S)
        assert promoted.status_code == 200, promoted.text
        write_constant(folder / "several" / "2" / "model.onnx", 20.0)
        told = change(server, model="several")
        assert told.status_code == 200, told.text
        assert (told.json()["version"], told.json()["replicas"]) == ("1,2", 1)
        for url in urls(server) * 5:
            assert ask(client, url, "several") == (200, 20.0)
        assert change(server, "unload", "several").status_code == 200
        for url in urls(server) * 5:
            assert ask(client, url, "several")[0] == 404
        told = change(server, model="several")
        assert told.status_code == 200, told.text
        assert told.json()["replicas"] == 2
        for url in urls(server) * 5:
            assert ask(client, url, "several") == (200, 20.0)
