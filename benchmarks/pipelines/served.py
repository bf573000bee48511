"""Pipelines on a real server, beside a client that calls the same models one after the other.

Everything is asked in turns, so that all ways have the same server and the same noise. Tensors travel in binary.
What pipelines cost is measured with models that compute. Deadlines are measured with models that wait as long as the
simulator's take, eight times slower: on a machine whose processors are all taken by computing models and the client
that asks, queues form where no scheduler sees them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Final

import aiohttp
import numpy as np
import orjson
from rich.progress import Progress

from benchmarks.failure import BenchmarkError
from benchmarks.pipelines.simulated import ALPHA_S, BETA_S, MAX_ROWS, SLACK
from benchmarks.server import DIRECT, OUT, ROOT, SERVE_APP_RUN, Server, is_ready
from serve_app.config.file import IMPORT_PATH, read_document

_CONFIG: Final = ROOT / "configs" / "bench.yaml"
_WIDE: Final = 2048
_TINY: Final = 64
_CONNECTIONS: Final = 16
_SLOWER: Final = 8.0
"""Than the models of the simulator: so that what the server costs is small beside them."""
_DEADLINE_S: Final = SLACK * 2 * _SLOWER * (ALPHA_S + BETA_S)
LONGER: Final = 4.0
"""Than the other rounds: bursts are few."""
_LOAD: Final = 0.9
"""Of the open loop: what comes, as a part of what full batches of the models bring."""
_CV: Final = 2.0
_SEED: Final = 11


@dataclass(frozen=True, slots=True)
class Way:
    """One way to the same answers.

    Attributes:
        name: What it is.
        p50_ms: Median latency of one connection at rest; the median over the rounds.
        p99_ms: Latency that one in 100 exceeds, likewise.
        per_second: Answers per second of so many connections as the report says; 0.0 where that was not measured.
    """

    name: str
    p50_ms: float
    p99_ms: float
    per_second: float = 0.0


@dataclass(frozen=True, slots=True)
class Kept:
    """Deadlines under load.

    Attributes:
        name: Which way.
        attainment: Part of the requests that were answered in time; the median over the rounds.
        lowest: Of the rounds.
        highest: Of the rounds.
    """

    name: str
    attainment: float
    lowest: float
    highest: float


@dataclass(frozen=True, slots=True)
class Served:
    """What was measured on a server.

    Attributes:
        rounds: Of each way.
        seconds: Length of each; with deadlines they are `LONGER` times as long.
        connections: At once, for answers per second.
        sequence: A pipeline of two steps, and a client that makes two calls.
        overhead: Of the pipeline beside the two calls: how much less it answers per second, as a part.
        branches: The longer model alone, and a pipeline of it and another beside it.
        beside_ms: What the branch beside costs, milliseconds, by the medians.
        rate: Requests per second of the open loop.
        deadline_ms: Their deadline.
        kept: Deadlines of the open loop.
    """

    rounds: int
    seconds: float
    connections: int
    sequence: Sequence[Way]
    overhead: float
    branches: Sequence[Way]
    beside_ms: float
    rate: float
    deadline_ms: float
    kept: Sequence[Kept]


Ask = Callable[[float | None], Awaitable[bool]]
"""Sends one request with so many seconds for its whole; whether it was answered."""


class _Client:
    """Asks one server."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url
        random = np.random.default_rng(_SEED)
        self._wide = random.standard_normal((1, _WIDE), np.float32).tobytes()
        self._tiny = random.standard_normal((1, _TINY), np.float32).tobytes()

    async def pipeline(self, left_s: float | None = None) -> bool:
        """Both steps by one request."""
        return await self._infer("chain", [("x", _WIDE, self._wide)], left_s) is not None

    async def calls(self, left_s: float | None = None) -> bool:
        """Both steps by two calls."""
        middle = await self._infer("wide", [("x", _WIDE, self._wide)], left_s)
        return middle is not None and await self._infer("wide-again", [("x", _WIDE, middle)], left_s) is not None

    async def waiting_pipeline(self, left_s: float | None = None) -> bool:
        """Both steps that wait by one request."""
        return await self._infer("waits-chain", [("x", _TINY, self._tiny)], left_s) is not None

    async def waiting_calls(self, left_s: float | None = None, *, passes_on: bool) -> bool:
        """Both steps that wait by two calls; what is left of the deadline is passed on, or each call has the whole."""
        began = perf_counter()
        middle = await self._infer("waits", [("x", _TINY, self._tiny)], left_s)
        if middle is None:
            return False
        if left_s is not None and passes_on and (left_s := left_s - (perf_counter() - began)) <= 0.0:
            return False
        return await self._infer("waits-again", [("x", _TINY, middle)], left_s) is not None

    async def longer(self, left_s: float | None = None) -> bool:
        """The longer branch alone."""
        return await self._infer("wide", [("x", _WIDE, self._wide)], left_s) is not None

    async def branches(self, left_s: float | None = None) -> bool:
        """Both branches by one request."""
        inputs = [("x", _WIDE, self._wide), ("z", _TINY, self._tiny)]
        return await self._infer("branches", inputs, left_s) is not None

    async def _infer(self, model: str, inputs: Sequence[tuple[str, int, bytes]], left_s: float | None) -> bytes | None:
        """The first output's bytes; ``None`` where the deadline was not met."""
        tensors = [
            {
                "name": name,
                "datatype": "FP32",
                "shape": [1, width],
                "parameters": {"binary_data_size": len(data)},
            }
            for name, width, data in inputs
        ]
        head = orjson.dumps({"inputs": tensors, "parameters": {"binary_data_output": True}})
        headers = {"Inference-Header-Content-Length": str(len(head))}
        if left_s is not None:
            headers["X-Timeout-Ms"] = f"{left_s * 1e3:.3f}"
        body = head + b"".join(data for _, _, data in inputs)
        async with self._session.post(f"{self._url}/v2/models/{model}/infer", data=body, headers=headers) as answer:
            content = await answer.read()
            if answer.status == 504 and left_s is not None:
                return None
            if answer.status != 200:
                raise BenchmarkError(f"{model}: status {answer.status}: {content[:200].decode(errors='replace')}")
            width = inputs[0][1]
            return content[int(answer.headers["Inference-Header-Content-Length"]) :][: 4 * width]


def measure(rounds: int, seconds: float, progress: Progress) -> Served:
    """Start the server and measure.

    Args:
        rounds: Of each way.
        seconds: Length of each.
        progress: Shows how far it is.

    Raises:
        BenchmarkError: The server did not start, or a request was not answered.
    """
    OUT.mkdir(parents=True, exist_ok=True)
    with Server("pipelines", _document(), SERVE_APP_RUN) as server:
        server.wait_until(lambda: is_ready(server.urls[DIRECT]))
        return asyncio.run(_measured(server.urls[DIRECT], rounds, seconds, progress))


async def _measured(url: str, rounds: int, seconds: float, progress: Progress) -> Served:
    task = progress.add_task("on a server", total=rounds * 4)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        client = _Client(session, url)
        sequence = {"pipeline": client.pipeline, "two calls": client.calls}
        branches = {"longer branch alone": client.longer, "both branches": client.branches}
        resting: dict[str, list[Any]] = {name: [] for name in (*sequence, *branches)}
        rates: dict[str, list[float]] = {name: [] for name in sequence}
        for ask in (*sequence.values(), *branches.values()):
            await _for(min(2.0, seconds), ask)
        for number in range(rounds):
            for name, ask in _in_turn(sequence, number):
                resting[name].append(await _for(seconds, ask))
            progress.advance(task)
            for name, ask in _in_turn(branches, number):
                resting[name].append(await _for(seconds, ask))
            progress.advance(task)
            for name, ask in _in_turn(sequence, number):
                began = perf_counter()
                found = await asyncio.gather(*(_for(seconds, ask) for _ in range(_CONNECTIONS)))
                rates[name].append(sum(map(len, found)) / (perf_counter() - began))
            progress.advance(task)
        rate = _LOAD * MAX_ROWS / (_SLOWER * (ALPHA_S + BETA_S * MAX_ROWS))
        ways: dict[str, Ask] = {
            "pipeline": client.waiting_pipeline,
            "two calls, what is left": partial(client.waiting_calls, passes_on=True),
            "two calls, each its own timeout": partial(client.waiting_calls, passes_on=False),
        }
        kept: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(rounds):
            for name, ask in _in_turn(ways, number):
                kept[name].append(await _open_loop(ask, rate, _DEADLINE_S, LONGER * seconds, number))
            progress.advance(task)
    told = [_way(name, resting[name], median(rates[name])) for name in sequence]
    shown = [_way(name, resting[name]) for name in branches]
    return Served(
        rounds,
        seconds,
        _CONNECTIONS,
        told,
        1.0 - told[0].per_second / told[1].per_second,
        shown,
        shown[1].p50_ms - shown[0].p50_ms,
        rate,
        _DEADLINE_S * 1e3,
        [Kept(name, median(each), min(each), max(each)) for name, each in kept.items()],
    )


def _in_turn(ways: dict[str, Any], number: int) -> list[tuple[str, Any]]:
    items = list(ways.items())
    return items if number % 2 == 0 else items[::-1]


async def _for(seconds: float, ask: Ask) -> Any:
    """Ask one after the other; the latencies, seconds."""
    moments = [perf_counter()]
    while moments[-1] - moments[0] < seconds:
        await ask(None)
        moments.append(perf_counter())
    return np.array([after - before for before, after in pairwise(moments)])


async def _open_loop(ask: Ask, rate: float, deadline_s: float, seconds: float, number: int) -> float:
    """The part of requests that are answered in time; they come by a gamma process, whatever is answered."""
    shape = 1.0 / _CV**2
    gaps = np.random.default_rng((_SEED, number)).gamma(shape, 1.0 / (rate * shape), int(rate * seconds))
    loop = asyncio.get_running_loop()
    began = loop.time()
    in_time = 0

    async def one(at: float) -> None:
        nonlocal in_time
        await asyncio.sleep(max(0.0, at - loop.time()))
        left_s = deadline_s - (loop.time() - at)
        if left_s > 0.0 and await ask(left_s):
            in_time += loop.time() <= at + deadline_s

    await asyncio.gather(*(one(began + offset) for offset in np.cumsum(gaps).tolist()))
    return in_time / len(gaps)


def _way(name: str, rounds: Sequence[Any], per_second: float = 0.0) -> Way:
    p50, p99 = (median(float(np.quantile(each, part)) for each in rounds) for part in (0.5, 0.99))
    return Way(name, p50 * 1e3, p99 * 1e3, per_second)


def _document() -> dict[str, Any]:
    """`configs/bench.yaml` with two small models, the larger twice, two that wait, and their pipelines."""
    document = read_document(_CONFIG)
    args = next(each for each in document["applications"] if each["import_path"] == IMPORT_PATH)["args"]
    given = {model["name"]: model for model in args["models"]}
    few = {"resources": {"cpus": 0.1}}
    wide = {"type": "tensor", "datatype": "FP32", "shape": [-1, _WIDE]}
    args["models"] = [
        {**given["wide"], **few},
        {**given["wide"], **few, "name": "wide-again"},
        {**given["tiny"], **few},
        *({**_waits(), **few, "name": name} for name in ("waits", "waits-again")),
    ]
    tiny = {"type": "tensor", "datatype": "FP32", "shape": [-1, _TINY]}
    args["pipelines"] = [
        {
            "name": "waits-chain",
            "inputs": {"x": tiny},
            "steps": [
                {"name": "first", "model": "waits", "input": "x"},
                {"name": "second", "model": "waits-again", "input": "first"},
            ],
            "outputs": {"y": "second"},
        },
        {
            "name": "chain",
            "inputs": {"x": wide},
            "steps": [
                {"name": "first", "model": "wide", "input": "x"},
                {"name": "second", "model": "wide-again", "input": "first"},
            ],
            "outputs": {"y": "second"},
        },
        {
            "name": "branches",
            "inputs": {"x": wide, "z": tiny},
            "steps": [
                {"name": "long", "model": "wide", "input": "x"},
                {"name": "short", "model": "tiny", "input": "z"},
            ],
            "outputs": {"y": "long", "short": "short"},
        },
    ]
    return document


def _waits() -> dict[str, Any]:
    return {
        "path": str(Path(__file__).parent / "waits.py"),
        "backend": "python",
        "backend_options": {"parameters": {"batch_s": _SLOWER * ALPHA_S, "row_s": _SLOWER * BETA_S}},
        "batching": {"max_rows": MAX_ROWS, "slo_ms": 1e3 * _DEADLINE_S},
    }
