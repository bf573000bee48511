"""Calls whose message has not arrived yet, and how long that may take.

gRPC collects a message out of sight: what has come of it takes memory, up to that of the largest message, and the call
takes a place. So calls that take too long to arrive are ended: all after ``limit_s``, and already after ``grace_s``
while more than ``most`` arrive, the oldest first. New ones always find room.

The same goes for streams, where a message may be arriving whenever one is waited for. Nobody can tell those from
streams that pause: so what ends is the reading of those that wait the longest, and they may wait longer than calls.

Who ends a port learns here when no more calls begin, and can hold answers back for that long.
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
    """Knows the calls that are arriving, and ends those that overstay. For one event loop.

    Args:
        most: So many calls may take their time.
        limit_s: How long a message may take to arrive, seconds.
        grace_s: How long it may take when more than ``most`` arrive, seconds.
        pause_s: How long a stream may wait for its next message when more than ``most`` streams wait, seconds.

    Attributes:
        held: Whether answers wait for `released`.
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
        """How many calls are arriving."""
        return len(self._since)

    @contextlib.contextmanager
    def holding_answers(self) -> Iterator[None]:
        """Calls that have their answer wait with it while this is entered."""
        self.held, self._released = True, asyncio.Event()
        try:
            yield
        finally:
            self.held = False
            self._released.set()

    async def released(self, time_remaining: float | None) -> None:
        """Wait until answers are not held, unless the call is so close to its deadline that its client would miss it.

        Args:
            time_remaining: Seconds to the call's deadline; ``None`` where it has none.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if time_remaining is None else time_remaining - _WAY_BACK_S):
                await self._released.wait()

    async def quiet(self) -> None:
        """Wait until no call has begun for a moment, or for a quarter of a second."""
        loop = asyncio.get_running_loop()
        until, quiet = loop.time() + _SETTLE_S, 0
        while quiet < _QUIET_LOOKS and loop.time() < until:
            before = self._begun
            await asyncio.sleep(_QUIET_S)
            quiet = quiet + 1 if self._begun == before else 0

    async def message(self, requests: AsyncIterator[bytes]) -> bytes:
        """The message of a call that has one.

        gRPC's handlers for streams of requests are used for all calls: theirs can be awaited, and given up.

        Args:
            requests: What comes with the call of the current task.

        Raises:
            DeadlineExceeded: It took too long.
            InvalidRequest: There is none.
        """
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        self._begun += 1
        self._since[task] = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(_POLL_INTERVAL_S, self._look)
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
        """The messages of a stream, until none has come for so long, or it waits the longest of too many.

        Args:
            requests: What comes with the call.
            idle_s: How long a message may take to come, seconds.
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

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        while self._since:
            task, since = next(iter(self._since.items()))
            if now - since < (self._limit_s if len(self._since) <= self._most else self._grace_s):
                break
            del self._since[task]
            task.cancel()
        self._timer = loop.call_later(_POLL_INTERVAL_S, self._look) if self._since else None
