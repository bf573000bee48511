"""A listener in this process, applications for it, and a client that sends exactly what a test says."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from serve_app.http.errors import ErrorsOf, render
from serve_app.http.http1 import Limits
from serve_app.http.listener import Listener, bind
from serve_app.http.tls import Certificates
from serve_app.http.turns import Turns

LARGE = 300_000
"""Bytes of a body that is read only when it is asked for."""


@contextlib.asynccontextmanager
async def serving(
    app: ASGIApp,
    limits: Limits | None = None,
    certificates: Certificates | None = None,
    errors_of: ErrorsOf = lambda _: render,
    turns: Turns | None = None,
) -> AsyncIterator[tuple[Listener, int]]:
    """A listener on a port of its own."""
    listener = Listener(app, bind("127.0.0.1", 0), limits, certificates, errors_of, turns)
    port = listener.port
    await listener.start()
    try:
        yield listener, port
    finally:
        await listener.close(0.0)


class Client:
    """A client that sends and reads exactly what a test says."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port: int, context: ssl.SSLContext | None = None) -> Client:
        """Open a connection."""
        return cls(*await asyncio.open_connection("127.0.0.1", port, ssl=context))

    async def send(self, *parts: bytes) -> Client:
        """Send bytes."""
        self.writer.write(b"".join(parts))
        await self.writer.drain()
        return self

    async def answer(self, *, head_only: bool = False) -> tuple[int, dict[str, str], bytes]:
        """Read one response: status, headers and body."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        status, *lines = head.rstrip().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        code = int(status.split(" ")[1])
        if head_only or code < 200:
            return code, headers, b""
        if "transfer-encoding" in headers:
            return code, headers, await self._chunks()
        if "content-length" in headers:
            return code, headers, await self.reader.readexactly(int(headers["content-length"]))
        return code, headers, await self.reader.read()

    async def _chunks(self) -> bytes:
        body = b""
        while size := int(await self.reader.readline(), 16):
            body += await self.reader.readexactly(size)
            assert await self.reader.readline() == b"\r\n"
        assert await self.reader.readline() == b"\r\n"
        return body

    async def ended(self) -> bytes:
        """What comes until the server closes."""
        return await self.reader.read()

    def leave(self) -> None:
        """Close without a word."""
        self.writer.close()


def post(body: bytes, *headers: str, version: str = "1.1", path: str = "/echo") -> bytes:
    """A POST request of a body."""
    lines = [f"POST {path} HTTP/{version}", "Host: test", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join((*lines, "", "")).encode() + body


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the body, or with what was understood of the head where there is none."""
    body, more = b"", True
    while more:
        message = await receive()
        assert message["type"] == "http.request"
        body += message["body"]
        more = message["more_body"]
    if not body:
        shown = {key: scope[key] for key in ("method", "path", "http_version")}
        shown |= {key: scope[key].decode() for key in ("raw_path", "query_string")}
        body = json.dumps(shown | {"headers": {k.decode(): v.decode() for k, v in scope["headers"]}}).encode()
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": 200, "headers": [length, (b"x-a", b"b")]})
    await send({"type": "http.response.body", "body": body})


class Gated:
    """Answers ``b"done"`` when it is let, and notes what was cancelled."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.let = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        self.started.set()
        try:
            await self.let.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"done"})


async def until(condition: Callable[[], bool]) -> None:
    """Let the event loop run until something holds that nothing else tells."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0)


async def until_refused(port: int) -> None:
    """Connect until nobody listens any more."""
    with contextlib.suppress(ConnectionRefusedError):
        while True:
            (await Client.connect(port)).leave()
