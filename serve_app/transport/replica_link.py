"""The router's end of a link: sends bundles to one replica, and delivers results."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import logging
import os
import signal
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from serve_app.errors import InferenceFailed
from serve_app.payloads import Bundle, Failure
from serve_app.scheduling.health.liveness import Liveness, Watch
from serve_app.transport.arena import Arena
from serve_app.transport.frames import (
    PART,
    Frame,
    decode_part,
    decode_result,
    encode_bundle,
    encode_ping,
    encode_recall,
    encode_taken,
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
from serve_app.transport.send import Done, ReplicaLost
from serve_app.transport.ties import TieTable

logger = logging.getLogger(__name__)

_WELCOME_TIMEOUT_S: Final = 10.0


class ReplicaLink(FramedProtocol):
    """The router's end. Made by `connect`.

    Args:
        name: The replica's id, for messages.
        arena: Shared with the replica, if any.
        on_lost: Called once, after the connection's end.
        process: The replica's process id; 0 if not visible.
    """

    def __init__(self, name: str, arena: Arena | None, on_lost: Callable[[], None], process: int = 0) -> None:
        super().__init__()
        self._name = name
        self._arena = arena
        self._on_lost = on_lost
        self._ids = itertools.count(1)
        # Who takes the answer, the bundle, and its arrays: the replica reads them where they lie.
        self._calls: dict[int, tuple[Done, Bundle, Any]] = {}
        self._retired = False
        self._process = process
        self._liveness: Liveness | None = None
        self.lost = False

    def __repr__(self) -> str:
        return f"<ReplicaLink {self._name} {'lost' if self.lost else 'up'}, {len(self._calls)} calls>"

    def watch(self, model: str, watch: Watch) -> None:
        """Report when the replica sends no data despite requests in flight."""
        self._liveness = Liveness(
            watch.silence_s,
            watch.kill_s,
            call_later=asyncio.get_running_loop().call_later,
            in_flight=lambda: bool(self._calls),
            data_received=self._take_received,
            ask=lambda: self.write(encode_ping()),
            on_unresponsive=lambda: watch.on_unresponsive(model, self._name),
            on_responsive=lambda: watch.on_responsive(model, self._name),
            on_given_up=self._kill,
        )

    def _kill(self) -> None:
        """Kill the replica's process, which does not run and so cannot end itself; Ray Serve replaces it."""
        if self.lost or self._process <= 0:
            return
        logger.error("Replica %s did not respond for too long; killing its process %d", self._name, self._process)
        try:
            os.kill(self._process, signal.SIGKILL)
        except OSError as error:
            logger.warning("Process %d could not be killed: %s", self._process, error)

    def _take_received(self) -> bool:
        data_received, self.data_received = self.data_received, False
        return data_received

    def send(self, bundle: Bundle, done: Done) -> None:
        """Send a bundle.

        Args:
            done: Receives the result, `ReplicaLost` after the connection's end, or `InferenceFailed` if the whole
                bundle failed; the replica's log says why. Not called before this returns.
        """
        if self.lost or self.transport is None or self.transport.is_closing():  # it would be dropped, not written
            lost = ReplicaLost(f"the link to replica {self._name} has ended", reached=False)
            asyncio.get_running_loop().call_soon(done, lost, context=contextvars.Context())
            return
        call = next(self._ids)
        parts, kept = encode_bundle(call, bundle, self._arena)
        # Kept until the answer, even without a waiter: only then is the replica done with the arrays.
        self._calls[call] = (done, bundle, kept)
        if bundle.parts is not None:
            for position in range(len(bundle.entries)):
                bundle.parts.on_taken(position, partial(self._taken, call, position))
        self.write(parts)
        liveness = self._liveness
        if liveness is not None and liveness.at_rest:
            liveness.begin()

    def _taken(self, call: int, position: int, count: int) -> None:
        """Report parts read of an answer."""
        if call in self._calls:
            self.write(encode_taken(call, position, count))

    def recall(self, bundle: Bundle, positions: Sequence[int]) -> None:
        """Recall entries of a bundle: waiting ones do not run. An answered bundle is ignored."""
        for call, (_, sent, _) in self._calls.items():
            if sent is bundle:
                self.write(encode_recall(call, positions))
                return

    def on_frame(self, frame: Frame) -> None:
        """Process an answer or a part."""
        if frame.kind == PART:
            _, bundle, _ = self._calls.get(frame.call, (None, None, None))
            if bundle is not None and bundle.parts is not None:
                bundle.parts.send(*decode_part(frame))
            return
        done, _, _ = self._calls.pop(frame.call, (None, None, None))
        if self._retired and not self._calls:
            self.close()
        if done is None:
            return
        if isinstance(frame.kind, Failure):
            done(InferenceFailed(frame.kind.message))
            return
        try:
            result = decode_result(frame)
        except Exception:  # the link is cut then; but this call is not among those that it fails
            done(ReplicaLost(f"the answer of replica {self._name} cannot be read"))
            raise
        done(result)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail pending calls. Called by asyncio."""
        self.lost = True
        if self._liveness is not None:
            self._liveness.end()
        calls, self._calls = self._calls, {}
        reason = "" if exc is None else f" ({exc})"
        for done, _, _ in calls.values():
            done(ReplicaLost(f"the link to replica {self._name} was cut{reason}"))
        self._on_lost()

    def retire(self) -> None:
        """End the connection once nothing is in flight."""
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
    ties: TieTable,
    arena: Arena | None,
    on_lost: Callable[[], None],
    timeout_s: float = _WELCOME_TIMEOUT_S,
) -> ReplicaLink:
    """Make a link to a replica, established with its consent.

    Args:
        address: Of its `LinkServer`.
        name: The replica's id, for messages.
        ties: Decides duplicated entries; shared with it.
        arena: Also shared with it, if any.
        on_lost: Called once, after the connection's end.
        timeout_s: Longest wait for the replica's welcome, seconds.

    Raises:
        LinkError: The replica does not listen, is another user's, or refuses.
    """
    loop = asyncio.get_running_loop()
    connection = new_socket()
    try:
        await loop.sock_connect(connection, abstract(address))
        process = check_peer(connection)
        hello = HELLO.pack(VERSION, 0 if arena is None else arena.nbytes)
        socket.send_fds(connection, [hello], [ties.fd] if arena is None else [ties.fd, arena.fd])
        async with asyncio.timeout(timeout_s):
            await _welcomed(connection)
        _, link = await loop.create_unix_connection(lambda: ReplicaLink(name, arena, on_lost, process), sock=connection)
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
    """Wait for the replica's consent. Until then it may disconnect, which must not lose a bundle."""
    loop = asyncio.get_running_loop()
    answer = b""
    while len(answer) < len(WELCOME):
        received = await loop.sock_recv(connection, len(WELCOME) - len(answer))
        if not received:
            raise LinkError("it hung up, as it does on another version; its log says why")
        answer += received
    if answer != WELCOME:
        raise LinkError("it answered something else")
