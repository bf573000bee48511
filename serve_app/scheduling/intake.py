"""What has arrived at a router and waits to be decoded, while its event loop has more to do than it can.

The event loop is a server with a queue, too: without an order of its own, requests wait in the order of their arrival,
before anybody has looked at their class. Here the most urgent class goes first, and within it the earliest deadline.

A queue that is served by deadline wastes an overload: everything is begun just before it is too late, and ends after
it. So a request stays only while those before it are expected to be begun within half of the time that it has left;
while there are more, the one with the least time left is given up. What is expected follows from how often the class
was lately begun.

A queue of that length helps in a burst. In an overload that lasts it only makes all requests wait, and holds clients'
connections: once nothing of a class was begun within 5 ms, or two rounds, for 100 ms, its queue is kept at twice that,
until nothing was given up for 100 ms. This is the idea of CoDel, with its constants (Nichols and Jacobson, "Controlling
Queue Delay", 2012).

What a round takes beyond twice the usual is left out of these times: nothing could be begun meanwhile, so it says
nothing of the queue.

What is given up, of those that are too many, is of the tenant that has most of them, by its weight: one that floods a
class loses its own requests, and those of others are begun in their time ("longest queue drop", Suter et al., "Buffer
management schemes for supporting TCP in gigabit routers with per-flow queueing", 1999).

Every class earns its guaranteed share of all turns while it waits, and takes one out of order when it has earned it.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterator, Mapping
from math import inf
from typing import Final, Generic, NamedTuple, TypeVar

from serve_app.scheduling.entry import Priority

PER_ROUND: Final = 32
"""Requests. What is begun in one round may travel in one bundle: fewer would make small batches of a burst."""
PER_ROUND_QUEUED: Final = 16
"""The same while requests wait: an urgent one takes some rounds from its arrival to its answer, so they are short."""
SHED: Final = 64
"""Most refusals of a round."""
LATE: Final = 0.25
"""What the refusal of one that is taken too late counts among those that are begun, in requests."""
MOST_WAITING: Final = 4096
"""Requests that may wait."""

_T = TypeVar("_T")

_RECENT = 0.1
_PART = 0.5
"""Of the time that is left a request may wait here."""
_LEFT = 0.25
"""Of the time that a request had when it came here, this much must be left when it is begun, to answer it in."""
_SHORT_S = 0.005
_LASTING_S = 0.1
_LOOKED_AT = 64
"""So many that wait tell which tenant has most."""


class Tenant(NamedTuple):
    """Who shares a class with others: the name of a key, and its weight, over 0."""

    name: str
    weight: float = 1.0


NOBODY: Final = Tenant("")


class _Class(Generic[_T]):
    """One class: what waits, by deadline, and how long it takes from one begin to the next, seconds."""

    __slots__ = ("began", "credit", "held", "interval_s", "share", "shed_at", "short_at", "waiting")

    def __init__(self, share: float) -> None:
        self.share = share
        self.credit = 0.0
        self.waiting: list[tuple[float, int, float, _T, Tenant]] = []  # deadline, number, when it came
        self.held: Counter[Tenant] = Counter()  # of each tenant that has some
        self.interval_s = 0.0
        self.began = -inf  # when one was last begun, or when the first came that has waited since
        self.short_at = -inf  # when one was last begun soon after it came, or could have been
        self.shed_at = -inf  # when one was last given up

    def begin(self, now: float, short_s: float) -> _T:
        self.interval_s += _RECENT * (now - self.began - self.interval_s)
        self.began = now
        arrived, item = self._pop(0)
        if now - arrived <= short_s:
            self.note_short(now)
        return item

    def note_short(self, now: float) -> None:
        """Note that the queue is short."""
        if now - self.shed_at > _LASTING_S:
            self.short_at = now

    def worst(self, count: int) -> int:
        """Choose whose request makes room for others.

        Args:
            count: How many, from the first on, could; a bound keeps the choice quick.

        Returns:
            The place of the one with the least time left, of the tenant that has most of these by its weight.
        """
        if len(self.held) == 1 or count == 1:
            return 0
        tenants = [waits[4] for waits in self.waiting[: min(count, _LOOKED_AT)]]
        held = Counter(tenants)
        return tenants.index(max(held, key=lambda tenant: held[tenant] / tenant.weight))

    def give_up(self, now: float, place: int) -> _T:
        """Take out the one at this place."""
        self.shed_at = now
        _, item = self._pop(place)
        if not self.waiting:  # how long it took is forgotten: else one that is alone might be given up for ever
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
        """Leave time out in which nothing could be begun."""
        self.began = min(self.began + pause_s, now)
        self.short_at = min(self.short_at + pause_s, now)

    def too_long(self, now: float, short_s: float) -> int:
        """How many, from the first on, are too many: the last of them will be late if all before it are begun.

        Returns:
            1 where the first is late; 0 where none will be.
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
        min_share: Part of all turns that a class gets while it waits, 0 to 1.
        most: How many may wait, in all classes.
    """

    def __init__(self, min_share: Mapping[Priority, float], most: int) -> None:
        self._classes = {priority: _Class[_T](min_share.get(priority, 0.0)) for priority in Priority}
        self._most = most
        self._number = 0
        self._short_s = _SHORT_S
        self._round_at = inf
        self.waiting = 0

    def offer(self, item: _T, priority: Priority, deadline: float, now: float, tenant: Tenant = NOBODY) -> None:
        """Have a request wait.

        Args:
            item: The request.
            priority: Its class.
            deadline: When it has to be answered, seconds; infinite where it is not known.
            now: Seconds.
            tenant: Who shares the class with others.
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
        """The request that is to be begun now; ``None`` where none waits.

        Returns:
            It, and whether it is too late: then it is to be given up instead.
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
        """Take out what would be too late, and what is too much; the least urgent first. To be called in each round."""
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
