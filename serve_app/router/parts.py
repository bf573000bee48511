"""The parts of streamed answers, between the replicas that send them and the clients that read them.

Each answer has a queue. Its replica sends no more than `StreamLimits` allow before some are read, so every queue is
bounded. All queues of a router are bounded, too: if they hold too much, the longest is given up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from serve_app.domain.service import Answer
from serve_app.errors import ServeAppError, SlowReader
from serve_app.payloads import StreamLimits, Tensors
from serve_app.scheduling.decisions import Dispatch

_FLUSH = 4
"""Reads are reported to replicas after a quarter of the parts that may wait, or if nothing waits."""

OnPart: TypeAlias = Callable[[Dispatch, int, float, Tensors, str, Callable[[int], None] | None], None]
"""Called with the bundle, the entry's position, its wait at the replica, the part, the revision, and its reader."""


class Streams:
    """All queues of a router.

    Args:
        limit: Most waiting bytes in all.

    Attributes:
        nbytes: Waiting bytes.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._holding: set[PartQueue] = set()
        self.nbytes = 0

    def __repr__(self) -> str:
        return f"<Streams {len(self._holding)} answers wait for their readers with {self.nbytes} bytes>"

    def hold(self, queue: PartQueue, nbytes: int) -> None:
        """Change the bytes that a queue holds. If all hold too many, the one with the most is given up.

        A single queue is not given up: its own bounds hold, and a part may be larger than all of them.
        """
        self.nbytes += nbytes
        if queue.nbytes:
            self._holding.add(queue)
        else:
            self._holding.discard(queue)
        while nbytes > 0 and self.nbytes > self._limit and len(self._holding) > 1:
            max(self._holding, key=_nbytes).give_up(
                SlowReader(
                    f"the parts of all answers that wait for their readers have more than {self._limit} bytes, and this"
                    " one's the most; read faster, or raise router.limits.all_streams_bytes"
                )
            )


class PartQueue:
    """The waiting parts of one answer.

    Args:
        streams: All of the router.
        limits: Bounds of the answer.
        whole: Whether its reader takes an answer of one part only.

    Attributes:
        count: Parts received.
        queue_s: Queueing time of the request before the first part, seconds.
        nbytes: Waiting bytes.
        given_up: Whether its reader was too slow, so that it has ended with `SlowReader`.
        taken: Called with the number of parts read, so that more are sent.
        on_given_up: Called when the reader is too slow; ends the work.
    """

    def __init__(self, streams: Streams, limits: StreamLimits, *, whole: bool = False) -> None:
        self._streams = streams
        self.limits = limits
        self.whole = whole
        self.count = 0
        self.queue_s = 0.0
        self.nbytes = 0
        self.given_up = False
        self.taken: Callable[[int], None] = _nobody
        self.on_given_up: Callable[[ServeAppError], None] = _nobody
        self._waiting: deque[tuple[Answer, int]] = deque()
        self._untold = self._untold_bytes = 0
        self._ended = False
        self._error: BaseException | None = None
        self._wake: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"<PartQueue {self.count} parts, {len(self._waiting)} wait>"

    @property
    def counted(self) -> bool:
        """Whether the request counts as answered, since its first part is there."""
        return self.count > 0 and not self.whole

    def put(self, part: Answer, nbytes: int) -> None:
        """Queue a part. Ignored once the answer has ended."""
        if self._ended:
            return
        self.count += 1
        self._waiting.append((part, nbytes))
        self._hold(nbytes)
        self._wake_reader()

    def end(self, error: BaseException | None = None) -> None:
        """End the answer. Waiting parts are read before the error; the first end counts."""
        if not self._ended:
            self._ended = True
            self._error = error
            if isinstance(error, SlowReader):
                self._clear()  # the reader is too slow for them
            self._wake_reader()

    def give_up(self, error: ServeAppError) -> None:
        """Drop waiting parts, and end with this error: the reader is too slow."""
        self._clear()
        self.given_up = True
        if self._ended:
            self._error = error
        self.on_given_up(error)
        self.end(error)

    def close(self) -> None:
        """Close the reader's end. Idempotent."""
        self._ended = True
        self._clear()
        self.taken = self.on_given_up = _nobody  # they refer to the request

    async def next(self) -> Answer | None:
        """The next part; ``None``: there are no more. Raises the error that ended the answer."""
        while not self._waiting and not self._ended:
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        if self._waiting:
            part, nbytes = self._waiting.popleft()
            self._hold(-nbytes)
            self._tell(nbytes)
            return part
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # its traceback has this frame
        return None

    def _tell(self, nbytes: int) -> None:
        """Report reads to the replica now and then."""
        self._untold += 1
        self._untold_bytes += nbytes
        limits = self.limits
        if not self._waiting or _FLUSH * self._untold >= limits.parts or _FLUSH * self._untold_bytes >= limits.nbytes:
            self.taken(self._untold)
            self._untold = self._untold_bytes = 0

    def _clear(self) -> None:
        self._waiting.clear()
        self._hold(-self.nbytes)

    def _hold(self, nbytes: int) -> None:
        self.nbytes += nbytes
        self._streams.hold(self, nbytes)

    def _wake_reader(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


def _nbytes(queue: PartQueue) -> int:
    return queue.nbytes


def _nobody(_: object) -> None:
    """Ignore a report."""


class BundleParts:
    """Takes the parts of a bundle's answers: a `PartSink`."""

    __slots__ = ("_dispatch", "_on_part", "_readers", "_revision")

    def __init__(self, dispatch: Dispatch, revision: str, on_part: OnPart) -> None:
        self._dispatch = dispatch
        self._revision = revision
        self._on_part = on_part
        self._readers: dict[int, Callable[[int], None]] = {}

    def send(self, position: int, number: int, waited_s: float, outputs: Tensors) -> None:  # noqa: ARG002 - in order
        """Pass a part on."""
        self._on_part(self._dispatch, position, waited_s, outputs, self._revision, self._readers.get(position))

    def on_taken(self, position: int, taken: Callable[[int], None]) -> None:
        """Keep the callback for the entry's reader."""
        self._readers[position] = taken
