"""Shares a host's session: pool members run one batch at a time, the most urgent waiting class first."""

from __future__ import annotations

from threading import Lock
from typing import Protocol

from serve_app.domain.priority import Priority


class TurnAsker(Protocol):
    """Runs batches of one member."""

    @property
    def urgency(self) -> Priority:
        """The most urgent waiting class. Called from any thread."""

    def turn_has_come(self) -> None:
        """Receive the turn, and leave it if unused. Called from any thread; must not block."""


class Turn:
    """Decides which member may run a batch. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._holder: TurnAsker | None = None
        self._waiting: dict[TurnAsker, None] = {}

    def take(self, asker: TurnAsker) -> bool:
        """Whether it may run a batch now. Otherwise its turn is announced later."""
        with self._lock:
            if self._holder is None:
                self._holder = asker
            if self._holder is asker:
                self._waiting.pop(asker, None)
                return True
            self._waiting[asker] = None
            return False

    def leave(self, asker: TurnAsker) -> None:
        """Pass the turn on, after a batch or without one. Ignored without the turn."""
        with self._lock:
            if self._holder is not asker:
                return
            self._holder = min(self._waiting, key=_urgency) if self._waiting else None
            following = self._holder
            if following is not None:
                del self._waiting[following]
        if following is not None:
            following.turn_has_come()

    def forget(self, asker: TurnAsker) -> None:
        """Remove it for good."""
        with self._lock:
            self._waiting.pop(asker, None)
        self.leave(asker)


def _urgency(asker: TurnAsker) -> Priority:
    return asker.urgency
