"""The instances of a replica: each runs one batch at a time, on the session that all share."""

from __future__ import annotations

from math import inf


class Instance:
    """One of them.

    Attributes:
        granted_at: When its last batch began, seconds.
        executed_s: How long that has executed so far, seconds.
        run_s: How long it was predicted to take.
        runs_until: When it is predicted to end; ``-inf``: it has ended.
        backlogged: Whether something waited when it had ended, and was not held back since.
    """

    __slots__ = ("backlogged", "executed_s", "granted_at", "run_s", "runs_until")

    def __init__(self) -> None:
        self.granted_at = 0.0
        self.executed_s = 0.0
        self.run_s = 0.0
        self.runs_until = -inf
        self.backlogged = False

    def begin(self, predicted_s: float, now: float) -> None:
        """A batch begins."""
        self.granted_at = now
        self.executed_s = 0.0
        self.run_s = predicted_s
        self.runs_until = now + predicted_s


class Instances:
    """All instances of one replica.

    Args:
        count: How many, at least 1.
    """

    __slots__ = ("_all",)

    def __init__(self, count: int) -> None:
        self._all = [Instance() for _ in range(count)]

    def __getitem__(self, instance: int) -> Instance:
        return self._all[instance]

    def free(self, now: float) -> int:
        """How many run nothing, or what should have ended by now."""
        return sum([each.runs_until <= now for each in self._all])

    def first_free(self, now: float) -> tuple[float, float]:
        """Seconds until one of them is free, 0.0: one is; and how long its batch takes in all."""
        first = min(self._all, key=_runs_until) if len(self._all) > 1 else self._all[0]
        return max(0.0, first.runs_until - now), first.run_s

    def runs_s(self, now: float) -> float:
        """Seconds until one is free again, where something waits: what is about to run takes as long as the last."""
        left_s, run_s = self.first_free(now)
        if left_s > 0.0 or len(self._all) == 1:
            return left_s or run_s
        others = sorted([each.runs_until for each in self._all])[1]
        return min(run_s, max(0.0, others - now))

    def backlog_s(self, now: float, waiting_s: float) -> float:
        """Seconds until all is done that runs, and what waits: that would take one of them so long."""
        left_s = [max(0.0, each.runs_until - now) for each in self._all]
        return max(*left_s, (sum(left_s) + waiting_s) / len(left_s))


def _runs_until(instance: Instance) -> float:
    return instance.runs_until
