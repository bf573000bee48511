"""Models that are loaded anew in a real server: two routers, two replicas, and one of these killed during a load."""

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from reload.test_local_reload import write_constant
from serve_process import ServeProcess

from clusters.asking import WAIT_S

pytestmark = pytest.mark.cluster


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
                write_constant(folder / "constant" / "model.onnx", number)
                told = change(server)
                assert told.status_code == 200, told.text
                assert told.json()["replicas"] == 2
                newest[0] = number
            (folder / "constant" / "model.onnx").write_bytes(b"no model")
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
    write_constant(folder / "constant" / "model.onnx", 6.0)
    before = server.replica_processes("constant")
    assert len(before) == 2
    with ThreadPoolExecutor(1) as pool, httpx.Client() as client:
        loading = pool.submit(change, server)
        before[0].kill()
        told = loading.result()
        if told.status_code != 200:  # it died in a step in which nobody could tell why it did not answer
            told = change(server)
        assert told.status_code == 200, told.text
        write_constant(folder / "constant" / "model.onnx", 7.0)  # which nobody loads
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
    """By both routers: what was set at run time counts on after a load, and after an unload and a load.

    So it does at a router that starts while they are unloaded.
    """
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
        before = _routers(server)
        victim = server.replica_processes("router")[0]
        victim.kill()
        victim.wait()
        until = time.monotonic() + WAIT_S
        while len(now := _routers(server)) < 2 or now == before:
            assert time.monotonic() < until, server.log()[-5000:]
            time.sleep(0.2)
        with httpx.Client() as others:  # whose connections the killed router did not have
            for url in urls(server) * 5:
                assert ask(others, url, "several")[0] == 404
        told = change(server, model="several")
        assert told.status_code == 200, told.text
        assert told.json()["replicas"] == 2
    with httpx.Client() as client:
        for url in urls(server) * 5:
            assert ask(client, url, "several") == (200, 20.0)
    assert _revisions_of_traffic(server) == ["1.0", "1.0"]


def _routers(server: ServeProcess) -> set[str]:
    """Those whose metrics are shown."""
    return set(re.findall(r'router="([^"]+)"', _metrics(server)))


def _revisions_of_traffic(server: ServeProcess) -> list[str]:
    """How often the traffic of `several` was changed, as each router has it that has it."""
    return re.findall(r'serve_app_traffic_revision\{model="several"[^}]*\} ([0-9.]+)', _metrics(server))


def _metrics(server: ServeProcess) -> str:
    """The page, which may be asked of a router that is ending."""
    try:
        return httpx.get(f"{server.url}/metrics", timeout=60.0).text
    except httpx.TransportError:
        return ""
