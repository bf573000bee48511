"""Everything the scheduler keeps per model, and what of it would go next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any, NamedTuple

from serve_app.scheduling.arrivals import ArrivalPattern
from serve_app.scheduling.batching import Waiting, Window, batch_policy, target_s
from serve_app.scheduling.breakers import Breakers
from serve_app.scheduling.bundles import Bundle
from serve_app.scheduling.composition import execution_s
from serve_app.scheduling.entry import Entry, Priority
from serve_app.scheduling.gate import Outlook
from serve_app.scheduling.latency import LatencyModel
from serve_app.scheduling.overhead import Earliness, Overhead
from serve_app.scheduling.probes import Probes
from serve_app.scheduling.queue import ModelQueue, Totals
from serve_app.scheduling.settings import ModelScheduling
from serve_app.scheduling.shares import Shares
from serve_app.scheduling.slots import Replica, Slots
from serve_app.scheduling.variants import VariantLatency

_PRIORITIES = tuple(Priority)
_HIGH = Priority.HIGH
_RECENT = 0.2
_MEDIAN = 0.5


class Candidate(NamedTuple):
    """What one model would dispatch next.

    Attributes:
        model: The model.
        priority: The class that goes first.
        head: Its head. It has been tried before if it comes from the retries.
        replica: Where it would go.
        ready: Every class of the model that could go, most urgent first.
        paid: Whether its class goes first on credit.
        owed: The class with credit that rides in its bundle before all others, if any.
        spare_s: How long it may take, if it goes first on credit, so that the waiting class ``high`` is still in time.
        slack_s: Time until it must begin, seconds, divided by the model's weight.
        alone_s: Predicted execution time of the head alone, seconds.
    """

    model: ModelState
    priority: Priority
    head: Entry
    replica: Replica
    ready: list[Priority]
    paid: bool
    owed: Priority | None
    spare_s: float
    slack_s: float
    alone_s: float


class ModelState:
    """Everything the scheduler keeps per model.

    Args:
        settings: Of the model. Raises ValueError for an unknown batch policy.
        totals: The process's counts per class.
        network_s: What a bundle costs besides its execution, until that was measured, seconds.

    Attributes:
        settings: In effect now.
        full_rows: Most rows in one batch, as configured; in effect it is 1 while requests are run one by one.
    """

    __slots__ = (
        "arrivals",
        "breakers",
        "earliness",
        "full_rows",
        "latencies",
        "overhead",
        "pause",
        "policy",
        "probes",
        "queue",
        "round_trip",
        "settings",
        "slots",
        "wasted_rows",
    )

    def __init__(self, settings: ModelScheduling, totals: dict[Priority, Totals], network_s: float) -> None:
        self.settings = settings
        self.full_rows = settings.max_rows
        self.queue = ModelQueue(totals)
        self.latencies = VariantLatency()
        self.policy = batch_policy(settings)
        self.arrivals = ArrivalPattern(settings.slo_s)
        self.overhead = Overhead(network_s)
        self.round_trip = Overhead(network_s, _MEDIAN)
        self.pause = Overhead(0.0, _MEDIAN)
        self.earliness = Earliness()
        self.slots = Slots(settings.window, 1.0 if settings.breaker is None else settings.breaker.max_ejected)
        self.slots.round_trip_s = network_s
        self.probes = Probes()
        self.wasted_rows = 0
        self.breakers = (
            None if settings.breaker is None else Breakers(settings, settings.breaker, self.latencies.limited)
        )

    def set_joins(self, variant: str, *, joins: bool) -> None:
        """Say whether requests for a variant may share a batch, or are run one by one; ``""`` is the exact model."""
        if variant:
            (self.latencies.whole.discard if joins else self.latencies.whole.add)(variant)
            return
        rows = self.full_rows if joins else 1
        if rows != self.settings.max_rows:
            self.settings = replace(self.settings, max_rows=rows)
            self.policy = batch_policy(self.settings)

    def picture(self) -> dict[str, Any]:
        """This model's part of `Scheduler.snapshot`, JSON-able.

        Returns:
            ``queues`` (per class: ``entries``, ``rows``, ``bytes``), ``overhead_s`` (of a bundle, besides its
            execution), ``round_trip_s`` and ``pause_s`` (see `Slots`), ``running_rows``, ``replicas`` and
            ``held_replicas`` (names), ``slots`` and ``slots_in_use``, ``latency_s`` (of the exact model, per cost
            bucket: predicted seconds of 1 row and of a full batch), ``window_s`` (of the policy ``window``, else
            ``None``), ``wasted_rows`` (executed for nobody), and where variants have run ``variants`` (by name: their
            ``latency_s``).
        """
        slots = self.slots
        picture = {
            "queues": {
                priority.label: {"entries": length.entries, "rows": length.rows, "bytes": length.nbytes}
                for priority, length in self.queue.lengths().items()
            },
            "overhead_s": self.overhead.seconds,
            "round_trip_s": slots.round_trip_s,
            "pause_s": slots.pause_s,
            "running_rows": slots.rows,
            "replicas": list(slots.replicas),
            "held_replicas": slots.held,
            "slots": len(slots.replicas) * slots.window,
            "slots_in_use": slots.in_use,
            "latency_s": self._latency_s(self.latencies.exact),
            "window_s": self.policy.window_s if isinstance(self.policy, Window) else None,
            "wasted_rows": self.wasted_rows,
        }
        if self.latencies.variants:
            picture["variants"] = {
                name: {"latency_s": self._latency_s(latency)} for name, latency in self.latencies.variants.items()
            }
        return picture

    def slack_s(self, entry: Entry, now: float, rate: float) -> float:
        """What an entry's budget leaves besides its execution and the overhead, seconds.

        It may execute together with what else comes within its budget.

        Args:
            entry: The entry.
            now: Seconds.
            rate: Of entries like it, per second.
        """
        budget = entry.deadline - now
        rows = entry.rows
        if rows < self.settings.max_rows:
            rows = min(self.settings.max_rows, rows + int(min(rate * budget, self.settings.max_rows)) + 1)
        latency = self.latencies.of(entry.variant)
        return budget - execution_s(latency, rows, entry.bucket, self.settings.max_rows) - self.overhead.seconds

    def answered(
        self,
        bundle: Bundle,
        executions: Sequence[tuple[int, int, float, str]],
        now: float,
        outlook: Outlook | None = None,
        waited_s: float = 0.0,
    ) -> None:
        """A replica answered a bundle: frees its slot, and learns.

        Args:
            bundle: The bundle.
            executions: ``(rows, bucket, seconds, variant)`` of the backend runs that carried it.
            now: Seconds.
            outlook: What the replica told of itself, where other routers send to it too.
            waited_s: How long it was at the replica before its execution began.
        """
        replica = bundle.replica
        if executions:
            self._learn(bundle, executions, now, outlook, waited_s)
        self.slots.release(replica, bundle.id, now, answered=True, outlook=outlook)
        if outlook is None:
            replica.riders = replica.riders_s = 0.0
        elif len(executions) == 1:
            rows, bucket, _, variant = executions[0]
            latency = self.latencies.of(variant)
            most, share = self.settings.max_rows, replica.most_rows(self.settings.max_rows)
            replica.riders += _RECENT * (max(0, rows - bundle.rows) - replica.riders)
            with_riders = latency.predict(min(most, share + round(replica.riders)), bucket)
            replica.riders_s = max(0.0, with_riders - latency.predict(share, bucket))

    def candidate(self, now: float, shares: Shares) -> Candidate | None:
        """What would go next, and where; ``None`` without a free slot or without anything that can go.

        Args:
            now: Seconds.
            shares: The classes' credits on the model's device.
        """
        slots, queue = self.slots, self.queue
        default = slots.choose()
        if default is None:
            return None
        ready: list[Priority] = []
        heads: list[tuple[Entry, Replica]] = []
        for priority, fresh, retry in zip(_PRIORITIES, queue.fresh, queue.retry, strict=True):
            head = fresh.head() if fresh.rows else None
            again = retry.head() if retry.rows else None
            replica = default
            if again is not None and (head is None or (again.deadline, again.id) <= (head.deadline, head.id)):
                elsewhere = slots.choose(again.avoid, suspect=True)
                if elsewhere is not None:
                    head, replica = again, elsewhere
            if head is not None:
                ready.append(priority)
                heads.append((head, replica))
        if not ready:
            return None
        chosen, paid, spare_s = 0, False, inf
        owed: Priority | None = None
        for at in range(1, len(ready)):
            alone_s = self._alone_s(heads[at][0])
            if not shares.covers(ready[at], alone_s):
                continue
            if shares.credit_s[ready[at]] < self.full_s(heads[at][0]):
                owed = owed or ready[at]
                continue
            chosen, paid, owed = at, True, None
            if ready[0] is _HIGH:
                spare_s = self._spare_s(*heads[0], now)
                if spare_s < alone_s:
                    spare_s = inf
            break
        head, replica = heads[chosen]
        alone_s = self._alone_s(head)
        slack_s = (head.deadline - now - alone_s) / self.settings.weight
        return Candidate(self, ready[chosen], head, replica, ready, paid, owed, spare_s, slack_s, alone_s)

    def opens_at(self, candidate: Candidate, slack_from: float, max_rows: int, now: float) -> float:
        """When the policy lets a fresh candidate go, seconds; now or the past: at once.

        Args:
            candidate: What would go.
            slack_from: When its execution can begin, plus the overhead, seconds.
            max_rows: Most rows that it may take.
            now: Seconds.
        """
        if self.policy.stages_early:
            return now
        head = candidate.head
        latency = self.latencies.of(head.variant)
        if not latency.known or head.rows >= max_rows or candidate.replica.name is None:
            return now
        target = target_s(latency, self.settings, head.rows, head.bucket, head.deadline - slack_from)
        fresh = self.queue.fresh
        begin = max(now, candidate.replica.busy_until)
        rows = self.queue.fresh_rows
        oldest, latest = head.arrival, inf
        for priority in candidate.ready:
            if priority is not candidate.priority and (other := fresh[priority - 1].head()) is not None:
                oldest = min(oldest, other.arrival)
                # It rides along at the latest when the whole bundle could still be in time for it.
                whole = latency.predict(min(rows, max_rows), other.bucket)
                latest = min(latest, other.deadline - (slack_from - begin) - whole)
        opens = self.policy.open_at(
            Waiting(
                now,
                rows,
                latency.rows_within(target, head.bucket, max_rows),
                head.rows,
                head.bucket,
                oldest,
                head.deadline - (slack_from - begin),
                head.deadline - head.arrival,
                self.slots.idle,
                self.slots.usable,
                latency,
                self.arrivals,
                self.earliness.part,
            )
        )
        return min(opens, latest)

    def _learn(
        self,
        bundle: Bundle,
        executions: Sequence[tuple[int, int, float, str]],
        now: float,
        outlook: Outlook | None,
        waited_s: float,
    ) -> None:
        """Observe what an answered bundle took, before its slot is free; see `answered`."""
        executed = 0.0
        for rows, bucket, seconds, variant in executions:
            self.latencies.observe(rows, bucket, seconds, variant)
            executed += seconds
        replica, slots = bundle.replica, self.slots
        if bundle.entries:
            self.policy.on_batch(bundle.rows, now - min(entry.arrival for entry in bundle.entries))
        if replica.held_until is not None:
            return  # how long it was silent tells nothing of the ways
        predicted_s = replica.predicted_s(bundle.id)
        if predicted_s > 0.0:
            self.earliness.observe(executed / predicted_s)
        sent = replica.sent.get(bundle.id, bundle.begins)
        took, since_sent = now - bundle.begins - executed, now - sent - executed
        if outlook is not None and outlook.behind_others_s > 0.0:
            took = min(took, since_sent - outlook.behind_others_s)  # others' work before it is no overhead
        self.overhead.observe(took)
        if outlook is None:
            # Between two answers, for what was there; what came later was ready for less.
            self.pause.observe(min(waited_s, since_sent, now - replica.answered_at - executed))
            slots.pause_s = self.pause.seconds
        self.round_trip.observe(since_sent - waited_s)
        slots.round_trip_s = self.round_trip.seconds

    def _spare_s(self, head: Entry, replica: Replica, now: float) -> float:
        """How long something else may take first, so that all that is queued in the head's class can follow in time."""
        settings = self.settings
        rows = min(settings.max_rows, self.queue.fresh[head.priority - 1].rows)
        own = execution_s(self.latencies.of(head.variant), max(rows, head.rows), head.bucket, settings.max_rows)
        return head.deadline - max(now, replica.busy_until) - self.overhead.seconds - own

    def full_s(self, head: Entry) -> float:
        """Predicted execution time of the largest batch within the model's target."""
        latency, settings = self.latencies.of(head.variant), self.settings
        rows, seconds_per_row = latency.best(head.bucket, settings.max_rows, settings.slo_s)
        return rows * seconds_per_row

    def _alone_s(self, head: Entry) -> float:
        return execution_s(self.latencies.of(head.variant), head.rows, head.bucket, self.settings.max_rows)

    def _latency_s(self, latency: LatencyModel) -> dict[str, dict[str, float]]:
        most = self.settings.max_rows
        return {
            str(bucket): {"1": latency.predict(1, bucket), str(most): latency.predict(most, bucket)}
            for bucket in latency.buckets
        }
