"""Fairness inside a class: whose entries go first, by the server time that each tenant has had.

Every tenant of a class has a counter of the predicted server time it was given, divided by its weight. Those within a
batch of the least served one that waits share a batch by deadline, as if they were one. The others fill it up, the
least served first: so a flood gets all that nobody else wants, and never what a polite tenant wants.

The *level* is where the least served one is of those that had something left to wait when a batch was composed: of
those that want more than they get. Whoever comes back is lifted to a few batches below it. So nobody saves up time by
wanting none, and who stays under its part goes before those that take more, bursts of a few batches included.

Sources: start-time fair queueing (Goyal et al., SIGCOMM 1996) for the level, with the credit of idle tenants bounded as
in deficit round robin (Shreedhar and Varghese, SIGCOMM 1995); counters of service per tenant as in VTC (Sheng et al.,
OSDI 2024).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from typing import Final

from serve_app.scheduling.arrivals import ArrivalPattern
from serve_app.scheduling.entry import Entry, Priority
from serve_app.scheduling.latency import LatencyModel
from serve_app.scheduling.overhead import Window

OTHER: Final = "other"
"""Stands for all tenants that came when `MOST_NAMED` others had been counted."""
MOST_NAMED: Final = 256

CREDIT_BATCHES: Final = 4.0
"""How far below the level a tenant that comes back begins, in batches."""
_EVEN_BATCHES: Final = 1.0
"""Tenants that are no more than this apart, in batches, are served alike."""
_RECENT: Final = 0.05
_UNKNOWN_COST_S: Final = 1e-6
_REMEMBERED: Final = 256
_SLACKS: Final = 64
_UNLIKELY: Final = 0.02


class Service:
    """What the tenants of one class had of one session or device.

    Attributes:
        level_s: Weighted server seconds of the least served tenant that wants more than it gets; never falls.
        batch_s: What a batch lately took at most, seconds.
    """

    __slots__ = ("_arrivals", "_claimant", "_had_s", "_slack_s", "_slacks", "batch_s", "level_s")

    def __init__(self) -> None:
        self._had_s: dict[str, float] = {}
        # Who came last of those under their part, and what slack such requests have.
        self._claimant: str | None = None
        self._arrivals = ArrivalPattern()
        self._slacks = Window(_SLACKS)
        self._slack_s = inf
        self.level_s = 0.0
        self.batch_s = 0.0

    def of(self, tenant: str, most_weight: float) -> float:
        """The counter of a tenant that waits, weighted server seconds.

        Args:
            tenant: Its name.
            most_weight: The largest weight of all that wait.
        """
        return max(self._had_s.get(tenant, -inf), self.level_s - CREDIT_BATCHES * self.batch_s / most_weight)

    def alike_s(self, most_weight: float) -> float:
        """How far counters may be apart while their tenants are served alike."""
        return _EVEN_BATCHES * self.batch_s / most_weight

    def is_under(self, tenant: str, most_weight: float) -> bool:
        """Whether a tenant has had less than its part: less than those that want more than they get."""
        return self.of(tenant, most_weight) + self.alike_s(most_weight) < self.level_s

    def claims(self, entry: Entry, latency: LatencyModel, max_rows: int, now: float) -> None:
        """A request of a tenant under its part has come.

        Args:
            entry: Its budget, less its execution with what else of such requests comes meanwhile, is its slack.
            latency: Predicts that execution.
            max_rows: Most rows of a batch.
            now: Seconds.
        """
        self._claimant = entry.tenant
        self._arrivals.observe(now)
        budget_s, rows = entry.deadline - now, entry.rows
        slack_s = budget_s - latency.predict(min(rows, max_rows), entry.bucket)
        if slack_s > 0.0:
            coming = min(self._arrivals.rate * slack_s, max_rows)
            slack_s = budget_s - latency.predict(min(rows + int(coming), max_rows), entry.bucket)
        if slack_s > 0.0:
            # In a batch of twice the rows that come meanwhile they are half.
            twice = round(min(2.0 * self._arrivals.rate * slack_s, max_rows))
            helps = latency.predict(max(rows, twice), entry.bucket) <= slack_s
            slacks = self._slacks.add(slack_s if helps else inf)
            self._slack_s = slacks[len(slacks) // 2]

    def bound_s(self, most_weight: float, now: float) -> float:
        """The longest that a batch with rows of tenants over their part may take, seconds; ``inf``: any time.

        As long as one under its part is likely to come meanwhile. While batches are so short that it is not under its
        part any more, the bound does not hold: it would only cost both of them.
        """
        claimant, slack_s = self._claimant, self._slack_s
        if claimant is None or slack_s == inf or not self.is_under(claimant, most_weight):
            return inf
        return slack_s if self._arrivals.probability_within(now, 2.0 * slack_s) >= _UNLIKELY else inf

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


class ServedSeconds:
    """What was executed for whom, of what was answered.

    Attributes:
        seconds: By class and tenant, each request's part of its batch by rows. At most `MOST_NAMED` tenants have a
            name of their own, and the rest are `OTHER`.
    """

    __slots__ = ("_named", "seconds")

    def __init__(self) -> None:
        self._named: set[str] = set()
        self.seconds: dict[tuple[Priority, str], float] = {}

    def add(self, entries: Iterable[Entry], executions: Sequence[tuple[int, int, float, str]]) -> None:
        """Count entries that were answered.

        Args:
            entries: The entries.
            executions: The runs that they were part of; see `Scheduler.on_done`.
        """
        rows = sum([execution[0] for execution in executions])
        if not rows:
            return
        per_row_s = sum([execution[2] for execution in executions]) / rows
        seconds = self.seconds
        for entry in entries:
            key = entry.priority, self._name(entry.tenant)
            seconds[key] = seconds.get(key, 0.0) + per_row_s * entry.rows

    def _name(self, tenant: str) -> str:
        if tenant in self._named:
            return tenant
        if len(self._named) >= MOST_NAMED:
            return OTHER
        self._named.add(tenant)
        return tenant
