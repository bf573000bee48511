"""What messages and pauses take: drawn around the medians of a scenario's overheads, by seed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from serve_app_simulator.scenario import Overheads

_CHUNK = 1024


class SampledDelays:
    """Times that scatter around a median.

    Args:
        median_s: Seconds; 0 stays 0.
        scatter: Sigma of their lognormal distribution; 0: all are the median.
        seed: Of this sequence.
    """

    __slots__ = ("_drawn", "_median_s", "_rng", "_scatter")

    def __init__(self, median_s: float, scatter: float, seed: Sequence[int]) -> None:
        self._median_s = median_s
        self._scatter = scatter if median_s > 0.0 else 0.0
        self._rng = np.random.default_rng(seed) if self._scatter > 0.0 else None
        self._drawn: list[float] = []

    def __call__(self) -> float:
        """The next one, seconds."""
        if self._rng is None:
            return self._median_s
        if not self._drawn:
            self._drawn = (self._median_s * self._rng.lognormal(0.0, self._scatter, _CHUNK))[::-1].tolist()
        return self._drawn.pop()


def request_delays(overheads: Overheads, seed: int) -> SampledDelays:
    """The ways of requests to the system, in the order of their arrivals: the same for every system."""
    return SampledDelays(overheads.request_s, overheads.scatter, (seed, 0, 7))
