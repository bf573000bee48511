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
"""A returning tenant begins this many batches below the level."""
_EVEN_BATCHES: Final = 1.0
"""Tenants at most this many batches apart are served alike."""
_RECENT: Final = 0.05
_UNKNOWN_COST_S: Final = 1e-6
_REMEMBERED: Final = 256


class TenantUsage:
    """Server time that the tenants of one class have had on one session or device.

    Attributes:
        level_s: Weighted server seconds of the least served tenant that wants more than it gets; never falls.
        batch_s: Recent peak of batch times.
    """

    __slots__ = ("_had_s", "batch_s", "level_s")

    def __init__(self) -> None:
        self._had_s: dict[str, float] = {}
        self.level_s = 0.0
        self.batch_s = 0.0

    def of(self, tenant: str, most_weight: float) -> float:
        """The counter of a waiting tenant, weighted server seconds.

        Args:
            most_weight: The largest weight of all that wait.
        """
        return max(self._had_s.get(tenant, -inf), self.level_s - CREDIT_BATCHES * self.batch_s / most_weight)

    def alike_s(self, most_weight: float) -> float:
        """Largest difference of counters of tenants that are served alike."""
        return _EVEN_BATCHES * self.batch_s / most_weight

    def is_forgotten(self, tenant: str) -> bool:
        """Whether a returning tenant begins like a new one."""
        return self._had_s.get(tenant, -inf) <= self.level_s - CREDIT_BATCHES * self.batch_s

    def batch(self, seconds: float) -> None:
        """Record a composed batch of this predicted time."""
        self.batch_s = max(seconds, _UNKNOWN_COST_S, self.batch_s + _RECENT * (seconds - self.batch_s))

    def alone(self, seconds: float, weight: float) -> None:
        """Charge the only tenant: it is the level."""
        self.level_s += max(seconds, _UNKNOWN_COST_S) / weight

    def gave(self, tenant: str, seconds: float, weight: float, most_weight: float) -> None:
        """Charge a tenant beside others."""
        self._had_s[tenant] = self.of(tenant, most_weight) + max(seconds, _UNKNOWN_COST_S) / weight
        if len(self._had_s) > _REMEMBERED:
            del self._had_s[min(self._had_s, key=self._had_s.__getitem__)]

    def reach(self, level_s: float) -> None:
        """Raise the level to the counter of the least served tenant that still waits."""
        self.level_s = max(self.level_s, level_s)

    def at_level(self, tenant: str) -> None:
        """Set the counter of a tenant that is no longer the only one."""
        self._had_s[tenant] = max(self._had_s.get(tenant, -inf), self.level_s)
