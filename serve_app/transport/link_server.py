"""The replica's end of its links: accepts them, runs their bundles, and returns results."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from msgspec.structs import replace

from serve_app import __version__
from serve_app.errors import InferenceFailed
from serve_app.payloads import Bundle, BundleResult, Failure, Tensors
from serve_app.transport.arena import Arena, ArenaReader
from serve_app.transport.frames import (
    RECALL,
    TAKEN,
    Frame,
    Part,
    decode_bundle,
    encode_failure,
    encode_part,
    encode_ping,
    encode_result,
    recalled,
    taken,
)
from serve_app.transport.link_protocol import (
    HELLO,
    VERSION,
    WELCOME,
    FramedProtocol,
    LinkError,
    abstract,
    check_peer,
    new_socket,
)
from serve_app.transport.ties import SharedTies

logger = logging.getLogger(__name__)

Run = Callable[[Bundle], Awaitable[BundleResult]]
Recall = Callable[[Bundle], None]


class LinkServer:
    """Accepts links and runs their bundles.

    Args:
        run: Runs one bundle; raises only for bugs.
        recall: Called when more entries of a running bundle are ``recalled``.

    Attributes:
        context: Empty, copied for each bundle.
        running: Bundles in progress.
    """

    def __init__(self, name: str, run: Run, recall: Recall | None = None) -> None:
        self._name = name
        self._recall = recall
        self.loop = asyncio.get_running_loop()
        self.context = contextvars.Context()
        self._open: set[_ServerLink] = set()
        self._joining: set[asyncio.Task[Any]] = set()
        self.run = run
        self.running: set[asyncio.Task[None]] = set()
        self._refused: set[str] = set()
        self.address = f"serve-app-{secrets.token_hex(16)}"
        self._socket: socket.socket | None = new_socket()
        self._socket.bind(abstract(self.address))
        self._socket.listen(128)
        self.loop.add_reader(self._socket.fileno(), self._accept)

    def __repr__(self) -> str:
        return f"<LinkServer {len(self._open)} links, {len(self.running)} bundles>"

    @staticmethod
    def supported() -> bool:
        """Whether this system supports links."""
        return Arena.supported()

    async def drain(self, timeout_s: float) -> None:
        """Accept no more links, wait for running bundles, and end the links.

        Args:
            timeout_s: Longest wait, seconds; the rest is cut.
        """
        self._stop_listening()
        loop = self.loop
        until = loop.time() + timeout_s
        while self.running and (left_s := until - loop.time()) > 0.0:
            await asyncio.wait(self.running, timeout=left_s)
        if self.running:
            logger.warning("%d bundles did not finish within %.0f s and are cancelled", len(self.running), timeout_s)
        self.close()

    def close(self) -> None:
        """End everything at once. Idempotent."""
        self._stop_listening()
        for link in tuple(self._open):
            if link.transport is not None:
                link.transport.close()  # after what has been written
        for task in self._joining:
            task.cancel()

    def _stop_listening(self) -> None:
        if self._socket is not None:
            self.loop.remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def _accept(self) -> None:
        assert self._socket is not None
        try:
            connection, _ = self._socket.accept()
        except OSError:  # it has left already
            return
        connection.setblocking(False)
        task = self.loop.create_task(self._join(connection))
        self._joining.add(task)
        task.add_done_callback(self._joining.discard)

    async def _join(self, connection: socket.socket) -> None:
        try:
            check_peer(connection)
            ties, arena = await self._introduce(connection)
            await self.loop.sock_sendall(connection, WELCOME)
            await self.loop.connect_accepted_socket(lambda: _ServerLink(self, ties, arena), connection)
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

    async def _introduce(self, connection: socket.socket) -> tuple[SharedTies, ArenaReader | None]:
        """Read the peer's introduction, and map its shared memory."""
        readable = asyncio.Event()
        self.loop.add_reader(connection.fileno(), readable.set)
        try:
            await readable.wait()
        finally:
            self.loop.remove_reader(connection.fileno())
        hello, files, _, _ = socket.recv_fds(connection, HELLO.size, 2)
        try:
            if len(hello) != HELLO.size:
                raise LinkError("it hung up")
            version, nbytes = HELLO.unpack(hello)
            if version != VERSION:
                raise LinkError(f"it is of version {version.rstrip(bytes(1)).decode()}, not {__version__}")
            if not files:
                raise LinkError("it shares no table of ties")
            return SharedTies(files[0]), ArenaReader(files[1], nbytes) if len(files) > 1 else None
        finally:
            for file in files:
                os.close(file)

    def failed(self, call: int) -> list[Part]:
        """The frame for the exception being handled: a bug.

        The caller at the other end must get an answer.
        """
        logger.exception("A bundle failed as a whole")  # noqa: LOG004 - handlers call this
        return encode_failure(call, Failure(InferenceFailed.code, f"model {self._name} failed on this request"))

    def recall(self, call: int, bundle: Bundle | None, positions: Sequence[int]) -> None:
        """Recall entries of a bundle. Ended and unknown ones are ignored."""
        if bundle is None:
            logger.debug("%s: call %d, some of which is recalled, has ended", self._name, call)
            return
        known = bundle.recalled
        assert isinstance(known, set)
        for position in positions:
            if 0 <= position < len(bundle.entries):
                known.add(position)
            else:
                logger.debug("%s: call %d has no entry %d to be recalled", self._name, call, position)
        if self._recall is not None:
            # In the next turn: the bundle may have come in this one, and its task must have begun.
            self.loop.call_soon(self._recall, bundle)

    def joined(self, link: _ServerLink) -> None:
        """Record a new link."""
        self._open.add(link)

    def left(self, link: _ServerLink) -> None:
        """Record the end of a link."""
        self._open.discard(link)


class _PartsOut:
    """Sends the parts of a call's answers through its link; a `PartSink`."""

    def __init__(self, link: _ServerLink, call: int) -> None:
        self._link = link
        self._call = call
        self._readers: dict[int, Callable[[int], None]] = {}

    def send(self, position: int, number: int, waited_s: float, outputs: Tensors) -> None:
        self._link.write(encode_part(self._call, position, number, waited_s, outputs))

    def on_taken(self, position: int, taken: Callable[[int], None]) -> None:
        self._readers[position] = taken

    def taken(self, position: int, count: int) -> None:
        """Count parts read by the router's clients."""
        if (reader := self._readers.get(position)) is not None:
            reader(count)


class _ServerLink(FramedProtocol):
    def __init__(self, server: LinkServer, ties: SharedTies, arena: ArenaReader | None) -> None:
        super().__init__()
        self._server = server
        self._ties = ties
        self._arena = arena
        self._tasks: set[asyncio.Task[None]] = set()
        self._bundles: dict[int, Bundle] = {}

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._server.joined(self)

    def on_frame(self, frame: Frame) -> None:
        call = frame.call
        if not call:
            self.write(encode_ping())
            return
        if frame.kind == RECALL:
            self._server.recall(call, self._bundles.get(call), recalled(frame))
            return
        if frame.kind == TAKEN:
            if (known := self._bundles.get(call)) is not None and isinstance(known.parts, _PartsOut):
                known.parts.taken(*taken(frame))
            return
        bundle = decode_bundle(frame, self._arena, self._ties)
        if bundle.entries and bundle.entries[0].stream is not None:
            bundle = replace(bundle, parts=_PartsOut(self, call))
        self._bundles[call] = bundle
        server = self._server
        task = server.loop.create_task(self._answer(call, bundle), context=server.context.copy())
        self._tasks.add(task)
        server.running.add(task)
        task.add_done_callback(self._ended)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._server.left(self)
        for task in self._tasks:  # the router is gone, with its callers
            task.cancel()

    async def _answer(self, call: int, bundle: Bundle) -> None:
        try:
            parts = encode_result(call, await self._server.run(bundle))
        except Exception:
            parts = self._server.failed(call)
        del self._bundles[call]
        self.write(parts)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._server.running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("A bundle's answer could not be sent", exc_info=error)
            self.cut()
        elif task.cancelled():
            self.cut()  # the replica is stopping: its router must not wait
