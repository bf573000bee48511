"""An HTTP client for floods that takes little of the processor, which it shares with the server."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import httptools
from typing_extensions import override

from benchmarks.chaos.clients import Client, Ending, code_of, read_answer
from benchmarks.chaos.questions import Question
from benchmarks.chaos.records import End


class Lean(Client):
    """Sends every request once, over as many connections as are needed at once; those that are free are used again.

    Args:
        url: Of the server.
        kind: For reports.
    """

    def __init__(self, url: str, kind: str) -> None:
        parts = urlsplit(url)
        self.kind = kind
        self._address = parts.hostname or "", parts.port or 80
        self._place = parts.netloc
        self._free: list[_Connection] = []
        self._open: set[_Connection] = set()
        self._requests: dict[tuple[int, str, float], tuple[Question, bytes]] = {}

    @override
    async def _ask(self, question: Question, priority: str, timeout_s: float) -> Ending:
        try:
            connection = self._free.pop() if self._free else await self._connect()
        except OSError as error:
            return Ending(End.UNREACHABLE, str(error))
        try:
            status, headers, content = await connection.ask(self._encoded(question, priority, timeout_s))
        except ConnectionError as error:
            return Ending(End.CUT, str(error))
        except asyncio.CancelledError:  # it hangs
            connection.cut()
            raise
        if status != 200:
            return Ending(End.REFUSED, code_of(status, content))
        return read_answer(question, headers, content)

    @override
    async def close(self) -> None:
        for connection in list(self._open):
            connection.cut()

    async def _connect(self) -> _Connection:
        host, port = self._address
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: _Connection(self._free, self._open), host, port)
        return connection

    def _encoded(self, question: Question, priority: str, timeout_s: float) -> bytes:
        key = id(question), priority, timeout_s
        if (known := self._requests.get(key)) is None:
            body = question.request.body
            headers = {
                "host": self._place,
                **question.request.headers,
                "x-priority": priority,
                "x-timeout-ms": f"{timeout_s * 1e3:.0f}",
                "content-length": str(len(body)),
            }
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            known = self._requests[key] = question, f"POST {question.path} HTTP/1.1\r\n{lines}\r\n".encode() + body
        return known[1]


class _Connection(asyncio.Protocol):
    """One request at a time.

    Args:
        free: Where it is while it can be asked.
        alive: Where it is while it is open.
    """

    def __init__(self, free: list[_Connection], alive: set[_Connection]) -> None:
        self._free = free
        self._alive = alive
        self._transport: asyncio.Transport
        self._parser: httptools.HttpResponseParser
        self._answer: asyncio.Future[tuple[int, dict[str, str], bytes]] | None = None
        self._headers: dict[str, str] = {}
        self._content = b""

    async def ask(self, request: bytes) -> tuple[int, dict[str, str], bytes]:
        """Send a request. Returns status, headers by lower-case name, and body.

        Raises:
            ConnectionError: There is no whole answer.
        """
        self._headers, self._content = {}, b""
        self._parser = httptools.HttpResponseParser(self)
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    def cut(self) -> None:
        """End it."""
        self._transport.abort()

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment] # uvloop's is none by name
        self._alive.add(self)

    @override
    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"not an answer of HTTP: {error}")
            self.cut()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._alive.discard(self)
        if self in self._free:
            self._free.remove(self)
        self._fail(str(exc) if exc is not None else "the server closed the connection")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser."""
        self._headers[name.decode().lower()] = value.decode()

    def on_body(self, body: bytes) -> None:
        """Called by the parser."""
        self._content += body

    def on_message_complete(self) -> None:
        """Called by the parser."""
        answer, self._answer = self._answer, None
        if answer is None or answer.done():
            return
        answer.set_result((self._parser.get_status_code(), self._headers, self._content))
        if self._parser.should_keep_alive():
            self._free.append(self)
        else:
            self._transport.close()

    def _fail(self, why: str) -> None:
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_exception(ConnectionError(why))
