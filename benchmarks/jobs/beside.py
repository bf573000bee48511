"""Requests of class ``high`` beside a backlog and without one; items per second beside those of live requests."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import aiohttp
import httpx
import numpy as np
import orjson

from benchmarks.chaos.server import FaultyServer
from benchmarks.failure import BenchmarkError
from benchmarks.jobs.asking import ask_job, ended_items, serving, setup_of, submit
from benchmarks.open_loop import send_apart
from benchmarks.open_loop_workload import Result, Workload, poisson
from benchmarks.server import OUT
from serve_app.domain.priority import Priority

_MINILM = "minilm"
_TEXT = "a text of some words, as those have that are embedded in the night when few people ask for anything else"
_SEED = 7
_TOKENS = 32
_TIMEOUT_S = 20.0
_BEGUN = 200
"""Items that have ended when a backlog is measured from: batches are full, and the store has taken it in."""
CONNECTIONS = 128
LIMIT = 1.2
"""The deadline of requests that have a short one, as a part of the 99th percentile without a backlog."""


@dataclass(frozen=True, slots=True)
class Beside:
    """Live requests and items; medians over the rounds.

    Attributes:
        rounds: How many.
        seconds: Length of each measurement.
        rate: Requests per second of class ``high``.
        alone_ms: 99th percentile of class ``high`` without a backlog.
        beside_ms: And with one.
        items_beside_per_s: Items per second of the backlog meanwhile.
        kept_alone: Part that is in time without a backlog where each has `LIMIT` times `alone_ms` of that round.
        kept_beside: And with one.
        live_per_s: Requests per second in a closed loop of many connections, in class ``normal``.
        items_per_s: Items per second of a backlog alone.
    """

    rounds: int
    seconds: float
    rate: float
    alone_ms: float
    beside_ms: float
    items_beside_per_s: float
    kept_alone: float
    kept_beside: float
    live_per_s: float
    items_per_s: float


def measure_beside(rounds: int, seconds: float, rate: float) -> Beside:
    """Measure in turns.

    Args:
        rounds: How many.
        seconds: Length of each measurement.
        rate: Requests per second of class ``high``.

    Raises:
        BenchmarkError: The server did not start, or a request was not answered.
    """
    model = {"name": _MINILM, "task": "feature-extraction", "path": "models/minilm"}
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(setup_of({"path": f"{folder}/jobs.sqlite"}, model, 1, 1)) as server,
    ):
        body = {"inputs": _TEXT}
        live, items, alone, beside, items_beside, kept_alone, kept_beside = [], [], [], [], [], [], []
        for number in range(rounds):
            alone.append(_high_p99(server, rate, seconds, number))
            timeout_s = LIMIT * alone[-1] / 1e3
            kept_alone.append(_high_kept(server, rate, seconds, number, timeout_s))
            live.append(asyncio.run(_live(f"{server.direct}/v1/models/{_MINILM}/predict", body, seconds)))
            job = submit(server, {"model": _MINILM, "items": [{"body": body}] * 50_000})
            while ended_items(ask_job(server, job)) < _BEGUN:
                time.sleep(0.1)
            # Not right after class high was asked for: items are kept short for it for a while.
            items.append(_per_second(lambda job=job: ended_items(ask_job(server, job)), seconds))  # type: ignore[misc]
            began, done = time.monotonic(), ended_items(ask_job(server, job))
            beside.append(_high_p99(server, rate, seconds, number))
            items_beside.append((ended_items(ask_job(server, job)) - done) / (time.monotonic() - began))
            kept_beside.append(_high_kept(server, rate, seconds, number, timeout_s))
            httpx.post(f"{server.direct}/v1/jobs/{job}/cancel", timeout=60.0).raise_for_status()
    found = alone, beside, items_beside, kept_alone, kept_beside, live, items
    return Beside(rounds, seconds, rate, *map(median, found))


def _high_p99(server: FaultyServer, rate: float, seconds: float, number: int) -> float:
    """Milliseconds."""
    result = _high(server, rate, seconds, number, _TIMEOUT_S)
    if (result.status != 200).any():
        raise BenchmarkError(f"{(result.status != 200).sum()} requests of class high were not answered")
    return float(np.quantile(result.latency_s, 0.99)) * 1e3


def _high_kept(server: FaultyServer, rate: float, seconds: float, number: int, timeout_s: float) -> float:
    """The part that is answered in time."""
    result = _high(server, rate, seconds, number, timeout_s)
    return float(np.mean((result.status == 200) & (result.latency_s <= timeout_s)))


def _high(server: FaultyServer, rate: float, seconds: float, number: int, timeout_s: float) -> Result:
    arrival_s = poisson(rate, seconds, (_SEED, number))
    workload = Workload.alike(arrival_s, _MINILM, timeout_s, Priority.HIGH, bucket=_TOKENS)
    return send_apart(server.direct, workload, OUT / "jobs")


def _per_second(count: Callable[[], int], seconds: float) -> float:
    began, before = time.monotonic(), count()
    time.sleep(seconds)
    return (count() - before) / (time.monotonic() - began)


async def _live(url: str, body: Any, seconds: float) -> float:
    """Answers per second in a closed loop."""
    content, answered = orjson.dumps(body), 0
    until = time.monotonic() + seconds

    async def ask(session: aiohttp.ClientSession) -> None:
        nonlocal answered
        while time.monotonic() < until:
            async with session.post(url, data=content, headers={"Content-Type": "application/json"}) as answer:
                await answer.read()
                if answer.status != 200:
                    raise BenchmarkError(f"a live request got {answer.status}")
                answered += 1

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=CONNECTIONS)) as session:
        await asyncio.gather(*(ask(session) for _ in range(CONNECTIONS)))
    return answered / seconds
