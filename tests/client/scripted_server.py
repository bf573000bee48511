"""A server that does to each request what a test says: answers, cuts the connection, or stays silent."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson
import pytest


@dataclass(frozen=True)
class Reply:
    """A response; with ``cut``, the connection ends before so many of its last bytes."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b"[]"
    cut: int = 0

    def encode(self) -> bytes:
        """As it is sent."""
        headers = {"content-length": str(len(self.body)), "content-type": "application/json", **self.headers}
        lines = [f"HTTP/1.1 {self.status} X", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        whole = "\r\n".join(lines).encode() + self.body
        return whole[: len(whole) - self.cut]


class Hangup(NamedTuple):
    """The connection ends without an answer."""


class Silence(NamedTuple):
    """Nothing happens until the client leaves."""


class Drip(NamedTuple):
    """The answer comes byte by byte, as long as the client reads, and has no end."""


Act = Reply | Hangup | Silence | Drip


def refusal(status: int, code: str, **headers: str) -> Reply:
    """An error in the server's form."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status, named, orjson.dumps({"error": "scripted", "code": code}))


class Received(NamedTuple):
    """A request, headers by lower-case name."""

    line: str
    headers: dict[str, str]
    body: bytes


class ScriptedServer:
    """Does the next act of the script to each request, and the last one to all further ones.

    Attributes:
        url: Its address.
        received: All requests, in order.
        left: Set when a client left during a `Silence` or a `Drip`.
        silent: Set when a `Silence` or a `Drip` begins.
    """

    def __init__(self, script: Sequence[Act]) -> None:
        self.url = ""
        self.received: list[Received] = []
        self.left = asyncio.Event()
        self.silent = asyncio.Event()
        self._script = list(script)

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while await self._request(reader, writer):
                pass
        writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        line, *lines = head.rstrip().split("\r\n")
        headers = {name.lower(): value for name, value in (text.split(": ", 1) for text in lines)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        act = self._script[min(len(self.received), len(self._script) - 1)]
        self.received.append(Received(line, headers, body))
        if isinstance(act, Reply):
            writer.write(act.encode())
            await writer.drain()
            return not act.cut
        if isinstance(act, Hangup):
            return False
        self.silent.set()
        try:
            if isinstance(act, Drip):
                await _drip(writer)
            else:
                await reader.read()
        finally:
            self.left.set()
        return False


async def cancel_when_silent(server: ScriptedServer, call: Coroutine[Any, Any, Any]) -> None:
    """Start a call, cancel it once the server is silent, and wait until its connection is closed."""
    task = asyncio.create_task(call)
    await server.silent.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await server.left.wait()


async def _drip(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
    for _ in range(1_000_000):
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.01)  # slowness is what is served here


@contextlib.asynccontextmanager
async def scripted(*script: Act) -> AsyncIterator[ScriptedServer]:
    """Run one on a port of its own."""
    served = ScriptedServer(script)
    listening = await asyncio.start_server(served.connection, "127.0.0.1", 0)
    served.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield served
    finally:
        listening.close()
