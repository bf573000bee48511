"""A router that is killed in a real server: its successor serves what is agreed on, whatever lies on the disk."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import httpx
import pytest
from reload.test_replaced_router import MOODS, ask, break_tokenizer, is_ready, labels, load, write_moods
from serve_process import ServeProcess

from clusters.asking import WAIT_S
from serve_app.config.names import ROUTER

pytestmark = pytest.mark.cluster


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
