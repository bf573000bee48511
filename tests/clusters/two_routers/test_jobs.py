"""Jobs in a real cluster: routers die while items run."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import httpx
import pytest
from serve_process import ServeProcess

pytestmark = pytest.mark.cluster

WAIT_S = 240.0
ITEMS = 8_000
KILLS = 2


def _job(client: httpx.Client, job: str, wait_s: float) -> Mapping[str, Any]:
    """A job, from whichever router answers."""
    until = time.monotonic() + WAIT_S
    while True:
        try:
            answer = client.get(f"/v1/jobs/{job}", params={"wait": wait_s})
            if answer.status_code == 200:
                found: Mapping[str, Any] = answer.json()
                return found
            assert answer.status_code in {500, 502, 503, 504}, answer.text
        except httpx.TransportError:
            pass
        assert time.monotonic() < until, "no router answers"


def test_a_router_that_dies_loses_no_item(server: ServeProcess) -> None:
    """Killed again and again while they run items, routers lose none, and none ends twice."""
    bodies = [{"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [n]}]} for n in range(ITEMS)]
    with httpx.Client(base_url=server.url, timeout=60.0) as client:
        answer = client.post("/v1/jobs", json={"model": "tiny", "items": [{"body": body} for body in bodies]})
        assert answer.status_code == 202, answer.text
        job = answer.json()["id"]
        killed_at: list[int] = []
        for kill in range(1, KILLS + 1):
            while (done := _job(client, job, 0)["items"]["completed"]) < kill * ITEMS // (KILLS + 2):
                pass
            routers = server.replica_processes("router")
            for process in routers:
                process.kill()
            assert routers
            killed_at.append(done)
        until = time.monotonic() + WAIT_S
        while (found := _job(client, job, 5.0))["state"] not in {"COMPLETED", "ERROR"}:
            assert time.monotonic() < until, found
        assert (found["state"], found["items"]["completed"], found["items"]["failed"]) == ("COMPLETED", ITEMS, 0)
        assert max(killed_at) < ITEMS
        values: list[float] = []
        after: int | None = -1
        while after is not None:
            page = client.get(f"/v1/jobs/{job}/results", params={"after": after, "limit": 1000}).json()
            values += [item["body"]["outputs"][0]["data"][0] for item in page["data"]]
            after = page["next"]
        assert values == [n + 1.0 for n in range(ITEMS)]
