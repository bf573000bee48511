"""How long a batch may block the class `high`: what it is likely to need while one runs.

An execution cannot be interrupted. A request of class `high` that comes while a batch of length L runs waits for what
is left of it, a part u of L, and is in time only if that is no more than its slack: its budget less its own execution
and the pause between two. So of every such request that has come, ``slack / u`` is the longest batch that it could have
borne, and a low quantile of these is how long a batch with rows of another class may take, also of those that ride
along with the class itself. Where a request was run by another replica that was free sooner, this one did not block it,
however long its batch was: then it could have borne any.

Of so many requests, more would be slower to follow clients that change, and fewer would have the bound vary from batch
to batch, which costs both: batches shorter than needed, and some that are too long.

With a slack of all the same and moments that are evenly spread that is close to the blocking term of non-preemptive
scheduling (Jeffay, Stanat and Martel, RTSS 1991). It does not hold where such a request is hardly likely to come
meanwhile.
"""

from __future__ import annotations

from math import inf

from serve_app.scheduling.batching.arrivals import ArrivalPattern
from serve_app.scheduling.batching.latency import LatencyModel
from serve_app.scheduling.batching.overhead import Window
from serve_app.scheduling.entry import Entry, Priority
from serve_app.scheduling.settings import ModelScheduling

_REMEMBERED = 512
_BLOCKED = 0.05
_UNLIKELY = 0.02
_FORGOTTEN_S = 60.0
_PROBABLE = 0.2
_HIGH = Priority.HIGH


class Claims:
    """What the class `high` lately asked of one session or device."""

    __slots__ = ("_arrivals", "_bears_s", "_borne")

    def __init__(self) -> None:
        self._arrivals = ArrivalPattern()
        self._borne = Window(_REMEMBERED)
        self._bears_s = inf

    def arrived(self, now: float) -> None:
        """An entry of class `high` has come."""
        self._arrivals.observe(now)

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

    def observe(self, borne_s: float) -> None:
        """An entry of class `high` is run, or has gone: so long a batch it could have borne, seconds; see `bears_s`."""
        if borne_s > 0.0:
            borne = self._borne.add(borne_s)
            self._bears_s = borne[int(_BLOCKED * (len(borne) - 1))]

    def bound_s(self, now: float) -> float:
        """The longest that an execution with rows of other classes may take, seconds; ``inf``: any time."""
        bears_s = self._bears_s
        return inf if bears_s == inf or self._likely_within(now, 2.0 * bears_s) < _UNLIKELY else bears_s

    def likely_blocks(self, priority: Priority, seconds: float, now: float) -> bool:
        """Whether an execution of this length, begun now, would probably block an entry of class `high` too long."""
        over_s = seconds - self._bears_s
        return priority is not _HIGH and over_s > 0.0 and self._likely_within(now, over_s) > _PROBABLE

    def _likely_within(self, now: float, seconds: float) -> float:
        """How likely one comes so soon, 0 to 1; 0 when none has come for long."""
        last = self._arrivals.last
        if last is None or now - last > _FORGOTTEN_S:
            return 0.0
        return self._arrivals.probability_within(now, seconds)
