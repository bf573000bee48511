"""The link: how bundles travel between a router and a replica on the same node.

Ray Serve's handles work between any two processes of a cluster, at about a millisecond of CPU per call on either side.
On one node a Unix socket does the same for an eighth of it, and large tensors need not travel at all: the router
keeps them in an `Arena` whose file the replica maps when the link is made. Serve remains in charge of everything else:
which replicas there are, where they run, whether they are healthy, when they come and go.

The socket's name is in Linux's abstract namespace: it leaves no file behind and cannot be reached from other machines
or network namespaces. Either side hangs up on a peer that belongs to another user.

Here is what both ends share: how they meet and how what arrives is cut into frames. `replica_link` is the router's
end, `link_server` the replica's.
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
    """A socket for one end of a link, or to listen for them."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)


def abstract(address: str) -> str:
    """The name in the abstract namespace that a server of this address listens on."""
    return "\0" + address


def check_peer(connection: socket.socket) -> int:
    """Hang up on a process of another user.

    Returns:
        Id of the process at the other end; 0 if it cannot be seen from here.

    Raises:
        LinkError: The other end belongs to one.
    """
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    process: int
    process, user, _ = struct.unpack("3i", found)
    if user != os.geteuid():
        raise LinkError(f"the other end belongs to user {user}")
    return process


class FramedProtocol(asyncio.BufferedProtocol, ABC):
    """Cuts what arrives into frames.

    Small frames are read many at a time and copied out; what is left of a large one is read to where it will stay.

    Attributes:
        data_received: Set when anything arrives.
    """

    def __init__(self) -> None:
        self._scratch = memoryview(bytearray(_RECEIVED_AT_ONCE))
        self._filled = 0
        self._large: memoryview | None = None
        self.data_received = False
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin. Called by asyncio, as are the next two."""
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Where the next bytes go."""
        return (self._scratch if self._large is None else self._large)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Take bytes that have arrived, and the frames that they complete."""
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
        """Take one frame. What it raises is a bug, and cuts the link."""

    def write(self, parts: list[Part]) -> None:
        """Send one frame."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.writelines(parts)

    def cut(self) -> None:
        """End the connection without waiting for anything."""
        if self.transport is not None:
            self.transport.abort()
