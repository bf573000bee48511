"""One request and response, between a connection (`serve_app.http.http1`) and the ASGI application."""

from __future__ import annotations

import asyncio
import http
from collections.abc import Callable, Mapping
from enum import IntEnum
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


class Response(IntEnum):
    """Progress of a response."""

    AWAITED = 0
    """The application has said nothing yet."""
    HEADED = 1
    """It has given the head, which waits for the first of the body."""
    SENDING = 2
    """The head was handed to the connection."""
    COMPLETE = 3
    """So was all of the body."""
    CUT = 4
    """The client is gone, or never gets the rest: what the application still says is dropped."""


class _ResponseEvent(IntEnum):
    HEAD_GIVEN = 0
    HEAD_SENT = 1
    ENDED = 2
    LOST = 3


_AFTER: Final[Mapping[tuple[Response, _ResponseEvent], Response]] = {
    (Response.AWAITED, _ResponseEvent.HEAD_GIVEN): Response.HEADED,
    (Response.AWAITED, _ResponseEvent.HEAD_SENT): Response.SENDING,  # an answer that is not the application's
    (Response.AWAITED, _ResponseEvent.LOST): Response.CUT,
    (Response.HEADED, _ResponseEvent.HEAD_SENT): Response.SENDING,
    (Response.HEADED, _ResponseEvent.LOST): Response.CUT,
    (Response.SENDING, _ResponseEvent.ENDED): Response.COMPLETE,
    (Response.SENDING, _ResponseEvent.LOST): Response.CUT,
    (Response.COMPLETE, _ResponseEvent.LOST): Response.COMPLETE,
    (Response.CUT, _ResponseEvent.LOST): Response.CUT,
}

_OUT_OF_TURN: Final[Mapping[tuple[Response, str], str]] = {
    (Response.AWAITED, "http.response.body"): "http.response.body before http.response.start",
    (Response.HEADED, "http.response.start"): "http.response.start twice",
    (Response.SENDING, "http.response.start"): "http.response.start twice",
    (Response.COMPLETE, "http.response.start"): "http.response.start after the end of the response",
    (Response.COMPLETE, "http.response.body"): "http.response.body after the end of the response",
}


_UNSENT: Final = frozenset({Response.AWAITED, Response.HEADED})


class _Framing(IntEnum):
    """How the body's end is framed."""

    LENGTH = 0
    CHUNKED = 1
    CLOSE = 2
    NO_BODY = 3


class Wire(Protocol):
    """An exchange's view of its connection."""

    def write(self, head: bytes, body: bytes = b"") -> None:
        """Send bytes."""

    async def drained(self) -> None:
        """Wait until the client has read enough."""

    def steer(self) -> None:
        """Check again whether to read."""

    def read_into(self, target: memoryview | None) -> None:
        """Read the rest of the current body into the application's memory; ``None`` ends that early."""

    def answered(self) -> None:
        """End the current response."""

    def begin(self, exchange: Exchange) -> None:
        """Start the application."""

    def turn_down(self, exchange: Exchange) -> None:
        """Answer that the server is busy."""

    def left(self, exchange: Exchange) -> None:
        """Record that the application has returned."""

    def abort(self) -> None:
        """Cut the connection: the response cannot be completed."""

    def date(self) -> bytes:
        """The Date header's line."""

    @property
    def draining(self) -> bool:
        """Whether the connection ends after its current response."""


OWN_PORT: Final = "serve_app.own_port"
"""In the scope of every request that comes by a port of this process."""
AWAITED_SINCE: Final = "serve_app.awaited_since"
"""In the scope of a request that was not begun when its head was there: since when it waits, as `monotonic` tells."""


def head_of(status: int, date_line: bytes, headers: Headers) -> bytes:
    """The head of an HTTP/1.1 response with declared length on a persistent connection."""
    lines = b"".join(b"%b: %b\r\n" % field for field in headers)
    return b"%b%b%b\r\n" % (_STATUS_LINES[status], date_line, lines)


class Exchange:
    """One request and its response. Calling it is ASGI's ``receive``, `send` is ASGI's ``send``.

    Args:
        scope: Of the ASGI call.
        length: Declared bytes of the body; ``None`` if chunked.
        keep_alive: Whether the client accepts a persistent connection.

    Attributes:
        arrives: Whether the connection counts it as in progress with an arriving body.
        expects: Whether the client waits for ``100 Continue``.
        body_complete: Whether the whole body has arrived.
        keep_alive: Whether the connection persists after the response.
        waits: Whether it waits for its turn.
    """

    __slots__ = (
        "_begun",
        "_chunks",
        "_ended",
        "_framing",
        "_left",
        "_progress",
        "_received",
        "_start",
        "_waiter",
        "_wire",
        "arrives",
        "body_complete",
        "expects",
        "keep_alive",
        "length",
        "response",
        "scope",
        "task",
        "waits",
    )

    def __init__(self, wire: Wire, scope: Scope, length: int | None, *, keep_alive: bool) -> None:
        self._wire = wire
        self.scope = scope
        self.length = length
        self.keep_alive = keep_alive
        self.arrives = False
        self.body_complete = False
        self.response = Response.AWAITED
        self.task: asyncio.Task[None] | None = None
        self.expects = False
        self.waits = False
        self._begun = False
        self._chunks: list[bytes] = []
        self._received = 0
        self._ended = False  # the application has had the last of the body
        self._waiter: asyncio.Future[None] | None = None
        self._progress: Callable[[int], None] | None = None
        self._start: Message | None = None  # the head of the response, from `HEADED` on
        self._framing = _Framing.LENGTH
        self._left = 0  # bytes of the response that its Content-Length still promises

    # --- What the connection tells ---

    def begin(self) -> None:
        """Start in its turn."""
        self._wire.begin(self)

    def turn_down(self) -> None:
        """Refuse to start."""
        self._wire.turn_down(self)

    def feed(self, chunk: bytes) -> None:
        """Take a piece of the body."""
        self._chunks.append(chunk)
        if self._waiter is not None:
            self._wake()

    def arrived(self, nbytes: int) -> bool:
        """Record bytes read straight into the application's buffer. False: it wants no more."""
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
        """Record the end of the body."""
        self.body_complete = True
        if self._waiter is not None:
            self._wake()

    def lost(self) -> None:
        """Record the client's disconnection and cancel the work."""
        self.response = _AFTER[self.response, _ResponseEvent.LOST]
        self.waits = False
        if self.response is Response.CUT:
            self._cancel()
        self._wake()

    def break_off(self, reply: Rendered) -> None:
        """Cancel a request with a malformed body, and answer it if nothing was sent yet."""
        self._cancel()
        if self.response in _UNSENT:
            self.reply(reply)
        else:
            self._cut()

    def _cut(self) -> None:
        self.response = _AFTER[self.response, _ResponseEvent.LOST]
        self._wire.abort()

    def _cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()
            if not self._begun:  # nor will it begin
                self.task = None  # it keeps its error, and that this
                self._wire.left(self)

    @property
    def ready(self) -> bool:
        """Whether the application can start: small bodies are read first, to spare it the wait."""
        return self.body_complete or self.expects or self.length is None or self.length > LARGE

    @property
    def wants_more(self) -> bool:
        """Whether to read more of the body: always for small ones, on demand for others."""
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
        self.expects = False
        if not self.body_complete and self.response in _UNSENT:
            self._wire.write(_CONTINUE)

    # --- What the application calls ---

    async def run(self, app: ASGIApp) -> None:
        """Run the application, and always answer or close."""
        self._begun = True
        try:
            await app(self.scope, self, self.send)
        except asyncio.CancelledError:
            pass  # The task would keep it, and so its traceback with all that the request held. Nobody awaits the task.
        except Exception as error:  # the last resort of any ASGI server
            self._fail(error)
        finally:
            self._wire.left(self)
            if self.response < Response.COMPLETE:
                self._cut()

    def _fail(self, error: Exception) -> None:
        internal = internal_error(error, "without id", f"{self.scope['method']} {self.scope['path']}")  # and logged
        if self.response in _UNSENT:
            self.keep_alive = False
            self.reply(render(internal))

    async def __call__(self) -> Message:
        """ASGI's ``receive``."""
        if self.expects:
            self._invite()
        while self.response < Response.COMPLETE:
            if self._chunks or (self.body_complete and not self._ended):
                chunks, self._chunks = self._chunks, []
                self._ended = self.body_complete
                body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
                return {"type": "http.request", "body": body, "more_body": not self._ended}
            await self._wait()
        return _GONE

    async def into(self, buffer: memoryview, progress: Callable[[int], None]) -> None:
        """Read the whole body into the caller's memory without a copy, instead of ``receive``.

        Args:
            buffer: As long as the declared body. Written to until this returns or raises.
            progress: Called with the number of bytes so far, at each increase. May raise.

        Raises:
            ClientGone: The client disconnected.
        """
        assert self.length == len(buffer)
        if self.expects:
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
        if not self.body_complete and self.response < Response.COMPLETE:
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
        state, kind = self.response, message["type"]
        if state is Response.CUT:
            return
        fault = _OUT_OF_TURN.get((state, kind))
        if fault is not None:
            raise RuntimeError(fault)
        if kind == "http.response.start":
            self._start = message
            self.response = _AFTER[state, _ResponseEvent.HEAD_GIVEN]
            return
        more = message.get("more_body", False)
        body = message.get("body", b"")
        if state is Response.SENDING:
            self._continue(body, more=more)
        else:
            assert self._start is not None
            self._begin(self._start["status"], self._start.get("headers", ()), body, more=more)
        if more:
            await self._wire.drained()

    def reply(self, reply: Rendered) -> None:
        """Answer at once, without the application."""
        self._begin(reply.status, reply.headers, reply.body, more=False)

    def _begin(self, status: int, headers: Headers, body: bytes, *, more: bool) -> None:
        """Send the head with the first of the body; a complete response in one piece."""
        parts = [_STATUS_LINES[status], self._wire.date()]
        length: int | None = None
        framing = _Framing.LENGTH
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
            framing = _Framing.NO_BODY  # and what the header says stays
        elif length is None:
            if not more:
                length = len(body)
                parts.append(b"content-length: %d\r\n" % length)
            elif modern:
                framing = _Framing.CHUNKED
                parts.append(b"transfer-encoding: chunked\r\n")
            else:
                framing = _Framing.CLOSE
                self.keep_alive = False
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
        self._framing = framing
        self._left = length or 0
        self.response = _AFTER[self.response, _ResponseEvent.HEAD_SENT]
        self.expects = False
        self._continue(body, more=more, head=head)

    def _continue(self, body: bytes, *, more: bool, head: bytes = b"") -> None:
        framing = self._framing
        if framing is _Framing.LENGTH:
            if len(body) > self._left:
                raise RuntimeError("the response is longer than its Content-Length")
            self._left -= len(body)
            if self._left and not more:
                raise RuntimeError("the response is shorter than its Content-Length")
        elif framing is _Framing.CHUNKED:
            head += (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + (b"" if more else b"0\r\n\r\n")
            body = b""
        elif framing is _Framing.NO_BODY:
            body = b""
        self._wire.write(head, body)
        if not more:
            self.response = _AFTER[self.response, _ResponseEvent.ENDED]
            if self._waiter is not None:
                self._wake()
            self._wire.answered()
