"""What predictions of executions do not tell: what comes on top of one, and how early one may end."""

from __future__ import annotations

from collections import deque

_WINDOW = 32
_QUANTILE = 0.9
_FEW = 4
_EARLY_QUANTILE = 0.75


class Overhead:
    """Something that comes on top of executions, as a quantile of what was lately seen.

    E.g. what one model's bundles cost besides their execution (transport, preprocessing, splitting): what a bundle took
    from the moment when its replica was predicted to be free for it, less its execution.

    Args:
        assumed_s: What is assumed until a few bundles were seen, seconds. Never less than a tenth of it is.
        quantile: Which of the last 32 counts, 0 to 1: a high one for what is promised, the median for what is usual.

    Attributes:
        seconds: That quantile of the last 32, seconds.
    """

    __slots__ = ("_least_s", "_quantile", "_samples", "seconds")

    def __init__(self, assumed_s: float, quantile: float = _QUANTILE) -> None:
        self.seconds = assumed_s
        self._quantile = quantile
        self._least_s = 0.1 * assumed_s
        self._samples: deque[float] = deque(maxlen=_WINDOW)

    def observe(self, seconds: float) -> None:
        """Learn from one bundle. Less than nothing, where the replica was free earlier than predicted, counts as 0."""
        self._samples.append(max(0.0, seconds))
        if len(self._samples) >= _FEW:
            ranked = sorted(self._samples)
            self.seconds = max(self._least_s, ranked[int(self._quantile * (len(ranked) - 1))])


class Earliness:
    """How much earlier than predicted executions end. Predictions are high quantiles, so most do.

    Attributes:
        part: The 0.75 quantile of the last 32, as a part of the predicted time, 0 to 1.
    """

    __slots__ = ("_samples", "part")

    def __init__(self) -> None:
        self.part = 0.0
        self._samples: deque[float] = deque(maxlen=_WINDOW)

    def observe(self, ratio: float) -> None:
        """Learn from an execution that took this part of its predicted time."""
        self._samples.append(ratio)
        ranked = sorted(self._samples)
        self.part = max(0.0, 1.0 - ranked[int((1.0 - _EARLY_QUANTILE) * (len(ranked) - 1))])
