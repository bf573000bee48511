"""The replica's gate: bundles of several routers wait here, and one batch is granted when the session is free.

Each router decides by what it knows: its own queue and its own bundles. What several of them send together may be more
than can be in time, so the last word is at the replica: an entry that would be late is not executed (`foresight`), and
routers are told how busy the replica is and which part of a batch is theirs (`Outlook`). So long as each keeps to its
part, their bundles share batches and wait no longer than those of a single router.
"""

from __future__ import annotations

from math import exp, inf
from typing import NamedTuple

from serve_app.scheduling.foresight import Foresight

_REMEMBERED_S = 10.0
_ACTIVE_S = 1.0
_SMALL = 0.25
_LINGER_S = 0.002


class Ticket(NamedTuple):
    """A bundle that waits for the session.

    Attributes:
        id: Unique among the waiting.
        priority: The most urgent class in the bundle; a lower number is more urgent.
        deadline: Earliest deadline in the bundle, seconds on the replica's monotonic clock. Orders the waiting.
        rows: Rows of the bundle.
        bucket: Largest cost bucket in it.
        expires: Latest deadline in the bundle: after it nobody wants any of the answers. ``None``: as ``deadline``.
        sender: Names the router that sent it.
        variant: What it runs on.
        alone: Whether it shares no batch.
    """

    id: int
    priority: int
    deadline: float
    rows: int
    bucket: int = 0
    expires: float | None = None
    sender: str = ""
    variant: str = ""
    alone: bool = False


class Grant(NamedTuple):
    """What the session shall run now.

    Attributes:
        granted: Ids of the bundles that form the batch, most urgent first; empty when nothing waits.
        expired: Ids of the bundles that nobody waits for any more. They have left the gate.
        rows: Rows of the batch.
        bucket: Largest cost bucket of the batch.
    """

    granted: list[int]
    expired: list[int]
    rows: int
    bucket: int


class Outlook(NamedTuple):
    """What a replica tells a router, with an answer, where others send to it too.

    Attributes:
        busy_s: Predicted time until all that runs and waits at the replica is done, seconds.
        bundles: The receiver's own bundles among that.
        share: The part of a batch that is the receiver's, over 0 to 1: equal ones, but for routers that lately used
            much less than that.
        behind_others_s: How long the answered bundle waited at the gate, if others' work ran meanwhile, seconds.
    """

    busy_s: float
    bundles: int
    share: float
    behind_others_s: float = 0.0


class Gate:
    """Orders waiting bundles by class and then by deadline, and grants one batch at a time.

    It holds what the routers' windows let through: a few bundles per router, so sorting at every grant is cheap and
    its size needs no bound of its own.

    Args:
        foresight: Predicts when what is here will be done, for `outlook`.
    """

    def __init__(self, foresight: Foresight | None = None) -> None:
        self._foresight = foresight
        self._waiting: dict[int, Ticket] = {}
        self._running: list[Ticket] = []
        self._runs_until = 0.0
        self._last_senders: set[str] = set()
        self._freed_at = -inf
        self._seen: dict[str, _Seen] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def rows(self) -> int:
        """Rows that wait."""
        return sum(ticket.rows for ticket in self._waiting.values())

    def outlook(self, sender: str, now: float, behind_others_s: float = 0.0) -> Outlook | None:
        """What to tell a router with an answer; ``None`` where no other one has lately sent anything.

        Args:
            sender: The router.
            now: Seconds on the replica's monotonic clock.
            behind_others_s: See `Outlook`.
        """
        here = (*self._waiting.values(), *self._running)
        active = {other for other, seen in self._seen.items() if seen.at > now - _ACTIVE_S}
        active.update(ticket.sender for ticket in here)
        active.add(sender)
        if len(active) == 1:
            return None
        busy_s = max(0.0, self._runs_until - now) if self._running else 0.0
        if self._foresight is not None:
            for variant in {ticket.variant for ticket in self._waiting.values()}:
                waiting = [ticket for ticket in self._waiting.values() if ticket.variant == variant]
                bucket = max(ticket.bucket for ticket in waiting)
                busy_s += self._foresight.seconds(sum(ticket.rows for ticket in waiting), bucket, variant)
        rows = {other: self._seen[other].lately(now) for other in active if other in self._seen}
        total = max(1.0, sum(rows.values()))
        small = _SMALL / len(active)
        parts = [part / total for other, part in rows.items() if other != sender and part < small * total]
        share = (1.0 - sum(parts)) / (len(active) - len(parts))
        own = sum(ticket.sender == sender for ticket in here)
        return Outlook(busy_s, own, share, behind_others_s)

    def others_since(self, sender: str, moment: float) -> bool:
        """Whether other routers' rows have run here since."""
        return any(seen.at >= moment for other, seen in self._seen.items() if other != sender)

    def opens_at(self, now: float, max_rows: int) -> float:
        """When the next batch should be granted, seconds; ``now`` or the past: at once.

        Routers learn of a free replica at the same time as of their answers. Those of the last batch get a moment to
        send more, so that several go on sharing batches instead of taking turns with small ones.
        """
        waiting = {ticket.sender for ticket in self._waiting.values()}
        if not waiting or self._last_senders <= waiting or self.rows >= max_rows:
            return now
        return self._freed_at + _LINGER_S

    def add(self, ticket: Ticket) -> None:
        """Let a bundle wait. Raises ValueError when its id waits already."""
        if ticket.id in self._waiting:
            raise ValueError(f"bundle {ticket.id} waits already")
        self._waiting[ticket.id] = ticket

    def remove(self, ticket_id: int) -> bool:
        """Forget a waiting bundle. Returns whether it waited here."""
        return self._waiting.pop(ticket_id, None) is not None

    def upcoming(self, max_rows: int) -> list[int]:
        """Ids of the bundles that `grant` would name, if it were asked now and nothing had expired."""
        return [ticket.id for ticket in self._batch(max_rows)]

    def grant(self, now: float, max_rows: int) -> Grant:
        """Form the next batch; what it names has left the gate, and runs until `ended`.

        The most urgent bundle goes, and behind it every further one, in order, whose rows still fit. A bundle of more
        than ``max_rows`` rows goes alone, when it is the most urgent.

        Args:
            now: Seconds on the replica's monotonic clock.
            max_rows: Most rows in a batch.
        """
        expired = [
            ticket.id
            for ticket in self._waiting.values()
            if (ticket.deadline if ticket.expires is None else ticket.expires) <= now
        ]
        for ticket_id in expired:
            del self._waiting[ticket_id]
        granted = self._batch(max_rows)
        rows = sum(ticket.rows for ticket in granted)
        bucket = max((ticket.bucket for ticket in granted), default=0)
        for ticket in granted:
            del self._waiting[ticket.id]
            self._seen.setdefault(ticket.sender, _Seen()).add(ticket.rows, now)
        if granted:
            self._running = granted
            self._runs_until = now
        return Grant([ticket.id for ticket in granted], expired, rows, bucket)

    def _batch(self, max_rows: int) -> list[Ticket]:
        """The most urgent bundle, and behind it every further one, in order, whose rows still fit; one alone if so."""
        batch: list[Ticket] = []
        rows = 0
        for ticket in sorted(self._waiting.values(), key=_urgency):
            if batch and (ticket.alone or rows + ticket.rows > max_rows):
                continue
            batch.append(ticket)
            rows += ticket.rows
            if ticket.alone or rows >= max_rows:
                break
        return batch

    def begun(self, predicted_s: float, now: float) -> None:
        """A run of what was granted begins, and is predicted to take so long."""
        self._runs_until = now + predicted_s

    def ended(self, now: float) -> None:
        """What was granted last runs no more."""
        self._last_senders = {ticket.sender for ticket in self._running}
        for sender in self._last_senders:
            self._seen.setdefault(sender, _Seen()).add(0, now)
        self._running = []
        self._freed_at = now
        if len(self._seen) > len(self._last_senders):
            self._seen = {sender: seen for sender, seen in self._seen.items() if seen.at > now - _REMEMBERED_S}


class _Seen:
    """Of one router: when anything of it last ran, and its rows, those of long ago counting little."""

    __slots__ = ("_rows", "at")

    def __init__(self) -> None:
        self.at = -inf
        self._rows = 0.0

    def lately(self, now: float) -> float:
        return self._rows * exp((self.at - now) / _ACTIVE_S) if self._rows else 0.0

    def add(self, rows: int, now: float) -> None:
        self._rows = self.lately(now) + rows
        self.at = now


def _urgency(ticket: Ticket) -> tuple[int, float, int]:
    return ticket.priority, ticket.deadline, ticket.id
