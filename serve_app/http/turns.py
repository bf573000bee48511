"""When requests are begun: in turns, the most urgent first (`serve_app.scheduling.intake`).

A request is begun at once while the event loop keeps up. Once a round of the loop has begun a few, the others wait here
with their bodies raw. Each round reads whatever has arrived, sends what has been answered, refuses what cannot be in
time, and begins a few more.
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

from serve_app.errors import QueueFull
from serve_app.scheduling.entry import Priority
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
    """How urgent a request is.

    Attributes:
        priority: Its class.
        seconds: In which its answer is wanted.
        tenant: Who shares the class with others.
    """

    priority: Priority
    seconds: float
    tenant: Tenant = NOBODY


Fields: TypeAlias = Mapping[bytes, bytes]


class Waiter(Protocol):
    """A request, to what decides when it is begun.

    Attributes:
        waits: Whether it still waits.
    """

    waits: bool

    def begin(self) -> None:
        """Have it answered."""

    def turn_down(self) -> None:
        """Answer that it will not be done: `BUSY`."""


class Reader(Protocol):
    """A connection, to what decides when its next request is read."""

    def read_on(self) -> None:
        """Read again."""


_KeptBack: TypeAlias = deque[tuple[float, Reader]]
"""Connections, and since when they are not read, seconds; the one of the longest time first."""


def ordinary(_method: str, _path: str, _headers: Fields) -> Urgency:
    """The urgency of every request where nobody knows better."""
    return Urgency(Priority.NORMAL, inf)


class Turns:
    """Begins the requests of one event loop.

    Args:
        loop: Runs all of it.
        urgency_of: How urgent a request is, as its method, its path and its headers tell. Takes microseconds,
            and raises nothing.
        min_share: Part of all turns that a class gets while it waits, 0 to 1.
        most: Requests that may wait.

    Attributes:
        urgency_of: As given.
        refused: How many were turned down, ever, by class.
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
        """Have a connection whose request was just refused read again later, where too much time goes into refusals.

        Its client waits meanwhile; a request that is not read costs nothing.

        Args:
            reader: The connection.
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
        """Whether a request may be begun at once, and has been if so.

        Args:
            nbytes: Of its body, as far as it is known.
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
        """The earliest moment at which what is read now can have arrived, seconds: there was a round since."""
        return self._round_at if self._intake.waiting else monotonic()

    def wait(self, waiter: Waiter, nbytes: int, urgency: Urgency, since: float) -> None:
        """Have a request that is not free to begin wait for its turn.

        Args:
            waiter: It.
            nbytes: Of its body, as far as it is known.
            urgency: As `urgency_of` tells.
            since: When it arrived, seconds.
        """
        priority, seconds, tenant = urgency
        now = self._loop.time()
        waiter.waits = True
        self._intake.offer((waiter, nbytes, priority), priority, since + seconds, now, tenant)
        if not self._is_round_due:
            self._schedule()

    async def turn(self, headers: Fields) -> None:
        """Wait until a request that asks a model to work is begun.

        Raises:
            QueueFull: `BUSY`.
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
        """Begin the most urgent, and turn down those of them that are late."""
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
        """Turn down what cannot be in time, and note what that costs."""
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
        """Read again of connections that were kept back: those first that carry urgent requests."""
        for readers, spare_s in zip(self._kept_back, self._spare_s, strict=True):
            number = int(spare_s / self._refusal_s) if self._intake.waiting else _READ_ON
            while readers and (number > 0 or self._round_at - readers[0][0] > _UNREAD_S):
                readers.popleft()[1].read_on()
                number -= 1

    def _log_refused(self, now: float) -> None:
        """Say how many were refused; one line for all in a while."""
        refused = self.refused.total()
        if refused > self._logged:
            _log.warning(
                "the router is busy: %d requests were refused before anything was decoded", refused - self._logged
            )
            self._logged, self._log_at = refused, now + _LOG_EVERY_S


class _Awaited:
    """A request whose coroutine waits."""

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
