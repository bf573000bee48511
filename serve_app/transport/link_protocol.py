"""The link protocol: bundles between a router and a replica on the same node.

Ray Serve's handles connect any two processes of a cluster, at about a millisecond of CPU per call and side. On one node
a Unix socket takes an eighth of it, and large tensors are not sent: the router keeps them in an `Arena`, whose file the
replica maps on connection. Serve still controls everything else: replicas, their placement, health and lifetime.

Theory of operation. The router connects to the replica's abstract socket, which leaves no file and is not reachable
from other machines or network namespaces. Each side disconnects peers of other users, so a frame's header may be a
pickle.

    router                               replica
    HELLO: version, size of the arena ->
      with the files of ties and arena   checks the version, maps the files
                                      <- WELCOME, or it closes the connection
    frames                           <-> frames (`frames`)

    frame    direction   fields after the call's id
    bundle   ->          sent_at, address, facts of entries, payloads: tensors by column or pickled
    RECALL   ->          positions: entries that still wait do not run
    TAKEN    ->          position, number of parts read, for back pressure
    PART     <-          position, number, one part of an entry's answer
    result   <-          results and executions: ends the call
    failure  <-          one `Failure` for the whole bundle: ends the call
    ping     <->         call 0: the replica's event loop answers it, also while its session runs

Invariants. Ids of calls count up from 1 per link. A call ends exactly once: by result, failure or the link's end, which
is `ReplicaLost` for all open calls. The router keeps a call's arrays in the arena until the call ends, even if no one
waits for the answer, because the replica reads them in place. RECALL and TAKEN for an ended call are ignored. A frame
that cannot be read is a bug, since both sides have one version: the link is cut. If the router disappears, the replica
cancels its bundles. The router remakes a lost link with growing pauses (`links`).

This module has the shared part: connection and framing. `replica_link` is the router's end, `link_server` the
replica's.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from abc import ABC, abstractmethod
from typing import Any, Final

import numpy as np

from serve_app import __version__
from serve_app.transport.frames import PREFIX, Frame, Part

logger = logging.getLogger(__name__)

HELLO: Final = struct.Struct("<32sQ")
"""What a router says first: the version of this package, and the size of its arena.

With it come two files: the router's table of ties, and the arena if it has one.
"""

VERSION: Final = __version__.encode()[:32].ljust(32, b"\0")
"""This package's version, as it stands in a hello."""

WELCOME: Final = b"linked.\n"
"""What the replica answers when it has mapped the arena, before any frame."""

_RECEIVED_AT_ONCE: Final = 256 * 1024
_LARGEST_FRAME: Final = 4 * 1024**3


class LinkError(Exception):
    """The link could not be made."""


def new_socket() -> socket.socket:
    """A socket to connect or to listen."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)


def abstract(address: str) -> str:
    """The abstract name for an address."""
    return "\0" + address


def check_peer(connection: socket.socket) -> int:
    """Disconnect a process of another user.

    Returns:
        The peer's process id; 0 if not visible.

    Raises:
        LinkError: The peer belongs to another user.
    """
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    process: int
    process, user, _ = struct.unpack("3i", found)
    if user != os.geteuid():
        raise LinkError(f"the other end belongs to user {user}")
    return process


class FramedProtocol(asyncio.BufferedProtocol, ABC):
    """Splits received bytes into frames.

    Small frames are read many at a time and copied; the rest of a large one is read in place.

    Attributes:
        data_received: Set when bytes arrive.
    """

    def __init__(self) -> None:
        self._scratch = memoryview(bytearray(_RECEIVED_AT_ONCE))
        self._filled = 0
        self._large: memoryview | None = None
        self.data_received = False
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: Any) -> None:
        """Start the connection. Called by asyncio, like the next two."""
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """The buffer for the next bytes."""
        return (self._scratch if self._large is None else self._large)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Process received bytes and complete frames."""
        self.data_received = True
        self._filled += nbytes
        try:
            if self._large is not None:
                if self._filled == len(self._large):
                    whole, self._large, self._filled = self._large, None, 0
                    self.on_frame(Frame(whole))
                return
            at = 0
            while self._filled - at >= PREFIX.size:
                size = PREFIX.unpack_from(self._scratch, at)[2]
                if not PREFIX.size <= size <= _LARGEST_FRAME:
                    logger.error("Protocol error on a link; the link is closed")
                    self.cut()
                    return
                have = min(self._filled - at, size)
                if have < size <= len(self._scratch):
                    break
                whole = np.empty(size, np.uint8).data
                whole[:have] = self._scratch[at : at + have]
                at += have
                if have < size:
                    self._large, self._filled = whole, have
                    return
                self.on_frame(Frame(whole))
            if at:
                self._filled -= at
                self._scratch[: self._filled] = self._scratch[at : at + self._filled]
        except Exception:  # both sides are this package, so this is a bug; the other side must not wait for ever
            logger.exception("A link brought a frame that cannot be read: it is cut")
            self.cut()

    @abstractmethod
    def on_frame(self, frame: Frame) -> None:
        """Process one frame. An exception is a bug, and cuts the link."""

    def write(self, parts: list[Part]) -> None:
        """Send one frame."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.writelines(parts)

    def cut(self) -> None:
        """End the connection at once."""
        if self.transport is not None:
            self.transport.abort()
