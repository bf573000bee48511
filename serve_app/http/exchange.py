"""One request and its response, between a connection (`serve_app.http.http1`) and the ASGI application."""

from __future__ import annotations

import asyncio
import http
from collections.abc import Callable
from typing import Final, Protocol

from starlette.types import ASGIApp, Message, Scope

from serve_app.http.body import ClientGone
from serve_app.http.errors import Headers, Rendered, internal_error, render

LARGE: Final = 64 * 1024
"""Bytes. Bodies above this are read when the application asks for them, and answers above it are not copied."""

_STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in http.HTTPStatus
}
_NO_BODY: Final = frozenset({204, 304})
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_GONE: Final[Message] = {"type": "http.disconnect"}


class Wire(Protocol):
    """What an exchange asks of its connection."""

    def write(self, head: bytes, body: bytes = b"") -> None:
        """Send bytes."""

    async def drained(self) -> None:
        """Wait until the client has taken enough of what was sent."""

    def steer(self) -> None:
        """Look again whether bytes are wanted."""

    def read_into(self, target: memoryview | None) -> None:
        """Read the rest of the current body into memory of the application; ``None`` ends that early."""

    def answered(self) -> None:
        """The current response is complete."""

    def left(self, exchange: Exchange) -> None:
        """The application has returned."""

    def abort(self) -> None:
        """Cut the connection: what was sent cannot be completed."""

    def date(self) -> bytes:
        """The line of the header Date."""

    @property
    def draining(self) -> bool:
        """Whether the connection ends after its current response."""


class Exchange:
    """One request and its response. Calling it is ASGI's ``receive``, `send` is ASGI's ``send``.

    Args:
        wire: The connection.
        scope: Of the ASGI call.
        length: Declared bytes of the body; ``None`` for a chunked one.
        keep_alive: Whether the client would use the connection again.

    Attributes:
        arrives: Whether the connection counts it among those whose body arrives while they are in work.
        expects: Whether the client waits for ``100 Continue`` before it sends the body.
        body_complete: Whether the whole body has arrived.
        complete: Whether the whole response was handed to the connection.
        keep_alive: Whether the connection can be used again after the response.
    """

    __slots__ = (
        "_begun",
        "_bodiless",
        "_chunked",
        "_chunks",
        "_ended",
        "_framed",
        "_gone",
        "_left",
        "_progress",
        "_received",
        "_start",
        "_waiter",
        "_wire",
        "arrives",
        "body_complete",
        "complete",
        "expects",
        "keep_alive",
        "length",
        "scope",
        "task",
    )

    def __init__(self, wire: Wire, scope: Scope, length: int | None, *, keep_alive: bool) -> None:
        self._wire = wire
        self.scope = scope
        self.length = length
        self.keep_alive = keep_alive
        self.arrives = False
        self.body_complete = False
        self.complete = False
        self.task: asyncio.Task[None] | None = None
        self.expects = False
        self._begun = False
        self._chunks: list[bytes] = []
        self._received = 0
        self._ended = False  # the application has had the last of the body
        self._gone = False
        self._waiter: asyncio.Future[None] | None = None
        self._progress: Callable[[int], None] | None = None
        self._start: Message | None = None  # the head of the response, until its first byte of body
        self._framed = False  # the head was sent
        self._chunked = False
        self._bodiless = False
        self._left = 0  # bytes of the response that its Content-Length still promises

    # --- What the connection tells ---

    def feed(self, chunk: bytes) -> None:
        """Take a piece of the body."""
        self._chunks.append(chunk)
        if self._waiter is not None:
            self._wake()

    def arrived(self, nbytes: int) -> bool:
        """Note bytes that were read straight into the application's buffer. False when it wants no more of them."""
        self._received += nbytes
        assert self._progress is not None
        try:
            self._progress(self._received)
        except Exception as error:  # whatever it is belongs to who waits in `into`
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_exception(error)
            return False
        return True

    def finish(self) -> None:
        """Note the end of the body."""
        self.body_complete = True
        if self._waiter is not None:
            self._wake()

    def lost(self) -> None:
        """Note that the client is gone: end what is done for it."""
        self._gone = True
        if not self.complete:
            self._cancel()
        self._wake()

    def break_off(self, reply: Rendered) -> None:
        """End the work on a request whose body turned out to be malformed, and answer it where nothing was sent yet."""
        self._cancel()
        if self._framed:
            self._gone = True
            self._wire.abort()
        else:
            self.reply(reply)

    def _cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()
            if not self._begun:  # nor will it begin
                self._wire.left(self)

    @property
    def ready(self) -> bool:
        """Whether the application can start: small bodies are read before, which spares it the waiting."""
        return self.body_complete or self.expects or self.length is None or self.length > LARGE

    @property
    def wants_more(self) -> bool:
        """Whether more of the body should be read now: small bodies always, others while somebody waits."""
        return self._waiter is not None or (self.length is not None and self.length <= LARGE)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            self._wire.steer()
            await self._waiter
        finally:
            self._waiter = None

    def _invite(self) -> None:
        if self.expects:
            self.expects = False
            if not self.body_complete and not self._framed:
                self._wire.write(_CONTINUE)

    # --- What the application calls ---

    async def run(self, app: ASGIApp) -> None:
        """Let the application answer. Never leaves a client without an answer or an end."""
        self._begun = True
        try:
            await app(self.scope, self, self.send)
        except asyncio.CancelledError:
            pass  # The task would keep it, and so its traceback with all that the request held. Nobody awaits the task.
        except Exception as error:  # the last resort of any ASGI server
            self._fail(error)
        finally:
            self._wire.left(self)
            if not self.complete and not self._gone:
                self._gone = True
                self._wire.abort()

    def _fail(self, error: Exception) -> None:
        internal = internal_error(error, "without id", f"{self.scope['method']} {self.scope['path']}")  # and logged
        if not self._framed and not self._gone:
            self.keep_alive = False
            self.reply(render(internal))

    async def __call__(self) -> Message:
        """ASGI's ``receive``."""
        self._invite()
        while not (self._gone or self.complete):
            if self._chunks or (self.body_complete and not self._ended):
                chunks, self._chunks = self._chunks, []
                self._ended = self.body_complete
                body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
                return {"type": "http.request", "body": body, "more_body": not self._ended}
            await self._wait()
        return _GONE

    async def into(self, buffer: memoryview, progress: Callable[[int], None]) -> None:
        """Read the whole body into memory of the caller, without a copy in between. Instead of ``receive``.

        Args:
            buffer: As long as the declared body. Bytes may be written to it until this returns or raises.
            progress: Called with the number of bytes that have arrived, whenever there are more. May raise.

        Raises:
            ClientGone: The client went away.
        """
        assert self.length == len(buffer)
        self._invite()
        position = 0
        for chunk in self._chunks:
            buffer[position : position + len(chunk)] = chunk
            position += len(chunk)
        self._chunks.clear()
        self._ended = True
        self._received = position
        if position:
            progress(position)
        if not self.body_complete and not self._gone:
            self._progress = progress
            self._wire.read_into(buffer[position:])
            try:
                await self._wait()
            finally:
                self._progress = None
                if not self.body_complete:
                    self._wire.read_into(None)
        if not self.body_complete:
            raise ClientGone

    async def send(self, message: Message) -> None:
        """ASGI's ``send``."""
        if self._gone:
            return
        if self.complete:
            raise RuntimeError(f"{message['type']} after the end of the response")
        if message["type"] == "http.response.start":
            if self._start is not None or self._framed:
                raise RuntimeError("http.response.start twice")
            self._start = message
            return
        more = message.get("more_body", False)
        body = message.get("body", b"")
        if self._framed:
            self._continue(body, more=more)
        elif self._start is None:
            raise RuntimeError("http.response.body before http.response.start")
        else:
            self._begin(self._start["status"], self._start.get("headers", ()), body, more=more)
        if more:
            await self._wire.drained()

    def reply(self, reply: Rendered) -> None:
        """Answer at once, without the application."""
        self._begin(reply.status, reply.headers, reply.body, more=False)

    def _begin(self, status: int, headers: Headers, body: bytes, *, more: bool) -> None:
        """Send the head with the first of the body, and the whole response in one piece where that is all of it."""
        parts = [_STATUS_LINES[status], self._wire.date()]
        length: int | None = None
        for name, value in headers:
            if name == b"content-length":
                length = int(value)
            elif name == b"connection":
                if b"close" in value.lower():
                    self.keep_alive = False
                continue
            elif name == b"transfer-encoding":
                continue  # framing is decided here
            parts += (name, b": ", value, b"\r\n")
        fields = len(parts)
        lines = 2 + (fields - 2) // 4
        modern = self.scope["http_version"] == "1.1"
        if self.scope["method"] == "HEAD" or status in _NO_BODY:
            self._bodiless = True
            length = 0  # and what the header says stays
        elif length is None:
            if not more:
                length = len(body)
                parts.append(b"content-length: %d\r\n" % length)
            elif modern:
                self._chunked = True
                parts.append(b"transfer-encoding: chunked\r\n")
            else:
                self.keep_alive = False  # its end is the end of the connection
        if self._wire.draining or not self.body_complete:
            self.keep_alive = False
        if not self.keep_alive:
            parts.append(b"connection: close\r\n")
        elif not modern:
            parts.append(b"connection: keep-alive\r\n")
        parts.append(b"\r\n")
        lines += len(parts) - fields
        head = b"".join(parts)
        if head.count(b"\n") != lines or head.count(b"\r") != lines:
            raise RuntimeError("a header of the response holds a line break")
        self._left = -1 if length is None else length
        self._framed = True
        self.expects = False
        self._continue(body, more=more, head=head)

    def _continue(self, body: bytes, *, more: bool, head: bytes = b"") -> None:
        if self._bodiless:
            body = b""
        if self._left >= 0:
            if len(body) > self._left:
                raise RuntimeError("the response is longer than its Content-Length")
            self._left -= len(body)
            if self._left and not more:
                raise RuntimeError("the response is shorter than its Content-Length")
        if self._chunked:
            head += (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + (b"" if more else b"0\r\n\r\n")
            body = b""
        self._wire.write(head, body)
        if not more:
            self.complete = True
            self._wake()
            self._wire.answered()
