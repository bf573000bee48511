"""What messages and pauses take: drawn around the medians of a scenario's overheads, by seed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from serve_app_simulator.scenario import Overheads

_CHUNK = 1024


class SampledDelays:
    """Times around a median: lognormal with sigma ``scatter``, or constant where that or the median is 0."""

    __slots__ = ("_drawn", "_median_s", "_rng", "_scatter")

    def __init__(self, median_s: float, scatter: float, seed: Sequence[int]) -> None:
        self._median_s = median_s
        self._scatter = scatter if median_s > 0.0 else 0.0
        self._rng = np.random.default_rng(seed) if self._scatter > 0.0 else None
        self._drawn: list[float] = []

    def __call__(self) -> float:
        """The next delay, seconds."""
        if self._rng is None:
            return self._median_s
        if not self._drawn:
            self._drawn = (self._median_s * self._rng.lognormal(0.0, self._scatter, _CHUNK))[::-1].tolist()
        return self._drawn.pop()


def request_delays(overheads: Overheads, seed: int) -> SampledDelays:
    """The delays of requests on their way to the system, in order of arrival: the same for every system."""
    return SampledDelays(overheads.request_s, overheads.scatter, (seed, 0, 7))
