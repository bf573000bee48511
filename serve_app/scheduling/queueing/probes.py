"""Probes: entries that pass although they are predicted to be late, so that wrong predictions are measured again."""

from __future__ import annotations

_PROBE_EVERY = 10
_PROBE_INTERVAL_S = 1.0


class Probes:
    """Lets one in ten, or one per second, of what would be refused pass."""

    __slots__ = ("_last", "_refused")

    def __init__(self) -> None:
        self._refused = 0
        self._last: float | None = None

    def allow(self, now: float) -> bool:
        """Whether this one may pass."""
        if self._last is None or self._refused >= _PROBE_EVERY - 1 or now - self._last >= _PROBE_INTERVAL_S:
            self._last = now
            self._refused = 0
            return True
        self._refused += 1
        return False
