"""TLS between a socket and a connection of `serve_app.http.http1`. OpenSSL (`ssl`) does the cryptography.

asyncio's ``ssl=`` hides state that the limits need: a connection would count only after its handshake, and only the
socket's transport knows how much waits for a slow reader. Here a connection counts from its first byte, and a body is
decrypted straight into the application's memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Iterable
from typing import Any, Final, cast

from serve_app.http.http1 import Connection, ListenerState
from serve_app.http.tls import Certificates

_PIECE: Final = 256 * 1024


class SecureTransport(asyncio.BufferedProtocol, asyncio.Transport):
    """Both sides of TLS: the protocol of a socket's transport, and the transport of a connection.

    Args:
        room: Shared buffer for encrypted bytes; consumed before the next connection reads.
    """

    def __init__(self, shared: ListenerState, certificates: Certificates, room: memoryview) -> None:
        super().__init__()
        self._shared = shared
        self._room = room
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = certificates.context().wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._connection = Connection(shared, scheme="https")
        self._raw: asyncio.Transport = None  # type: ignore[assignment] # from `connection_made` on
        self._timer: asyncio.TimerHandle | None = None
        self._ready = False  # the handshake is over
        self._paused = False
        self._closing = False
        self._said_goodbye = False

    # --- What the socket's transport tells ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the handshake."""
        self._raw = cast(asyncio.Transport, transport)  # uvloop's is none by name
        self._timer = self._shared.loop.call_later(self._shared.limits.head_s, self.abort)
        self._connection.connection_made(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """The buffer for the next encrypted bytes."""
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        """Process encrypted bytes."""
        if self._said_goodbye:
            return
        self._incoming.write(self._room[:nbytes])
        if self._ready or self._shake_hands():
            self._deliver()

    def eof_received(self) -> None:
        """Close for a client that disconnected without close_notify."""
        self._connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection."""
        self._stop_timer()
        self._closing = True
        connection = self._connection
        del self._connection  # each knows the other, and this one what TLS needs: more than most requests do
        connection.connection_lost(exc)

    def pause_writing(self) -> None:
        """Forward that the client reads too little."""
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """Forward that it reads again."""
        self._connection.resume_writing()

    def _shake_hands(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return False
        except ssl.SSLError:  # it is not TLS, or shows no certificate that counts: OpenSSL has written what to say
            self._flush()
            self._closing = True
            self._raw.close()
            return False
        self._stop_timer()
        self._ready = True
        return True

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _deliver(self) -> None:
        """Decrypt while the connection reads."""
        ended = False
        while not (ended or self._paused or self._closing or self._said_goodbye):
            count, ended = self._decrypt(self._connection.get_buffer(-1))
            if not count:
                break
            self._connection.buffer_updated(count)
        self._flush()  # answers to messages of TLS itself
        if ended and not self._closing:
            self._connection.eof_received()
            self.close()

    def _decrypt(self, buffer: memoryview) -> tuple[int, bool]:
        """Fill a buffer as far as possible: the number of bytes, and whether the client has ended."""
        count = 0
        try:
            while count < len(buffer):
                more = cast(int, self._tls.read(len(buffer) - count, buffer[count:]))  # that many bytes, into there
                if not more:
                    return count, True
                count += more
        except ssl.SSLWantReadError:
            return count, False
        except ssl.SSLError:  # a goodbye, or nonsense
            return count, True
        return count, False

    def _flush(self) -> None:
        if self._outgoing.pending and not self._raw.is_closing():
            self._raw.write(self._outgoing.read())

    # --- What the connection asks ---

    def write(self, data: Any) -> None:
        """Send bytes."""
        if self._closing or not self._ready or self._said_goodbye:
            return
        rest = memoryview(data)
        try:
            while rest.nbytes:
                rest = rest[self._tls.write(rest[:_PIECE]) :]
                self._flush()
        except ssl.SSLError:
            self.abort()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        """Send several pieces."""
        for data in list_of_data:
            self.write(data)

    def pause_reading(self) -> None:
        """Stop reading."""
        self._paused = True
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        """Resume reading, with buffered bytes first."""
        self._paused = False
        self._raw.resume_reading()
        if self._ready and (self._incoming.pending or self._tls.pending()):
            self._shared.loop.call_soon(self._deliver)

    def is_reading(self) -> bool:
        """Whether it reads."""
        return not self._paused

    def get_write_buffer_size(self) -> int:
        """Unsent bytes, all in the socket's transport."""
        return self._raw.get_write_buffer_size()

    def write_eof(self) -> None:
        """Send close_notify. Later bytes of the client are dropped."""
        if self._ready and not self._said_goodbye:
            self._said_goodbye = True
            with contextlib.suppress(ssl.SSLError):  # that it has not answered yet
                self._tls.unwrap()
            self._flush()

    def is_closing(self) -> bool:
        """Whether it is closing."""
        return self._closing or self._raw.is_closing()

    def close(self) -> None:
        """Close after the sent bytes."""
        if not self._closing:
            self.write_eof()
            self._closing = True
            self._raw.close()

    def abort(self) -> None:
        """Close at once."""
        self._closing = True
        self._raw.abort()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Information of the socket's transport."""
        return self._raw.get_extra_info(name, default)
