"""Memory of a router before a backlog, with it, and while it is worked on."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass

import httpx
import numpy as np

from benchmarks.chaos.server import ROUTER, FaultyServer
from benchmarks.jobs.asking import serving, setup_of, submit

_TINY = "tiny"
_PART = 20_000
"""Items of one job of the backlog."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Proportional set size of the router, MiB.

    Attributes:
        items: Of the backlog.
        seconds: How long it was looked at while it was worked on.
        before_mib: Without it.
        kept_mib: When all of it was taken; some of it has run by then.
        working_mib: Most of it in the seconds after that.
        store_mib: Size of the store.
    """

    items: int
    seconds: float
    before_mib: float
    kept_mib: float
    working_mib: float
    store_mib: float


def measure_memory(items: int, seconds: float) -> Memory:
    """Hand a backlog in, and look at the router.

    Args:
        items: Of the backlog.
        seconds: How long to look while it is worked on.

    Raises:
        BenchmarkError: The server did not start, or a job was not taken.
    """
    model = {"name": _TINY, "path": "models/tiny", "batching": {"max_rows": 64, "slo_ms": 50}}
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(setup_of({"path": f"{folder}/jobs.sqlite"}, model, 1, 1)) as server,
    ):
        inputs = httpx.get(f"{server.direct}/v2/models/{_TINY}", timeout=30).json()["inputs"]
        tensors = [
            {
                "name": each["name"],
                "shape": [1, *each["shape"][1:]],
                "datatype": each["datatype"],
                "data": [1] * int(np.prod(each["shape"][1:])),
            }
            for each in inputs
        ]
        before = _router_mib(server)
        for start in range(0, items, _PART):
            number = min(_PART, items - start)
            submit(server, {"model": _TINY, "items": [{"body": {"inputs": tensors}}] * number})
        kept, working = _router_mib(server), 0.0
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            working = max(working, _router_mib(server))
            time.sleep(1.0)
        store = server.snapshot()["jobs"].get("store_bytes", 0) / 2**20
    return Memory(items, seconds, before, kept, working, store)


def _router_mib(server: FaultyServer) -> float:
    return max(each.mib for each in server.readings() if each.role == ROUTER)
