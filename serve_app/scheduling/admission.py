"""Admission: refuse at once, with a reason and before any work, what has no room or could not be in time even alone.

Everything else is accepted, however much it is: which queued entries are worth their time is decided when a bundle is
composed (`scheduling.batching.composition`), from the state at that time. To refuse by the predicted wait would refuse
the newest entries, which have the most time left, and keep those that waited longest.

An entry's own execution is predicted by the latency model, which only executions feed. To correct wrong predictions,
some entries predicted to take too long pass as probes: every tenth, or one per second. Without a prediction, nothing is
refused for its deadline.
"""

from __future__ import annotations

from collections.abc import Mapping

from serve_app.domain.priority import Priority
from serve_app.errors import DeadlineExceeded, ModelNotFound, QueueFull
from serve_app.scheduling.batching.composition import execution_s
from serve_app.scheduling.batching.latency import LatencyModel
from serve_app.scheduling.decisions import Rejection
from serve_app.scheduling.entry import Entry
from serve_app.scheduling.model_state import ModelState
from serve_app.scheduling.placement.devices import Device
from serve_app.scheduling.queueing.lateness import too_short
from serve_app.scheduling.queueing.tenant_queue import TenantQueue, Totals
from serve_app.scheduling.settings import ClassSettings, ProcessLimits

_SHORTEST_RETRY_S = 0.1
_LONGEST_RETRY_S = 60.0
_UNKNOWN_RETRY_S = 1.0


class Bounds:
    """The bounds of the process: entries and bytes queued per class, bytes queued and running in total.

    Attributes:
        totals: Queued per class, over all models. The queues keep the counts.
        nbytes: Of all entries queued or running.
    """

    def __init__(self, classes: Mapping[Priority, ClassSettings], limits: ProcessLimits) -> None:
        self.totals = {priority: Totals() for priority in Priority}
        self.nbytes = 0
        self._classes = dict(classes)
        self._total_bytes = limits.total_bytes
        self._shared_bytes = int(limits.total_bytes * (1.0 - limits.high_headroom))

    @property
    def timeouts_s(self) -> dict[Priority, float]:
        """Default deadline per class, seconds after arrival."""
        return {priority: settings.timeout_s for priority, settings in self._classes.items()}

    def room(self, priority: Priority, nbytes: int) -> Priority | None:
        """The class with room for one more entry: this one, a lower one by demotion, or ``None``."""
        while not self.fits(priority, nbytes):
            if self._classes[priority].overflow != "demote" or priority is _LOW:
                return None
            priority = _LOWER[priority]
        return priority

    def fits(self, priority: Priority, nbytes: int) -> bool:
        """Whether this very class has room for one more entry."""
        settings, totals = self._classes[priority], self.totals[priority]
        return (
            totals.entries < settings.queue_entries
            and totals.nbytes + nbytes <= settings.queue_bytes
            and self.nbytes + nbytes <= (self._total_bytes if priority is _HIGH else self._shared_bytes)
        )

    def part(self, priority: Priority, entries: int, nbytes: int) -> float:
        """Fraction of a class's queue taken by so many entries and bytes, the larger of the two."""
        settings = self._classes[priority]
        return max(entries / settings.queue_entries, nbytes / settings.queue_bytes)

    def queue_full(self, priority: Priority, nbytes: int, drain_s: float | None) -> Rejection:
        """The refusal if `room` found no class.

        Args:
            drain_s: Predicted time until everything ahead is done; ``None`` if unknown.
        """
        settings = self._classes[priority]
        totals = self.totals[priority]
        most = min(settings.queue_bytes, self._total_bytes if priority is _HIGH else self._shared_bytes)
        if nbytes > most:
            return Rejection(
                QueueFull.code,
                f"the request has {nbytes} bytes; class {priority.label} queues at most {most} bytes"
                f" (classes.{priority.label}.queue_bytes, router.limits.max_bytes)",
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


def largest_tenant_queues(
    models: Mapping[str, ModelState], bounds: Bounds, priority: Priority, nbytes: int, tenant: str, weight: float
) -> list[tuple[str, TenantQueue]] | None:
    """The queues, by model, of the tenant with the most in a full class.

    ``None`` if the asking tenant has its part already.
    """
    queues: dict[str, list[tuple[str, TenantQueue]]] = {}
    for name, model in models.items():
        if model.queue.fresh[priority - 1].rows:
            for queue in model.queue.fresh[priority - 1].waiting():
                queues.setdefault(queue.tenant, []).append((name, queue))
    own = queues.pop(tenant, [])
    if not queues:
        return None
    parts = {
        other: bounds.part(priority, sum(len(q) for _, q in of), sum(q.nbytes for _, q in of)) / of[0][1].weight
        for other, of in queues.items()
    }
    entries, held = sum(len(queue) for _, queue in own), sum(queue.nbytes for _, queue in own)
    own_part = bounds.part(priority, entries + 1, held + nbytes) / weight
    weights = weight + sum(of[0][1].weight for of in queues.values())
    largest = max(parts, key=parts.__getitem__)
    return queues[largest] if own_part <= min(1.0 / weights, parts[largest]) else None


def retry_s(drain_s: float | None) -> float:
    """When to retry after a full queue, seconds: when everything ahead is done."""
    return _UNKNOWN_RETRY_S if drain_s is None else max(_SHORTEST_RETRY_S, min(_LONGEST_RETRY_S, drain_s))


def drain_s(model: ModelState, device: Device, priority: Priority, now: float) -> float | None:
    """Predicted time until everything queued in this class and above is executed; ``None`` if unknown.

    On a shared device, entries of its other models count, too.
    """
    quickest = model.slots.quickest()
    if not model.latencies.exact.known or quickest is None:
        return None
    seconds = max(model.backlog_s(quickest), device.wait_s(now))
    for member in device.active:
        rows, bucket = member.queue.ahead(priority)
        if rows:
            latency, settings = member.latencies.exact, member.settings
            batch, _ = latency.best(bucket, settings.max_rows, settings.slo_s)
            seconds += execution_s(latency, rows, bucket, batch) / _servers(member, device)
    return seconds


def least_s(model: ModelState, device: Device, entries: int, *, exact: bool) -> float:
    """Predicted time until so many entries of one row are executed on an idle server; 0.0 while unknown.

    It is the least of any schedule: they run at all replicas at once, on the fastest variant.

    Args:
        entries: 1 or more.
        exact: Whether no fallback may stand in for the exact model.
    """
    rows = -(-entries // _servers(model, device))
    latencies = [model.latencies.exact] if exact else [model.latencies.exact, *_fallbacks(model)]
    return min(execution_s(latency, rows, 0, model.settings.max_rows) for latency in latencies)


def too_slow(entry: Entry, model: ModelState, now: float, ready_s: float = 0.0) -> Rejection | None:
    """Refuse an entry that could not be in time even if it began now and alone, or return ``None``.

    Fallbacks count if the exact model would be too late. A probe is marked as one.

    Args:
        entry: Not queued yet.
        ready_s: Time until its model can run, e.g. is loaded.
    """
    latencies = model.latencies
    latency = latencies.of(entry.variant) if entry.variant else latencies.exact
    if not latency.known and not ready_s:
        return None
    budget = entry.deadline - now - ready_s
    if entry.rows <= model.settings.max_rows:
        own = latency.predict(entry.rows, entry.bucket) + model.overhead.alone_s
    else:
        own = _own_s(entry, latency, model)
    if own > budget and not entry.batch_key:
        own = min([own, *(_own_s(entry, fallback, model) for fallback in _fallbacks(model))])
    if own <= budget:
        return None
    if model.probes.allow(now):
        entry.probe = True
        return None
    return Rejection(DeadlineExceeded.code, too_short(entry, ready_s + own, ready_s + budget + entry.spent_s))


def _fallbacks(model: ModelState) -> list[LatencyModel]:
    return [model.latencies.of(name) for name in model.settings.fallbacks if model.latencies.has(name)]


def _servers(model: ModelState, device: Device) -> int:
    """Concurrent batches of a model."""
    return device.concurrency or model.slots.usable or 1


def _own_s(entry: Entry, latency: LatencyModel, model: ModelState) -> float:
    return execution_s(latency, entry.rows, entry.bucket, model.settings.max_rows) + model.overhead.alone_s


def unknown_model(model: str) -> Rejection:
    """The refusal of an entry of an unknown model."""
    return Rejection(ModelNotFound.code, f"no model {model!r} is served here")


def removed_model(model: str) -> Rejection:
    """The refusal of an accepted entry whose model was removed."""
    return Rejection(ModelNotFound.code, f"model {model} was removed")


def already_late() -> Rejection:
    """The refusal of an entry whose deadline had passed on arrival."""
    return Rejection(DeadlineExceeded.code, "the deadline passed before the request arrived")


_HIGH = Priority.HIGH
_LOW = Priority.LOW
_LOWER = {Priority.HIGH: Priority.NORMAL, Priority.NORMAL: Priority.LOW}
