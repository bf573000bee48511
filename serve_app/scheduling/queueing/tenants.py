"""Fairness inside a class: whose entries go first, by the server time that each tenant has had.

Every tenant of a class has a counter of the predicted server time it was given, divided by its weight. Those within a
batch of the least served one that waits share a batch by deadline, as if they were one. The others fill it up, the
least served first: so a flooding tenant gets only what the others leave.

The *level* is the counter of the least served tenant that still had entries queued when a batch was composed. A tenant
that comes back is lifted to a few batches below it. So idle time is not saved up, and a tenant that stays under its
part goes before those that take more, bursts of a few batches included.

Sources: start-time fair queueing (Goyal et al., SIGCOMM 1996) for the level, with the credit of idle tenants bounded as
in deficit round robin (Shreedhar and Varghese, SIGCOMM 1995); counters of service per tenant as in VTC (Sheng et al.,
OSDI 2024).
"""

from __future__ import annotations

from math import inf
from typing import Final

CREDIT_BATCHES: Final = 4.0
"""How far below the level a tenant that comes back begins, in batches."""
_EVEN_BATCHES: Final = 1.0
"""Tenants that are no more than this apart, in batches, are served alike."""
_RECENT: Final = 0.05
_UNKNOWN_COST_S: Final = 1e-6
_REMEMBERED: Final = 256


class TenantUsage:
    """What the tenants of one class had of one session or device.

    Attributes:
        level_s: Weighted server seconds of the least served tenant that wants more than it gets; never falls.
        batch_s: What a batch lately took at most, seconds.
    """

    __slots__ = ("_had_s", "batch_s", "level_s")

    def __init__(self) -> None:
        self._had_s: dict[str, float] = {}
        self.level_s = 0.0
        self.batch_s = 0.0

    def of(self, tenant: str, most_weight: float) -> float:
        """The counter of a tenant that waits, weighted server seconds.

        Args:
            most_weight: The largest weight of all that wait.
        """
        return max(self._had_s.get(tenant, -inf), self.level_s - CREDIT_BATCHES * self.batch_s / most_weight)

    def alike_s(self, most_weight: float) -> float:
        """How far counters may be apart while their tenants are served alike."""
        return _EVEN_BATCHES * self.batch_s / most_weight

    def is_forgotten(self, tenant: str) -> bool:
        """Whether a tenant that comes back begins like one that was never there."""
        return self._had_s.get(tenant, -inf) <= self.level_s - CREDIT_BATCHES * self.batch_s

    def batch(self, seconds: float) -> None:
        """A batch of this predicted time was composed."""
        self.batch_s = max(seconds, _UNKNOWN_COST_S, self.batch_s + _RECENT * (seconds - self.batch_s))

    def alone(self, seconds: float, weight: float) -> None:
        """The only tenant was given server time: it is the level."""
        self.level_s += max(seconds, _UNKNOWN_COST_S) / weight

    def gave(self, tenant: str, seconds: float, weight: float, most_weight: float) -> None:
        """A tenant was given server time beside others."""
        self._had_s[tenant] = self.of(tenant, most_weight) + max(seconds, _UNKNOWN_COST_S) / weight
        if len(self._had_s) > _REMEMBERED:
            del self._had_s[min(self._had_s, key=self._had_s.__getitem__)]

    def reach(self, level_s: float) -> None:
        """So much the least served had of those that still wait."""
        self.level_s = max(self.level_s, level_s)

    def at_level(self, tenant: str) -> None:
        """A tenant that was alone is no longer."""
        self._had_s[tenant] = max(self._had_s.get(tenant, -inf), self.level_s)
