"""The router's own ports, opened together; a port that does not open is retried until it does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from serve_app.api.grpc_app import GrpcApp
from serve_app.api.grpc_listener import GrpcListener
from serve_app.api.http_app import HttpApp
from serve_app.errors import ConfigError
from serve_app.http.listener import Listener, bind
from serve_app.http.tls import Certificates
from serve_app.http.turns import Turns
from serve_app.router.settings import GrpcPort, HttpPort

_log = logging.getLogger(__name__)

MANY_TRIES: Final = 5
_LONGEST_WAIT_S: Final = 30.0


class DirectPorts:
    """Opens and closes listeners.

    Certificates that are being replaced, or too many open files, can prevent opening for a while.

    Args:
        listeners: One per port.
        wait: Sleeps, seconds.
    """

    def __init__(
        self, listeners: Sequence[Listener | GrpcListener], wait: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._listeners = tuple(listeners)
        self._wait = wait
        self._opening: list[asyncio.Task[None]] = []
        self._faults: dict[int, str] = {}

    @property
    def fault(self) -> str:
        """Ports that did not open in many tries, and why; empty if there are none."""
        return "; ".join(self._faults.values())

    def open(self) -> None:
        """Begin to open the ports, in the running event loop. Idempotent."""
        if not self._opening:
            self._opening = [asyncio.create_task(self._open(each)) for each in self._listeners]

    async def opened(self) -> None:
        """Wait until all ports are open, or closed again."""
        await asyncio.gather(*self._opening)

    async def close(self, limit_s: float, grace_s: float = 1.0) -> None:
        """Close the ports for good.

        Args:
            limit_s: Longest wait for requests in work.
            grace_s: Lifetime of HTTP connections without a request, as of `Listener.close`.
        """
        closing = (
            each.close(limit_s, grace_s) if isinstance(each, Listener) else each.close(limit_s)
            for each in self._listeners
        )
        closed = await asyncio.gather(*closing, return_exceptions=True)
        for listener, error in zip(self._listeners, closed, strict=True):
            if isinstance(error, Exception):  # other exceptions end with the router
                _log.error("port %d does not close in order", listener.port, exc_info=error)

    async def _open(self, listener: Listener | GrpcListener) -> None:
        tries = 0
        while True:
            try:
                await listener.start()
            except Exception as error:  # whatever it is, clients need the port
                tries += 1
                fault = f"port {listener.port} does not open: {error}"
                _log.error("%s; trying again", fault)
                if tries >= MANY_TRIES:
                    self._faults[listener.port] = fault
                await self._wait(min(2.0 ** (tries - 1), _LONGEST_WAIT_S))
            else:
                self._faults.pop(listener.port, None)
                return


def listen_http(port: HttpPort, app: HttpApp, certificates: Certificates | None, turns: Turns) -> Listener:
    """Bind a port for HTTP. Raises `ConfigError` if it cannot be had."""
    try:
        sock = bind(port.host, port.port)
    except OSError as error:
        raise _cannot_listen(port, error) from error
    return Listener(app, sock, port.limits, certificates, app.errors_of, turns)


def listen_grpc(port: GrpcPort, app: GrpcApp, certificates: Certificates | None) -> GrpcListener:
    """Bind a port for gRPC. Raises `ConfigError` if it cannot be had."""
    try:
        return GrpcListener(app, port.host, port.port, port.limits, certificates)
    except OSError as error:
        raise _cannot_listen(port, error) from error


def address_of(port: HttpPort | GrpcPort | None, listener: Listener | GrpcListener | None) -> tuple[str, int] | None:
    """Host and port of a listener, or ``None``."""
    return None if port is None or listener is None else (port.host, listener.port)


def _cannot_listen(port: HttpPort | GrpcPort, error: OSError) -> ConfigError:
    return ConfigError((f"{port.setting}: cannot listen on {port.host}:{port.port}: {error}",))
