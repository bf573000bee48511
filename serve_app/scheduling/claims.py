"""How long a batch may block: what more urgent classes are likely to need while it runs.

An execution cannot be interrupted. A request of a more urgent class that comes while a batch of length L runs waits for
what is left of it, and is in time only if that is no more than its slack: its budget less its own execution. How much
is left when such requests come is learnt as a part of L: near to uniform where they come at any time to the only
replica, and little where routers send them to the replica that is free first. So with a low quantile of the slacks and
the largest of the parts lately, a batch with rows of a less urgent class, also of those that ride along with the class
itself, takes no longer than

    slack / part

unless such a request is hardly likely to come meanwhile. With a part of 1 that is the blocking term of non-preemptive
scheduling (Jeffay, Stanat and Martel, RTSS 1991).
"""

from __future__ import annotations

from math import inf

from serve_app.scheduling.arrivals import ArrivalPattern
from serve_app.scheduling.entry import Entry, Priority
from serve_app.scheduling.latency import LatencyModel
from serve_app.scheduling.overhead import Window
from serve_app.scheduling.settings import ModelScheduling

_REMEMBERED = 64
_TIGHT = 0.1
_UNLIKELY = 0.02
_FORGOTTEN_S = 60.0
_PROBABLE = 0.2


class _Claim:
    """What one class lately asked."""

    __slots__ = ("_parts", "_slacks", "arrivals", "part", "slack_s")

    def __init__(self) -> None:
        self.arrivals = ArrivalPattern()
        self._slacks = Window(_REMEMBERED)
        self._parts = Window(_REMEMBERED)
        self.slack_s = inf
        self.part = 1.0

    def rate(self, now: float) -> float:
        """Arrivals per second: the mean, or that of the last second if it is more."""
        return max(self.arrivals.rate, self.arrivals.recent_rate(now))

    def observe(self, slack_s: float, part: float) -> None:
        """Note what an entry asks, and which part of a running batch was left when it came."""
        slacks, parts = self._slacks.add(slack_s), self._parts.add(part)
        self.slack_s = slacks[int(_TIGHT * (len(slacks) - 1))]
        # Until enough have come, any moment is as likely as another.
        self.part = parts[-1] if len(parts) == _REMEMBERED else 1.0

    def likely_within(self, now: float, seconds: float) -> float:
        """How likely one comes so soon, 0 to 1; 0 when none has come for long."""
        last = self.arrivals.last
        if last is None or now - last > _FORGOTTEN_S:
            return 0.0
        return self.arrivals.probability_within(now, seconds)

    def bound_s(self, now: float) -> float:
        """How long what blocks this class may take, seconds; ``inf``: any time."""
        slack_s = self.slack_s
        if slack_s == inf or self.likely_within(now, 2.0 * slack_s) < _UNLIKELY:
            return inf
        return slack_s / self.part if self.part > 0.0 else inf


class Claims:
    """What the classes above `low` lately asked of one session or device."""

    __slots__ = ("_claims",)

    def __init__(self) -> None:
        self._claims = {priority: _Claim() for priority in (Priority.HIGH, Priority.NORMAL)}

    def observe(
        self, entry: Entry, latency: LatencyModel, settings: ModelScheduling, now: float, part: float = 1.0
    ) -> None:
        """An entry has come.

        Args:
            entry: Its budget, less the execution together with what else of its class comes within it, is its slack.
            latency: Predicts that execution.
            settings: Of its model.
            now: Seconds.
            part: Which part of the batch that runs is left to be waited for, 0 to 1; 0 when nothing runs.
        """
        claim = self._claims.get(entry.priority)
        if claim is None:
            return
        claim.arrivals.observe(now)
        budget_s, rows, most = entry.deadline - now, entry.rows, settings.max_rows
        slack_s = budget_s - latency.predict(min(rows, most), entry.bucket)
        if slack_s > 0.0 and rows < most:
            together = min(most, rows + int(min(claim.rate(now) * slack_s, most)))
            slack_s = budget_s - latency.predict(together, entry.bucket)
        if slack_s > 0.0:
            claim.observe(slack_s, part)

    def bounds_s(self, now: float) -> tuple[float, float, float]:
        """Per class, the longest that an execution with rows of it may take, seconds; ``inf``: any time.

        The class ``high`` is bound by itself as soon as others ride along, and not alone.
        """
        high = self._claims[Priority.HIGH].bound_s(now)
        return inf, high, min(high, self._claims[Priority.NORMAL].bound_s(now))

    def likely_blocks(self, priority: Priority, seconds: float, now: float) -> bool:
        """Whether an execution of this length, begun now, would probably block an entry of a class above too long."""
        for above, claim in self._claims.items():
            if above >= priority:
                break
            if claim.slack_s < seconds and claim.likely_within(now, seconds - claim.slack_s) > _PROBABLE:
                return True
        return False
