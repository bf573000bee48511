"""How long a batch may block the class `high`.

A batch cannot be interrupted. A `high` request that arrives while a batch of length L runs waits for the remaining
fraction u of L. It meets its deadline if u x L is at most its slack: its budget less its own execution and the pause
between two. So ``slack / u`` is the longest batch that the request tolerates. A low quantile over recent requests
bounds a batch with rows of another class, also one of class `high` that others fill up. If another replica was free
sooner and ran the request, this one did not block it: then the request tolerates any batch.

More requests in the window would follow changing clients more slowly. Fewer would make the bound vary from batch to
batch, which makes some batches shorter than needed and others too long.

With equal slacks and evenly spread arrivals this is close to the blocking term of non-preemptive scheduling (Jeffay,
Stanat and Martel, RTSS 1991). The bound does not apply if a `high` request is unlikely to arrive meanwhile.

Deadlines say what a request tolerates, and not what its client is used to. Rows that can wait, such as those of a job's
items, gain nothing from a long batch that the next one would not give them as well. They may add a part of what
requests of class `high` take in all: at the 99th percentile one such request waits for one batch of theirs, and shares
its own with others of them. With ``extra = (1 - 1 / s) / 2`` of the 99th percentile each, it is s times what it would
be without them. It is measured beside them, and both settle, since the factor is less than one half. Where `high` alone
keeps a session busy most of the time, it is more: what shares a batch then delays those behind it as well.
"""

from __future__ import annotations

from math import inf

from serve_app.scheduling.batching.arrivals import ArrivalPattern
from serve_app.scheduling.batching.latency import LatencyModel
from serve_app.scheduling.batching.overhead import QuantileWindow
from serve_app.scheduling.entry import Entry, Priority
from serve_app.scheduling.settings import ModelScheduling

_WINDOW_REQUESTS = 512
_BLOCKED_QUANTILE = 0.05
_MIN_PROBABILITY = 0.02
_STALE_AFTER_S = 60.0
_ENDED_AFTER_GAPS = 100.0
_P99 = 0.99
_PATIENT_S = 60.0
_LEAST_S = 0.001
"""What is shorter cannot be told from the noise of a request's way to the server and back."""
_LIKELY_PROBABILITY = 0.2
_HIGH = Priority.HIGH
_LOW = Priority.LOW


def urgent_until(priority: Priority, now: float) -> float:
    """Entries of a class with later deadlines can wait: they gain nothing from a longer batch; ``inf``: none can."""
    return now + _PATIENT_S if priority is _LOW else inf


class BlockingLimit:
    """How long batches of one session or device may be, by what recent requests of class `high` tolerate."""

    __slots__ = ("_arrivals", "_p99_s", "_times", "_tolerable_s", "_tolerated")

    def __init__(self) -> None:
        self._arrivals = ArrivalPattern()
        self._times = QuantileWindow(_WINDOW_REQUESTS)
        self._p99_s = 0.0
        self._tolerated = QuantileWindow(_WINDOW_REQUESTS)
        self._tolerable_s = inf

    def arrived(self, now: float) -> None:
        """An entry of class `high` has come."""
        self._arrivals.observe(now)

    def tolerable_s(
        self, entry: Entry, rows: int, latency: LatencyModel, settings: ModelScheduling, now: float, part: float
    ) -> float:
        """The longest batch that an entry which arrives now tolerates, seconds; 0.0: not even the shortest.

        Args:
            entry: Its budget, less the execution together with what waits of its class, is its slack.
            rows: That waits of its class, with its own.
            latency: Predicts that execution.
            part: Which part of the batch that runs is left to be waited for, 0 to 1; 0 when nothing runs.
        """
        budget_s, most = entry.deadline - now, settings.max_rows
        slack_s = budget_s - latency.predict(min(rows, most), entry.bucket)
        if slack_s <= 0.0 and rows > entry.rows:
            slack_s = budget_s - latency.predict(min(entry.rows, most), entry.bucket)
        if slack_s <= 0.0:
            return 0.0
        return slack_s / part if part > 0.0 else inf

    def observe(self, tolerated_s: float) -> None:
        """An entry of class `high` runs or has left: the longest batch it tolerated, seconds; see `tolerable_s`."""
        if tolerated_s > 0.0:
            tolerated = self._tolerated.add(tolerated_s)
            self._tolerable_s = tolerated[int(_BLOCKED_QUANTILE * (len(tolerated) - 1))]

    def answered(self, seconds: float) -> None:
        """An entry of class `high` takes so long, seconds: from when it came here to its execution's predicted end."""
        times = self._times.add(seconds)
        self._p99_s = times[int(_P99 * (len(times) - 1))]

    def extra_s(self, settings: ModelScheduling, now: float) -> float:
        """How long a batch of rows that can wait may take, and what they may add to another, seconds.

        Args:
            settings: Of their model.

        Returns:
            That; ``inf``: any time, since an entry of class `high` is unlikely to come during one of the longest, or
            none has come for so long that they seem to have ended.
        """
        arrivals = self._arrivals
        if (
            arrivals.last is None
            or arrivals.rate * (now - arrivals.last) > _ENDED_AFTER_GAPS
            or self._likely_within(now, settings.slo_s) < _MIN_PROBABILITY
        ):
            return inf
        return max(_LEAST_S, 0.5 * (1.0 - 1.0 / settings.high_slowdown) * self._p99_s)

    def bound_s(self, now: float) -> float:
        """The longest that an execution with rows of other classes may take, seconds; ``inf``: any time."""
        tolerable_s = self._tolerable_s
        return (
            inf if tolerable_s == inf or self._likely_within(now, 2.0 * tolerable_s) < _MIN_PROBABILITY else tolerable_s
        )

    def likely_blocks(self, priority: Priority, seconds: float, now: float) -> bool:
        """Whether an execution of this length, begun now, would probably block an entry of class `high` too long."""
        over_s = seconds - self._tolerable_s
        return priority is not _HIGH and over_s > 0.0 and self._likely_within(now, over_s) > _LIKELY_PROBABILITY

    def _likely_within(self, now: float, seconds: float) -> float:
        """How likely one comes so soon, 0 to 1; 0 when none has come for long."""
        last = self._arrivals.last
        if last is None or now - last > _STALE_AFTER_S:
            return 0.0
        return self._arrivals.probability_within(now, seconds)
