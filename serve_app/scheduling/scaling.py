"""How many replicas a model should have.

Theory of operation of `ReplicaPolicy`. Routers report what is asked of a model in server-seconds per second
(`serve_app.scheduling.demand`), so one unit of it keeps one replica busy. Four questions follow.

*How much is it now?* The mean of the longest recent window that is one level: older samples join in chunks that double
as long as their mean differs from the window's by less than three standard errors (the idea of ADWIN; Bifet and
Gavalda, SDM 2007). A jump is seen after two samples, and a steady load is known ever better.

*How many replicas hold it?* In heavy traffic the work that waits at n replicas exceeds n * s with probability
exp(-2 (n - r) n s / v), where r is the demand, v its variance per second and s the seconds that work may wait (a
reflected Brownian motion; Harrison, "Brownian Motion and Stochastic Flow Systems", 1985). With a loss of 1% this gives
n = (r + sqrt(r^2 + 2 v ln(100) / s)) / 2: short deadlines and bursts ask for idle time, long deadlines for hardly any.
Classes with shorter deadlines run first, so the largest n over "all classes up to this one" counts.

*How far ahead?* A replica that is asked for now works after its start. A line through the last start time is continued
for another, unless the demand scatters around it as it does around a step. A backlog that can wait for longer than a
start is spread over the rest of its time.

*When to let go?* A number is held for a while. The longer, the more idle replicas; the shorter, the more work is late
while a replica starts again. Of each number, the last gaps after which it was wanted again are kept, and the hold that
would have cost least counts. A gap that is held costs its length. Another costs the hold, a start, and ten times the
work that was late: for as long as the number was wanted, at most a start. Only gaps in which the number fell as deep as
now are compared: noise around a level says nothing about a return after the level fell.

*What comes again?* Gaps that are too long to be held may be regular: work that comes every hour. If a number's last two
periods were alike, its replicas start before the third ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from math import ceil, inf, log, sqrt
from typing import NamedTuple

from serve_app.domain.priority import Priority
from serve_app.scheduling.demand import Demand, add_up

_TOLERANCE = 0.1
_BUSY = 0.8
_IDLE_CORES = 0.25

_LOSS = 0.01
_ERRORS = 3.0
_LONGEST = 64
"""Samples of the demand that are kept."""
_SLACK = 0.03
"""This much of a replica may lack."""
_SHORTEST_S = 0.001
_LONGEST_S = 5.0
"""Samples that are further apart count as if they were not: nothing was reported meanwhile."""
_OUTLIERS = 0.9
_UNKNOWN_START_S = 10.0
_STARTS = 16
_SLOW = 0.9
_SHORTEST_HOLD_S = 5.0
_SHORTEST_HOLD = 1.0 / 6.0  # of a start
_SCATTER = 4.0
_LEAST_RAMP = 15
"""Samples."""
_GAPS = 32
_LATE = 10.0
"""Work that is late costs this many times as much as a replica that is idle."""
_LONG = 10.0
"""A gap of more starts than this is not held, but may be regular."""


class Sizing(NamedTuple):
    """How many replicas a model should have, and why.

    Attributes:
        needed: For the demand now, as a fraction.
        because: What decided: ``demand``, ``trend``, ``backlog``, ``hold``, ``period``, ``minimum``,
            ``maximum`` or ``room``.
        work: Demand, in replicas that are always busy.
        start_s: Time that a start is expected to take.
        hold_s: How long a number is held.
    """

    replicas: int
    needed: float
    because: str
    work: float
    start_s: float
    hold_s: float

    def __str__(self) -> str:
        return (
            f"{self.replicas} by {self.because} (demand {self.work:.2f} busy replicas, {self.needed:.2f} needed to be"
            f" in time; a start takes {self.start_s:.0f} s, a number is held for {self.hold_s:.0f} s)"
        )


def replicas_for(demands: Collection[Demand], more_variance: float = 1.0) -> float:
    """Replicas that lose about 1% of the demand to deadlines, a fraction; see the module.

    Args:
        demands: By class.
        more_variance: Factor of their variances.
    """
    needed = work = variance = 0.0
    for demand in sorted(demands, key=lambda each: each.slack / each.work):
        work += demand.work
        variance += demand.variance * more_variance
        slack_s = max(demand.slack / demand.work, _SHORTEST_S)
        needed = max(needed, (work + sqrt(work * work + 2.0 * variance * -log(_LOSS) / slack_s)) / 2.0)
    return needed


class StartTimes:
    """How long replicas take to start, from the decision until they are listed."""

    def __init__(self) -> None:
        self._asked: list[float] = []  # times at which missing replicas were asked for
        self._took: deque[float] = deque(maxlen=_STARTS)
        self._listed = 0

    def look(self, listed: int, target: int, now: float) -> None:
        """Compare how many replicas there are with how many there should be."""
        for _ in range(min(listed - self._listed, len(self._asked))):
            self._took.append(now - self._asked.pop(0))
        self._listed, missing = listed, max(0, target - listed)
        for asked in self._asked[missing:]:  # called off, the last first: it would have taken longer than this
            if now - asked > self.seconds:
                self._took.append(now - asked)
        del self._asked[missing:]
        self._asked += [now] * (missing - len(self._asked))

    @property
    def seconds(self) -> float:
        """Nine of ten of the last starts took at most this long, the wait for a new node included."""
        took = sorted(self._took)
        return took[ceil(_SLOW * len(took)) - 1] if took else _UNKNOWN_START_S


class _Gap(NamedTuple):
    """A time in which a number of replicas was not wanted.

    Attributes:
        lowest: The fewest that were wanted in it.
        until: When the number was wanted again.
        wanted_s: How long it was wanted then; ``inf`` while it still is.
    """

    length_s: float
    lowest: float
    until: float
    wanted_s: float = inf


class _History:
    """When a number of replicas was wanted.

    Attributes:
        last: When it was wanted last.
        lowest: The fewest that were wanted since.
        rises: When it was wanted at first, and again after long gaps.
    """

    def __init__(self, now: float) -> None:
        self.last = now
        self.lowest = inf
        self.gaps: deque[_Gap] = deque(maxlen=_GAPS)
        self.rises = deque([now], maxlen=3)


class HoldTime:
    """How long a number of replicas is held; see the module."""

    def __init__(self) -> None:
        self._histories: list[_History] = []  # of 1, 2, 3, ... replicas
        self._wanted = 0

    def note(self, wanted: int, start_s: float, now: float) -> None:
        """Note how many replicas the demand asks for."""
        for history in self._histories[wanted : self._wanted]:
            if history.gaps and history.gaps[-1].wanted_s == inf:
                history.gaps[-1] = history.gaps[-1]._replace(wanted_s=now - history.gaps[-1].until)
        for history in self._histories[self._wanted : wanted]:
            gap_s = now - history.last
            if gap_s > _shortest_hold_s(start_s):
                history.gaps.append(_Gap(gap_s, history.lowest, now))
            elif history.gaps:
                history.gaps[-1] = history.gaps[-1]._replace(wanted_s=inf)
            if gap_s > _LONG * start_s:
                history.rises.append(now)
        self._histories += [_History(now) for _ in range(len(self._histories), wanted)]
        for history in self._histories[:wanted]:
            history.last, history.lowest = now, inf
        for history in self._histories[wanted:]:
            history.lowest = min(history.lowest, wanted)
        self._wanted = wanted

    def held(self, start_s: float, now: float, least: int, target: int, hold_s: float | None) -> tuple[int, float]:
        """The largest number whose hold has not ended, and that hold; 0 and the shortest for none.

        Args:
            least: Numbers up to this need no hold.
            target: Larger numbers are not held.
        """
        for number in range(min(target, len(self._histories)), max(self._wanted, least), -1):
            of_number_s = self.seconds(number, start_s) if hold_s is None else hold_s
            if now - self._histories[number - 1].last <= of_number_s:
                return number, of_number_s
        return 0, _shortest_hold_s(start_s) if hold_s is None else hold_s

    def expected(self, start_s: float, now: float) -> int:
        """The largest number that is due: its last two periods were alike, and the third ends after about a start."""
        due = 0
        for number, history in enumerate(self._histories, 1):
            periods = [after - before for before, after in pairwise(history.rises)]
            if len(periods) == 2 and abs(periods[1] - periods[0]) <= start_s:
                left_s = history.rises[-1] + sum(periods) / 2.0 - now
                if -start_s <= left_s <= 2.0 * start_s:
                    due = number
        return due

    def seconds(self, number: int, start_s: float) -> float:
        """The hold of a number that would have cost least over its last gaps in which as few were wanted as now."""
        history, longest_s = self._histories[number - 1], _LONG * start_s
        gaps = [gap for gap in history.gaps if gap.length_s <= 2.0 * longest_s and gap.lowest <= history.lowest]

        def cost(hold_s: float) -> float:
            return sum(
                [
                    gap.length_s if gap.length_s <= hold_s else hold_s + start_s + _LATE * min(start_s, gap.wanted_s)
                    for gap in gaps
                ]
            )

        shortest_s = _shortest_hold_s(start_s)
        return min(
            [shortest_s, *(1.1 * gap.length_s for gap in gaps if shortest_s < gap.length_s <= longest_s)], key=cost
        )


def _shortest_hold_s(start_s: float) -> float:
    return max(_SHORTEST_HOLD_S, _SHORTEST_HOLD * start_s)


class ReplicaPolicy:
    """Decides how many replicas a model should have. Asked at equal intervals, of about a second.

    Args:
        hold_s: How long a number is held; ``None``: learned.
    """

    def __init__(self, hold_s: float | None = None) -> None:
        self._hold_s = hold_s
        self._samples: deque[Mapping[Priority, Demand]] = deque(maxlen=_LONGEST)
        self._works: deque[float] = deque(maxlen=_LONGEST)
        self._starts = StartTimes()
        self._hold = HoldTime()
        self._asked_at: float | None = None

    def decide(
        self,
        demands: Mapping[Priority, Demand],
        now: float,
        *,
        listed: int,
        target: int,
        minimum: int,
        maximum: int,
        backlog_s: float = 0.0,
    ) -> Sizing:
        """Decide.

        Args:
            demands: Since the last call, by class.
            listed: Replicas that work.
            target: Replicas decided on before.
            minimum: Fewest replicas; 0 lets an idle model go to sleep.
            maximum: Most replicas.
            backlog_s: Server-seconds of what is queued.
        """
        first = self._asked_at is None
        interval_s = 1.0 if self._asked_at is None else min(max(_SHORTEST_S, now - self._asked_at), _LONGEST_S)
        self._asked_at = now
        self._samples.append(demands)
        self._works.append(sum([demand.work for demand in demands.values()]))
        self._starts.look(listed, target, now)
        if first:
            self._hold.note(target, self._starts.seconds, now)  # it may have been chosen for a reason
        start_s = self._starts.seconds
        works = list(self._works)
        variance = max(self._burstiness(), _variance(works) * interval_s)
        work, count = _level(works, variance / interval_s)
        of_class = self._mean_of_classes(count)
        total = add_up(of_class)
        more = variance / total.variance if total.variance else 1.0
        needed, because = (replicas_for(of_class, more), "demand") if total.work else (0.0, "demand")
        ramp = min(_LONGEST, max(_LEAST_RAMP, ceil(start_s / interval_s)))
        if (rise := _rise(works, ramp, variance / interval_s)) > 0.0:
            needed, because = needed + rise, "trend"
        if total.work and (left_s := total.slack / total.work - start_s) > 0.0 and backlog_s > left_s:
            needed, because = max(needed, work + backlog_s / left_s), "backlog"
        wanted = max(ceil(needed - _SLACK), 1 if total.work or backlog_s else 0)
        self._hold.note(min(wanted, maximum), start_s, now)
        held, hold_s = self._hold.held(start_s, now, minimum, target, self._hold_s)
        if held > wanted:
            wanted, because = held, "hold"
        if (expected := self._hold.expected(start_s, now)) > wanted:
            wanted, because = expected, "period"
        bounded = max(minimum, min(maximum, wanted))
        if bounded != wanted:
            because = "minimum" if bounded > wanted else "maximum"
        return Sizing(bounded, needed, because, work, start_s, hold_s)

    def _burstiness(self) -> float:
        """Variance per second within samples, by the mean."""
        return sum([demand.variance for sample in self._samples for demand in sample.values()]) / len(self._samples)

    def _mean_of_classes(self, count: int) -> list[Demand]:
        """Mean demand of each class over the last samples; classes without any are left out."""
        recent = list(self._samples)[-count:]
        classes = {priority for sample in recent for priority in sample}
        return [add_up([sample[each] for sample in recent if each in sample]).times(1.0 / count) for each in classes]


def _variance(works: Sequence[float]) -> float:
    """Half the mean square of successive differences; the largest tenth, at least one, count as the next one: jumps."""
    squares = sorted([(after - before) ** 2 / 2.0 for before, after in pairwise(works)])
    if len(squares) < 2:
        return 0.0
    most = squares[min(len(squares) - 2, int(_OUTLIERS * (len(squares) - 1)))]
    return sum([min(square, most) for square in squares]) / len(squares)


def _level(works: Sequence[float], variance: float) -> tuple[float, int]:
    """The mean of the longest recent window that is one level, and its samples."""
    count = min(2, len(works))
    mean = sum(works[-count:]) / count
    while (more := min(count, len(works) - count)) > 0:
        older = sum(works[-count - more : -count]) / more
        if abs(older - mean) > _ERRORS * sqrt(variance * (1.0 / count + 1.0 / more)):
            break
        mean = (mean * count + older * more) / (count + more)
        count += more
    return mean, count


def _rise(works: Sequence[float], ahead: int, variance: float) -> float:
    """By how much the demand will have risen after ``ahead`` samples, by a line through as many; 0.0 if there is none.

    Samples that scatter around the line more than the variance explains are a jump and no ramp.
    """
    recent = works[-ahead:]
    if len(works) < min(2 * ahead, _LONGEST) or not variance > 0.0:  # at first a jump passes for variance
        return 0.0
    mean, middle = sum(recent) / ahead, (ahead - 1) / 2.0
    spread = ahead * (ahead * ahead - 1) / 12.0
    slope = sum([(at - middle) * (work - mean) for at, work in enumerate(recent)]) / spread
    left = sum([(work - mean - slope * (at - middle)) ** 2 for at, work in enumerate(recent)]) / ahead
    return slope * ahead if left <= _SCATTER * variance and slope > _ERRORS * sqrt(variance / spread) else 0.0


def desired_replicas(load_rows: int, target_rows: float, current: int, minimum: int, maximum: int) -> int:
    """Replicas so that each has about ``target_rows`` rows queued or running.

    A load within a tenth of what the current replicas should have keeps them, so that the number does not flap
    (the rule and the tolerance are those of the Kubernetes horizontal pod autoscaler).

    Args:
        load_rows: Rows queued in all routers plus rows running.
        target_rows: Rows per replica to aim at, above 0.
        current: Replicas there are.
        minimum: Fewest replicas; 0 lets an idle model go to sleep.
        maximum: Most replicas.

    Returns:
        A number from ``minimum`` to ``maximum``.

    Raises:
        ValueError: ``target_rows`` is not positive, or the limits contradict each other.
    """
    if not target_rows > 0:
        raise ValueError(f"target_rows must be above 0, got {target_rows}")
    if not 0 <= minimum <= maximum:
        raise ValueError(f"replica limits must satisfy 0 <= minimum <= maximum, got {minimum} and {maximum}")
    return max(minimum, min(maximum, _wanted(load_rows, target_rows, current)))


def busy_replicas(busy: Collection[float], idle_cores: float, current: int) -> int:
    """Replicas so that each computes for about 0.8 of the time; at most one more than there are.

    No more than there are if their nodes have no core left, since another would share the used ones, or while some have
    not reported yet: they are being started.

    Args:
        busy: For each replica, the fraction of time for which it computes, on all its cores.
        idle_cores: On the node of a replica that has most of them.
        current: Present replicas.
    """
    wanted = _wanted(sum(busy), _BUSY, current)
    return min(wanted, current + (idle_cores >= _IDLE_CORES and len(busy) >= current))


def routers_on(cores: int, most: int) -> int:
    """Most router processes of nodes with so many cores: half of the cores are left to replicas."""
    return max(1, min(most, cores // 2))


def _wanted(load: float, target: float, current: int) -> int:
    on_target = current * target
    return current if abs(load - on_target) <= _TOLERANCE * on_target else ceil(load / target)
