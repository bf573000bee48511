"""The instances of a replica: each runs one batch at a time, on a shared session."""

from __future__ import annotations

from math import inf


class Instance:
    """One instance.

    Attributes:
        granted_at: Start of its last batch, seconds.
        executed_s: Execution time of that batch so far.
        run_s: Its predicted execution time.
        runs_until: Its predicted end; ``-inf``: it has ended.
        backlogged: Whether entries waited at its end and were not held back since.
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
        """Number of instances that run nothing, or a batch that should have ended."""
        return sum([each.runs_until <= now for each in self])

    def first_free(self, now: float) -> tuple[float, float]:
        """Seconds until an instance is free (0.0: one is), and the predicted time of its whole batch."""
        first = min(self, key=_runs_until) if len(self) > 1 else self[0]
        return max(0.0, first.runs_until - now), first.run_s

    def runs_s(self, now: float) -> float:
        """Seconds until an instance is free again if entries wait; a run about to start counts as long as the last."""
        left_s, run_s = self.first_free(now)
        if left_s > 0.0 or len(self) == 1:
            return left_s or run_s
        return min(run_s, max(0.0, sorted(map(_runs_until, self))[1] - now))

    def backlog_s(self, now: float, waiting_s: float) -> float:
        """Seconds until everything is done; ``waiting_s`` is the time of one instance for the waiting rows."""
        left_s = [max(0.0, each.runs_until - now) for each in self]
        return max(*left_s, (sum(left_s) + waiting_s) / len(left_s))


def _runs_until(instance: Instance) -> float:
    return instance.runs_until
