"""The scheduler's state per model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any

from serve_app.domain.priority import Priority
from serve_app.scheduling.batching.composition import execution_s
from serve_app.scheduling.batching.latency import LatencyModel
from serve_app.scheduling.batching.overhead import RoundTrip
from serve_app.scheduling.batching.variants import VariantLatency
from serve_app.scheduling.bundles import Bundle
from serve_app.scheduling.demand import DemandMeter, ModelDemand
from serve_app.scheduling.entry import Entry
from serve_app.scheduling.health.breakers import Breakers
from serve_app.scheduling.queueing.probes import Probes
from serve_app.scheduling.queueing.queue import ModelQueue
from serve_app.scheduling.queueing.tenant_queue import Totals
from serve_app.scheduling.settings import ModelScheduling
from serve_app.scheduling.slots import Replica, Slots

_RECENT = 0.1
"""Weight of one run in the mean rows of runs."""


class ModelState:
    """The scheduler's state of one model.

    Args:
        totals: The process's counts per class.
        network_s: Cost of a bundle besides its execution, until it was measured.

    Attributes:
        settings: In effect now.
        full_rows: Most rows in one batch; the effective value is 1 while requests are run one by one.
        joins: Whether requests for the exact model may share a batch.
        overhead: Time of a bundle besides waiting at the gate and its execution.
        run_rows: Recent mean rows of executions.
    """

    __slots__ = (
        "_configured", "breakers", "demand", "full_rows", "joins", "latencies", "overhead", "probes", "queue",
        "run_rows", "settings", "slots", "wasted_rows",
    )  # fmt: skip

    def __init__(self, settings: ModelScheduling, totals: dict[Priority, Totals], network_s: float) -> None:
        self.settings = settings
        self._configured = settings
        self.full_rows = settings.max_rows
        self.joins = True
        self.queue = ModelQueue(totals, settings.size_fairness)
        self.latencies = VariantLatency()
        self.overhead = RoundTrip(network_s)
        self.slots = Slots(settings.window, 1.0 if settings.breaker is None else settings.breaker.max_ejected)
        self.probes = Probes()
        self.demand = DemandMeter()
        self.run_rows = 1.0
        self.wasted_rows = 0
        self.breakers = (
            None if settings.breaker is None else Breakers(settings, settings.breaker, self.latencies.limited)
        )

    def set_joins(self, variant: str, *, joins: bool) -> None:
        """Set whether requests for a variant may share a batch; ``""`` is the exact model."""
        if variant:
            (self.latencies.whole.discard if joins else self.latencies.whole.add)(variant)
            return
        self.joins = joins
        self.set_rows(self.full_rows)

    def set_rows(self, rows: int) -> None:
        """Set the most rows of a batch, if requests may share one."""
        self.full_rows = rows
        most, configured = rows if self.joins else 1, self._configured
        if most != self.settings.max_rows:
            # Larger batches do not put more rows in flight: what may be in flight is budgeted.
            window = max(1, min(configured.window, configured.window * configured.max_rows // most))
            self.settings = replace(self.settings, max_rows=most, window=window)
            self.slots.window = window

    def snapshot(self) -> dict[str, Any]:
        """This model's part of `Scheduler.snapshot`, JSON-able.

        Returns:
            ``queues`` (per class: ``entries``, ``rows``, ``bytes``), ``overhead_s`` (of a bundle, besides waiting at
            the replica and its execution), ``running_rows``, ``replicas`` and ``held_replicas`` (names),
            ``slots_in_use`` (bundles in flight), ``latency_s`` (of the exact model, per cost bucket: predicted seconds
            of 1 row and of a full batch), ``wasted_rows`` (results not used), and where variants have run
            ``variants`` (by name: their ``latency_s``).
        """
        slots = self.slots
        shown = {
            "queues": {
                priority.label: {"entries": length.entries, "rows": length.rows, "bytes": length.nbytes}
                for priority, length in self.queue.lengths().items()
            },
            "overhead_s": self.overhead.seconds,
            "running_rows": slots.rows,
            "replicas": list(slots.replicas),
            "held_replicas": slots.held,
            "slots_in_use": slots.in_use,
            "latency_s": self._latency_s(self.latencies.exact),
            "wasted_rows": self.wasted_rows,
        }
        if self.latencies.variants:
            shown["variants"] = {
                name: {"latency_s": self._latency_s(latency)} for name, latency in self.latencies.variants.items()
            }
        return shown

    def answered(
        self,
        bundle: Bundle,
        executions: Sequence[tuple[int, int, float, str]],
        now: float,
        waited_s: float,
        runs_s: float,
        reported_backlog_s: float,
    ) -> None:
        """Free the slot of an answered bundle, and learn from it.

        Args:
            executions: ``(rows, bucket, seconds, variant)`` of the backend runs that carried it.
            waited_s: Time at the replica's gate.
            runs_s: Predicted time until the replica's present run ends.
            reported_backlog_s: Predicted time until the replica is idle.
        """
        replica = bundle.replica
        if executions:
            executed_s = 0.0
            for rows, bucket, seconds, variant in executions:
                if variant:
                    self.latencies.observe(rows, bucket, seconds, variant)
                else:
                    self.latencies.exact.observe(rows, bucket, seconds)
                self.run_rows += _RECENT * (rows - self.run_rows)
                executed_s += seconds
            # The silence of a replica that was given up is no delay.
            if replica.held_until is None and (sent := replica.bundles.get(bundle.id)) is not None:
                self.overhead.observe(now - sent.sent - waited_s - executed_s, now)
        # Recalled entries come back also from a session that hangs.
        works = bool(executions) or not bundle.recalled
        self.slots.release(
            replica, bundle.id, now, answered=works, runs_s=runs_s, reported_backlog_s=reported_backlog_s
        )

    @property
    def has_limited_fallbacks(self) -> bool:
        """Whether the breaker of a fallback is not closed, so that gates may not choose among them."""
        latencies = self.latencies
        return bool(latencies.limited) and not all(
            name not in latencies.limited or latencies.limited[name].has_room() for name in self.settings.fallbacks
        )

    @property
    def wake_at(self) -> float:
        """Time of its next event of its own; ``inf``: never.

        Also without work: readers of the usable replicas must not see holds that are over.
        """
        earliest = self.queue.next_deadline() if self.queue.total.rows else inf
        if self.slots.holding:
            earliest = min(earliest, self.slots.next_release)
        breakers = self.breakers
        return min(earliest, breakers.next_poll) if breakers is not None and breakers.tripped else earliest

    def solo_s(self, entry: Entry) -> float:
        """Predicted execution time of an entry alone; 0.0 while unknown."""
        return execution_s(self.latencies.of(entry.variant), entry.rows, entry.bucket, self.settings.max_rows)

    @property
    def per_row_s(self) -> float:
        """Predicted execution time of a row in a usual batch; 0.0 while unknown."""
        latency = self.latencies.exact
        rows = max(1, round(self.run_rows))
        return latency.predict(rows, latency.buckets[-1]) / rows if latency.known else 0.0

    def full_s(self, entry: Entry) -> float:
        """Predicted execution time of the largest batch of entries like this one within the model's target."""
        latency, settings = self.latencies.of(entry.variant), self.settings
        rows, seconds_per_row = latency.best(entry.bucket, settings.max_rows, settings.slo_s)
        return rows * seconds_per_row

    def read_demand(self, now: float) -> ModelDemand:
        """What was asked since the last call."""
        meter = self.demand
        of_class, background = meter.read(now, self.latencies, self.settings, self.overhead.alone_s)
        turned_away_rows, meter.turned_away_rows = meter.turned_away_rows, 0
        rows = self.queue.total.rows
        if of_class:  # work in the background asks for a replica where there is no other, and for no more
            low = (self.queue.fresh[Priority.LOW - 1], self.queue.retry[Priority.LOW - 1])
            rows -= sum([each.rows for of_low in low for each in of_low if each.attributes.background])
        return ModelDemand(of_class, turned_away_rows, rows * self.per_row_s, background)

    def backlog_s(self, replica: Replica) -> float:
        """Predicted time until a replica is idle, other routers' work included."""
        own_s = 0.0
        if rows := replica.rows:
            latency = self.latencies.exact
            bucket = latency.buckets[-1] if latency.buckets else 0
            own_s = execution_s(latency, rows, bucket, self.settings.max_rows)
        return max(own_s, replica.reported_backlog_s)

    def _latency_s(self, latency: LatencyModel) -> dict[str, dict[str, float]]:
        most = self.settings.max_rows
        return {
            str(bucket): {"1": latency.predict(1, bucket), str(most): latency.predict(most, bucket)}
            for bucket in latency.buckets
        }
