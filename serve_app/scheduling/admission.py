"""Admission: refuse at once what has no room or cannot finish in time, with a reason, before any work is done.

Predicted finish of an entry = the first replica's predicted end of what it has
                             + the full batches queued before it, spread over the usable replicas
                             + the execution of its batch: with the rows before it that fill no batch
                             + the overhead.

An entry that is predicted to be a little late is queued all the same, since entries before it may be given up for it
(see `serve_app.scheduling.composition`): by up to two full batches.

All of it comes from the latency model, which only executions feed. So that a model whose predictions are wrong is
measured again, an entry whose own execution alone is predicted to be too long passes as a probe: every tenth, or one
per second. Without a prediction, or without a replica to predict for, nothing is refused for its deadline.

What an idle server could not do in time either is refused with `DeadlineExceeded`: trying again is of no use. What it
could do is refused with `DeadlineUnreachable`, and when to try again.
"""

from __future__ import annotations

from collections.abc import Mapping

from serve_app.errors import DeadlineExceeded, DeadlineUnreachable, ModelNotFound, QueueFull
from serve_app.scheduling.composition import execution_s
from serve_app.scheduling.decisions import Rejection
from serve_app.scheduling.devices import Device
from serve_app.scheduling.entry import Entry, Priority
from serve_app.scheduling.latency import LatencyModel
from serve_app.scheduling.lateness import too_short
from serve_app.scheduling.model_state import ModelState
from serve_app.scheduling.queue import Ahead, Totals
from serve_app.scheduling.settings import ClassSettings, ProcessLimits

_SHORTEST_RETRY_S = 0.1
_LONGEST_RETRY_S = 60.0
_UNKNOWN_RETRY_S = 1.0
_TOLERATED_BATCHES = 2


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

    @property
    def timeouts_s(self) -> dict[Priority, float]:
        """What the classes allow requests that name no deadline, seconds."""
        return {priority: settings.timeout_s for priority, settings in self._classes.items()}

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
        retry = retry_s(drain_s)
        if totals.entries >= settings.queue_entries:
            what = f"{totals.entries} of {settings.queue_entries} requests queued"
        elif totals.nbytes + nbytes > settings.queue_bytes:
            what = f"{totals.nbytes} of {settings.queue_bytes} bytes queued"
        else:
            what = f"{self.nbytes} bytes in the server, {most} allowed"
        return Rejection(
            QueueFull.code, f"the queue of class {priority.label} is full ({what}); try again in {retry:.1f} s", retry
        )


def retry_s(drain_s: float | None) -> float:
    """When trying again may help somebody who finds no room, seconds: when what is ahead is done."""
    return _UNKNOWN_RETRY_S if drain_s is None else max(_SHORTEST_RETRY_S, min(_LONGEST_RETRY_S, drain_s))


def drain_s(model: ModelState, device: Device, priority: Priority, now: float) -> float | None:
    """Predicted time until everything queued in this class and above is executed; ``None`` when unknown."""
    if not model.latencies.exact.known or not model.slots.usable:
        return None
    wait, shared = wait_s(model, device, priority, now + 1e9, now)
    return wait + model.latencies.exact.predict(shared) if shared else wait


def unreachable(entry: Entry, priority: Priority, model: ModelState, device: Device, now: float) -> Rejection | None:
    """Refuse an entry that is predicted to miss its deadline, or return ``None``.

    Where the exact model would be too late, its fallbacks count. What passes as a probe is marked as one.

    Args:
        entry: Not queued yet.
        priority: The class it would queue in.
        model: Its model.
        device: What the model computes on.
        now: Seconds.
    """
    latencies = model.latencies
    latency = latencies.of(entry.variant)
    if not latency.known:
        return None
    budget = entry.deadline - now
    alone = execution_s(latency, entry.rows, entry.bucket, model.settings.max_rows)
    own = alone + model.overhead.seconds
    if own > budget and not entry.lane:
        fallbacks = [latencies.of(name) for name in model.settings.fallbacks if latencies.has(name)]
        own = min([own, *(_own_s(entry, fallback, model) for fallback in fallbacks)])
    if own > budget:
        if model.probes.allow(now):
            entry.probe = True
            return None
        # Trying again would not help: it is the deadline that is too short, and not the load too high.
        return Rejection(DeadlineExceeded.code, too_short(entry, own, budget))
    if not model.slots.usable:
        return None
    wait, shared = wait_s(model, device, priority, entry.deadline, now)
    most = model.settings.max_rows
    if shared and entry.rows < most:
        # How much longer its batch takes because of the rows that are queued before it and go with it.
        own += latency.predict(min(most, entry.rows + shared), entry.bucket) - alone
    late = wait + own - budget
    if late <= 0.0 or late <= _tolerated_s(entry, latency, model):
        return None
    retry = max(_SHORTEST_RETRY_S, min(_LONGEST_RETRY_S, late))
    return Rejection(
        DeadlineUnreachable.code,
        f"{wait:.3f} s of work is ahead and this request has {budget:.3f} s:"
        f" allow it more time or try again in {retry:.1f} s",
        retry,
    )


def _own_s(entry: Entry, latency: LatencyModel, model: ModelState) -> float:
    return execution_s(latency, entry.rows, entry.bucket, model.settings.max_rows) + model.overhead.seconds


def _tolerated_s(entry: Entry, latency: LatencyModel, model: ModelState) -> float:
    """How late an entry may be predicted and still queue: entries before it may yet be given up for it."""
    settings = model.settings
    if not settings.early_drop:
        return 0.0
    rows, seconds_per_row = latency.best(entry.bucket, settings.max_rows, settings.slo_s)
    return _TOLERATED_BATCHES * rows * seconds_per_row


def wait_s(model: ModelState, device: Device, priority: Priority, deadline: float, now: float) -> tuple[float, int]:
    """Predicted time until an entry of this class and deadline could begin, and the rows that would go with it."""
    begin = model.slots.earliest_start(now)
    if device.concurrency:
        begin = max(begin, device.earliest_start(now))
    wait = begin - now
    shared = 0
    for member in device.models:
        ahead = member.queue.ahead(priority, deadline, now)
        rows = ahead.rows
        if not rows:
            continue
        if member is model:
            settings = model.settings
            batch, per_row = model.latencies.exact.best(ahead.bucket, settings.max_rows, settings.slo_s)
            shared = rows % batch
            rows -= shared
            if not ahead.shares and not settings.fallbacks:
                wait += rows * per_row / (device.concurrency or member.slots.usable or 1)
                continue
        wait += rows * _seconds_per_row(ahead, member) / max(1, device.concurrency or member.slots.usable)
    return wait, shared


def _seconds_per_row(ahead: Ahead, model: ModelState) -> float:
    """Server time of a row that is ahead; on the cheapest fallback where there are any."""
    settings, latencies = model.settings, model.latencies
    seconds = latencies.seconds_per_row(ahead.bucket, settings.max_rows, settings.slo_s, ahead.shares)
    for name in settings.fallbacks:
        if latencies.has_for_all(name):
            fallback = latencies.of(name).seconds_per_row(ahead.bucket, settings.max_rows, settings.slo_s)
            seconds = min(seconds, fallback)
    return seconds


def unknown_model(model: str) -> Rejection:
    """The reason for refusing an entry of a model that is not scheduled here."""
    return Rejection(ModelNotFound.code, f"no model {model!r} is served here")


def already_late() -> Rejection:
    """The reason for refusing an entry whose deadline has passed on arrival."""
    return Rejection(DeadlineExceeded.code, "the deadline passed before the request arrived")


_HIGH = Priority.HIGH
_LOW = Priority.LOW
_LOWER = {Priority.HIGH: Priority.NORMAL, Priority.NORMAL: Priority.LOW}
