"""What predictions of executions do not tell: what comes on top of one."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

_WINDOW = 32
_QUANTILE = 0.9
_LOW_QUANTILE = 0.1
_FEW = 4


class QuantileWindow:
    """The last so many numbers, and the same in order. None of them may be NaN.

    Args:
        size: How many.
    """

    __slots__ = ("_latest", "_ranked")

    def __init__(self, size: int) -> None:
        self._latest: deque[float] = deque(maxlen=size)
        self._ranked: list[float] = []

    def add(self, number: float) -> list[float]:
        """Take a number in, in place of the oldest where there is no room. Returns all, ascending, not to be kept."""
        latest, ranked = self._latest, self._ranked
        if len(latest) == latest.maxlen:
            del ranked[bisect_left(ranked, latest[0])]
        latest.append(number)
        insort(ranked, number)
        return ranked


class Overhead:
    """Something that comes on top of executions, as a quantile of what was lately seen.

    E.g. what one model's bundles cost besides waiting at the gate and their execution (transport, preprocessing,
    splitting): what a bundle took from being sent to its answer, less both.

    Args:
        assumed_s: What is assumed until a few bundles were seen, seconds. Never less than a tenth of it is.
        quantile: Which of the last 32 counts, 0 to 1: a high one for what is promised, the median for what is usual.

    Attributes:
        seconds: That quantile of the last 32, seconds.
        alone_s: Their tenth part from below: what it takes where nothing else is under way. Under load all others wait
            for the event loop, too, which says nothing of the work.
    """

    __slots__ = ("_least_s", "_quantile", "_window", "alone_s", "seconds")

    def __init__(self, assumed_s: float, quantile: float = _QUANTILE) -> None:
        self.seconds = self.alone_s = assumed_s
        self._quantile = quantile
        self._least_s = 0.1 * assumed_s
        self._window = QuantileWindow(_WINDOW)

    def observe(self, seconds: float) -> None:
        """Learn from one bundle. Less than nothing, where the replica was free earlier than predicted, counts as 0."""
        ranked = self._window.add(max(0.0, seconds))
        if len(ranked) >= _FEW:
            last = len(ranked) - 1
            self.seconds = max(self._least_s, ranked[int(self._quantile * last)])
            self.alone_s = max(self._least_s, ranked[int(_LOW_QUANTILE * last)])
