"""The other routers of an application, as reported by each every second.

A router that is alone seldom reports: one that starts reports first, and the others answer in kind.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

_FRESH_S: Final = 5.0
"""A router without a report for this long is gone, seconds."""
_ANNOUNCED: Final = 3
"""Reports that a router sends before it knows whether it is alone."""
_EVERY: Final = 10
"""Interval of unconditional reports, seconds: others may not have been listed, or have stood still."""
_BUSY: Final = 0.5
"""A router below this load need not give connections away."""
_MARGIN: Final = 0.15


class _Heard(NamedTuple):
    node: str
    busy: float
    at: float


class Siblings:
    """One router's knowledge of the others.

    Args:
        fewest: Least number of routers, this one included, whether they are heard or not.
        node: Of this router. Routers of one node share its ports.
    """

    def __init__(self, fewest: int, node: str) -> None:
        self._fewest = fewest
        self._node = node
        self._heard: dict[str, _Heard] = {}
        self._told = 0

    def hear(self, name: str, node: str, busy: float, now: float) -> None:
        """Record another router's report.

        Args:
            busy: Fraction of the time for which it computes, 0 to 1.
        """
        self._heard[name] = _Heard(node, busy, now)

    def number(self, now: float) -> int:
        """Number of routers, this one included."""
        return max(self._fewest, 1 + len(self._others(now)))

    def tells(self, now: float) -> bool:
        """Whether this router should report now; called every second."""
        self._told += 1
        return self._told <= _ANNOUNCED or self._told % _EVERY == 0 or self.number(now) > 1

    def excess(self, busy: float, now: float) -> float:
        """Fraction of this router's connections that its node's other routers should have, 0 to 1.

        The kernel spreads new connections evenly, and existing ones stay. So a router clearly busier than the mean of
        its node drops some, until the clients' load is spread as well.

        Args:
            busy: Fraction of the time for which this router computes, 0 to 1.
        """
        others = [heard.busy for heard in self._others(now) if heard.node == self._node]
        mean = (busy + sum(others)) / (1 + len(others))
        return (busy - mean) / busy if busy > _BUSY and busy - mean > _MARGIN else 0.0

    def _others(self, now: float) -> Collection[_Heard]:
        """Forget routers that are gone. Returns the last reports of the others."""
        self._heard = {name: heard for name, heard in self._heard.items() if now - heard.at <= _FRESH_S}
        return self._heard.values()
