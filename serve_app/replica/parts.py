"""Sends an answer's parts out of a replica's session.

The session's thread makes a part when the previous is sent, within a limit of parts and bytes in flight. Beyond it the
session waits for the reader, but only for a while: others need it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from threading import Condition
from typing import Final, TypeAlias

from serve_app.errors import InferenceFailed, SlowReader
from serve_app.payloads import EXPIRED, Failure, StreamLimits, Tensors, nbytes_of

Send: TypeAlias = Callable[[int, float, Tensors], None]
"""``send(number, waited_s, outputs)`` sends one part on its way; see `PartSink`. It must not block."""

_COLLECTED_BYTES: Final = 64 * 1024**2
"""Most bytes of an answer whose parts travel together."""


class Outlet:
    """The exit for one answer's parts.

    Args:
        limits: Bounds of parts in flight.
        send: Sends each part; ``None``: impossible, so that all are collected for the result.
        first_by: Deadline of the first part, on the monotonic clock.

    Attributes:
        count: Parts sent or collected.
        collected: Collected parts.
    """

    def __init__(self, limits: StreamLimits, send: Send | None, first_by: float) -> None:
        self._limits = limits
        self._send = send
        self._first_by = first_by
        self._came_at = time.monotonic()
        self._ends = self._came_at + limits.seconds
        self._waited_s = 0.0
        self._changed = Condition()
        self._under_way: deque[int] = deque()  # bytes of each part
        self._nbytes = 0
        self._stopped: Failure | None = None
        self.count = 0
        self.collected: list[Tensors] = []

    def __repr__(self) -> str:
        return f"<Outlet {self.count} parts, {len(self._under_way)} not taken>"

    @property
    def stopped(self) -> Failure | None:
        """Why no more parts are wanted, if so."""
        if self._stopped is not None:
            return self._stopped
        # Parts that are collected are all waited for as the first is.
        ends = self._ends if self.count and not self.collected else min(self._first_by, self._ends)
        return EXPIRED if time.monotonic() >= ends else None

    def begin(self) -> None:
        """Start the answer."""
        self._waited_s = time.monotonic() - self._came_at

    def put(self, outputs: Tensors) -> Failure | None:
        """Send a part; waits while too many are in flight. For the session's thread.

        Returns:
            Why it was not sent and no other is wanted, if so.
        """
        nbytes, send = nbytes_of(outputs), self._send
        with self._changed:
            if (stopped := self.stopped) is not None:
                return stopped
            if send is None:
                if self._nbytes + nbytes > _COLLECTED_BYTES:
                    most = f"{_COLLECTED_BYTES >> 20} MiB"
                    return Failure(InferenceFailed.code, f"the parts of the answer have more than {most} together")
                self._nbytes += nbytes
                self.collected.append(outputs)
                self.count += 1
                return None
            left_s = max(0.0, self._ends - time.monotonic())
            self._changed.wait_for(lambda: self._stopped or not self._full(nbytes), min(self._limits.reader_s, left_s))
            if (stopped := self.stopped) is not None:
                return stopped
            if self._full(nbytes):
                return Failure(SlowReader.code, slow_reader(self._limits))
            self._under_way.append(nbytes)
            self._nbytes += nbytes
            self.count += 1
        send(self.count - 1, self._waited_s, outputs)
        return None

    def taken(self, count: int) -> None:
        """Count parts taken by the reader. Thread-safe."""
        with self._changed:
            for _ in range(min(count, len(self._under_way))):
                self._nbytes -= self._under_way.popleft()
            self._changed.notify_all()

    def stop(self, why: Failure) -> None:
        """Want no more parts. Thread-safe; the first reason counts."""
        with self._changed:
            self._stopped = self._stopped or why
            self._changed.notify_all()

    def close(self) -> None:
        """End the answer and drop the sender, which refers back to this object."""
        self._send = None

    def _full(self, nbytes: int) -> bool:
        limits = self._limits
        # A part that is larger than all of them may be goes alone.
        return bool(self._under_way) and (len(self._under_way) >= limits.parts or self._nbytes + nbytes > limits.nbytes)


def slow_reader(limits: StreamLimits) -> str:
    """The message about a slow reader."""
    return (
        f"the answer's reader is too slow: {limits.parts} parts or {limits.nbytes} bytes have waited for it for"
        f" {limits.reader_s:g} s; read faster, or raise router.limits.stream_parts and stream_bytes"
    )
