"""The HTTP/1.1 listener: connections, limits, and a close that loses no request."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
import resource
import socket
from collections.abc import Callable
from dataclasses import replace

from starlette.types import ASGIApp

from serve_app.http.errors import ErrorsOf, render
from serve_app.http.http1 import Connection, Limits, ListenerState
from serve_app.http.secure import SecureTransport
from serve_app.http.tls import Certificates
from serve_app.http.turns import Turns

_BACKLOG = 2048
_POLL_INTERVAL_S = 1.0
_OTHER_FILES = 1024  # of the process: links, models, Ray
_ROOM = 64 * 1024  # bytes that are decrypted at once; OpenSSL keeps as many for each connection that ever had them


def bind(host: str, port: int) -> socket.socket:
    """Bind a port without listening. Processes of one user can share it; the kernel spreads connections.

    Raises:
        OSError: The port is in use without sharing, or the address is not of this machine.
    """
    family, kind, proto, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
    )[0]
    sock = socket.socket(family, kind, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.setblocking(False)
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock


def within_open_files(connections: int, others: int = 0) -> int:
    """Raise the limit of open files for this many connections. Returns the possible number.

    Beyond that limit connections wait in the kernel, unordered.

    Args:
        connections: Of one port.
        others: Of other ports. If files are too few, each port gets its proportion.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + others + _OTHER_FILES
    soft = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, resource.getrlimit(resource.RLIMIT_NOFILE)[0]), most))
    return max(1, min(connections, (soft - _OTHER_FILES) * connections // (connections + others)))


class Listener:
    """Serves an ASGI application on a socket, in the running event loop.

    Args:
        sock: From `bind`; closed by `close`.
        certificates: For TLS; ``None`` for plain HTTP.
        errors_of: The error format at a path, for requests refused before the application.
        turns: Schedules requests; ``None``: of this listener alone, with equal urgency.

    Attributes:
        port: Also valid after closing.
    """

    def __init__(
        self,
        app: ASGIApp,
        sock: socket.socket,
        limits: Limits | None = None,
        certificates: Certificates | None = None,
        errors_of: ErrorsOf = lambda _: render,
        turns: Turns | None = None,
    ) -> None:
        loop, limits = asyncio.get_running_loop(), limits or Limits()
        turns = turns or Turns(loop, most=limits.requests)
        self._shared = ListenerState(app, limits, loop, turns, on_lost=self._on_lost, errors_of=errors_of)
        self._connection: Callable[[], asyncio.BaseProtocol] = (
            functools.partial(Connection, self._shared)
            if certificates is None
            else functools.partial(SecureTransport, self._shared, certificates, memoryview(bytearray(_ROOM)))
        )
        self._socket = sock
        self.port = int(sock.getsockname()[1])
        self._server: asyncio.Server | None = None
        self._sweep: asyncio.TimerHandle | None = None
        self._emptied = asyncio.Event()
        self._closed = False

    @property
    def connections(self) -> int:
        """Open connections."""
        return len(self._shared.connections)

    @property
    def requests(self) -> int:
        """Requests in progress."""
        return self._shared.requests

    @property
    def refused(self) -> int:
        """Total refused connections."""
        return self._shared.limiter.refused

    @property
    def evicted(self) -> int:
        """Total evicted connections."""
        return self._shared.limiter.evicted

    def let_go(self, share: float) -> None:
        """End a part of the connections, 0 to 1, after their next answer, so that clients reconnect."""
        connections = tuple(self._shared.connections)
        for connection in random.sample(connections, int(share * len(connections))):
            connection.leave()

    async def start(self) -> None:
        """Listen. Does nothing if already listening or closed."""
        if self._server is not None or self._closed:
            return
        loop = self._shared.loop
        # The loop closes the socket that it is given, and what waits in it would be cut off: see `_stop_accepting`.
        self._server = await loop.create_server(self._connection, sock=self._socket.dup(), backlog=_BACKLOG)
        if self._closed:  # meanwhile
            self._server.close()
            return
        self._sweep = loop.call_later(_POLL_INTERVAL_S, self._check_connections)

    async def close(self, limit_s: float, grace_s: float = 1.0) -> None:
        """Close without losing a sent request.

        New connections go to other processes on the port. Requests in progress are answered, and every answer announces
        the close. Idle connections may send one more request for ``grace_s``, as their clients cannot know. A request
        that is still on its way when its connection is closed then fails.

        Args:
            limit_s: Seconds after which connections are cut.
            grace_s: Longest a connection is idle, seconds.
        """
        if self._closed:
            return
        self._closed = True
        self._shared.draining = True
        self._shared.limits = replace(self._shared.limits, idle_s=grace_s)
        for connection in tuple(self._shared.connections):
            connection.read_on()  # what its client has sent is to be answered
        await self._stop_accepting()
        started = self._shared.loop.time()
        if not await self._empty(min(grace_s, limit_s)):
            for connection in tuple(self._shared.connections):
                connection.check(self._shared.loop.time())
        if not await self._empty(limit_s - (self._shared.loop.time() - started)):
            for connection in tuple(self._shared.connections):
                connection.abort()
            await self._empty(1.0)
        if self._sweep is not None:
            self._sweep.cancel()

    async def _stop_accepting(self) -> None:
        server, self._server = self._server, None
        if server is None:
            self._socket.close()
            return
        server.close()
        for _ in range(3):
            await asyncio.sleep(0)  # the loop closes its side of the socket in its next round
        # Clients whose connection the kernel has made already would find it cut.
        waiting: list[socket.socket] = []
        with contextlib.suppress(OSError):  # BlockingIOError: none is left
            while True:
                waiting.append(self._socket.accept()[0])
        self._socket.close()
        for accepted in waiting:
            accepted.setblocking(False)
            with contextlib.suppress(OSError):  # gone meanwhile
                await self._shared.loop.connect_accepted_socket(self._connection, accepted)

    async def _empty(self, timeout_s: float) -> bool:
        """Wait until no connection is left. False: some are left after this long."""
        self._emptied.clear()
        if not self._shared.connections:
            return True
        try:
            async with asyncio.timeout(max(0.0, timeout_s)):
                await self._emptied.wait()
        except TimeoutError:
            return False
        return True

    def _on_lost(self) -> None:
        if not self._shared.connections:
            self._emptied.set()

    def _check_connections(self) -> None:
        now = self._shared.loop.time()
        for connection in tuple(self._shared.connections):
            connection.check(now)
        self._sweep = self._shared.loop.call_later(_POLL_INTERVAL_S, self._check_connections)
