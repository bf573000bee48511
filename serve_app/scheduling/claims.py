"""How long a batch may block: what more urgent classes are likely to need while it runs.

An execution cannot be interrupted. A request of a more urgent class that comes while a batch of length L runs waits for
what is left of it, a part u of L, and is in time only if that is no more than its slack: its budget less its own
execution and the pause between two. So of every such request that has come, ``slack / u`` is the longest batch that it
could have borne, and a low quantile of these is how long a batch with rows of a less urgent class may take, also of
those that ride along with the class itself. Where a request was run by another replica that was free sooner, this one
did not block it, however long its batch was: then it could have borne any.

With a slack of all the same and moments that are evenly spread that is close to the blocking term of non-preemptive
scheduling (Jeffay, Stanat and Martel, RTSS 1991). It does not hold where such a request is hardly likely to come
meanwhile.
"""

from __future__ import annotations

from math import inf

from serve_app.scheduling.arrivals import ArrivalPattern
from serve_app.scheduling.entry import Entry, Priority
from serve_app.scheduling.latency import LatencyModel
from serve_app.scheduling.overhead import Window
from serve_app.scheduling.settings import ModelScheduling

_REMEMBERED = 64
_BLOCKED = 0.05
_UNLIKELY = 0.02
_FORGOTTEN_S = 60.0
_PROBABLE = 0.2


class _Claim:
    """What one class lately asked."""

    __slots__ = ("_borne", "arrivals", "bears_s")

    def __init__(self) -> None:
        self.arrivals = ArrivalPattern()
        self._borne = Window(_REMEMBERED)
        self.bears_s = inf

    def observe(self, borne_s: float) -> None:
        """Note the longest batch that an entry could have borne."""
        borne = self._borne.add(borne_s)
        self.bears_s = borne[int(_BLOCKED * (len(borne) - 1))]

    def likely_within(self, now: float, seconds: float) -> float:
        """How likely one comes so soon, 0 to 1; 0 when none has come for long."""
        last = self.arrivals.last
        if last is None or now - last > _FORGOTTEN_S:
            return 0.0
        return self.arrivals.probability_within(now, seconds)

    def bound_s(self, now: float) -> float:
        """How long what blocks this class may take, seconds; ``inf``: any time."""
        bears_s = self.bears_s
        return inf if bears_s == inf or self.likely_within(now, 2.0 * bears_s) < _UNLIKELY else bears_s


class Claims:
    """What the classes above `low` lately asked of one session or device."""

    __slots__ = ("_claims",)

    def __init__(self) -> None:
        self._claims = {priority: _Claim() for priority in (Priority.HIGH, Priority.NORMAL)}

    def arrived(self, entry: Entry, now: float) -> None:
        """An entry has come."""
        if (claim := self._claims.get(entry.priority)) is not None:
            claim.arrivals.observe(now)

    def bears_s(
        self, entry: Entry, rows: int, latency: LatencyModel, settings: ModelScheduling, now: float, part: float
    ) -> float:
        """The longest batch that an entry which comes now could bear, seconds; 0.0: not even the shortest.

        Args:
            entry: Its budget, less the execution together with what waits of its class, is its slack.
            rows: That waits of its class, with its own.
            latency: Predicts that execution.
            settings: Of its model.
            now: Seconds.
            part: Which part of the batch that runs is left to be waited for, 0 to 1; 0 when nothing runs.
        """
        budget_s, most = entry.deadline - now, settings.max_rows
        slack_s = budget_s - latency.predict(min(rows, most), entry.bucket)
        if slack_s <= 0.0 and rows > entry.rows:
            slack_s = budget_s - latency.predict(min(entry.rows, most), entry.bucket)
        if slack_s <= 0.0:
            return 0.0
        return slack_s / part if part > 0.0 else inf

    def observe(self, priority: Priority, borne_s: float) -> None:
        """An entry is run, or has gone: so long a batch it could have borne, seconds; see `bears_s`."""
        claim = self._claims.get(priority)
        if claim is not None and borne_s > 0.0:
            claim.observe(borne_s)

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
            if claim.bears_s < seconds and claim.likely_within(now, seconds - claim.bears_s) > _PROBABLE:
                return True
        return False
