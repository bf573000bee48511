"""The session of a host: members of a pool run one batch at a time, the most urgent class that waits first."""

from __future__ import annotations

from threading import Lock
from typing import Protocol

from serve_app.scheduling.entry import Priority


class Asker(Protocol):
    """Who runs batches of one member."""

    @property
    def urgency(self) -> Priority:
        """The most urgent class that waits there. Asked from any thread."""

    def turn_has_come(self) -> None:
        """It has the turn now, and is to leave it where it has no use for it. From any thread; it must not block."""


class Turn:
    """Who of several may run a batch now. To be used from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._holder: Asker | None = None
        self._waiting: dict[Asker, None] = {}

    def take(self, asker: Asker) -> bool:
        """Whether it may run a batch now. Otherwise it is told when its turn has come."""
        with self._lock:
            if self._holder is None:
                self._holder = asker
            if self._holder is asker:
                self._waiting.pop(asker, None)
                return True
            self._waiting[asker] = None
            return False

    def leave(self, asker: Asker) -> None:
        """It has run its batch, or has none after all: the next one's turn has come. Ignored if it was not its turn."""
        with self._lock:
            if self._holder is not asker:
                return
            self._holder = min(self._waiting, key=_urgency) if self._waiting else None
            following = self._holder
            if following is not None:
                del self._waiting[following]
        if following is not None:
            following.turn_has_come()

    def forget(self, asker: Asker) -> None:
        """It is gone for good."""
        with self._lock:
            self._waiting.pop(asker, None)
        self.leave(asker)


def _urgency(asker: Asker) -> Priority:
    return asker.urgency
