"""HTTP/1.1 on one connection: bytes to exchanges and back. `httptools` (llhttp, strict) parses the grammar.

Why not uvicorn: it copies a large body several times, lets an application continue for disconnected clients, and takes
twice the CPU time per small request. Here bodies go from the socket straight to the application's memory, and a
disconnection cancels the request.

`Input` is a connection's input state, and `_AFTER` its transitions.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import fcntl
import os
import socket
import sys
import termios
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from enum import IntEnum
from time import monotonic
from typing import Any, Final, cast

import httptools
from starlette.types import ASGIApp

from serve_app.domain.priority import Priority
from serve_app.errors import InvalidRequest, QueueFull
from serve_app.http.body import SLOWEST, BodyTooSlow
from serve_app.http.connection_limiter import ConnectionLimiter
from serve_app.http.errors import ErrorsOf, Headers, Rendered, render
from serve_app.http.exchange import AWAITED_SINCE, LARGE, Exchange, head_of
from serve_app.http.head import (
    MAX_FIELDS,
    MAX_HEAD,
    Address,
    KnownHead,
    KnownHeads,
    end_of,
    refusal,
    scope_of,
    too_long,
    without_upgrade,
)
from serve_app.http.turns import BUSY, Turns, Urgency

_MAX_PIPELINED: Final = 64
_MOST_PATHS: Final = 256
_KNOWN_UP_TO: Final = 16 * 1024
"""Bytes. Of requests that arrive in larger pieces the head costs little beside the rest."""
_URGENCY_HOLDS_S: Final = 1.0
_LAST_DATA_RECEIVED: Final = 52
"""Where struct tcp_info of Linux has tcpi_last_data_recv, milliseconds."""
_URGENT_FOR_S: Final = 10.0
"""How long a connection counts as one that carries urgent requests after the last of them that had to wait."""


class Input(IntEnum):
    """How a connection treats arriving bytes."""

    PARSING = 0
    """They go into memory that all connections share, and from there through the parser."""
    DIRECT = 1
    """They are the rest of a large body, and go into the application's memory; the parser never sees them."""
    DISCARDING = 2
    """They are dropped: the connection ends, and the client should still see its last answer."""


class _InputEvent(IntEnum):
    DIVERTED = 0  # the application gives memory for the rest of a body
    COMPLETED = 1  # which is there
    ENDED = 2  # nothing that comes after this matters


_AFTER: Final[Mapping[tuple[Input, _InputEvent], Input]] = {
    (Input.PARSING, _InputEvent.DIVERTED): Input.DIRECT,
    (Input.PARSING, _InputEvent.ENDED): Input.DISCARDING,
    (Input.DIRECT, _InputEvent.COMPLETED): Input.PARSING,
    (Input.DIRECT, _InputEvent.ENDED): Input.DISCARDING,
    (Input.DISCARDING, _InputEvent.DIVERTED): Input.DISCARDING,
    (Input.DISCARDING, _InputEvent.ENDED): Input.DISCARDING,
}


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one listener.

    Attributes:
        connections: Most open connections. Idle ones make room for more; without idle ones, more get 503 and are
            closed.
        connections_per_client: Most open connections per address, if limited.
        requests: Most requests in progress; more get 429. At most half may have large bodies still arriving, so that
            slow senders leave room for others.
        head_s: Longest TLS handshake, and longest arrival of a head, seconds.
        body_s: Longest arrival of a body up to 64 KiB, seconds.
        idle_s: Longest connection without a request, seconds.
        stall_s: How long a client may read nothing, and how far it may fall behind 64 KiB/s, seconds.
        linger_s: How long a still sending client may take to read its last answer, seconds.
    """

    connections: int = 8192
    connections_per_client: int | None = None
    requests: int = 4096
    head_s: float = 10.0
    body_s: float = 30.0
    idle_s: float = 75.0
    stall_s: float = 30.0
    linger_s: float = 2.0


@dataclass(slots=True)
class ListenerState:
    """Shared state of a listener's connections.

    Attributes:
        turns: Schedules requests.
        limiter: Admits them.
        requests: Requests in progress.
        arriving: Those that began before their body was complete, which still arrives.
        draining: Whether connections end after their current response.
        on_lost: Called after the end of a connection.
        errors_of: The error format at a path.
        heads: Recent heads of requests.
        scratch: Receive buffer; consumed before the next connection reads.
        date_line: The Date header's line.
        date_until: Time to renew it, seconds.
    """

    app: ASGIApp
    limits: Limits
    loop: asyncio.AbstractEventLoop
    turns: Turns
    connections: set[Connection] = field(default_factory=set)
    limiter: ConnectionLimiter = field(init=False)
    requests: int = 0
    arriving: int = 0
    draining: bool = False
    on_lost: Callable[[], None] = lambda: None
    errors_of: ErrorsOf = lambda _: render
    heads: KnownHeads = field(default_factory=KnownHeads)
    scratch: memoryview = field(default_factory=lambda: memoryview(bytearray(64 * 1024)))
    date_line: bytes = b""
    date_until: float = 0.0
    _busy: dict[str, Rendered] = field(default_factory=dict)
    _busy_bytes: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.limiter = ConnectionLimiter(self.limits.connections, self.limits.connections_per_client)

    def busy(self, path: str) -> Rendered:
        """The cached answer to a refused request at this path."""
        reply = self._busy.get(path)
        if reply is None:
            if len(self._busy) >= _MOST_PATHS:
                self._busy.clear()
            reply = self._busy[path] = self.errors_of(path)(BUSY)
        return reply

    def busy_bytes(self, path: str) -> bytes:
        """The same as bytes, for a persistent HTTP/1.1 connection."""
        if self.loop.time() >= self.date_until:
            self.renew_date()
        whole = self._busy_bytes.get(path)
        if whole is None:
            reply = self.busy(path)
            whole = self._busy_bytes[path] = head_of(reply.status, self.date_line, reply.headers) + reply.body
        return whole

    def urgency_of(self, head: KnownHead) -> Urgency:
        """The urgency of this head. Cached briefly, since a key's rights may change."""
        now = self.loop.time()
        if head.urgency is None or now >= head.urgency_until:
            head.urgency = self.turns.urgency_of(head.scope["method"], head.scope["path"], dict(head.scope["headers"]))
            head.urgency_until = now + _URGENCY_HOLDS_S
        return head.urgency

    def renew_date(self) -> bytes:
        """Make the Date header's line, valid for a second."""
        self.date_line = f"date: {formatdate(usegmt=True)}\r\n".encode()
        self.date_until = self.loop.time() + 1.0
        self._busy_bytes.clear()
        return self.date_line


class _Held:
    """A whole request with a known head that waits for its turn, unparsed.

    Attributes:
        since: Time of arrival, seconds.
        exchange: Its exchange, created when more bytes arrive; ``None`` until then.
    """

    __slots__ = ("body", "connection", "exchange", "head", "since", "waits")

    def __init__(self, connection: Connection, head: KnownHead, body: bytes, since: float) -> None:
        self.connection = connection
        self.head = head
        self.body = body
        self.since = since
        self.waits = True
        self.exchange: Exchange | None = None

    def begin(self) -> None:
        """Start in its turn."""
        exchange = self.exchange
        if exchange is None:
            self.connection.begin(self.connection.unhold())
        elif exchange.waits:  # its client may have left
            exchange.waits = False
            self.connection.begin(exchange)

    def turn_down(self) -> None:
        """Refuse to start."""
        exchange = self.exchange
        if exchange is None:
            self.connection.turn_down_held(self.head)
        elif exchange.waits:
            exchange.waits = False
            self.connection.turn_down(exchange)


class Connection(asyncio.BufferedProtocol):
    """One connection of a client. Requests are answered one after the other, in order.

    Args:
        scheme: ``https`` over a TLS transport.
    """

    def __init__(self, shared: ListenerState, scheme: str = "http") -> None:
        self._shared = shared
        self._scheme = scheme
        self._loop = shared.loop
        self._transport: asyncio.Transport = None  # type: ignore[assignment] # from `connection_made` on
        self._parser: Any = None
        self._server: Address | None = None
        self._client: Address | None = None
        # The head that is being parsed
        self._url = b""
        self._headers: Headers = []
        self._refusal: Rendered | None = None
        self._unframed = 0  # bytes parsed since the last that were part of a body or ended a message
        self._of_body = 0  # of the bytes that arrived last
        self._between = True  # whether they ended with a message, for certain: the parser has nothing of the next
        # Exchanges: the one whose body arrives, the one that is being answered, those after it
        self._arriving: Exchange | None = None
        self._current: Exchange | None = None
        self._queue: deque[tuple[Exchange, Rendered | None]] = deque()
        self._held: _Held | None = None  # the one that waits, while it is no exchange yet
        self._urgent_until = 0.0  # it carried an urgent request lately
        self._kept_back = False  # whether it is read later: requests of it are refused
        self._leaves = False  # whether it ends after its next answer
        self._was_kept_back = False  # and what is read next may have arrived long ago
        self._input = Input.PARSING
        self._target: memoryview | None = None  # what is left of the application's memory, while `DIRECT`
        self._reading = True
        self._drain: asyncio.Future[None] | None = None  # while the client takes too little
        self._served = False  # whether there was a whole request, ever
        self._since = 0.0  # when it began to be idle, to send a head, or to end
        self._written = 0  # bytes, ever
        self._taken = 0  # those of them that were not waiting here when last looked at
        self._cut_at = 0.0  # when the client will have taken too little; 0 while nothing waits for it

    # --- asyncio's side ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the connection."""
        shared = self._shared
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by name
        self._since = self._loop.time()
        self._server = _address(transport.get_extra_info("sockname"))
        self._client = _address(transport.get_extra_info("peername"))
        shared.connections.add(self)
        self._renew_parser()
        reason = shared.limiter.enter(self, self._host, self._since)
        if reason is not None:
            self._turn_away(reason)

    @property
    def _host(self) -> str:
        return "" if self._client is None else self._client[0]

    def _turn_away(self, reason: str) -> None:
        self._move(_InputEvent.ENDED)
        # Refusals with a reason are limited, too. Before the handshake none can be sent.
        if self._scheme == "https" or self._shared.limiter.over_hard_limit:
            self._transport.abort()
            return
        reply = render(QueueFull(reason, 1.0))._replace(status=503)
        exchange = self._last_exchange()
        self._current = exchange
        exchange.reply(reply)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """The buffer for the next bytes."""
        return self._shared.scratch if self._target is None else self._target

    def buffer_updated(self, nbytes: int) -> None:
        """Process received bytes."""
        if self._target is not None:
            self._take_direct(self._target, nbytes)
            return
        if self._input is Input.DISCARDING:
            return
        if self._held is not None:
            self.unhold()
        data = None
        if not self._unframed and self._current is None:
            self._since = self._loop.time()
            if self._arriving is None and nbytes <= _KNOWN_UP_TO:
                data = bytes(self._shared.scratch[:nbytes])
                known = self._shared.heads.of(data) if self._between else None
                if known is not None:
                    self._take_known(known[0], data[known[1] :])
                    return
        self._unframed += nbytes
        self._of_body = 0
        self._parse(self._shared.scratch[:nbytes])
        if not self._unframed and self._url:
            self._unframed = 1  # the next head has begun
        if self._unframed > MAX_HEAD or len(self._headers) > MAX_FIELDS:
            self._refuse(too_long())
        current = self._current
        self._between = self._of_body == nbytes and self._arriving is None
        if current is not None and current.task is None and not current.waits:
            if current.body_complete or current.ready:
                if data is not None and current.body_complete:
                    self._between = self._learn(data, current)
                self._enter(current)
            else:
                current.scope.setdefault(AWAITED_SINCE, monotonic())
        if self._arriving is not None or self._queue or not self._reading:
            self.steer()

    def _take_known(self, head: KnownHead, body: bytes) -> None:
        """Take a whole request with a known head."""
        self._served = True
        turns = self._shared.turns
        since = self._arrival() if self._was_kept_back else None
        if turns.free(head.length):
            exchange = self._exchange_of(head, body)
            if since is not None:
                exchange.scope[AWAITED_SINCE] = since
            self.begin(exchange)
            return
        self._held = held = _Held(self, head, body, self._arrival() if since is None else since)
        self._wait(held, head.length, self._shared.urgency_of(head), held.since)

    def _exchange_of(self, head: KnownHead, body: bytes) -> Exchange:
        scope = {**head.scope, "server": self._server, "client": self._client, "scheme": self._scheme}
        self._current = exchange = Exchange(self, scope, head.length, keep_alive=True)
        if body:
            exchange.feed(body)
        exchange.body_complete = True
        return exchange

    def _wait(self, waiter: _Held | Exchange, nbytes: int, urgency: Urgency, since: float) -> None:
        if urgency[0] is Priority.HIGH:
            self._urgent_until = self._loop.time() + _URGENT_FOR_S
        self._shared.turns.wait(waiter, nbytes, urgency, since)

    def _arrival(self) -> float:
        """A lower bound of the time when the present bytes arrived, seconds."""
        if self._was_kept_back:
            self._was_kept_back = False
            return monotonic() - unread_s(self._transport.get_extra_info("socket"))
        return self._shared.turns.read_since

    def unhold(self) -> Exchange:
        """Make an exchange of the held request."""
        held, self._held = self._held, None
        assert held is not None
        held.exchange = exchange = self._exchange_of(held.head, held.body)
        exchange.waits = held.waits
        exchange.scope[AWAITED_SINCE] = held.since
        return exchange

    def _learn(self, data: bytes, exchange: Exchange) -> bool:
        """Keep the head, if these bytes were one whole request. Returns whether they were."""
        method, length = exchange.scope["method"].encode(), exchange.length
        # The parser may hold the first letters of a method from before, and then has read another head than this.
        if length is None or self._queue or not data.startswith(method + b" ") or len(data) != end_of(data) + length:
            return False
        if exchange.keep_alive and not exchange.expects and exchange.scope["http_version"] == "1.1":
            self._shared.heads.learn(data, {**exchange.scope}, length)
        return True

    def eof_received(self) -> None:
        """Close for a disconnected client. A half-closed connection cannot be distinguished."""
        self._lose()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """End the connection and its work."""
        self._shared.connections.discard(self)
        self._shared.limiter.leave(self, self._host)
        self._lose()
        self._parser = None  # it holds this connection
        self.resume_writing()
        self._shared.on_lost()

    def _lose(self) -> None:
        current, self._current, self._arriving = self._current, None, None
        held, self._held = self._held, None
        if held is not None:
            held.waits = False
        self._move(_InputEvent.ENDED)
        self._queue.clear()
        if current is not None:
            current.lost()

    def pause_writing(self) -> None:
        """Hold responses back: the client reads too little."""
        if self._drain is None:
            self._drain = self._loop.create_future()

    def resume_writing(self) -> None:
        """Continue held responses."""
        drain, self._drain = self._drain, None
        if drain is not None:
            drain.set_result(None)
            if self._current is None:
                self._since = self._loop.time()  # nothing was read meanwhile
                self._next()

    # --- Arriving bytes ---

    def _renew_parser(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        # What follows a request with `Connection: close` is dropped here, and is no reason not to answer it.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def _parse(self, data: memoryview) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._parse_without_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self._refuse(self._refusal or render(InvalidRequest(f"this is not valid HTTP/1.1: {error}")))

    def _parse_without_upgrade(self, rest: memoryview) -> None:
        """Parse again without the declined protocol upgrade, since the parser skipped its body."""
        parser = self._parser
        head = without_upgrade(parser.get_method(), self._url, parser.get_http_version(), self._headers)
        self._url, self._headers = b"", []
        self._renew_parser()
        self._parse(memoryview(head))
        if len(rest) and self._input is Input.PARSING:
            self._parse(rest)

    def on_url(self, url: bytes) -> None:
        """Receive a part of the request's target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Receive a header; trailers after a chunked body are dropped."""
        if self._arriving is None:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Make an exchange of a complete head."""
        headers = self._headers
        fields = dict(headers)
        parser = self._parser
        if self._input is Input.DISCARDING or (b"upgrade" in fields and parser.should_upgrade()):
            return
        url = self._url
        self._url, self._headers = b"", []
        method = parser.get_method().decode()
        version = parser.get_http_version()
        declared = fields.get(b"content-length")
        length = int(declared) if declared is not None else None if b"transfer-encoding" in fields else 0
        refused = refusal(method, url, version, headers, fields)
        if refused is not None:
            self._refusal = refused
            raise ValueError  # which stops the parser
        scope = scope_of(method, url, version, headers, self._server, self._client, self._scheme)
        exchange = Exchange(self, scope, length, keep_alive=parser.should_keep_alive())
        if b"expect" in fields:
            exchange.expects = fields[b"expect"].lower() == b"100-continue" and version == "1.1"
        self._arriving = exchange
        if self._current is None:
            self._current = exchange
        else:
            self._queue.append((exchange, None))
            if len(self._queue) >= _MAX_PIPELINED:
                exchange.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """Receive a part of a body."""
        self._unframed = 0
        self._of_body += len(body)
        if self._arriving is not None:
            self._arriving.feed(body)

    def on_message_complete(self) -> None:
        """End a request."""
        exchange, self._arriving = self._arriving, None
        if exchange is not None:
            self._unframed = 0
            self._served = True
            if exchange.arrives:
                self._has_arrived(exchange)
            exchange.finish()
            if not exchange.keep_alive:
                self._move(_InputEvent.ENDED)

    def _last_exchange(self) -> Exchange:
        """The exchange for the final answer to an unintelligible request."""
        scope = scope_of("GET", b"/", "1.1", [], self._server, self._client, self._scheme)
        return Exchange(self, scope, 0, keep_alive=False)

    def _refuse(self, reply: Rendered) -> None:
        """Answer an unintelligible request, after those before it, and close."""
        if self._input is Input.DISCARDING:
            return
        self._move(_InputEvent.ENDED)
        broken, self._arriving = self._arriving, None
        if broken is not None and broken.task is not None:  # the fault is in the body of a request that is in work
            broken.break_off(reply)
            return
        if broken is not None and broken is self._current:
            broken.waits = False
            self._current = None
        elif broken is not None:
            self._queue.pop()
        exchange = self._last_exchange()
        if self._current is None:
            self._current = exchange
            exchange.reply(reply)
        else:
            self._queue.append((exchange, reply))

    # --- Bodies that are read straight into the application's memory ---

    def read_into(self, target: memoryview | None) -> None:
        """Read the rest of the current body into this memory; ``None`` ends that early, and the rest is dropped."""
        if target is None:
            if self._input is Input.DIRECT:
                self._move(_InputEvent.ENDED)
        elif self._move(_InputEvent.DIVERTED) is Input.DIRECT:
            self._target = target
            self._parser = None

    def _move(self, event: _InputEvent) -> Input:
        self._input = after = _AFTER[self._input, event]
        self._target = None
        return after

    def _take_direct(self, target: memoryview, nbytes: int) -> None:
        exchange = self._arriving
        assert exchange is not None
        target = target[nbytes:]
        wanted = exchange.arrived(nbytes)
        if len(target) and wanted:
            self._target = target
        elif wanted:
            self._move(_InputEvent.COMPLETED)
            self._renew_parser()
            self.on_message_complete()
        else:
            self._move(_InputEvent.ENDED)

    def steer(self) -> None:
        """Read exactly while bytes are wanted."""
        arriving = self._arriving
        # Answers wait here for a client that takes too little: the next request would only add to them.
        full = self._drain is not None and self._current is None
        kept_back = self._kept_back and self._current is None
        held = full or kept_back or self._queue or (arriving is not None and not arriving.wants_more)
        wanted = self._input is Input.DISCARDING or not held
        if wanted != self._reading and not self._transport.is_closing():
            self._reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    # --- Exchanges ---

    def _enter(self, exchange: Exchange) -> None:
        """Start a request now or in its turn. The wait counts towards its deadline."""
        turns, nbytes, scope = self._shared.turns, exchange.length or 0, exchange.scope
        if self._was_kept_back:
            scope.setdefault(AWAITED_SINCE, self._arrival())
        if turns.free(nbytes):
            self.begin(exchange)
        else:
            since = scope.setdefault(AWAITED_SINCE, self._arrival())
            self._wait(
                exchange, nbytes, turns.urgency_of(scope["method"], scope["path"], dict(scope["headers"])), since
            )

    def begin(self, exchange: Exchange) -> None:
        """Start the application for a request, if there is capacity."""
        shared = self._shared
        if shared.requests >= shared.limits.requests:
            full = QueueFull("too many requests in progress; retry later", 1.0)
            exchange.reply(shared.errors_of(exchange.scope["path"])(full))
            return
        if not exchange.body_complete:
            if shared.arriving >= max(1, shared.limits.requests // 2):
                full = QueueFull("too many large bodies are arriving; try again", 1.0)
                exchange.reply(shared.errors_of(exchange.scope["path"])(full))
                return
            exchange.arrives = True
            shared.arriving += 1
        shared.requests += 1
        exchange.task = self._loop.create_task(exchange.run(shared.app), context=contextvars.Context())

    def turn_down(self, exchange: Exchange) -> None:
        """Answer that a request is refused."""
        exchange.reply(self._shared.busy(exchange.scope["path"]))
        self._keep_back()

    def turn_down_held(self, head: KnownHead) -> None:
        """Answer that the held request is refused."""
        # What is prepared has a body, and leaves the connection open.
        if self._shared.draining or self._leaves or head.scope["method"] == "HEAD":
            self.turn_down(self.unhold())
            return
        self._held = None
        self._since = self._loop.time()
        self.write(self._shared.busy_bytes(head.scope["path"]))
        if self._drain is not None:
            self.steer()
        self._keep_back()

    def _keep_back(self) -> None:
        """After a refusal, delay the next read if refusals take too much time."""
        if not self._kept_back and not self._shared.draining:
            self._kept_back = self._shared.turns.keep_back(self, urgent=self._loop.time() < self._urgent_until)
            if self._kept_back:
                self.steer()

    def read_on(self) -> None:
        """Resume reading after `Turns.keep_back`."""
        if self._kept_back:
            self._kept_back, self._was_kept_back = False, True
            self._since = self._loop.time()
            self.steer()

    def left(self, exchange: Exchange) -> None:
        """Record that the application has returned. The next request may have started at its answer."""
        self._shared.requests -= 1
        if exchange.arrives:
            self._has_arrived(exchange)

    def _has_arrived(self, exchange: Exchange) -> None:
        exchange.arrives = False
        self._shared.arriving -= 1

    def answered(self) -> None:
        """Continue after a complete response."""
        exchange, self._current = self._current, None
        self._since = self._loop.time()
        if exchange is None or self._transport.is_closing():
            return
        if not exchange.keep_alive:
            # The client may have sent another request before it could know that this router wants no more.
            self._end(linger=not exchange.body_complete or self._shared.draining or self._leaves)
        elif self._drain is None and self._queue:
            self._next()
        elif self._drain is not None or self._arriving is not None or not self._reading:
            self.steer()

    def _next(self) -> None:
        if self._queue and not self._transport.is_closing():
            exchange, reply = self._queue.popleft()
            self._current = exchange
            if reply is not None:
                exchange.reply(reply)
            elif exchange.ready:
                self._enter(exchange)
            else:
                exchange.scope[AWAITED_SINCE] = monotonic()
        self.steer()

    def _end(self, *, linger: bool) -> None:
        """Close gracefully: bytes meeting a closed connection would cost a still sending client its answer."""
        self._queue.clear()
        if not linger:
            self._transport.close()
            return
        self._arriving = None
        self._move(_InputEvent.ENDED)
        self.steer()
        try:
            self._transport.write_eof()
        except OSError:  # the client has cut the connection, and the event loop does not know yet
            self._transport.abort()

    def abort(self) -> None:
        """Cut the connection."""
        self._transport.abort()

    def write(self, head: bytes, body: bytes = b"") -> None:
        """Send bytes: small ones in one piece, large ones without a copy."""
        self._written += len(head) + len(body)
        if len(body) <= LARGE:
            self._transport.write(head + body if body else head)
        else:
            self._transport.writelines((head, body) if head else (body,))

    async def drained(self) -> None:
        """Wait until the client has read enough."""
        if self._drain is not None:
            await asyncio.shield(self._drain)

    def date(self) -> bytes:
        """The Date header's line."""
        shared = self._shared
        return shared.date_line if self._loop.time() < shared.date_until else shared.renew_date()

    @property
    def draining(self) -> bool:
        """Whether this connection ends after its current response, to the last request read."""
        return (self._shared.draining or self._leaves) and not self._queue

    def leave(self) -> None:
        """End after the next answer, which announces it."""
        self._leaves = True

    # --- Limits of time ---

    def idle_since(self) -> tuple[bool, float] | None:
        """Whether there ever was a whole request, and since when none is in progress; ``None`` while one is."""
        current = self._current
        if current is not None and (current.task is not None or current.body_complete or current.waits):
            return None
        if self._held is not None or self._kept_back or self._queue or self._transport.get_write_buffer_size():
            return None
        return self._served, self._since

    def close(self) -> None:
        """Close an idle connection."""
        if self._scheme == "http":  # whose client hears of it at once, not in the next round of the loop
            own = self._transport.get_extra_info("socket").fileno()
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(own)) as sock:
                sock.shutdown(socket.SHUT_WR)
        self._transport.close()

    def check(self, now: float) -> None:
        """Close an overdue connection."""
        limits = self._shared.limits
        if unsent := self._transport.get_write_buffer_size():
            self._check_taking(self._written - unsent, now)
            return
        self._cut_at = 0.0
        if self._held is not None or (self._kept_back and self._input is not Input.DISCARDING):
            return
        if self._current is not None:
            # The application has limits of its own, and bodies that are read for it before it starts have this one.
            current = self._current
            if current.task is None and not current.waits and now - self._since > limits.body_s:
                self._refuse(render(BodyTooSlow("the body took too long to arrive")))
            return
        discarding = self._input is Input.DISCARDING
        allowed = limits.linger_s if discarding else limits.head_s if self._unframed else limits.idle_s
        if now - self._since > allowed:
            unread = fcntl.ioctl(self._transport.get_extra_info("socket").fileno(), termios.FIONREAD, bytes(4))
            if discarding or not any(unread):  # else a request that has just arrived would be lost
                self.close()

    def _check_taking(self, taken: int, now: float) -> None:
        """Cut a client that does not read: progress earns time, up to the whole patience."""
        latest = now + self._shared.limits.stall_s
        self._cut_at = min(self._cut_at + (taken - self._taken) / SLOWEST, latest) if self._cut_at else latest
        self._taken = taken
        if now > self._cut_at:
            self._transport.abort()


def _address(name: Any) -> Address | None:
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) else None


def unread_s(sock: socket.socket) -> float:
    """Seconds since the last bytes arrived at a socket; 0 if unknown."""
    if not hasattr(socket, "TCP_INFO"):
        return 0.0
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_DATA_RECEIVED + 4)
    return float(int.from_bytes(info[_LAST_DATA_RECEIVED:], sys.byteorder)) / 1e3
