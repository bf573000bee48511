"""The instances of a replica: each runs one batch at a time, on the session that all share."""

from __future__ import annotations

from math import inf


class Instance:
    """One of them.

    Attributes:
        granted_at: When its last batch began, seconds.
        executed_s: How long that has executed so far.
        run_s: How long it was predicted to take.
        runs_until: When it is predicted to end; ``-inf``: it has ended.
        backlogged: Whether something waited when it had ended, and was not held back since.
    """

    __slots__ = ("backlogged", "executed_s", "granted_at", "run_s", "runs_until")

    def __init__(self) -> None:
        self.granted_at = self.executed_s = self.run_s = 0.0
        self.runs_until = -inf
        self.backlogged = False


class Instances(list[Instance]):
    """All instances of one replica, by number; at least one."""

    __slots__ = ()

    def free(self, now: float) -> int:
        """How many run nothing, or what should have ended by now."""
        return sum([each.runs_until <= now for each in self])

    def first_free(self, now: float) -> tuple[float, float]:
        """Seconds until one of them is free, 0.0: one is; and how long its batch takes in all."""
        first = min(self, key=_runs_until) if len(self) > 1 else self[0]
        return max(0.0, first.runs_until - now), first.run_s

    def runs_s(self, now: float) -> float:
        """Seconds until one is free again, where something waits: what is about to run takes as long as the last."""
        left_s, run_s = self.first_free(now)
        if left_s > 0.0 or len(self) == 1:
            return left_s or run_s
        return min(run_s, max(0.0, sorted(map(_runs_until, self))[1] - now))

    def backlog_s(self, now: float, waiting_s: float) -> float:
        """Seconds until all is done that runs, and what waits: that would take one of them so long."""
        left_s = [max(0.0, each.runs_until - now) for each in self]
        return max(*left_s, (sum(left_s) + waiting_s) / len(left_s))


def _runs_until(instance: Instance) -> float:
    return instance.runs_until
