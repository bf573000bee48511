"""The link: how bundles travel between a router and a replica on the same node.

Ray Serve's handles work between any two processes of a cluster, at about a millisecond of CPU per call on either side.
On one node a Unix socket does the same for an eighth of it, and large tensors need not travel at all: the router
keeps them in an `Arena` whose file the replica maps when the link is made. Serve remains in charge of everything else:
which replicas there are, where they run, whether they are healthy, when they come and go.

The socket's name is in Linux's abstract namespace: it leaves no file behind and cannot be reached from other machines
or network namespaces. Either side hangs up on a peer that belongs to another user.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import logging
import os
import secrets
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any, Final

import numpy as np

from serve_app import __version__
from serve_app.errors import InferenceFailed
from serve_app.payloads import Bundle, BundleResult, Failure
from serve_app.runtime.arena import Arena, ArenaReader
from serve_app.runtime.frames import (
    PREFIX,
    Frame,
    Part,
    decode_bundle,
    decode_result,
    encode_bundle,
    encode_failure,
    encode_result,
)
from serve_app.runtime.send import ReplicaLost

logger = logging.getLogger(__name__)

Run = Callable[[Bundle], Awaitable[BundleResult]]

_HELLO: Final = struct.Struct("<32sQ")
"""What a router says first: the version of this package, and the size of the arena whose file comes with it."""

WELCOME: Final = b"linked.\n"
"""What the replica answers when it has mapped the arena, before any frame."""

_VERSION: Final = __version__.encode()[:32].ljust(32, b"\0")
_RECEIVED_AT_ONCE: Final = 256 * 1024
_LARGEST_FRAME: Final = 4 * 1024**3
_WELCOME_TIMEOUT_S: Final = 10.0


class LinkError(Exception):
    """The link could not be made."""


class _Framed(asyncio.BufferedProtocol):
    """Cuts what arrives into frames.

    Small frames are read many at a time and copied out; what is left of a large one is read to where it will stay.
    """

    def __init__(self) -> None:
        self._scratch = memoryview(bytearray(_RECEIVED_AT_ONCE))
        self._filled = 0
        self._large: memoryview | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        return (self._scratch if self._large is None else self._large)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._large is not None:
            if self._filled == len(self._large):
                whole, self._large, self._filled = self._large, None, 0
                self._received(whole)
            return
        at = 0
        while self._filled - at >= PREFIX.size:
            size = PREFIX.unpack_from(self._scratch, at)[2]
            if not PREFIX.size <= size <= _LARGEST_FRAME:
                logger.error("A link sent something else than frames: it is cut")
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
            self._received(whole)
        if at:
            self._filled -= at
            self._scratch[: self._filled] = self._scratch[at : at + self._filled]

    def _received(self, data: memoryview) -> None:
        try:
            self.on_frame(Frame(data))
        except Exception:  # both sides are this package, so this is a bug; the other side must not wait for ever
            logger.exception("A link brought a frame that cannot be read: it is cut")
            self.cut()

    def on_frame(self, frame: Frame) -> None:
        """Take one frame."""
        raise NotImplementedError

    def write(self, parts: list[Part]) -> None:
        """Send one frame."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.writelines(parts)

    def cut(self) -> None:
        """End the connection without waiting for anything."""
        if self.transport is not None:
            self.transport.abort()


class ReplicaLink(_Framed):
    """The router's end. Make one with `connect`.

    Args:
        name: The replica's id, for messages.
        arena: Shared with the replica.
        on_lost: Called once, when the connection has ended.
    """

    def __init__(self, name: str, arena: Arena | None, on_lost: Callable[[], None]) -> None:
        super().__init__()
        self._name = name
        self._arena = arena
        self._on_lost = on_lost
        self._ids = itertools.count(1)
        # What an answer is waited for with, and the payload's arrays: the replica reads them where they lie.
        self._calls: dict[int, tuple[asyncio.Future[BundleResult], Any]] = {}
        self._retired = False
        self.lost = False

    def __repr__(self) -> str:
        return f"<ReplicaLink {self._name} {'lost' if self.lost else 'up'}, {len(self._calls)} calls>"

    async def call(self, bundle: Bundle) -> BundleResult:
        """Send a bundle and wait for its result.

        Raises:
            ReplicaLost: The connection has ended.
            InferenceFailed: The replica failed on the bundle as a whole; its log says why.
        """
        if self.lost:
            raise ReplicaLost(f"the link to replica {self._name} has ended", reached=False)
        call = next(self._ids)
        parts, kept = encode_bundle(call, bundle, self._arena)
        future: asyncio.Future[BundleResult] = asyncio.get_running_loop().create_future()
        # Kept until the answer, even if nobody waits for it any more: only then has the replica done with the arrays.
        self._calls[call] = (future, kept)
        self.write(parts)
        try:
            return await future
        finally:
            del bundle, parts, kept, future  # which the traceback of an error of this future would keep, in a cycle

    def on_frame(self, frame: Frame) -> None:
        """Take an answer."""
        future, _ = self._calls.pop(frame.header[0], (None, None))
        if self._retired and not self._calls:
            self.close()
        if future is None or future.done():
            return
        try:
            if isinstance(frame.header[1], Failure):
                future.set_exception(InferenceFailed(frame.header[1].message))
            else:
                future.set_result(decode_result(frame))
        except Exception:  # as in `_received`, which cuts the link; but this call is not among those that it fails then
            future.set_exception(ReplicaLost(f"the answer of replica {self._name} cannot be read"))
            raise

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail what waits. Called by asyncio."""
        self.lost = True
        calls, self._calls = self._calls, {}
        for future, _ in calls.values():
            if not future.done():
                reason = "" if exc is None else f" ({exc})"
                future.set_exception(ReplicaLost(f"the link to replica {self._name} was cut{reason}"))
        self._on_lost()

    def retire(self) -> None:
        """End the connection as soon as no answer is owed any more."""
        self._retired = True
        if not self._calls:
            self.close()

    def close(self) -> None:
        """End the connection."""
        if self.transport is not None:
            self.transport.close()


async def connect(
    address: str,
    name: str,
    arena: Arena | None,
    on_lost: Callable[[], None],
    timeout_s: float = _WELCOME_TIMEOUT_S,
) -> ReplicaLink:
    """Make a link to a replica. It is up: the replica has agreed to it.

    Args:
        address: What its `LinkServer` is called.
        name: The replica's id, for messages.
        arena: What to share with it.
        on_lost: Called once, when the connection has ended.
        timeout_s: Longest wait for the replica's welcome, seconds.

    Raises:
        LinkError: Nobody listens there, or not who should, or it refuses.
    """
    loop = asyncio.get_running_loop()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        await loop.sock_connect(connection, _abstract(address))
        _check_peer(connection)
        hello = _HELLO.pack(_VERSION, 0 if arena is None else arena.nbytes)
        socket.send_fds(connection, [hello], [] if arena is None else [arena.fd])
        async with asyncio.timeout(timeout_s):
            await _welcomed(connection)
        _, link = await loop.create_unix_connection(lambda: ReplicaLink(name, arena, on_lost), sock=connection)
    except TimeoutError as error:
        connection.close()
        raise LinkError(f"it did not answer within {timeout_s:g} s") from error
    except OSError as error:
        connection.close()
        raise LinkError(str(error)) from error
    except BaseException:
        connection.close()
        raise
    return link


async def _welcomed(connection: socket.socket) -> None:
    """Wait until the replica has agreed. Until then it may hang up, and a bundle must not be lost in that."""
    loop = asyncio.get_running_loop()
    answer = b""
    while len(answer) < len(WELCOME):
        received = await loop.sock_recv(connection, len(WELCOME) - len(answer))
        if not received:
            raise LinkError("it hung up, as it does on another version; its log says why")
        answer += received
    if answer != WELCOME:
        raise LinkError("it answered something else")


class LinkServer:
    """The replica's end: takes links and runs the bundles that come through them.

    Args:
        name: The model's name, for messages.
        run: Runs one bundle; raises only for bugs.
    """

    def __init__(self, name: str, run: Run) -> None:
        self._name = name
        self._run = run
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.Context()
        self._open: set[_ServerLink] = set()
        self._joining: set[asyncio.Task[Any]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._running = 0
        self._refused: set[str] = set()
        self.address = f"serve-app-{secrets.token_hex(16)}"
        self._socket: socket.socket | None = socket.socket(
            socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        )
        self._socket.bind(_abstract(self.address))
        self._socket.listen(128)
        self._loop.add_reader(self._socket.fileno(), self._accept)

    def __repr__(self) -> str:
        return f"<LinkServer {len(self._open)} links, {self._running} bundles>"

    @staticmethod
    def supported() -> bool:
        """Whether this system has all that a link needs."""
        return Arena.supported()

    async def drain(self, timeout_s: float) -> None:
        """Take no more links, wait for the bundles that run, and end the links.

        Args:
            timeout_s: Longest wait, seconds; what runs then is cut.
        """
        self._stop_listening()
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            logger.warning("%d bundles still ran after %.0f s: they are cut", self._running, timeout_s)
        self.close()

    def close(self) -> None:
        """End everything now. Idempotent."""
        self._stop_listening()
        for link in tuple(self._open):
            if link.transport is not None:
                link.transport.close()  # after what has been written
        for task in self._joining:
            task.cancel()

    def _stop_listening(self) -> None:
        if self._socket is not None:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def _accept(self) -> None:
        assert self._socket is not None
        try:
            connection, _ = self._socket.accept()
        except OSError:  # it has left already
            return
        connection.setblocking(False)
        task = self._loop.create_task(self._join(connection))
        self._joining.add(task)
        task.add_done_callback(self._joining.discard)

    async def _join(self, connection: socket.socket) -> None:
        try:
            _check_peer(connection)
            arena = await self._meet(connection)
            await self._loop.sock_sendall(connection, WELCOME)
            await self._loop.connect_accepted_socket(lambda: _ServerLink(self, arena), connection)
        except (OSError, ValueError, LinkError) as error:
            # Routers try again for as long as they live.
            reason = str(error)
            logger.log(
                logging.DEBUG if reason in self._refused else logging.WARNING,
                "A router could not be linked: %s",
                reason,
            )
            self._refused.add(reason)
            connection.close()
        except BaseException:
            connection.close()
            raise

    async def _meet(self, connection: socket.socket) -> ArenaReader | None:
        """Hear who it is, and map the memory that it shares."""
        readable = asyncio.Event()
        self._loop.add_reader(connection.fileno(), readable.set)
        try:
            await readable.wait()
        finally:
            self._loop.remove_reader(connection.fileno())
        hello, files, _, _ = socket.recv_fds(connection, _HELLO.size, 1)
        try:
            if len(hello) != _HELLO.size:
                raise LinkError("it hung up")
            version, nbytes = _HELLO.unpack(hello)
            if version != _VERSION:
                raise LinkError(f"it is of version {version.rstrip(bytes(1)).decode()}, not {__version__}")
            return ArenaReader(files[0], nbytes) if files else None
        finally:
            for file in files:
                os.close(file)

    def started(self) -> None:
        """Count a bundle in."""
        self._running += 1
        self._idle.clear()

    def ended(self) -> None:
        """Count a bundle out."""
        self._running -= 1
        if not self._running:
            self._idle.set()

    async def answer(self, call: int, bundle: Bundle) -> list[Part]:
        """Run a bundle and make the frame of its answer."""
        try:
            return encode_result(call, await self._run(bundle))
        except Exception:  # a bug; whoever waits at the other end must be told
            logger.exception("A bundle failed as a whole")
            return encode_failure(call, Failure(InferenceFailed.code, f"model {self._name} failed on this request"))

    def new_task(self, work: Any) -> asyncio.Task[None]:
        """Start a bundle's task, in a context of its own."""
        return self._loop.create_task(work, context=self._context.copy())

    def joined(self, link: _ServerLink) -> None:
        """A link is up."""
        self._open.add(link)

    def left(self, link: _ServerLink) -> None:
        """A link has ended."""
        self._open.discard(link)


class _ServerLink(_Framed):
    def __init__(self, server: LinkServer, arena: ArenaReader | None) -> None:
        super().__init__()
        self._server = server
        self._arena = arena
        self._tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._server.joined(self)

    def on_frame(self, frame: Frame) -> None:
        bundle = decode_bundle(frame, self._arena)
        self._server.started()
        task = self._server.new_task(self._answer(frame.header[0], bundle))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._server.left(self)
        for task in self._tasks:  # the router that asked is gone, and whoever asked it
            task.cancel()

    async def _answer(self, call: int, bundle: Bundle) -> None:
        self.write(await self._server.answer(call, bundle))

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._server.ended()
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("A bundle's answer could not be sent", exc_info=error)
            self.cut()
        elif task.cancelled():
            self.cut()  # the replica is stopping: its router must not wait


def _abstract(address: str) -> str:
    return "\0" + address


def _check_peer(connection: socket.socket) -> None:
    """Hang up on a process of another user."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    user = struct.unpack("3i", found)[1]
    if user != os.geteuid():
        raise LinkError(f"the other end belongs to user {user}")
