"""The table of ties of all simulated routers; see `serve_app.transport.ties`."""

from __future__ import annotations

from itertools import count


class SimulatedTies:
    """A table without end: both sides of it, `serve_app.scheduling.core.Places` and `serve_app.payloads.Ties`."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._taken: set[int] = set()

    def place(self) -> int:
        """A place for what waits."""
        return next(self._numbers)

    def free(self, place: int) -> None:
        """Nobody has what was at a place any more."""
        self._taken.discard(place)

    def taken(self, place: int) -> bool:
        """Whether a replica has taken what is at a place."""
        return place in self._taken

    def take(self, place: int) -> bool:
        """Take what is at a place. Returns whether nobody had."""
        if place in self._taken:
            return False
        self._taken.add(place)
        return True
