"""Orders the answers to the requests of one stream, and bounds waiting ones."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import Final

UNREAD_BYTES: Final = 8 * 2**20
"""While the client of a stream has more than so many bytes to read, no more parts are made for it. No more requests are
read from it either, for which answers count as well that may not be sent yet."""


class AnswerPlace:
    """One request's place in an `AnswerLine`. Call `last` exactly once."""

    __slots__ = ("_line", "_waits", "ended", "message")

    def __init__(self, line: AnswerLine) -> None:
        self._line = line
        self._waits = True  # for the answers to the requests before it
        self.ended = False
        self.message = b""

    def overtake(self) -> None:
        """Exempt a streamed answer from the order: it waits for no other, and no other waits for it."""
        self._waits = False
        self._line.leave(self)

    async def part(self, message: bytes) -> None:
        """Send one of several messages, and wait until the next may follow."""
        await self._line.send(message)

    def last(self, message: bytes = b"") -> None:
        """Send the only or last message, or none, and end this place."""
        self.message, self.ended = message, True
        self._line.end(self, in_order=self._waits)


class AnswerLine:
    """The answers to a stream's requests, on their way to the client.

    Single-message answers keep the order of their requests. Streamed answers are sent as they come, each with at most
    one waiting part, so that nothing is computed for a client that does not read.

    Attributes:
        mostly_read: Set unless more than `UNREAD_BYTES` wait to be read, or for their turn.
    """

    def __init__(self) -> None:
        self.mostly_read = asyncio.Event()
        self.mostly_read.set()
        self._ready_read = asyncio.Event()  # the same of what may be read now
        self._ready_read.set()
        self._in_order: deque[AnswerPlace] = deque()
        self._open = 0  # places that have not ended
        self._closing = False
        self._unread = self._ready_bytes = 0
        # What is to be sent, with whom to tell, or whether it ends its request; ``None`` is the end.
        self._ready: asyncio.Queue[tuple[bytes, asyncio.Future[None] | None] | None] = asyncio.Queue()

    def join(self) -> AnswerPlace:
        """Add the next request's place."""
        place = AnswerPlace(self)
        self._in_order.append(place)
        self._open += 1
        return place

    def leave(self, place: AnswerPlace) -> None:
        """Stop others from waiting for this place."""
        self._in_order.remove(place)
        self._flush()

    async def send(self, message: bytes) -> None:
        """Send a part, and wait until the part after the next may be made."""
        sent = asyncio.get_running_loop().create_future()
        self._count(message)
        self._make_ready(message, sent)
        await sent
        await self._ready_read.wait()

    def end(self, place: AnswerPlace, *, in_order: bool) -> None:
        """Send a place's last message in its turn."""
        self._count(place.message)
        if in_order:
            self._flush()
        else:
            self._finish(place)

    def close(self) -> None:
        """End the requests: `messages` ends when all are answered."""
        self._closing = True
        if not self._open:
            self._ready.put_nowait(None)

    async def messages(self) -> AsyncGenerator[tuple[bytes, bool], None]:
        """Yield messages in order, and whether each ends a request. The next call reports the previous as sent."""
        while (ready := await self._ready.get()) is not None:
            message, sent = ready
            del ready
            if sent is not None and not sent.done():
                sent.set_result(None)
            yield message, sent is None
            self._unread -= len(message)
            if self._unread <= UNREAD_BYTES:
                self.mostly_read.set()
            self._ready_bytes -= len(message)
            if self._ready_bytes <= UNREAD_BYTES:
                self._ready_read.set()

    def _flush(self) -> None:
        while self._in_order and self._in_order[0].ended:
            self._finish(self._in_order.popleft())

    def _finish(self, place: AnswerPlace) -> None:
        message, place.message = place.message, b""  # its place has ended
        self._make_ready(message, None)
        self._open -= 1
        if self._closing and not self._open:
            self._ready.put_nowait(None)

    def _make_ready(self, message: bytes, sent: asyncio.Future[None] | None) -> None:
        self._ready_bytes += len(message)
        if self._ready_bytes > UNREAD_BYTES:
            self._ready_read.clear()
        self._ready.put_nowait((message, sent))

    def _count(self, message: bytes) -> None:
        self._unread += len(message)
        if self._unread > UNREAD_BYTES:
            self.mostly_read.clear()
