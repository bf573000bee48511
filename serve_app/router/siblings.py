"""The other routers of an application, as each tells about itself every second.

A router that is alone hardly tells: one that starts tells first, and whoever hears it answers in kind.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

_FRESH_S: Final = 5.0
"""A router that has told nothing for this long is gone."""
_ANNOUNCED: Final = 3
"""How often a router tells about itself before it knows whether it is alone."""
_EVERY: Final = 10
"""Every so many seconds it tells in any case: others may not have been listed, or have stood still."""
_BUSY: Final = 0.5
"""A router below this has no need to give anything away."""
_MARGIN: Final = 0.15


class _Heard(NamedTuple):
    node: str
    busy: float
    at: float


class Siblings:
    """What one router knows of the others.

    Args:
        fewest: How many routers there are at least, this one included, whether they are heard or not.
        node: Of this router. Routers of one node share its ports.
    """

    def __init__(self, fewest: int, node: str) -> None:
        self._fewest = fewest
        self._node = node
        self._heard: dict[str, _Heard] = {}
        self._told = 0

    def hear(self, name: str, node: str, busy: float, now: float) -> None:
        """Take what another router tells about itself.

        Args:
            name: Of it.
            node: Its node.
            busy: Part of the time for which it computes, 0 to 1.
            now: Seconds.
        """
        self._heard[name] = _Heard(node, busy, now)

    def number(self, now: float) -> int:
        """How many routers there are, this one included."""
        return max(self._fewest, 1 + len(self._others(now)))

    def tells(self, now: float) -> bool:
        """Whether this router is to tell about itself now; called every second."""
        self._told += 1
        return self._told <= _ANNOUNCED or self._told % _EVERY == 0 or self.number(now) > 1

    def excess(self, busy: float, now: float) -> float:
        """Part of this router's connections that its node's other routers should have, 0 to 1.

        The kernel spreads new connections evenly, and those of a client stay where they are. So a router that is
        clearly busier than the mean of its node lets some go, until the clients' load is spread as well.

        Args:
            busy: Part of the time for which this router computes, 0 to 1.
            now: Seconds.
        """
        others = [heard.busy for heard in self._others(now) if heard.node == self._node]
        mean = (busy + sum(others)) / (1 + len(others))
        return (busy - mean) / busy if busy > _BUSY and busy - mean > _MARGIN else 0.0

    def _others(self, now: float) -> Collection[_Heard]:
        """Forget the other routers that are gone. Returns what the others told last."""
        self._heard = {name: heard for name, heard in self._heard.items() if now - heard.at <= _FRESH_S}
        return self._heard.values()
