"""How long a batch may block: what more urgent classes are likely to need while it runs.

An execution cannot be interrupted. A request of a more urgent class that comes right after a batch has begun waits for
all of it, and is in time only if the batch was no longer than that request's slack: its budget less its own execution.
So a batch of a less urgent class, and what rides along in one of the class itself, takes no longer than

    slack + p / rate

with a low quantile of the slacks of the last requests, and their rate: then at most ``p`` requests are expected to come
in the part of the batch that makes them late. Where they come often this is the blocking term of non-preemptive
scheduling (Jeffay, Stanat and Martel, RTSS 1991); where they come seldom a batch may take longer.
"""

from __future__ import annotations

from math import inf

from serve_app.scheduling.arrivals import ArrivalPattern
from serve_app.scheduling.entry import Entry, Priority
from serve_app.scheduling.latency import LatencyModel
from serve_app.scheduling.overhead import Window
from serve_app.scheduling.settings import ModelScheduling

_REMEMBERED = 64
_QUANTILE = 0.1
_TOLERATED = 0.05
_FORGOTTEN_S = 60.0


class _Claim:
    """What one class lately asked."""

    __slots__ = ("arrivals", "slack_s", "slacks")

    def __init__(self) -> None:
        self.arrivals = ArrivalPattern()
        self.slacks = Window(_REMEMBERED)
        self.slack_s = inf

    def rate(self, now: float) -> float:
        """Arrivals per second: the mean, or that of the last second if it is more."""
        return max(self.arrivals.rate, self.arrivals.recent_rate(now))

    def bound_s(self, now: float) -> float:
        """How long what blocks this class may take, seconds; ``inf``: any time."""
        last = self.arrivals.last
        if last is None or now - last > _FORGOTTEN_S:
            return inf
        rate = self.rate(now)
        return self.slack_s + _TOLERATED / rate if rate > 0.0 else inf


class Claims:
    """What the classes above `low` lately asked of one session or device."""

    __slots__ = ("_claims",)

    def __init__(self) -> None:
        self._claims = {priority: _Claim() for priority in (Priority.HIGH, Priority.NORMAL)}

    def observe(self, entry: Entry, latency: LatencyModel, settings: ModelScheduling, now: float) -> None:
        """An entry has come.

        Args:
            entry: Its budget, less the execution together with what else of its class comes within it, is its slack.
            latency: Predicts that execution.
            settings: Of its model.
            now: Seconds.
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
            slacks = claim.slacks.add(slack_s)
            claim.slack_s = slacks[int(_QUANTILE * (len(slacks) - 1))]

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
            if claim.slack_s < seconds and claim.arrivals.probability_within(now, seconds - claim.slack_s) > _PROBABLE:
                return True
        return False


_PROBABLE = 0.2
