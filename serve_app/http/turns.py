"""Schedules the start of requests, the most urgent first (`serve_app.scheduling.intake`).

A request starts at once while the event loop keeps up. After a few starts in one round of the loop, the others wait
here unparsed. Each round reads arrived bytes, sends answers, refuses hopeless requests, and starts a few more.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping
from math import inf
from time import monotonic
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol, TypeAlias

from serve_app.domain.priority import Priority
from serve_app.errors import QueueFull
from serve_app.scheduling.intake import LATE, MOST_WAITING, NOBODY, PER_ROUND, PER_ROUND_QUEUED, SHED, Intake, Tenant

BUSY: Final = QueueFull(
    "the router is busy: requests that are more urgent take its time until this one would be too late; try again"
    " later, or have more routers (router.replicas)",
    1.0,
)
"""Why a request is turned down."""

_log = logging.getLogger(__name__)

_LOG_EVERY_S: Final = 10.0
_UNIT: Final = 16 * 1024
"""Bytes. A body counts as one more request for each."""
_MOST_DIGITS: Final = 18
"""Of the declared length of a body. A longer number is not converted: it is refused when the body is read."""
_REFUSING: Final = (0.6, 0.2)
"""Parts of the time that may go into refusals before connections that carry urgent requests, and others, are read no
more for a while."""
_READ_TOO: Final = 1.5
"""Time for a refusal and for reading its request, as a multiple of the time for the refusal."""
_SAVED_S: Final = 0.01
"""Most time for refusals that is saved up, and most that is borrowed."""
_READ_ON: Final = 64
"""Connections that are read again in one round when nothing waits."""
_UNREAD_S: Final = 0.25
"""How long a connection is not read at most."""


class Urgency(NamedTuple):
    """The urgency of a request.

    Attributes:
        seconds: Time to its deadline.
    """

    priority: Priority
    seconds: float
    tenant: Tenant = NOBODY


Fields: TypeAlias = Mapping[bytes, bytes]


class Waiter(Protocol):
    """A waiting request.

    Attributes:
        waits: Whether it still waits.
    """

    waits: bool

    def begin(self) -> None:
        """Start it."""

    def turn_down(self) -> None:
        """Refuse it with `BUSY`."""


class Reader(Protocol):
    """A connection whose reading is scheduled."""

    def read_on(self) -> None:
        """Resume reading."""


_KeptBack: TypeAlias = deque[tuple[float, Reader]]
"""Connections, and since when they are not read, seconds; the one of the longest time first."""


def ordinary(_method: str, _path: str, _headers: Fields) -> Urgency:
    """The default urgency of every request."""
    return Urgency(Priority.NORMAL, inf)


class Turns:
    """Schedules the requests of one event loop.

    Args:
        urgency_of: The urgency by method, path and headers, within microseconds. Must not raise.
        min_share: Guaranteed share of turns for a waiting class, 0 to 1.
        most: Most waiting requests.

    Attributes:
        refused: Total refusals by class.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        urgency_of: Callable[[str, str, Fields], Urgency] = ordinary,
        min_share: Mapping[Priority, float] = MappingProxyType({}),
        most: int = MOST_WAITING,
    ) -> None:
        self._loop = loop
        self.urgency_of = urgency_of
        self._intake = Intake[tuple[Waiter, int, Priority]](min_share, most)
        self._begun = 0.0  # in this round of the loop, in requests
        self._is_round_due = False
        self.refused: Counter[Priority] = Counter()
        self._logged = 0
        self._log_at = 0.0
        self._round_at = monotonic()
        self._spare_s = [0.0, 0.0]  # for refusals, as `_REFUSING`
        self._refusal_s = 20e-6
        self._late = 0  # that were turned down since the last look at what refusals cost
        self._kept_back: tuple[_KeptBack, _KeptBack] = (deque(), deque())

    def keep_back(self, reader: Reader, *, urgent: bool) -> bool:
        """Delay reading a connection after a refusal, if refusals take too much time.

        Its client waits meanwhile; an unread request costs nothing.

        Args:
            urgent: Whether it also carries urgent requests.

        Returns:
            Whether `read_on` will be called.
        """
        if self._spare_s[not urgent] > 0.0:
            return False
        self._kept_back[not urgent].append((monotonic(), reader))
        if not self._is_round_due:
            self._schedule()
        return True

    def free(self, nbytes: int) -> bool:
        """Start a request at once if possible. Returns whether it has started.

        Args:
            nbytes: Of its body, as far as known.
        """
        begun = self._begun
        if begun >= PER_ROUND or self._intake.waiting:
            return False
        if not self._is_round_due:  # `_schedule`, without a call
            self._is_round_due = True
            self._loop.call_soon(self._round)
        self._begun = begun + 1.0 + nbytes / _UNIT
        return True

    @property
    def read_since(self) -> float:
        """The earliest possible arrival of bytes read now, i.e. the last round, seconds."""
        return self._round_at if self._intake.waiting else monotonic()

    def wait(self, waiter: Waiter, nbytes: int, urgency: Urgency, since: float) -> None:
        """Queue a request that cannot start.

        Args:
            nbytes: Of its body, as far as known.
            urgency: From `urgency_of`.
            since: Time of arrival, seconds.
        """
        priority, seconds, tenant = urgency
        now = self._loop.time()
        waiter.waits = True
        self._intake.offer((waiter, nbytes, priority), priority, since + seconds, now, tenant)
        if not self._is_round_due:
            self._schedule()

    async def turn(self, headers: Fields) -> None:
        """Wait for the turn of a request that runs a model.

        Raises:
            QueueFull: With `BUSY`.
        """
        length = headers.get(b"content-length", b"")
        nbytes = int(length) if length.isdigit() and len(length) <= _MOST_DIGITS else 0
        if not self.free(nbytes):
            waiter = _Awaited(self._loop.create_future())
            self.wait(waiter, nbytes, self.urgency_of("POST", "", headers), monotonic())
            try:
                await waiter.decided
            finally:
                waiter.waits = False

    def _schedule(self) -> None:
        self._is_round_due = True
        self._loop.call_soon(self._round)

    def _round(self) -> None:
        self._is_round_due, self._begun = False, 0.0
        try:
            self._shed()
            self._begin()
            self._read_on()
        finally:  # whatever is wrong with one request, the others get their turns
            wanted = self._begun or self._intake.waiting or self._kept_back[0] or self._kept_back[1]
            if wanted and not self._is_round_due:
                self._schedule()

    def _begin(self) -> None:
        """Start the most urgent, and refuse late ones."""
        now = self._loop.time()
        while self._begun < PER_ROUND_QUEUED and (taken := self._intake.take(now)) is not None:
            (waiter, nbytes, priority), late = taken
            if waiter.waits:
                waiter.waits = False
                if late:
                    self._begun += LATE
                    self._late += 1
                    self._turn_down(waiter, priority)
                else:
                    self._begun += 1.0 + nbytes / _UNIT
                    waiter.begin()

    def _shed(self) -> None:
        """Refuse hopeless requests, and measure the cost."""
        start, number = monotonic(), 0
        if self._intake.waiting:
            now = self._loop.time()
            for waiter, _, priority in self._intake.give_up(now):
                if waiter.waits:
                    waiter.waits = False
                    number += 1
                    self._turn_down(waiter, priority)
                    if number == SHED:
                        break
            if now >= self._log_at:
                self._log_refused(now)
        spent_s = _READ_TOO * (monotonic() - start) if number else 0.0
        if number:
            self._refusal_s += 0.1 * (spent_s / number - self._refusal_s)
        spent_s += self._late * self._refusal_s
        self._late = 0
        elapsed_s, self._round_at = start - self._round_at, start
        for rank, part in enumerate(_REFUSING):
            spare_s = self._spare_s[rank] + part * elapsed_s - spent_s
            self._spare_s[rank] = max(-_SAVED_S, min(spare_s, _SAVED_S))

    def _turn_down(self, waiter: Waiter, priority: Priority) -> None:
        self.refused[priority] += 1
        waiter.turn_down()

    def _read_on(self) -> None:
        """Resume delayed connections, those with urgent requests first."""
        for readers, spare_s in zip(self._kept_back, self._spare_s, strict=True):
            number = int(spare_s / self._refusal_s) if self._intake.waiting else _READ_ON
            while readers and (number > 0 or self._round_at - readers[0][0] > _UNREAD_S):
                readers.popleft()[1].read_on()
                number -= 1

    def _log_refused(self, now: float) -> None:
        """Log the number of refusals; one line per interval."""
        refused = self.refused.total()
        if refused > self._logged:
            _log.warning(
                "the router is busy: %d requests were refused before anything was decoded", refused - self._logged
            )
            self._logged, self._log_at = refused, now + _LOG_EVERY_S


class _Awaited:
    """A request with a waiting coroutine."""

    __slots__ = ("decided", "waits")

    def __init__(self, decided: asyncio.Future[None]) -> None:
        self.decided = decided
        self.waits = True

    def begin(self) -> None:
        if not self.decided.done():  # its task was cancelled, and does not know yet
            self.decided.set_result(None)

    def turn_down(self) -> None:
        if not self.decided.done():
            self.decided.set_exception(QueueFull(BUSY.message, BUSY.retry_after_s))
