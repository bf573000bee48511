"""Listens for gRPC by itself, and ends without losing a call."""

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
    """What is allowed on a port for gRPC.

    Attributes:
        max_message: Most bytes of one message that is taken; what is sent is not limited.
        calls: Most calls in work at once. More are refused with RESOURCE_EXHAUSTED.
        connections: Most open connections. More are closed at once.
        calls_per_connection: Most calls of one connection at once. Clients keep back what is more.
        connect_s: How long a handshake may take, seconds.
        idle_s: How long a connection may stay open without a call, seconds.
        arriving: So many calls may take ``arrive_s`` for their message, and those beyond it 2 s.
        arrive_s: How long the message of a call may take to arrive, seconds.
        pause_s: How long a stream may wait for its next message while more than ``arriving`` streams wait, seconds.
        keepalive_s: A connection on which nothing has come for this long is probed.
        client_ping_s: How often clients may ask for one. Who asks more often is disconnected.
        stall_s: How long a client may take nothing of an answer, beyond 1 s for every 64 KiB of it.
        age_s: After so long a connection takes no more calls, and its client makes another; ``None``: never.
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
        """As gRPC takes them."""
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
    """Serves gRPC on a port, in the running event loop. Several processes of one user can share the port.

    Args:
        app: Answers calls.
        host: Address of this machine.
        port: The port; 0 for any that is free.
        limits: What is allowed.
        certificates: For TLS; ``None`` for plain gRPC.

    Raises:
        OSError: Somebody has the port who does not share it, or the host is none of this machine.
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
        """Listen. Does nothing when it listens already or was closed. Where it fails it can be called again.

        Raises:
            OSError: The certificates cannot be read, or no more files can be opened.
            RuntimeError: They do not fit together, or gRPC cannot listen.
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
        """Stop taking calls, answer those that were taken, and let streams end when they are answered.

        gRPC cancels what has arrived without having been taken. So nobody connects any more before it ends, and the
        last answers before clients are told to go elsewhere are given only after that: who waits for one does not ask
        again meanwhile. Streams are told to end, and to be opened again, when they can be only elsewhere.

        Args:
            limit_s: After so many seconds, calls are cut.
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
            await asyncio.sleep(0)  # now they are told
            self._app.close()
        await stopping

    def _connect_no_more(self) -> None:
        """Close the listening sockets. gRPC would only when it cancels calls, also of those who connected just before.

        They are gRPC's own, and it closes them by their numbers later: so these get to mean a socket without a port.
        """
        with self._nowhere:
            for fd in self._listening:
                try:
                    if _listens(fd, self.port):
                        os.dup2(self._nowhere.fileno(), fd, inheritable=False)
                except OSError as error:
                    _log.warning("port %d takes connections until calls are cut: %s", self.port, error)


def _listens(fd: int, port: int) -> bool:
    """Whether this file descriptor is still that of the socket."""
    sock = socket.socket(fileno=fd)
    try:
        return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)) and sock.getsockname()[1] == port
    finally:
        sock.detach()


def _listening_on(port: int) -> set[int]:
    """File descriptors of this process."""
    found = psutil.Process().net_connections("tcp")
    return {each.fd for each in found if each.status == psutil.CONN_LISTEN and each.laddr.port == port}
