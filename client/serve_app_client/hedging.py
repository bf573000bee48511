"""Decides when to send a second attempt beside the first. Nothing here waits or sends."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Final

_REMEMBERED: Final = 200


@dataclass(frozen=True, slots=True)
class Percentile:
    """Hedge after the time of this share of the latest calls of the same kind: to one model, or for embeddings.

    Attributes:
        part: Between 0 and 1: with 0.95, one call in twenty is hedged.
        samples: Answered calls before the first hedge.
    """

    part: float
    samples: int = 20

    def __post_init__(self) -> None:
        """Check the values."""
        if not 0.0 < self.part < 1.0:
            raise ValueError("part: expected more than 0 and less than 1")
        if not 1 <= self.samples <= _REMEMBERED:
            raise ValueError(f"samples: expected 1 to {_REMEMBERED}")


class Latencies:
    """Durations of the latest calls, per kind."""

    def __init__(self) -> None:
        self._seconds: dict[str, deque[float]] = {}

    def add(self, kind: str, seconds: float) -> None:
        """Record an answered call."""
        self._seconds.setdefault(kind, deque(maxlen=_REMEMBERED)).append(seconds)

    def hedge_after(self, kind: str, wanted: float | Percentile | None) -> float | None:
        """Seconds until a second attempt, if any."""
        if not isinstance(wanted, Percentile):
            return wanted
        seconds = self._seconds.get(kind, ())
        if len(seconds) < wanted.samples:
            return None
        return sorted(seconds)[math.ceil(wanted.part * len(seconds)) - 1]


def checked_hedge(wanted: float | Percentile | None) -> float | Percentile | None:
    """A valid wait. Raises `ValueError`."""
    if isinstance(wanted, float | int) and not 0.0 <= wanted < math.inf:
        raise ValueError("hedge_after: expected seconds, 0 or more, a Percentile, or None")
    return wanted
