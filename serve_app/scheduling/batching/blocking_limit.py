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

If a part of class `high` is protected, the bound applies however unlikely an arrival is, and is multiplied by a factor
that falls with each `high` request that is given up and rises with each that runs, so that it settles where the
protected part runs in time (stochastic approximation: Robbins and Monro, Annals of Mathematical Statistics 22, 1951).

A deadline bounds what a request tolerates, but its client may be used to less. Rows that can wait, such as those of a
job's items, gain nothing from a long batch that the next one would not give them as well. They may add a fraction of
the total time of `high` requests: at the 99th percentile one such request waits for one of their batches, and shares
its own with others of them. With ``extra = (1 - 1 / s) / 2`` of the 99th percentile each, it is s times its value
without them. It is measured beside them, and both settle, since the factor is less than one half. If `high` alone keeps
a session busy most of the time, the factor is exceeded: rows that share a batch then delay those behind it as well.
"""

from __future__ import annotations

from math import exp, inf

from serve_app.domain.priority import Priority
from serve_app.scheduling.batching.arrivals import ArrivalPattern
from serve_app.scheduling.batching.latency import LatencyModel
from serve_app.scheduling.batching.overhead import QuantileWindow
from serve_app.scheduling.entry import Entry
from serve_app.scheduling.settings import ModelScheduling

_WINDOW_REQUESTS = 512
_BLOCKED_QUANTILE = 0.05
_MIN_PROBABILITY = 0.02
_STALE_AFTER_S = 60.0
_ENDED_AFTER_GAPS = 100.0
_P99 = 0.99
_PATIENT_S = 60.0
_LEAST_S = 0.001
"""Shorter times disappear in the noise of a request's way to the server and back."""
_LIKELY_PROBABILITY = 0.2
_GAIN = 0.1
_LEAST_FACTOR = 0.1
_HIGH = Priority.HIGH
_LOW = Priority.LOW


def urgent_until(priority: Priority, now: float) -> float:
    """Latest deadline of a class's entries that cannot wait, seconds; ``inf``: none can."""
    return now + _PATIENT_S if priority is _LOW else inf


class BlockingLimit:
    """The longest batches of one session or device that recent requests of class `high` tolerate.

    Args:
        protect: Part of class `high` that is to run in time whatever that costs the other classes, 0 to 1; 0: none.
    """

    __slots__ = ("_arrivals", "_factor", "_p99_s", "_protect", "_times", "_tolerable_s", "_tolerated")

    def __init__(self, protect: float = 0.0) -> None:
        self._protect = protect
        self._factor = 1.0
        self._arrivals = ArrivalPattern()
        self._times = QuantileWindow(_WINDOW_REQUESTS)
        self._p99_s = 0.0
        self._tolerated = QuantileWindow(_WINDOW_REQUESTS)
        self._tolerable_s = inf

    def arrived(self, now: float) -> None:
        """Record an arrival of class `high`."""
        self._arrivals.observe(now)

    def tolerable_s(
        self, entry: Entry, rows: int, latency: LatencyModel, settings: ModelScheduling, now: float, part: float
    ) -> float:
        """The longest batch that an entry arriving now tolerates, seconds; 0.0: not even the shortest.

        Args:
            entry: Its slack is its budget less the execution together with waiting entries of its class.
            rows: Waiting rows of its class, its own included.
            latency: Predicts that execution.
            part: Remaining fraction of the running batch, 0 to 1; 0 if nothing runs.
        """
        budget_s, most = entry.deadline - now, settings.max_rows
        slack_s = budget_s - latency.predict(min(rows, most), entry.bucket)
        if slack_s <= 0.0 and rows > entry.rows:
            slack_s = budget_s - latency.predict(min(entry.rows, most), entry.bucket)
        if slack_s <= 0.0:
            return 0.0
        return slack_s / part if part > 0.0 else inf

    def observe(self, tolerated_s: float) -> None:
        """Record the longest batch that an entry of class `high` tolerated, when it runs or leaves, seconds."""
        if tolerated_s > 0.0:
            tolerated = self._tolerated.add(tolerated_s)
            self._tolerable_s = tolerated[int(_BLOCKED_QUANTILE * (len(tolerated) - 1))]

    def ended(self, *, in_time: bool) -> None:
        """Record whether an entry of class `high` runs in time, or was given up."""
        if protect := self._protect:
            step = 1.0 - protect if in_time else -protect
            self._factor = min(1.0, max(_LEAST_FACTOR, self._factor * exp(_GAIN * step)))

    def answered(self, seconds: float) -> None:
        """Record the seconds from the arrival of a `high` entry to the predicted end of its execution."""
        times = self._times.add(seconds)
        self._p99_s = times[int(_P99 * (len(times) - 1))]

    def extra_s(self, settings: ModelScheduling, now: float) -> float:
        """Longest batch of rows that can wait, and their largest addition to another batch, seconds.

        Returns:
            ``inf`` if no entry of class `high` is likely to arrive during one of the longest batches, or none has come
            for so long that they seem to have ended.
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
        """The longest execution with rows of other classes, seconds; ``inf``: unbounded."""
        tolerable_s, last = self._tolerable_s, self._arrivals.last
        if tolerable_s == inf or last is None:
            return inf
        if self._protect:
            return self._factor * tolerable_s if now - last <= _STALE_AFTER_S else inf
        return inf if self._likely_within(now, 2.0 * tolerable_s) < _MIN_PROBABILITY else tolerable_s

    def likely_blocks(self, priority: Priority, seconds: float, now: float) -> bool:
        """Whether an execution of this length, begun now, would probably block an entry of class `high` too long."""
        over_s = seconds - self._tolerable_s
        return priority is not _HIGH and over_s > 0.0 and self._likely_within(now, over_s) > _LIKELY_PROBABILITY

    def _likely_within(self, now: float, seconds: float) -> float:
        """Probability that one arrives so soon; 0 if none has come for long."""
        last = self._arrivals.last
        if last is None or now - last > _STALE_AFTER_S:
            return 0.0
        return self._arrivals.probability_within(now, seconds)
