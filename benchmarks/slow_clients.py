"""Clients that hurt: many idle connections, slow heads, half bodies and drips, and what others notice of them.

    python -m benchmarks.slow_clients --url http://127.0.0.1:8100 --idle 2000 --slow 500

A foreground of ordinary requests is measured alone, then beside the slow ones. Every one of its answers is compared
with the first; a wrong or missing one ends this with exit code 1. Slow clients that the server turns away or cuts
come again, as those of an attack would.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import ssl
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Annotated, Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import typer

_DRIP_EVERY_S = 1.0
_COME_AGAIN_S = 0.5
_SPARE_FILES = 256
_CONNECTING = 64


@dataclass(frozen=True, slots=True)
class Foreground:
    """What ordinary clients saw.

    Attributes:
        latencies_s: Of every answer that came and was right.
        wrong: Answers that differed from the first, and requests without one, by what was wrong.
    """

    latencies_s: tuple[float, ...]
    wrong: Counter[str]

    def quantile_ms(self, quantile: float) -> float:
        """A quantile of the latency."""
        return float(np.quantile(self.latencies_s, quantile)) * 1e3


@dataclass(frozen=True, slots=True)
class Outcome:
    """The foreground alone and beside slow clients.

    Attributes:
        before: Alone.
        during: Beside them.
        connected: How many slow connections stood when it began.
        cut: How often the server ended one of them.
    """

    before: Foreground
    during: Foreground
    connected: int
    cut: int

    @property
    def correct(self) -> bool:
        """Whether every answer came and was right."""
        return not (self.before.wrong or self.during.wrong)

    def lines(self) -> list[str]:
        """For people."""
        told = [f"{self.connected} slow connections; the server ended {self.cut} of them"]
        for name, seen in (("before", self.before), ("during", self.during)):
            told.append(
                f"{name}: {len(seen.latencies_s)} right answers, p50 {seen.quantile_ms(0.5):.2f} ms,"
                f" p99 {seen.quantile_ms(0.99):.2f} ms, {sum(seen.wrong.values())} wrong {dict(seen.wrong) or ''}"
            )
        ratios = (self.during.quantile_ms(q) / self.before.quantile_ms(q) for q in (0.5, 0.99))
        told.append("during/before: p50 {:.2f}, p99 {:.2f}".format(*ratios))
        return told


@dataclass(slots=True)
class Crowd:
    """Slow clients of one server.

    Args:
        host: Of the server.
        port: Of the server.
        context: For TLS; ``None`` for plain HTTP.
        path: That they pretend to ask.
    """

    host: str
    port: int
    context: ssl.SSLContext | None
    path: str
    standing: int = 0
    cut: int = 0
    _gate: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_CONNECTING))

    async def keep(self, behave: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> None:
        """Be one slow client, again and again, until cancelled."""
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                async with self._gate:
                    reader, writer = await asyncio.open_connection(self.host, self.port, ssl=self.context)
                self.standing += 1
                try:
                    await behave(reader, writer)
                finally:
                    self.standing -= 1
                    writer.transport.abort()
                self.cut += 1
            await asyncio.sleep(_COME_AGAIN_S)

    async def idle(self, reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        """Ask nothing."""
        await reader.read()

    async def drip_head(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send a head, one byte a second."""
        head = f"POST {self.path} HTTP/1.1\r\nHost: x\r\nX-Slow: {'a' * 4096}"
        await self._drip(reader, writer, b"", head.encode())

    async def drip_body(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Announce a small body, and send it one byte a second."""
        await self._drip(reader, writer, self._head(10_000), bytes(10_000))

    async def half_body(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Announce a large body, and send a bit of it."""
        writer.write(self._head(1_000_000) + bytes(100_000))
        await reader.read()

    def _head(self, length: int) -> bytes:
        return f"POST {self.path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode()

    async def _drip(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, first: bytes, rest: bytes
    ) -> None:
        writer.write(first)
        ended = asyncio.ensure_future(reader.read())
        try:
            for byte in rest:
                writer.write(bytes((byte,)))
                await writer.drain()
                if (await asyncio.wait((ended,), timeout=_DRIP_EVERY_S))[0]:
                    return
        finally:
            ended.cancel()


def raise_open_files(wanted: int) -> int:
    """Allow this process as many open files as it may have; returns for how many connections that is enough."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted + _SPARE_FILES if most == resource.RLIM_INFINITY else min(wanted + _SPARE_FILES, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(allowed, resource.getrlimit(resource.RLIMIT_NOFILE)[0]), most))
    return max(0, min(wanted, allowed - _SPARE_FILES))


async def foreground(client: httpx.AsyncClient, path: str, body: bytes, seconds: float, clients: int) -> Foreground:
    """Ask from several clients, one request after the other each, and compare all answers."""
    latencies: list[float] = []
    wrong: Counter[str] = Counter()
    expected: list[Any] = []
    end = perf_counter() + seconds

    async def keep_asking() -> None:
        while perf_counter() < end:
            began = perf_counter()
            try:
                answer = await client.post(path, content=body, headers={"Content-Type": "application/json"})
            except httpx.TransportError as error:
                wrong[type(error).__name__] += 1
                continue
            took = perf_counter() - began
            if answer.status_code != 200:
                wrong[str(answer.status_code)] += 1
                continue
            shown = answer.json()["outputs"]
            expected[:] = expected or [shown]
            if shown != expected[0]:
                wrong["another answer"] += 1
            else:
                latencies.append(took)

    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(keep_asking())
    return Foreground(tuple(latencies), wrong)


@contextlib.asynccontextmanager
async def slow_clients(
    url: str, path: str, *, idle: int, slow: int, context: ssl.SSLContext | None = None
) -> AsyncIterator[Crowd]:
    """Have so many idle and slow clients at a server while this is entered.

    Args:
        url: Of the server.
        path: That they pretend to ask.
        idle: Connections that ask nothing.
        slow: Connections that drip heads and bodies, or stop half way; a third of each.
        context: For ``https``.
    """
    parts = urlsplit(url)
    host, port = parts.hostname or "127.0.0.1", parts.port or (443 if parts.scheme == "https" else 80)
    crowd = Crowd(host, port, context if parts.scheme == "https" else None, path)
    ways = (crowd.drip_head, crowd.drip_body, crowd.half_body)
    behaviours = [*([crowd.idle] * idle), *(ways[number % len(ways)] for number in range(slow))]
    tasks = [asyncio.create_task(crowd.keep(behave)) for behave in behaviours]
    try:
        yield crowd
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def measure(
    url: str,
    model: str,
    request: dict[str, Any],
    *,
    idle: int,
    slow: int,
    seconds: float,
    clients: int = 4,
    context: ssl.SSLContext | None = None,
) -> Outcome:
    """Measure ordinary requests alone and beside slow clients.

    Args:
        url: Of the server.
        model: That is asked.
        request: Body of a V2 request.
        idle: As of `slow_clients`.
        slow: As of `slow_clients`.
        seconds: How long to measure, each time.
        clients: That ask at once.
        context: For ``https``.
    """
    wanted = raise_open_files(idle + slow)
    idle = min(idle, max(0, wanted - slow))
    path, body = f"/v2/models/{model}/infer", json.dumps(request).encode()
    async with httpx.AsyncClient(base_url=url, timeout=30.0, verify=context or False) as client:
        before = await foreground(client, path, body, seconds, clients)
        async with slow_clients(url, path, idle=idle, slow=slow, context=context) as crowd:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(30.0):
                    while crowd.standing < idle + slow:  # noqa: ASYNC110 - counted by as many tasks
                        await asyncio.sleep(0.05)
            connected = crowd.standing
            during = await foreground(client, path, body, seconds, clients)
            return Outcome(before, during, connected, crowd.cut)


def main(
    url: Annotated[str, typer.Option(help="The server's address.")] = "http://127.0.0.1:8000",
    model: Annotated[str, typer.Option(help="Model to ask.")] = "digits",
    idle: Annotated[int, typer.Option(help="Connections that ask nothing.")] = 2000,
    slow: Annotated[int, typer.Option(help="Connections that drip and stop half way.")] = 500,
    seconds: Annotated[float, typer.Option(help="How long to measure, each time.")] = 10.0,
    insecure: Annotated[bool, typer.Option(help="Take any certificate of an https server.")] = False,
) -> None:
    """Measure what slow clients cost others."""
    context = ssl.create_default_context()
    if insecure:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    described = httpx.get(f"{url}/v2/models/{model}", verify=context, timeout=30.0).raise_for_status().json()
    outcome = asyncio.run(measure(url, model, zeros(described), idle=idle, slow=slow, seconds=seconds, context=context))
    for line in outcome.lines():
        sys.stdout.write(line + "\n")
    raise typer.Exit(0 if outcome.correct else 1)


def zeros(described: dict[str, Any]) -> dict[str, Any]:
    """A V2 request of zeros for a model, from its description."""
    inputs = []
    for each in described["inputs"]:
        shape = [1 if size < 0 else size for size in each["shape"]]
        data: list[Any] = ([""] if each["datatype"] == "BYTES" else [0]) * int(np.prod(shape))
        inputs.append({"name": each["name"], "shape": shape, "datatype": each["datatype"], "data": data})
    return {"inputs": inputs}


if __name__ == "__main__":
    typer.run(main)
