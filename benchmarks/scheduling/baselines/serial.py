"""The processor of another server's router, which takes requests in the order of their arrival."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from serve_app_simulator.system import World


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
