"""A server with jobs, and what is asked of it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx
import orjson

from benchmarks.chaos.server import FaultyServer, Setup
from benchmarks.chaos.setups import QUEUES, fixed
from benchmarks.failure import BenchmarkError
from benchmarks.server import is_ready

_LEASE_S = 2
_PATIENCE_S = 600.0


def setup_of(store: Mapping[str, Any], model: Mapping[str, Any], routers: int, replicas: int) -> Setup:
    """A server with jobs in this store, and one model."""
    jobs = {"lease_s": _LEASE_S, "max_timeout_s": 90_000, **store}
    return Setup("jobs", [fixed(dict(model), replicas)], {"replicas": routers, "jobs": jobs}, QUEUES)


@contextmanager
def serving(setup: Setup) -> Iterator[FaultyServer]:
    """The server, ready."""
    with FaultyServer(setup) as server:
        server.wait_until(lambda: is_ready(server.direct))
        yield server


def predict(server: FaultyServer, model: str, body: Any) -> Any:
    """The answer to a direct request."""
    return httpx.post(f"{server.direct}/v1/models/{model}/predict", json=body, timeout=60.0).raise_for_status().json()


def submit(server: FaultyServer, job: Mapping[str, Any]) -> str:
    """Hand a job in; its id.

    Raises:
        BenchmarkError: It was not taken.
    """
    answer = httpx.post(
        f"{server.direct}/v1/jobs", content=orjson.dumps(job), headers={"Content-Type": "application/json"}, timeout=300
    )
    if answer.status_code != 202:
        raise BenchmarkError(f"the job was not taken: {answer.text[:300]}")
    name: str = answer.json()["id"]
    return name


def get(server: FaultyServer, path: str) -> Any:
    """An answer, from a router that lives.

    Raises:
        BenchmarkError: None has answered for long.
    """
    until = time.monotonic() + _PATIENCE_S
    while True:
        try:
            answer = httpx.get(f"{server.direct}{path}", timeout=90.0)
            if answer.status_code == 200:
                return answer.json()
            problem = answer.text[:300]
        except httpx.TransportError as error:
            problem = str(error)
        if time.monotonic() > until:
            raise BenchmarkError(f"{path}: {problem}")
        time.sleep(0.1)


def ask_job(server: FaultyServer, job: str) -> Any:
    """What is told of a job.

    Raises:
        BenchmarkError: See `get`.
    """
    return get(server, f"/v1/jobs/{job}")


def ended_items(job: Mapping[str, Any]) -> int:
    """How many items of a job have ended, by what is told of it."""
    return int(job["items"]["completed"] + job["items"]["failed"])


def wait(server: FaultyServer, job: str) -> Any:
    """What is told of a job when it has ended.

    Raises:
        BenchmarkError: It has not for long, or see `get`.
    """
    until = time.monotonic() + _PATIENCE_S
    while (found := get(server, f"/v1/jobs/{job}?wait=5"))["state"] not in {"COMPLETED", "ERROR", "CANCELLED"}:
        if time.monotonic() > until:
            raise BenchmarkError(f"job {job} has not ended: {found['items']}")
    return found
