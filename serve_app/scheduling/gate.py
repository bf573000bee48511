"""The replica's gate: bundles of several routers wait here, and one batch is granted when the session is free."""

from __future__ import annotations

from typing import NamedTuple


class Ticket(NamedTuple):
    """A bundle that waits for the session.

    Attributes:
        id: Unique among the waiting.
        priority: The most urgent class in the bundle; a lower number is more urgent.
        deadline: Earliest deadline in the bundle, seconds on the replica's monotonic clock. Orders the waiting.
        rows: Rows of the bundle.
        bucket: Largest cost bucket in it.
        expires: Latest deadline in the bundle: after it nobody wants any of the answers. ``None``: as ``deadline``.
    """

    id: int
    priority: int
    deadline: float
    rows: int
    bucket: int = 0
    expires: float | None = None


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


class Gate:
    """Orders waiting bundles by class and then by deadline, and grants one batch at a time.

    It holds what the routers' windows let through: a few bundles per router, so sorting at every grant is cheap and
    its size needs no bound of its own.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, Ticket] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def rows(self) -> int:
        """Rows that wait."""
        return sum(ticket.rows for ticket in self._waiting.values())

    def add(self, ticket: Ticket) -> None:
        """Let a bundle wait. Raises ValueError when its id waits already."""
        if ticket.id in self._waiting:
            raise ValueError(f"bundle {ticket.id} waits already")
        self._waiting[ticket.id] = ticket

    def remove(self, ticket_id: int) -> bool:
        """Forget a waiting bundle. Returns whether it waited here."""
        return self._waiting.pop(ticket_id, None) is not None

    def grant(self, now: float, max_rows: int) -> Grant:
        """Form the next batch; what it names has left the gate.

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
        granted: list[int] = []
        rows = bucket = 0
        for ticket in sorted(self._waiting.values(), key=_urgency):
            if granted and rows + ticket.rows > max_rows:
                continue
            granted.append(ticket.id)
            rows += ticket.rows
            bucket = max(bucket, ticket.bucket)
            if rows >= max_rows:
                break
        for ticket_id in granted:
            del self._waiting[ticket_id]
        return Grant(granted, expired, rows, bucket)


def _urgency(ticket: Ticket) -> tuple[int, float, int]:
    return ticket.priority, ticket.deadline, ticket.id
