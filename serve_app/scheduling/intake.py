"""Requests that have arrived at a router and wait to be decoded while its event loop is overloaded.

The event loop is a server with a queue, too. Without this module, requests wait in the order of their arrival, whatever
their class. Here the most urgent class goes first, and within it the earliest deadline.

Service by deadline wastes an overload: everything begins just before it is too late, and ends after it. So a request
stays only while those before it are expected to begin within half of the time it has left; otherwise the one with the
least time left is given up. The expectation follows from the recent rate of begins in the class.

A queue of that length helps in a burst. In a lasting overload it only delays all requests and holds connections: if
nothing of a class was begun within 5 ms, or two rounds, for 100 ms, its queue is kept at twice that, until nothing was
given up for 100 ms. This is the idea of CoDel, with its constants (Nichols and Jacobson, "Controlling Queue Delay",
2012). The part of a round beyond twice the usual is left out of these times, since nothing could begin meanwhile.

Of surplus requests the tenant with the most, by its weight, loses one, so a flooding tenant loses its own requests
("longest queue drop", Suter et al., "Buffer management schemes for supporting TCP in gigabit routers with per-flow
queueing", 1999).

Every class earns its guaranteed share of all turns while it waits, and takes one out of order when it has earned it.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterator, Mapping
from math import inf
from typing import Final, Generic, NamedTuple, TypeVar

from serve_app.domain.priority import Priority

PER_ROUND: Final = 32
"""Requests begun in one round, which may travel in one bundle: fewer would make small batches of a burst."""
PER_ROUND_QUEUED: Final = 16
"""The same while requests wait: an urgent one takes some rounds from arrival to answer, so rounds are short."""
SHED: Final = 64
"""Most refusals of a round."""
LATE: Final = 0.25
"""Cost of the refusal of a late request, in requests begun."""
MOST_WAITING: Final = 4096
"""Most requests that wait."""

_T = TypeVar("_T")

_RECENT = 0.1
_PART = 0.5
"""Fraction of the time left that a request may wait here."""
_LEFT = 0.25
"""Fraction of the time a request had on arrival that must be left when it begins, to answer it."""
_SHORT_S = 0.005
_LASTING_S = 0.1
_LOOKED_AT = 64
"""Waiting requests that are counted to find the tenant with the most."""


class Tenant(NamedTuple):
    """Shares a class with others: the name of a key, and its weight, over 0."""

    name: str
    weight: float = 1.0


NOBODY: Final = Tenant("")


class _Class(Generic[_T]):
    """One class: waiting requests by deadline, and the mean time between two begins, seconds."""

    __slots__ = ("began", "credit", "held", "interval_s", "share", "shed_at", "short_at", "waiting")

    def __init__(self, share: float) -> None:
        self.share = share
        self.credit = 0.0
        self.waiting: list[tuple[float, int, float, _T, Tenant]] = []  # deadline, number, arrival
        self.held: Counter[Tenant] = Counter()  # per tenant with any
        self.interval_s = 0.0
        self.began = -inf  # last begin, or arrival of the first that waits since then
        self.short_at = -inf  # last time that one began soon after its arrival, or could have
        self.shed_at = -inf  # last time that one was given up

    def begin(self, now: float, short_s: float) -> _T:
        self.interval_s += _RECENT * (now - self.began - self.interval_s)
        self.began = now
        arrived, item = self._pop(0)
        if now - arrived <= short_s:
            self.note_short(now)
        return item

    def note_short(self, now: float) -> None:
        if now - self.shed_at > _LASTING_S:
            self.short_at = now

    def worst(self, count: int) -> int:
        """Choose the request that makes room for others, among the first ``count``.

        Returns:
            The place of the one with the least time left, of the tenant that has most of these by its weight.
        """
        if len(self.held) == 1 or count == 1:
            return 0
        tenants = [waits[4] for waits in self.waiting[: min(count, _LOOKED_AT)]]
        held = Counter(tenants)
        return tenants.index(max(held, key=lambda tenant: held[tenant] / tenant.weight))

    def give_up(self, now: float, place: int) -> _T:
        self.shed_at = now
        _, item = self._pop(place)
        if not self.waiting:  # decays, or a request that is alone might be given up for ever
            self.interval_s *= 1.0 - _RECENT
        return item

    def _pop(self, place: int) -> tuple[float, _T]:
        _, _, arrived, item, tenant = self.waiting.pop(place)
        if self.held[tenant] == 1:
            del self.held[tenant]
        else:
            self.held[tenant] -= 1
        return arrived, item

    def leave_out(self, pause_s: float, now: float) -> None:
        """Exclude a pause in which nothing could begin."""
        self.began = min(self.began + pause_s, now)
        self.short_at = min(self.short_at + pause_s, now)

    def too_long(self, now: float, short_s: float) -> int:
        """Number of requests from the first on of which the last will be late if all before it are begun.

        Returns:
            1 if the first is late; 0 if none will be.
        """
        waiting, idle_s = self.waiting, now - self.began
        if waiting[0][0] <= now:
            return 1
        most_s = 2.0 * short_s if now - self.short_at > _LASTING_S else inf
        place = len(waiting)
        while place:  # the last one, and those at a half, a quarter ... of the queue
            if idle_s + place * self.interval_s > min(most_s, _PART * (waiting[place - 1][0] - now)):
                return place
            place //= 2
        return 0


class Intake(Generic[_T]):
    """Requests that wait for the event loop.

    Args:
        min_share: Fraction of all turns that a class gets while it waits, 0 to 1.
        most: Most waiting requests, in all classes.
    """

    def __init__(self, min_share: Mapping[Priority, float], most: int) -> None:
        self._classes = {priority: _Class[_T](min_share.get(priority, 0.0)) for priority in Priority}
        self._most = most
        self._number = 0
        self._short_s = _SHORT_S
        self._round_at = inf
        self.waiting = 0

    def offer(self, item: _T, priority: Priority, deadline: float, now: float, tenant: Tenant = NOBODY) -> None:
        """Queue a request.

        Args:
            deadline: Of its answer; infinite if unknown.
        """
        own = self._classes[priority]
        if not own.waiting:
            own.began = now
            own.note_short(now)
        self._number += 1
        self.waiting += 1
        own.held[tenant] += 1
        insort(own.waiting, (deadline, self._number, now, item, tenant))

    def take(self, now: float) -> tuple[_T, bool] | None:
        """Take the request to begin now; ``None`` if none waits.

        Returns:
            The request, and whether it is too late: then it is to be refused.
        """
        chosen: _Class[_T] | None = None
        for own in self._classes.values():
            if own.waiting:
                if chosen is None:
                    chosen = own
                elif own.share:
                    own.credit += own.share
                    if own.credit >= 1.0:
                        own.credit -= 1.0
                        chosen = own
                        break
        if chosen is None:
            return None
        self.waiting -= 1
        deadline, _, arrived, _, _ = chosen.waiting[0]
        if deadline - now <= _LEFT * (deadline - arrived) < inf:
            return chosen.give_up(now, 0), True
        return chosen.begin(now, self._short_s), False

    def give_up(self, now: float) -> Iterator[_T]:
        """Remove late and surplus requests, the least urgent first. Called in each round."""
        pause_s = now - self._round_at - self._short_s
        if pause_s > 0.0:
            for own in self._classes.values():
                own.leave_out(pause_s, now)
        self._short_s += _RECENT * (max(_SHORT_S, 2.0 * min(now - self._round_at, _LASTING_S)) - self._short_s)
        self._round_at = now
        for own in reversed(self._classes.values()):
            while own.waiting:
                count = len(own.waiting) if self.waiting > self._most else own.too_long(now, self._short_s)
                if not count:
                    break
                self.waiting -= 1
                yield own.give_up(now, own.worst(count))
