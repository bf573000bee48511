"""The gRPC port of the router itself, which closes without losing a call."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from dataclasses import dataclass

import grpc.aio
import psutil

from serve_app.api.grpc.inbound_messages import InboundMessages
from serve_app.api.grpc_app import STALL_S, GrpcApp, add_to_server
from serve_app.http.listener import bind
from serve_app.http.tls import Certificates

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GrpcLimits:
    """Limits of a gRPC port.

    Attributes:
        max_message: Most bytes of a received message; sent ones are not limited.
        calls: Most calls in progress. More are refused with RESOURCE_EXHAUSTED.
        connections: Most open connections. More are closed at once.
        calls_per_connection: Most concurrent calls per connection. Clients hold back more.
        connect_s: Longest handshake, seconds.
        idle_s: Longest connection without a call, seconds.
        arriving: Number of calls whose message may take ``arrive_s``; more have 2 s.
        arrive_s: Longest arrival of a call's message, seconds.
        pause_s: Longest wait for a stream's next message while more than ``arriving`` streams wait, seconds.
        keepalive_s: Silence after which a connection is probed, seconds.
        client_ping_s: Shortest interval of clients' pings, seconds; more frequent ones lose the connection.
        stall_s: How long a client may read nothing of an answer, seconds, beyond 1 s for each 64 KiB of it.
        age_s: Age after which a connection takes no more calls and its client reconnects, seconds; ``None``: never.
    """

    max_message: int = 32 * 2**20
    calls: int = 4096
    connections: int = 2048
    calls_per_connection: int = 1024
    connect_s: float = 10.0
    idle_s: float = 300.0
    arriving: int = 64
    arrive_s: float = 60.0
    pause_s: float = 10.0
    keepalive_s: float = 60.0
    client_ping_s: float = 10.0
    stall_s: float = STALL_S
    age_s: float | None = None

    def options(self) -> list[tuple[str, int]]:
        """The channel arguments of gRPC."""
        return [
            *([] if self.age_s is None else [("grpc.max_connection_age_ms", round(self.age_s * 1e3))]),
            ("grpc.so_reuseport", 1),
            ("grpc.max_receive_message_length", self.max_message),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_allowed_incoming_connections", self.connections),
            ("grpc.max_concurrent_streams", self.calls_per_connection),
            ("grpc.server_handshake_timeout_ms", round(self.connect_s * 1e3)),
            ("grpc.max_connection_idle_ms", round(self.idle_s * 1e3)),
            ("grpc.keepalive_time_ms", round(self.keepalive_s * 1e3)),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", round(self.client_ping_s * 1e3)),
            ("grpc.keepalive_permit_without_calls", 1),
        ]


class GrpcListener:
    """Serves gRPC on a port, in the running event loop. Processes of one user can share the port.

    Args:
        host: Address of this machine.
        port: 0 for any free port.
        certificates: For TLS; ``None`` for plaintext.

    Raises:
        OSError: The port is in use without sharing, or the address is not of this machine.
    """

    def __init__(
        self,
        app: GrpcApp,
        host: str,
        port: int,
        limits: GrpcLimits | None = None,
        certificates: Certificates | None = None,
    ) -> None:
        self._app = app
        self._limits = limits or GrpcLimits()
        self._certificates = certificates
        # gRPC listens as soon as it has a port, and clients whose connection is made then would wait for the start.
        # Until then the port is only kept.
        self._kept = bind(host, port)
        self.port: int = self._kept.getsockname()[1]
        self._address = f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"
        self._server: grpc.aio.Server | None = None
        self._listening: set[int] = set()  # file descriptors
        self._nowhere = socket.socket()
        self._arrivals = InboundMessages(self._limits.arriving, self._limits.arrive_s, pause_s=self._limits.pause_s)
        self._closed = False

    async def start(self) -> None:
        """Listen. Does nothing if already listening or closed. Can be repeated after a failure.

        Raises:
            OSError: The certificates are unreadable, or no more files can be opened.
            RuntimeError: The certificates do not match, or gRPC cannot listen.
        """
        if self._server is not None or self._closed:
            return
        limits = self._limits
        others = _listening_on(self.port)
        server = grpc.aio.server(options=limits.options(), maximum_concurrent_rpcs=limits.calls)
        add_to_server(self._app, server, limits.stall_s, self._arrivals)
        self._server = server
        try:
            if self._certificates is None:
                server.add_insecure_port(self._address)
            else:
                server.add_secure_port(self._address, self._certificates.grpc_credentials())
            await server.start()
            self._listening = _listening_on(self.port) - others
        except BaseException:
            self._server = None
            await server.stop(None)
            raise
        self._kept.close()

    async def close(self, limit_s: float) -> None:
        """Stop taking calls, answer those taken, and let streams end once answered.

        gRPC cancels arrived calls that it has not taken. So the port stops accepting connections first, and the last
        answers before the GOAWAY are held until after it: a client waiting for one sends nothing meanwhile. Streams are
        ended, to be reopened, once they can only reopen elsewhere.

        Args:
            limit_s: Seconds after which calls are cut.
        """
        if self._closed:
            return
        self._closed = True
        self._kept.close()
        server = self._server
        if server is None:
            self._nowhere.close()
            self._app.close()
            return
        self._connect_no_more()
        with self._arrivals.holding_answers():
            try:
                await self._arrivals.quiet()
            finally:
                stopping = asyncio.create_task(server.stop(limit_s))
            await asyncio.sleep(0)  # sends the GOAWAY
            self._app.close()
        await stopping

    def _connect_no_more(self) -> None:
        """Close the listening sockets. gRPC would do so only when it cancels calls, also those of new connections.

        gRPC owns them and closes them by number later: so the numbers are pointed to a socket without a port.
        """
        with self._nowhere:
            for fd in self._listening:
                try:
                    if _listens(fd, self.port):
                        os.dup2(self._nowhere.fileno(), fd, inheritable=False)
                except OSError as error:
                    _log.warning("port %d takes connections until calls are cut: %s", self.port, error)


def _listens(fd: int, port: int) -> bool:
    """Whether this file descriptor still belongs to the socket."""
    sock = socket.socket(fileno=fd)
    try:
        return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)) and sock.getsockname()[1] == port
    finally:
        sock.detach()


def _listening_on(port: int) -> set[int]:
    """Listening file descriptors of this process."""
    found = psutil.Process().net_connections("tcp")
    return {each.fd for each in found if each.status == psutil.CONN_LISTEN and each.laddr.port == port}
