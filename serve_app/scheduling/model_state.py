"""Everything the scheduler keeps per model, and the choice of the model's next bundle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from serve_app.scheduling.admission import Probes
from serve_app.scheduling.batching import batch_policy
from serve_app.scheduling.composition import compose, execution_s
from serve_app.scheduling.entry import Entry, Priority
from serve_app.scheduling.latency import LatencyModel
from serve_app.scheduling.queue import ModelQueue, Totals
from serve_app.scheduling.settings import ClassSettings, ModelScheduling
from serve_app.scheduling.shares import Shares
from serve_app.scheduling.slots import Replica, Slots
from serve_app.scheduling.variants import VariantLatency

_PRIORITIES = tuple(Priority)


class NextBundle(NamedTuple):
    """A bundle that was taken from the queue, and where it goes."""

    replica: Replica
    entries: list[Entry]
    rows: int
    bucket: int
    predicted_s: float


class ModelState:
    """Everything the scheduler keeps per model."""

    __slots__ = ("latencies", "policy", "probes", "queue", "settings", "shares", "slots", "wasted_rows")

    def __init__(
        self, settings: ModelScheduling, classes: Mapping[Priority, ClassSettings], totals: dict[Priority, Totals]
    ) -> None:
        self.settings = settings
        self.queue = ModelQueue(totals)
        self.latencies = VariantLatency()
        self.policy = batch_policy(settings.policy)
        self.slots = Slots(settings.window)
        self.shares = Shares({priority: classes[priority].min_share for priority in _PRIORITIES})
        self.probes = Probes()
        self.wasted_rows = 0

    def picture(self) -> dict[str, Any]:
        """This model's part of `Scheduler.snapshot`, JSON-able.

        Returns:
            ``queues`` (per class: ``entries``, ``rows``, ``bytes``), ``credit_s`` (per class, see `Shares`),
            ``running_rows``, ``replicas`` and ``held_replicas`` (names), ``slots`` and ``slots_in_use``, ``latency_s``
            (of the exact model, per cost bucket: predicted seconds of 1 row and of a full batch), ``wasted_rows``
            (executed for nobody), and where variants have run ``variants`` (by name: their ``latency_s``).
        """
        slots = self.slots
        picture = {
            "queues": {
                priority.label: {"entries": length.entries, "rows": length.rows, "bytes": length.nbytes}
                for priority, length in self.queue.lengths().items()
            },
            "credit_s": {priority.label: credit for priority, credit in self.shares.credit_s.items()},
            "running_rows": slots.rows,
            "replicas": list(slots.replicas),
            "held_replicas": slots.held,
            "slots": len(slots.replicas) * slots.window,
            "slots_in_use": slots.in_use,
            "latency_s": self._latency_s(self.latencies.exact),
            "wasted_rows": self.wasted_rows,
        }
        if self.latencies.variants:
            picture["variants"] = {
                name: {"latency_s": self._latency_s(latency)} for name, latency in self.latencies.variants.items()
            }
        return picture

    def next_bundle(self, now: float, network_s: float) -> NextBundle | None:
        """Take the next bundle from the queue, for a replica with a free slot; ``None`` when nothing can go.

        Expired entries must have been taken out before. The caller takes the slot.

        Args:
            now: Seconds.
            network_s: Allowance for everything around an execution, seconds.
        """
        slots, latencies, settings = self.slots, self.latencies, self.settings
        default = slots.choose()
        if default is None:
            return None
        # Classes that can be dispatched now, and for each: its retried head and that one's replica, if it goes first.
        ready: list[Priority] = []
        retries: dict[Priority, tuple[Entry, Replica]] = {}
        heads: list[Entry] = []
        for priority in _PRIORITIES:
            head = self.queue.fresh[priority - 1].head()
            again = self.queue.retry[priority - 1].head()
            if again is not None and (head is None or (again.deadline, again.id) <= (head.deadline, head.id)):
                replica = slots.choose(again.avoid, suspect=True)
                if replica is not None:
                    retries[priority] = (again, replica)
                    head = again
            if head is not None:
                ready.append(priority)
                heads.append(head)
        if not ready:
            return None
        chosen = ready[0]
        paid_by = None
        for priority, head in zip(ready[1:], heads[1:], strict=True):
            if self.shares.credit_s[priority] > 0.0 and self.shares.may_go_first(
                priority, execution_s(latencies.of(head.variant), head.rows, head.bucket, settings.max_rows)
            ):
                chosen = paid_by = priority
                break

        if chosen in retries:
            head, replica = retries[chosen]
            self.queue.retry[chosen - 1].pop()
            entries, rows, bucket = [head], head.rows, head.bucket
        else:
            replica = default
            slack_from = max(now, replica.busy_until) + network_s
            entries, rows, bucket = compose(self.queue, chosen, settings, self.policy, latencies, slack_from)
        predicted = execution_s(latencies.of(entries[0].variant), rows, bucket, settings.max_rows)
        riders = _riders(entries, rows, chosen) if len(entries) > 1 else ()
        self.shares.dispatched(predicted, ready, paid_by, riders)
        return NextBundle(replica, entries, rows, bucket, predicted)

    def _latency_s(self, latency: LatencyModel) -> dict[str, dict[str, float]]:
        most = self.settings.max_rows
        return {
            str(bucket): {"1": latency.predict(1, bucket), str(most): latency.predict(most, bucket)}
            for bucket in latency.buckets
        }


def _riders(entries: list[Entry], rows: int, chosen: Priority) -> list[tuple[Priority, float]]:
    """The classes other than ``chosen`` in a bundle, with their parts of its rows."""
    riding: dict[Priority, int] = {}
    for entry in entries:
        if entry.priority is not chosen:
            riding[entry.priority] = riding.get(entry.priority, 0) + entry.rows
    return [(priority, part / rows) for priority, part in riding.items()]
