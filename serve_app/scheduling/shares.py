"""Guaranteed shares: why a lower class is never starved by a saturating higher one.

Classes are near-strict: the most urgent class with work goes first. But every class earns credit, ``min_share`` of the
predicted server time of each bundle that is dispatched while it has work waiting; once the credit covers what its
head would cost, it goes first and pays for its bundle. It may go into debt, since the bundle behind the head can be
larger than the head: over time it gets its share of server time ahead of its turn, not more. Rows that ride along in
another class's bundle are paid from credit that is there, never by debt: they cost little, and they are service too.

While predictions are 0.0 (nothing is known of the model), every bundle counts the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from serve_app.scheduling.entry import Priority

_UNKNOWN_COST_S = 1e-6


class Shares:
    """The credits of one model's classes.

    Args:
        min_share: Share per class, each 0 to 1.

    Attributes:
        credit_s: Predicted server seconds that each class may go first for. Negative is debt.
    """

    __slots__ = ("_min_share", "credit_s")

    def __init__(self, min_share: Mapping[Priority, float]) -> None:
        self._min_share = dict(min_share)
        self.credit_s = dict.fromkeys(self._min_share, 0.0)

    def may_go_first(self, priority: Priority, head_cost_s: float) -> bool:
        """Whether the class's credit covers its head's predicted cost."""
        return self._min_share[priority] > 0.0 and self.credit_s[priority] >= max(head_cost_s, _UNKNOWN_COST_S)

    def dispatched(
        self,
        cost_s: float,
        waiting: Sequence[Priority],
        paid_by: Priority | None,
        riders: Iterable[tuple[Priority, float]] = (),
    ) -> None:
        """Account for one bundle.

        Args:
            cost_s: Predicted server time of the bundle.
            waiting: Classes that had dispatchable work when it was formed.
            paid_by: The class that went first on credit; ``None`` when the bundle's class was the most urgent.
            riders: Other classes in the bundle with their parts of its rows, 0 to 1.
        """
        cost_s = max(cost_s, _UNKNOWN_COST_S)
        credit = self.credit_s
        for priority in waiting:
            credit[priority] += self._min_share[priority] * cost_s
        if paid_by is not None:
            credit[paid_by] -= cost_s
        for priority, part in riders:
            if credit[priority] > 0.0:
                credit[priority] = max(0.0, credit[priority] - cost_s * part)
