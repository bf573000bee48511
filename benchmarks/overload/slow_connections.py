"""Connections that send incomplete requests, or one byte at a time: thousands of them in one thread."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

_TICKS = 100
"""Each connection acts once a second: a hundredth of them at a time."""


class SlowConnections:
    """Connections that send a head and then act once a second; those that the server ends are made again.

    Args:
        port: Of the server.
        number: Of connections.
        head: Sent at once.
        drip: Sent after it, a byte a second; empty: nothing.

    Attributes:
        ended: To be set in the end.
        cut: How often the server ended one.
    """

    def __init__(self, port: int, number: int, head: bytes, drip: bytes) -> None:
        self._port, self._head, self._drip = port, head, drip
        self._sockets = [(self._connect(), 0) for _ in range(number)]
        self.ended = threading.Event()
        self.cut = 0

    def _connect(self) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self._port), timeout=30.0)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(self._head)
        connection.setblocking(False)
        return connection

    def act(self) -> None:
        """Act until it is ended."""
        tick = 0
        while not self.ended.wait(1.0 / _TICKS):
            for at in range(tick % _TICKS, len(self._sockets), _TICKS):
                connection, sent = self._sockets[at]
                self._sockets[at] = connection, sent + 1
                if not self._goes_on(connection, sent):
                    connection.close()
                    self.cut += 1
                    with suppress(OSError):  # it is tried again in a second
                        self._sockets[at] = self._connect(), 0
            tick += 1
        for connection, _ in self._sockets:
            connection.close()

    def _goes_on(self, connection: socket.socket, sent: int) -> bool:
        """Send the next byte. Returns whether the server still listens."""
        try:
            connection.send(self._drip[sent : sent + 1])
            return bool(connection.recv(4096))
        except OSError as error:
            return isinstance(error, BlockingIOError)
