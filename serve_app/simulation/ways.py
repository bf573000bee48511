"""What messages, pauses and a router's processor take: drawn around the medians of a scenario's overheads, by seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from serve_app.simulation.scenario import Overheads
from serve_app.simulation.system import World

_CHUNK = 1024


class Drawn:
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


def request_ways(overheads: Overheads, seed: int) -> Drawn:
    """The ways of requests to the system, in the order of their arrivals: the same for every system."""
    return Drawn(overheads.request_s, overheads.scatter, (seed, 0, 7))


class Serial:
    """A processor that does one thing after the other, each as long as the others.

    Args:
        world: Whose clock it follows.
        each_s: Seconds per thing.
    """

    __slots__ = ("_each_s", "_free_at", "_world")

    def __init__(self, world: World, each_s: float) -> None:
        self._world = world
        self._each_s = each_s
        self._free_at = 0.0

    def take(self, action: Callable[[], None]) -> None:
        """Do this when its turn has come and is over."""
        if self._each_s <= 0.0:
            action()
            return
        self._free_at = max(self._world.now, self._free_at) + self._each_s
        self._world.at(self._free_at, action)
