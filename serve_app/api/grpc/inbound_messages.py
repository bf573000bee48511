"""Bounds calls whose message has not arrived completely.

gRPC collects a message out of sight: a partial one takes memory, up to the largest message, and the call takes a place.
So calls that take too long to arrive are ended: all after ``limit_s``, and after ``grace_s`` while more than ``most``
arrive, the oldest first. New ones always find room.

The same applies to streams, where a message may be arriving whenever one is awaited. Those cannot be distinguished from
paused streams: so reading ends on the streams that have waited longest, and they may wait longer than calls.

A closing port learns here when no more calls begin, and can hold answers back until then.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

from serve_app.errors import DeadlineExceeded, InvalidRequest

_POLL_INTERVAL_S: Final = 1.0
_QUIET_S: Final = 0.01
_QUIET_LOOKS: Final = 3
_SETTLE_S: Final = 0.25
_WAY_BACK_S: Final = 0.05
"""A held answer leaves so long before its call's deadline."""


class InboundMessages:
    """Tracks arriving calls and ends overdue ones. For one event loop.

    Args:
        most: Arriving calls that may take up to ``limit_s``.
        limit_s: Longest arrival of a message, seconds.
        grace_s: Longest arrival while more than ``most`` arrive, seconds.
        pause_s: Longest wait for a stream's next message while more than ``most`` streams wait, seconds.

    Attributes:
        held: Whether answers are held until `released`.
    """

    def __init__(self, most: int, limit_s: float, grace_s: float = 2.0, pause_s: float = 10.0) -> None:
        self._most = most
        self._limit_s = limit_s
        self._grace_s = grace_s
        self._pause_s = pause_s
        self._since: dict[asyncio.Task[Any], float] = {}  # the oldest first
        self._timer: asyncio.TimerHandle | None = None
        self._waits: dict[asyncio.Timeout, float] = {}  # of streams: since when, the oldest first
        self._begun = 0
        self.held = False
        self._released = asyncio.Event()

    def __len__(self) -> int:
        """The number of arriving calls."""
        return len(self._since)

    @contextlib.contextmanager
    def holding_answers(self) -> Iterator[None]:
        """Hold back the calls' answers in this context."""
        self.held, self._released = True, asyncio.Event()
        try:
            yield
        finally:
            self.held = False
            self._released.set()

    async def released(self, time_remaining: float | None) -> None:
        """Wait until answers are not held, but not so long that the client would miss the call's deadline."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if time_remaining is None else time_remaining - _WAY_BACK_S):
                await self._released.wait()

    async def quiet(self) -> None:
        """Wait until no call has begun for a moment, at most a quarter of a second."""
        loop = asyncio.get_running_loop()
        until, quiet = loop.time() + _SETTLE_S, 0
        while quiet < _QUIET_LOOKS and loop.time() < until:
            before = self._begun
            await asyncio.sleep(_QUIET_S)
            quiet = quiet + 1 if self._begun == before else 0

    async def message(self, requests: AsyncIterator[bytes]) -> bytes:
        """Receive a call's only message.

        All calls use gRPC's handlers for streams of requests: only these can be awaited, and given up.

        Args:
            requests: Of the current task's call.

        Raises:
            DeadlineExceeded: It did not arrive in time.
            InvalidRequest: The call has no message.
        """
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        self._begun += 1
        self._since[task] = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(_POLL_INTERVAL_S, self._end_overdue)
        try:
            return await anext(requests)
        except StopAsyncIteration:
            raise InvalidRequest("the call has no message") from None
        except asyncio.CancelledError:
            if task in self._since:  # its client has left, or the server ends
                raise
            task.uncancel()
            raise DeadlineExceeded("the message took too long to arrive") from None
        finally:
            self._since.pop(task, None)
            del task  # its error would know this frame

    async def messages(self, requests: AsyncIterator[bytes], idle_s: float) -> AsyncIterator[bytes]:
        """Yield a stream's messages until none arrives in time, or it has waited longest of too many.

        Args:
            idle_s: Longest wait for a message, seconds.
        """
        loop = asyncio.get_running_loop()
        requests = aiter(requests)
        while True:
            try:
                async with asyncio.timeout(idle_s) as limit:
                    self._waits[limit] = loop.time()
                    if len(self._waits) > self._most:
                        self._hurry_oldest()
                    try:
                        body = await anext(requests)
                    finally:
                        self._waits.pop(limit, None)
                        del limit  # it knows the task, whose error would know this frame
            except (StopAsyncIteration, TimeoutError):
                return
            yield body

    def _hurry_oldest(self) -> None:
        limit, since = next(iter(self._waits.items()))
        del self._waits[limit]
        ends = limit.when()
        if ends is not None and ends > since + self._pause_s and not limit.expired():
            limit.reschedule(since + self._pause_s)

    def _end_overdue(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        while self._since:
            task, since = next(iter(self._since.items()))
            if now - since < (self._limit_s if len(self._since) <= self._most else self._grace_s):
                break
            del self._since[task]
            task.cancel()
        self._timer = loop.call_later(_POLL_INTERVAL_S, self._end_overdue) if self._since else None
