"""What messages, pauses and a router's processor take: drawn around the medians of a scenario's overheads, by seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from serve_app.simulation.scenario import Overheads
from serve_app.simulation.system import World

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


class Serial:
    """A processor with an event loop: what has come during a turn is done in the next, and ends together with it.

    As a router's: requests that its loop reads together are decided on together.

    Args:
        world: Whose clock it follows.
        each_s: Seconds per thing; a turn takes as long as all of its things.
    """

    __slots__ = ("_busy", "_each_s", "_next", "_world")

    def __init__(self, world: World, each_s: float) -> None:
        self._world = world
        self._each_s = each_s
        self._next: list[Callable[[], None]] = []
        self._busy = False

    def take(self, action: Callable[[], None]) -> None:
        """Do this when its turn is over; at once where nothing costs time."""
        if self._each_s <= 0.0:
            action()
            return
        self._next.append(action)
        if not self._busy:
            self._turn()

    def _turn(self) -> None:
        actions, self._next = self._next, []
        self._busy = bool(actions)
        if actions:
            self._world.at(self._world.now + self._each_s * len(actions), partial(self._end, actions))

    def _end(self, actions: list[Callable[[], None]]) -> None:
        for action in actions:
            action()
        self._turn()
