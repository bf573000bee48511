"""What the response cache costs the router, and what a hit spares it: microseconds of the processor per request.

As in `benchmarks.request_path`, but for requests that differ, and each answer tells which request it is for.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import uvloop
from rich.progress import Progress
from typing_extensions import override

from benchmarks.failure import BenchmarkError
from benchmarks.request_path import App, AsgiRequest, Case, Client, Replica, as_the_router_collects, bare, make_app
from benchmarks.wires import WIRES, Answer
from serve_app.cache.response_cache import ResponseCache
from serve_app.cache.settings import CacheSettings
from serve_app.payloads import Bundle, BundleResult, Execution, Success
from serve_app.router.answer_cache import ModelCacheSettings
from serve_app.router.dispatcher import Dispatcher
from serve_app.telemetry.metrics import RouterMetrics

CASES = (
    Case("tiny, JSON", concurrency=64, requests=4_000),
    Case("tiny, binary", concurrency=64, binary=True, requests=4_000),
    Case("602 KB, binary", inputs=3 * 224 * 224, concurrency=8, binary=True, requests=500),
)
MODES = ("off", "miss", "hit")
"""No cache; what is kept makes room before it is asked for again; found."""

_SEED = 11
_MODEL = "tiny"
_BYTES = {"miss": 8 * 2**10, "hit": 64 * 2**20}
"""Memory of the cache. Of answers of about 1 KB, the first holds fewer than there are requests, and the last none."""
_ASK_EVERY_S = 0.002
_UP_WITHIN_S = 20.0


@dataclass(frozen=True, slots=True)
class Cost:
    """One kind of request with the cache in one state; medians over the repetitions.

    Attributes:
        case: Title of the kind.
        mode: One of `MODES`.
        us: Microseconds of the router's process per request, without those of ``bare_us``.
        lowest_us: Of the cheapest repetition.
        highest_us: Of the dearest.
        bare_us: Microseconds with an application that only answers.
    """

    case: str
    mode: str
    us: float
    lowest_us: float
    highest_us: float
    bare_us: float


class _Echo(Replica):
    """Answers each entry with the first values of its own tensor."""

    @override
    async def __call__(self, model: str, bundle: Bundle, replica: str | None, nbytes: int) -> BundleResult:
        answers: list[Any] = []
        for entry in bundle.entries:
            assert isinstance(entry.payload, dict)
            answers.append(Success({"y": entry.payload["x"][:, : self.outputs]}))
        return BundleResult(answers, [Execution(len(answers), 0, 1e-5)], 1e-5, 0.0, 1e-5)


@dataclass(frozen=True, slots=True)
class _Traffic:
    """Different requests, and the values of their answers."""

    requests: Sequence[AsgiRequest]
    expected: Sequence[Answer]

    @classmethod
    def of(cls, case: Case) -> _Traffic:
        """Far more of them than are under way at once: no two that are the same meet."""
        random = np.random.default_rng(_SEED)
        rows = [random.standard_normal((1, case.inputs), np.float32) for _ in range(3 * case.concurrency)]
        return cls([_asgi(case, row) for row in rows], [row[0, : case.outputs] for row in rows])

    async def check(self, app: App, case: Case) -> None:
        """Send each once.

        Raises:
            BenchmarkError: An answer is not that of its request.
        """
        client, wire = Client(case), _wire(case)
        for request, expected in zip(self.requests, self.expected, strict=True):
            headers, content = await client.ask(app, request)
            told = {name.decode().lower(): value.decode() for name, value in headers}
            if not np.array_equal(wire.answer(told, content), expected):
                raise BenchmarkError(f"{case.title}: an answer is not that of its request")


def measure(repetitions: int, progress: Progress, cases: Sequence[Case] = CASES) -> list[Cost]:
    """Measure every kind of request with the cache in every state, in turns.

    Raises:
        BenchmarkError: An answer was wrong, or came from elsewhere than it should.
    """
    task = progress.add_task("CPU of the router", total=repetitions * len(cases) * len(MODES))
    runs: dict[tuple[str, str], list[tuple[float, float]]] = {
        (case.title, mode): [] for case in cases for mode in MODES
    }
    for case in cases:
        traffic = _Traffic.of(case)
        for repetition in range(repetitions):
            for mode in MODES if repetition % 2 == 0 else reversed(MODES):
                runs[case.title, mode].append(uvloop.run(_measure(case, mode, traffic)))
                progress.advance(task)
    return [_medians(case, mode, found) for (case, mode), found in runs.items()]


async def _measure(case: Case, mode: str, traffic: _Traffic) -> tuple[float, float]:
    """One repetition: microseconds per request, and those of an application that only answers."""
    async with _serving(case, mode) as (app, cache):
        client = Client(case, traffic.requests)
        await traffic.check(app, case)
        await client.run(app, len(traffic.requests))
        before = _counts(cache)
        with as_the_router_collects():
            bare_us = await Client(case, traffic.requests).run(bare, case.requests)
            us = await client.run(app, case.requests)
        counted = {name: count - before[name] for name, count in _counts(cache).items()}
        if cache is not None and counted["misses" if mode == "miss" else "hits"] != case.requests:
            raise BenchmarkError(f"{case.title}, {mode}: of {case.requests} requests {counted}")
        await traffic.check(app, case)
    return us - bare_us, bare_us


@asynccontextmanager
async def _serving(case: Case, mode: str) -> AsyncIterator[tuple[App, Any]]:
    """A router whose cache is in this state."""
    made: list[ResponseCache] = []

    def make_cache(dispatcher: Dispatcher, metrics: RouterMetrics) -> ResponseCache:
        made.append(ResponseCache(CacheSettings(), dispatcher, metrics))
        return made[0]

    off = mode == "off"
    kept = None if off else ModelCacheSettings(3600.0, _BYTES[mode], {"": case.title})
    app, _ = make_app(case, _Echo(case.outputs), None if off else make_cache, kept)
    yield app, made[0] if made else None


def _counts(cache: ResponseCache | None) -> dict[str, int]:
    found = None if cache is None else cache.of(_MODEL)
    return {} if found is None else {name: found.status()[name] for name in ("hits", "misses", "shared")}


def _medians(case: str, mode: str, runs: Sequence[tuple[float, float]]) -> Cost:
    costs, bares = zip(*runs, strict=True)
    return Cost(case, mode, median(costs), min(costs), max(costs), median(bares))


def _wire(case: Case) -> Any:
    return WIRES["binary" if case.binary else "json"]


def _asgi(case: Case, row: Any) -> AsgiRequest:
    request = _wire(case).request({"x": row})
    given = {"Host": "127.0.0.1:8000", **request.headers, "Content-Length": str(len(request.body))}
    return request.body, [(name.lower().encode(), value.encode()) for name, value in given.items()]
