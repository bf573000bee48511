"""Limits of a bundle besides the deadlines of its entries."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from serve_app.domain.priority import Priority
from serve_app.scheduling.batching.blocking_limit import urgent_until


class BatchLimits(NamedTuple):
    """Limits of a bundle.

    Attributes:
        begins_at: When execution can begin at the chosen replica, plus the overhead, seconds.
        max_rows: Most rows.
        longest_s: Longest predicted execution with rows of a class below `high`, so that `high` is not blocked too
            long; the head alone may take longer.
        fill_first: The class that fills the bundle up before all others.
        extra_s: Longest execution for rows that can wait, and their largest addition to another; ``inf``: unbounded.
    """

    begins_at: float
    max_rows: int
    longest_s: float = inf
    fill_first: Priority | None = None
    extra_s: float = inf

    def urgent_until(self, priority: Priority) -> float:
        """Latest deadline of entries of a class that are not bounded by ``extra_s``; ``inf``: none is."""
        return urgent_until(priority, self.begins_at) if self.extra_s < inf else inf
