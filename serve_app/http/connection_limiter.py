"""Who is connected, and who makes room when there is none: the policy of a listener with a limit.

A limit alone would serve whoever came first: a flood of connections that ask nothing would lock everybody else out.
Here those that ask nothing go first, so that new ones always find room:

    1. connections that never had a whole request, the one that has waited longest first
    2. connections that were answered and ask nothing now, the one that has rested longest first

A connection with a request in work, or with an answer that was not taken yet, never goes.
"""

from __future__ import annotations

import heapq
from collections import Counter
from typing import Final, Protocol

_BATCH: Final = 64
"""This part of the limit goes at once: looking at all connections is paid for by so many new ones."""
_LOOK_AGAIN_S: Final = 0.1
_TOLD: Final = 256


class Guest(Protocol):
    """What a connection tells."""

    def rest(self) -> tuple[bool, float] | None:
        """Whether it was ever answered, and since when it asks nothing; ``None`` where it must stay."""

    def close(self) -> None:
        """End it."""


class Crowd:
    """All connections of a listener.

    Args:
        most: Most of them.
        most_per_client: Most of one address; ``None`` for no limit, as behind a proxy, which is one address.

    Attributes:
        members: Those that are open, in the order in which they came.
        evicted: How many had to make room, ever.
        refused: How many were turned away, ever.
    """

    def __init__(self, most: int, most_per_client: int | None = None) -> None:
        self.members: dict[Guest, None] = {}
        self.evicted = 0
        self.refused = 0
        self._most = most
        self._most_per_client = most_per_client
        self._leaving: set[Guest] = set()  # they were told, and their end has not come yet
        self._per_client: Counter[str] = Counter()
        self._look_again_at = 0.0

    def enter(self, guest: Guest, client: str, now: float) -> str | None:
        """Let a connection in, which must `leave` whatever this says.

        Args:
            guest: The connection.
            client: The address that it comes from.
            now: Seconds.

        Returns:
            Why it must go; ``None`` where it may stay.
        """
        self.members[guest] = None
        reason = None
        if self._most_per_client is not None:
            self._per_client[client] += 1
            if self._per_client[client] > self._most_per_client:
                reason = f"your address has more than {self._most_per_client} connections; close some"
        if reason is None and self._staying > self._most and not self._make_room(guest, now):
            reason = "the server has too many connections; try again, or elsewhere"
        self.refused += reason is not None
        return reason

    def leave(self, guest: Guest, client: str) -> None:
        """Note that a connection has ended."""
        if guest not in self.members:
            return
        del self.members[guest]
        self._leaving.discard(guest)
        if self._most_per_client is not None:
            self._per_client[client] -= 1
            if not self._per_client[client]:
                del self._per_client[client]

    @property
    def overrun(self) -> bool:
        """Whether so many come that those who are turned away are not even told why."""
        return self._staying > self._most + _TOLD

    @property
    def _staying(self) -> int:
        return len(self.members) - len(self._leaving)

    def _make_room(self, newcomer: Guest, now: float) -> bool:
        if now < self._look_again_at:
            return False
        resting = [
            (*rest, number, guest)
            for number, guest in enumerate(self.members)
            if guest is not newcomer and guest not in self._leaving and (rest := guest.rest()) is not None
        ]
        if not resting:
            self._look_again_at = now + _LOOK_AGAIN_S
            return False
        leaving = heapq.nsmallest(max(1, self._most // _BATCH), resting)
        for *_, guest in leaving:
            self._leaving.add(guest)
            guest.close()
        self.evicted += len(leaving)
        return True
