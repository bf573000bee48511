"""A whole server is killed while it runs items, again and again; the next one goes on."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from jobs.killed_server import args_of
from jobs.processes import started
from local_server import LocalServer

ITEMS = 400
KILLS = 2


@contextmanager
def _server(folder: Path) -> Iterator[tuple[httpx.Client, subprocess.Popen[str]]]:
    with (
        started("killed_server", str(folder)) as (process, output),
        httpx.Client(base_url=output.readline().strip(), timeout=60) as client,
    ):
        yield client, process


def _body(n: int) -> dict[str, Any]:
    inputs = [{"name": name, "shape": [1, 16], "datatype": "INT32", "data": [n] * 16} for name in ("INPUT0", "INPUT1")]
    return {"inputs": inputs}


def test_a_server_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    """What was done is done, what was under way is run again, and every item has its own answer once."""
    job, seen = "", 0
    for kill in range(KILLS):
        with _server(tmp_path) as (client, process):
            if not job:
                asked = {"model": "sum_diff", "items": [{"body": _body(n)} for n in range(ITEMS)]}
                job = client.post("/v1/jobs", json=asked).raise_for_status().json()["id"]
            wanted = (kill + 1) * ITEMS // 8
            while (done := client.get(f"/v1/jobs/{job}?wait=0.1").json()["items"]["completed"]) < wanted:
                pass
            process.kill()
            assert done >= seen
            seen = done
    with LocalServer(args_of(tmp_path)) as server, httpx.Client(base_url=server.url, timeout=90) as client:
        while (found := client.get(f"/v1/jobs/{job}?wait=30").json())["state"] == "PROCESSING":
            pass
        assert (found["state"], found["items"]["completed"]) == ("COMPLETED", ITEMS)
        data = client.get(f"/v1/jobs/{job}/results?limit=1000").json()["data"]
        assert [item["body"]["outputs"][0]["data"][0] for item in data] == [2 * n for n in range(ITEMS)]
