"""Time of a bundle besides its predicted execution, and by how much timers are late."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from math import inf

from serve_app.scheduling.batching.arrivals import ArrivalPattern

_WINDOW = 32
_QUANTILE = 0.9
_MEMORY_S = 10.0
_SILENT_S = 0.25
_FEW = 4
_PARTS = 8


class QuantileWindow:
    """The last ``size`` numbers, and the same in order. None of them may be NaN."""

    __slots__ = ("_latest", "_ranked")

    def __init__(self, size: int) -> None:
        self._latest: deque[float] = deque(maxlen=size)
        self._ranked: list[float] = []

    def add(self, number: float) -> list[float]:
        """Add a number in place of the oldest if it is full. Returns all, ascending, not to be kept."""
        latest, ranked = self._latest, self._ranked
        if len(latest) == latest.maxlen:
            del ranked[bisect_left(ranked, latest[0])]
        latest.append(number)
        insort(ranked, number)
        return ranked


class Overhead:
    """Time on top of executions, as a quantile of recent values.

    Args:
        assumed_s: Used until a few bundles were seen. The result is never less than a tenth of it.
        quantile: Of the last 32, 0 to 1: a high one for promises, the median for the usual value.

    Attributes:
        seconds: That quantile.
    """

    __slots__ = ("_least_s", "_quantile", "_window", "seconds")

    def __init__(self, assumed_s: float, quantile: float = _QUANTILE) -> None:
        self.seconds = assumed_s
        self._quantile = quantile
        self._least_s = 0.1 * assumed_s
        self._window = QuantileWindow(_WINDOW)

    def observe(self, seconds: float) -> None:
        """Record one bundle. A negative time, of a replica that was free earlier than predicted, counts as 0."""
        ranked = self._window.add(max(0.0, seconds))
        if len(ranked) >= _FEW:
            self.seconds = max(self._least_s, ranked[int(self._quantile * (len(ranked) - 1))])


class RoundTrip:
    """Time of one model's bundles besides waiting at the gate and their execution.

    That is transport, preprocessing and splitting, and delays of busy event loops. So it predicts when an answer
    arrives; its minimum is the work by itself. It is valid as long as bundles come back: if it alone kept bundles from
    being sent, its fall would never be seen.

    Args:
        assumed_s: Used until a few bundles were seen.

    Attributes:
        alone_s: The minimum of the last 10 to 20 seconds.
    """

    __slots__ = ("_before_s", "_least_s", "_observed_at", "_since", "_usual", "alone_s")

    def __init__(self, assumed_s: float) -> None:
        self._usual = Overhead(assumed_s)
        self.alone_s = assumed_s
        self._before_s = self._least_s = inf  # in the 10 seconds before, and since
        self._since = self._observed_at = -inf

    @property
    def seconds(self) -> float:
        """The 0.9 quantile of the last bundles."""
        return self._usual.seconds

    def at(self, now: float) -> float:
        """The expected value: ``seconds``, or ``alone_s`` if no bundle has come back for a while."""
        usual_s = self._usual.seconds
        return usual_s if now - self._observed_at <= _SILENT_S + 2.0 * usual_s else min(usual_s, self.alone_s)

    def observe(self, seconds: float, now: float) -> None:
        """Record one bundle: its time from sending to answer, less its wait at the gate and its execution."""
        self._usual.observe(seconds)
        self._observed_at = now
        if now - self._since > _MEMORY_S:
            self._before_s, self._least_s, self._since = self._least_s, inf, now
        self._least_s = min(self._least_s, max(0.0, seconds))
        self.alone_s = min(self._before_s, self._least_s, self._usual.seconds)


class TimerLateness:
    """By how much a timer is late: the last 32 times.

    A lateness that leaves no time to wait would not be measured again, so after 10 s without a timer the assumed one
    counts.

    Args:
        assumed_s: Used until a few timers were seen.

    Attributes:
        due: When the timer ends that is set, seconds; ``inf``: none is.
    """

    __slots__ = ("_assumed_s", "_observed_at", "_quantiles", "_window", "due")

    def __init__(self, assumed_s: float) -> None:
        self.due = inf
        self._assumed_s = assumed_s
        self._window = QuantileWindow(_WINDOW)
        self._quantiles: list[tuple[float, float]] = []
        self._observed_at = -inf

    def margin_s(self, now: float, arrivals: ArrivalPattern) -> float:
        """How much earlier than a deadline requires a timer should be due, seconds.

        An earlier timer misses more rows, a later one makes more heads late: their expected sum is the least.
        """
        if not self._quantiles or now - self._observed_at > _MEMORY_S:
            return self._assumed_s
        quantiles = self._quantiles
        longest_s = quantiles[-1][1]
        rate = arrivals.probability_within(now, longest_s) / longest_s if longest_s > 0.0 else 0.0
        return min([(late + rate * margin_s, margin_s) for late, margin_s in quantiles])[1]

    def woken(self, now: float) -> None:
        """Unset the timer, and record its lateness if it was due."""
        if self.due <= now:
            ranked = self._window.add(now - self.due)
            self._observed_at, last = now, len(ranked) - 1
            if last + 1 >= _FEW:
                self._quantiles = [(1.0 - part / _PARTS, ranked[last * part // _PARTS]) for part in range(_PARTS + 1)]
        self.due = inf
