"""Admits connections to a listener, and closes idle ones to make room.

A limit alone would serve the first comers: a flood of idle connections would lock out everything else. So idle ones are
closed first, and new ones always find room:

    1. connections that never had a whole request, the one that has waited longest first
    2. connections that were answered and ask nothing now, the one that has rested longest first

A connection with a request in progress, or with unread answer bytes, is never closed.
"""

from __future__ import annotations

import heapq
from collections import Counter
from typing import Final, Protocol

_BATCH: Final = 64
"""This part of the limit goes at once: looking at all connections is paid for by so many new ones."""
_LOOK_AGAIN_S: Final = 0.1
_EXPLAINED_REFUSALS: Final = 256


class EvictableConnection(Protocol):
    """The limiter's view of a connection."""

    def idle_since(self) -> tuple[bool, float] | None:
        """Whether it was ever answered, and since when it is idle; ``None``: it must stay."""

    def close(self) -> None:
        """Close it."""


class ConnectionLimiter:
    """Counts and bounds a listener's connections.

    Args:
        most: Most connections.
        most_per_client: Most per address; ``None`` for no limit, as behind a proxy, which is one address.

    Attributes:
        open: Open connections, oldest first.
        evicted: Total evictions.
        refused: Total refusals.
    """

    def __init__(self, most: int, most_per_client: int | None = None) -> None:
        self.open: dict[EvictableConnection, None] = {}
        self.evicted = 0
        self.refused = 0
        self._most = most
        self._most_per_client = most_per_client
        self._leaving: set[EvictableConnection] = set()  # closing, but not ended yet
        self._per_client: Counter[str] = Counter()
        self._look_again_at = 0.0

    def enter(self, connection: EvictableConnection, client: str, now: float) -> str | None:
        """Admit or refuse a connection; `leave` must follow in either case.

        Args:
            client: Its address.
            now: Seconds.

        Returns:
            The reason of a refusal, if refused.
        """
        self.open[connection] = None
        reason = None
        if self._most_per_client is not None:
            self._per_client[client] += 1
            if self._per_client[client] > self._most_per_client:
                reason = f"your address has more than {self._most_per_client} connections; close some"
        if reason is None and self._staying > self._most and not self._make_room(connection, now):
            reason = "the server has too many connections; try again, or elsewhere"
        self.refused += reason is not None
        return reason

    def leave(self, connection: EvictableConnection, client: str) -> None:
        """Record the end of a connection."""
        if connection not in self.open:
            return
        del self.open[connection]
        self._leaving.discard(connection)
        if self._most_per_client is not None:
            self._per_client[client] -= 1
            if not self._per_client[client]:
                del self._per_client[client]

    @property
    def over_hard_limit(self) -> bool:
        """Whether connections are too many even for refusals with a reason."""
        return self._staying > self._most + _EXPLAINED_REFUSALS

    @property
    def _staying(self) -> int:
        return len(self.open) - len(self._leaving)

    def _make_room(self, new: EvictableConnection, now: float) -> bool:
        if now < self._look_again_at:
            return False
        resting = [
            (*rest, number, connection)
            for number, connection in enumerate(self.open)
            if connection is not new
            and connection not in self._leaving
            and (rest := connection.idle_since()) is not None
        ]
        if not resting:
            self._look_again_at = now + _LOOK_AGAIN_S
            return False
        leaving = heapq.nsmallest(max(1, self._most // _BATCH), resting)
        for *_, connection in leaving:
            self._leaving.add(connection)
            connection.close()
        self.evicted += len(leaving)
        return True
