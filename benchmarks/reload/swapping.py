"""Swaps under load: connections that ask without a pause while a model's files are replaced and loaded."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

import aiohttp
import numpy as np

from benchmarks.requests import Request
from benchmarks.wires import Wire

_TIMEOUT_S = 60.0
_FAULTS = 5
"""Of which the words are kept."""


@dataclass(slots=True)
class Load:
    """What the connections have seen.

    Attributes:
        during: Latencies of requests that a swap was under way during, seconds.
        between: Those of requests in pauses between swaps.
        others: How many more there were: while the benchmark itself wrote files or read memory, latencies say nothing.
        failed: Requests without an answer, or with an error.
        wrong: Answers of files that were served no more, or not yet.
        faults: The first few errors.
    """

    during: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)
    others: int = 0
    failed: int = 0
    wrong: int = 0
    faults: list[str] = field(default_factory=list)

    @property
    def requests(self) -> int:
        """How many there were."""
        return len(self.during) + len(self.between) + self.others

    def fail(self, fault: str) -> None:
        """Count a failed request."""
        self.failed += 1
        if len(self.faults) < _FAULTS:
            self.faults.append(fault[:200])


class Memory(NamedTuple):
    """Memory of a server's processes by role, bytes.

    Attributes:
        proportional: Pages that several share are split among them: it grows, too, when one of these ends.
        own: Pages that nobody shares.
    """

    proportional: dict[str, int]
    own: dict[str, int]


@dataclass(frozen=True, slots=True)
class Swaps:
    """What was measured.

    Attributes:
        swap_s: How long each swap took, seconds.
        model_bytes: Size of the files that a swap replaces.
        memory: After each swap.
        load: What the connections have seen.
    """

    swap_s: list[float]
    model_bytes: int
    memory: list[Memory]
    load: Load


class _Phase(Enum):
    """What the benchmark does."""

    SWAP = auto()
    PAUSE = auto()
    OWN = auto()


class Swapping:
    """One run of swaps under load. Swaps and pauses of the same length take turns, later ones follow without a pause.

    Args:
        url: Where the server is; it is ready.
        write: Writes the files that answer with a number. Returns their bytes.
        memory: That of the server's processes. Raises `BenchmarkError` where it has ended.
        load: Has the server load what was written, and waits until it has. Raises `BenchmarkError` if it does not.
        ask: Paths that requests are posted to, one after the other by each connection.
        wire: What it speaks.
        size: Numbers of a row.
        pauses: How many of the first swaps a pause follows, and latencies are kept of; the others only show memory.
    """

    def __init__(
        self,
        url: str,
        write: Callable[[int], int],
        memory: Callable[[], Memory],
        load: Callable[[], None],
        ask: Sequence[str],
        wire: Wire,
        size: int,
        pauses: int,
    ) -> None:
        self._write, self._memory, self._wire = write, memory, wire
        self._load_model = load
        self._pauses = pauses
        self._urls = [f"{url}{path}" for path in ask]
        self._request: Request = wire.request({"x": np.ones((1, size), np.float32)})
        self._oldest = self._newest = 1  # which files may answer
        self._phase = _Phase.OWN
        self._phases = 0  # how many have begun
        self._swaps = 0  # how many swaps have begun
        self._load = Load()
        self._done = False

    async def run(self, count: int, connections: int, within_s: float) -> Swaps:
        """Swap so often, or until the time is over.

        Raises:
            BenchmarkError: A load failed, or the server has ended.
        """
        swap_s: list[float] = []
        memory: list[Memory] = []
        model_bytes = 0
        until = time.monotonic() + within_s
        timeout = aiohttp.ClientTimeout(_TIMEOUT_S)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
            clients = [asyncio.ensure_future(self._ask(session)) for _ in range(connections)]
            try:
                while len(swap_s) < count and time.monotonic() < until:
                    model_bytes = await asyncio.to_thread(self._write, self._newest + 1)
                    swap_s.append(await self._swap())
                    if len(swap_s) <= self._pauses:
                        self._enter(_Phase.PAUSE)
                        await asyncio.sleep(swap_s[-1])
                    self._enter(_Phase.OWN)
                    memory.append(await asyncio.to_thread(self._memory))
            finally:
                self._done = True
                await asyncio.gather(*clients)
        return Swaps(swap_s, model_bytes, memory, self._load)

    def _enter(self, phase: _Phase) -> None:
        self._phase = phase
        self._phases += 1
        self._swaps += phase is _Phase.SWAP

    async def _swap(self) -> float:
        began = time.monotonic()
        self._enter(_Phase.SWAP)
        self._newest += 1  # which may answer from now on
        await asyncio.to_thread(self._load_model)
        self._oldest = self._newest  # nothing else may answer what is asked from now on
        return time.monotonic() - began

    async def _ask(self, session: aiohttp.ClientSession) -> None:
        for url in itertools.cycle(self._urls):
            if self._done:
                return
            oldest, phase, phases, swaps = self._oldest, self._phase, self._phases, self._swaps
            began = time.monotonic()
            value = await self._answer(session, url)
            latency_s = time.monotonic() - began
            if value is not None and not oldest <= value <= self._newest:
                self._load.wrong += 1
            if self._swaps > self._pauses:
                self._load.others += 1
            elif phase is _Phase.SWAP or self._swaps != swaps:
                self._load.during.append(latency_s)
            elif phase is _Phase.PAUSE and self._phases == phases:
                self._load.between.append(latency_s)
            else:
                self._load.others += 1

    async def _answer(self, session: aiohttp.ClientSession, url: str) -> float | None:
        try:
            async with session.post(url, data=self._request.body, headers=self._request.headers) as answer:
                content = await answer.read()
                if answer.status != 200:
                    self._load.fail(f"{answer.status} {content.decode(errors='replace')}")
                    return None
                return float(self._wire.answer(_lower(answer.headers), content)[0])
        except (aiohttp.ClientError, TimeoutError, ValueError, LookupError, TypeError) as error:
            self._load.fail(repr(error))
            return None


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
