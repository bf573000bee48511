"""Guaranteed shares: a lower class is never starved by a saturating higher one.

Classes are near-strict: the most urgent class with work goes first. But every class earns credit, ``min_share`` of the
predicted server time of each bundle that is dispatched while it has work waiting. Once the credit covers the cost of
its head, the class is the first to use the room that a more urgent class leaves in its bundle, which costs the more
urgent one nothing. Without room, its credit grows until it is worth a full batch; then the class goes first and pays
for its part of the bundle (`Gate.next`). It may go into debt, since the entries after the head can be larger than the
head: over time it gets its share of server time, not more. Its regular turns, and rows in another class's bundle, are
service too. They count for up to two seconds of its share in advance: a class that is served well anyway does not go
first on top of that, and is not starved for long afterwards.

While predictions are 0.0 (the latency is unknown), every bundle counts the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from serve_app.domain.priority import Priority
from serve_app.scheduling.entry import Entry

_UNKNOWN_COST_S = 1e-6
_REMEMBERED_S = 2.0


class Shares:
    """The credits of one model's classes.

    Args:
        min_share: Per class, each 0 to 1.

    Attributes:
        credit_s: Predicted server seconds that each class has earned and not used. Negative is debt.
    """

    __slots__ = ("_min_share", "credit_s")

    def __init__(self, min_share: Mapping[Priority, float]) -> None:
        self._min_share = dict(min_share)
        self.credit_s = dict.fromkeys(self._min_share, 0.0)

    def covers(self, priority: Priority, cost_s: float) -> bool:
        """Whether the class's credit covers a predicted cost."""
        return self._min_share[priority] > 0.0 and self.credit_s[priority] >= max(cost_s, _UNKNOWN_COST_S)

    def held_back(self, priority: Priority, seconds: float) -> None:
        """Record that a class's work was held back while the device could have run it: that earns its share, too."""
        self.credit_s[priority] += self._min_share[priority] * seconds

    def dispatched(
        self,
        cost_s: float,
        waiting: Sequence[Priority],
        chosen: Priority,
        fill_parts: Iterable[tuple[Priority, float]] = (),
        *,
        on_credit: bool,
    ) -> None:
        """Charge one bundle.

        Args:
            cost_s: Predicted server time of the bundle.
            waiting: Classes that had dispatchable work when it was formed.
            chosen: The class that heads the bundle.
            fill_parts: Other classes in the bundle with their fractions of its rows, 0 to 1.
            on_credit: Whether its class went first on credit, and not because it was the most urgent.
        """
        cost_s = max(cost_s, _UNKNOWN_COST_S)
        credit = self.credit_s
        for priority in waiting:
            credit[priority] += self._min_share[priority] * cost_s
        own = 1.0
        for priority, part in fill_parts:
            own -= part
            self._served(priority, cost_s * part)
        if on_credit:
            credit[chosen] -= cost_s * own
        elif self._min_share[chosen]:  # of a class without one there is nothing to count
            self._served(chosen, cost_s * own)

    def _served(self, priority: Priority, seconds: float) -> None:
        """Charge a class that did not go first on credit."""
        credit = self.credit_s[priority]
        least = -_REMEMBERED_S * self._min_share[priority]
        if credit > least:
            self.credit_s[priority] = max(least, credit - seconds)


def fill_parts_of(entries: Iterable[Entry], rows: int, chosen: Priority) -> list[tuple[Priority, float]]:
    """The classes other than ``chosen`` in a batch of so many rows, with their fractions, 0 to 1."""
    riding: dict[Priority, int] = {}
    for entry in entries:
        if entry.priority is not chosen:
            riding[entry.priority] = riding.get(entry.priority, 0) + entry.rows
    return [(priority, part / rows) for priority, part in riding.items()]
