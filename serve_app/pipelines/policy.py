"""How much of a request's deadline each step of a pipeline gets: equal flexibility, with some lenience.

A step that starts with ``left`` seconds until the deadline of the whole has as its share

    left * e(step) / (e(step) + e of the most expensive way from there to the end)

where ``e`` is what a step is expected to take: its own cost, as the scheduler predicts it, and its wait, as it was
measured of this step and class, smoothed. So every step has the same part of its expected time to spare (EQF, Kao and
Garcia-Molina 1997). What one step does not use is left for those behind it. The last step gets all that is left.

Why: with the whole deadline, a first step waits behind requests that have less time, though it has others behind it;
with what is left after the costs of later steps, it gets all the slack, and the last step none.

A request whose steps take longer than its deadline even if nothing else is ahead of them is refused before the first
one. As at the admission to a model, some pass as probes, since what steps are predicted to take is learned from
executions only.

A step is dropped at its deadline, also where the whole could still be in time: bursts are longer than their mean tells.
So it gets, beyond its share, a part of what it could have at most without what must follow being late.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from serve_app.domain.priority import Priority
from serve_app.scheduling.queueing.probes import Probes

_LENIENCE: Final = 0.3
"""Part of the time beyond a step's share, up to where what follows would be late, that it gets as well."""
_WEIGHT: Final = 0.1
"""Of the newest measurement in a smoothed wait."""


class TimeBudget(NamedTuple):
    """What the steps of one request may take.

    Attributes:
        expected_s: What each step is expected to take, its wait included, seconds.
        rest_s: The same of each step and the most expensive way from it to the end.
        own_s: What each step costs on an idle server.
        behind_s: What must follow each step costs at least, on an idle server.
        least_s: What the whole request costs at least, on an idle server.
        most_s: What its most expensive way costs, on an idle server, whatever its switches choose.
    """

    expected_s: Mapping[str, float]
    rest_s: Mapping[str, float]
    own_s: Mapping[str, float]
    behind_s: Mapping[str, float]
    least_s: float
    most_s: float

    def share_s(self, step: str, left_s: float) -> float:
        """A step's share of what is left, seconds, and not less than it costs; all where nothing is known of any cost.

        Args:
            step: Its name.
            left_s: Until the deadline of the whole, seconds.
        """
        rest_s = self.rest_s[step]
        return left_s if rest_s <= 0.0 else max(left_s * self.expected_s[step] / rest_s, self.own_s[step])

    def timeout_s(self, step: str, left_s: float) -> float:
        """Seconds that a step which starts now may take; not more than 0 where what follows cannot be in time.

        Args:
            step: Its name.
            left_s: Until the deadline of the whole, seconds.
        """
        share_s, latest_s = self.share_s(step, left_s), left_s - self.behind_s[step]
        return min(latest_s, share_s + _LENIENCE * max(0.0, latest_s - share_s))


class Course:
    """The steps of one pipeline: their order, and how long they wait.

    Args:
        followers: By step, what may start after it and because of it; without a circle.
        certain: The steps that every request runs.
    """

    def __init__(self, followers: Mapping[str, Sequence[str]], certain: Collection[str]) -> None:
        self._followers = followers
        self._backwards = _last_first(followers)
        self._certain = frozenset(certain)
        self._waits: dict[tuple[str, Priority], float] = {}
        self._probes = Probes()
        self._unpriced = self.budget({}, Priority.NORMAL)

    def budget(
        self, own_s: Mapping[str, float], priority: Priority, certain_s: Mapping[str, float] | None = None
    ) -> TimeBudget:
        """What the steps of a request may take.

        Args:
            own_s: What steps cost on an idle server, seconds; steps that are missing cost nothing.
            certain_s: What they cost at least, where that is not ``own_s``.
        """
        certain_s = own_s if certain_s is None else certain_s
        own: dict[str, float] = {}
        expected: dict[str, float] = {}
        rest: dict[str, float] = {}
        behind: dict[str, float] = {}
        least: dict[str, float] = {}
        longest: dict[str, float] = {}
        least_s = 0.0
        for step in self._backwards:
            own[step] = own_s.get(step, 0.0)
            expected[step] = own[step] + self._waits.get((step, priority), 0.0)
            following = self._followers[step]
            rest[step] = expected[step] + max([rest[each] for each in following], default=0.0)
            longest[step] = own[step] + max([longest[each] for each in following], default=0.0)
            behind[step] = max([least[each] + behind[each] for each in following if each in self._certain], default=0.0)
            least[step] = certain_s.get(step, 0.0)
            if step in self._certain:
                least_s = max(least_s, least[step] + behind[step])
        return TimeBudget(expected, rest, own, behind, least_s, max(longest.values(), default=0.0))

    def admit(self, budget: TimeBudget, left_s: float, now: float) -> TimeBudget | None:
        """What the steps of a request may take that has so long; ``None``: it is refused, as it would be late.

        Of those that would be, every tenth, or one per second, passes as a probe: each of its steps may take all that
        is left, and the admission to its model says whether it runs.

        Args:
            budget: As predicted.
            left_s: Until the deadline of the whole, seconds.
            now: Seconds on the router's monotonic clock.
        """
        if left_s >= budget.least_s:
            return budget
        return self._unpriced if left_s > 0.0 and self._probes.allow(now) else None

    def measured(self, step: str, priority: Priority, own_s: float, took_s: float) -> None:
        """Learn how long a step took.

        Args:
            step: Its name.
            own_s: What it cost by itself, seconds.
            took_s: From its submission to its answer, seconds.
        """
        wait_s, key = max(0.0, took_s - own_s), (step, priority)
        before = self._waits.get(key)
        self._waits[key] = wait_s if before is None else before + _WEIGHT * (wait_s - before)

    def wait_s(self, step: str, priority: Priority) -> float:
        """The smoothed wait of a step in a class, seconds; 0.0 where none was measured."""
        return self._waits.get((step, priority), 0.0)


def _last_first(followers: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """The steps, each after all that follow it."""
    ordered: dict[str, None] = {}

    def visit(step: str) -> None:
        if step not in ordered:
            for each in followers[step]:
                visit(each)
            ordered[step] = None

    for step in followers:
        visit(step)
    return tuple(ordered)
