"""Admission: refuse at once what has no room or cannot finish in time, with a reason, before any work is done.

Predicted finish of an entry = the first replica's predicted end of what it has
                             + work queued before it, spread over the usable replicas
                             + its own execution + the network allowance.

All of it comes from the latency model, which only executions feed. So that a model whose predictions are wrong is
measured again, an entry whose own execution alone is predicted to be too long passes as a probe: every tenth, or one
per second. Without a prediction, or without a replica to predict for, nothing is refused for its deadline.
"""

from __future__ import annotations

from collections.abc import Mapping

from serve_app.errors import DeadlineExceeded, DeadlineUnreachable, ModelNotFound, QueueFull
from serve_app.scheduling.composition import execution_s
from serve_app.scheduling.decisions import Rejection
from serve_app.scheduling.entry import Entry, Priority
from serve_app.scheduling.queue import Ahead, ModelQueue, Totals
from serve_app.scheduling.settings import ClassSettings, ModelScheduling, ProcessLimits
from serve_app.scheduling.slots import Slots
from serve_app.scheduling.variants import VariantLatency

_PROBE_EVERY = 10
_PROBE_INTERVAL_S = 1.0
_SHORTEST_RETRY_S = 0.1
_LONGEST_RETRY_S = 60.0
_UNKNOWN_RETRY_S = 1.0


class Probes:
    """Lets one in ten, or one per second, of what would be refused pass."""

    __slots__ = ("_last", "_refused")

    def __init__(self) -> None:
        self._refused = 0
        self._last: float | None = None

    def allow(self, now: float) -> bool:
        """Whether this one passes."""
        if self._last is None or self._refused >= _PROBE_EVERY - 1 or now - self._last >= _PROBE_INTERVAL_S:
            self._last = now
            self._refused = 0
            return True
        self._refused += 1
        return False


class Bounds:
    """The bounds of the process: entries and bytes per class queued, bytes queued and running in total.

    Attributes:
        totals: Queued per class, over all models. The queues keep the counts.
        nbytes: Bytes of all entries queued or running.
    """

    def __init__(self, classes: Mapping[Priority, ClassSettings], limits: ProcessLimits) -> None:
        self.totals = {priority: Totals() for priority in Priority}
        self.nbytes = 0
        self._classes = dict(classes)
        self._total_bytes = limits.total_bytes
        self._shared_bytes = int(limits.total_bytes * (1.0 - limits.high_headroom))

    def room(self, priority: Priority, nbytes: int) -> Priority | None:
        """The class with room for one more entry: this one, a lower one by demotion, or ``None``."""
        while True:
            settings = self._classes[priority]
            totals = self.totals[priority]
            if (
                totals.entries < settings.queue_entries
                and totals.nbytes + nbytes <= settings.queue_bytes
                and self.nbytes + nbytes <= (self._total_bytes if priority is _HIGH else self._shared_bytes)
            ):
                return priority
            if settings.overflow != "demote" or priority is _LOW:
                return None
            priority = _LOWER[priority]

    def queue_full(self, priority: Priority, nbytes: int, drain_s: float | None) -> Rejection:
        """The reason for refusing what `room` found no class for.

        Args:
            priority: The class asked for.
            nbytes: Bytes of the entry.
            drain_s: Predicted time until what is ahead is done; ``None`` when unknown.
        """
        settings = self._classes[priority]
        totals = self.totals[priority]
        most = min(settings.queue_bytes, self._total_bytes if priority is _HIGH else self._shared_bytes)
        if nbytes > most:
            return Rejection(
                QueueFull.code, f"the request holds {nbytes} bytes, class {priority.label} never queues over {most}"
            )
        retry = _UNKNOWN_RETRY_S if drain_s is None else max(_SHORTEST_RETRY_S, min(_LONGEST_RETRY_S, drain_s))
        if totals.entries >= settings.queue_entries:
            what = f"{totals.entries} of {settings.queue_entries} requests queued"
        elif totals.nbytes + nbytes > settings.queue_bytes:
            what = f"{totals.nbytes} of {settings.queue_bytes} bytes queued"
        else:
            what = f"{self.nbytes} bytes in the server, {most} allowed"
        return Rejection(
            QueueFull.code, f"the queue of class {priority.label} is full ({what}); try again in {retry:.1f} s", retry
        )


def drain_s(
    settings: ModelScheduling,
    queue: ModelQueue,
    latencies: VariantLatency,
    slots: Slots,
    priority: Priority,
    now: float,
) -> float | None:
    """Predicted time until everything queued in this class and above is executed; ``None`` when unknown."""
    if not latencies.exact.known or not slots.usable:
        return None
    ahead = queue.ahead(priority, now + 1e9, now)
    return slots.earliest_start(now) - now + _ahead_s(ahead, settings, latencies) / slots.usable


def unreachable(
    entry: Entry,
    priority: Priority,
    settings: ModelScheduling,
    queue: ModelQueue,
    latencies: VariantLatency,
    slots: Slots,
    probes: Probes,
    network_s: float,
    now: float,
) -> Rejection | None:
    """Refuse an entry that is predicted to miss its deadline, or return ``None``.

    Args:
        entry: Not queued yet.
        priority: The class it would queue in.
        settings: Of its model.
        queue: Of its model.
        latencies: Of its model.
        slots: Of its model.
        probes: Of its model.
        network_s: Allowance for everything around an execution, seconds.
        now: Seconds.
    """
    latency = latencies.of(entry.variant)
    if not latency.known:
        return None
    own = execution_s(latency, entry.rows, entry.bucket, settings.max_rows) + network_s
    budget = entry.deadline - now
    if own > budget:
        if probes.allow(now):
            return None
        return Rejection(
            DeadlineUnreachable.code,
            f"this request takes about {own:.3f} s to execute and has {budget:.3f} s: allow it more time",
        )
    usable = slots.usable
    if not usable:
        return None
    wait = slots.earliest_start(now) - now
    ahead = queue.ahead(priority, entry.deadline, now)
    if ahead.rows:
        wait += _ahead_s(ahead, settings, latencies) / usable
    late = wait + own - budget
    if late <= 0.0:
        return None
    retry = max(_SHORTEST_RETRY_S, min(_LONGEST_RETRY_S, late))
    return Rejection(
        DeadlineUnreachable.code,
        f"{wait:.3f} s of work is ahead and this request has {budget:.3f} s:"
        f" allow it more time or try again in {retry:.1f} s",
        retry,
    )


def unknown_model(model: str) -> Rejection:
    """The reason for refusing an entry of a model that is not scheduled here."""
    return Rejection(ModelNotFound.code, f"no model {model!r} is served here")


def already_late() -> Rejection:
    """The reason for refusing an entry whose deadline has passed on arrival."""
    return Rejection(DeadlineExceeded.code, "the deadline passed before the request arrived")


def _ahead_s(ahead: Ahead, settings: ModelScheduling, latencies: VariantLatency) -> float:
    """Server time of work that is ahead, at one replica."""
    return ahead.rows * latencies.seconds_per_row(ahead.bucket, settings.max_rows, settings.slo_s, ahead.shares)


_HIGH = Priority.HIGH
_LOW = Priority.LOW
_LOWER = {Priority.HIGH: Priority.NORMAL, Priority.NORMAL: Priority.LOW}
