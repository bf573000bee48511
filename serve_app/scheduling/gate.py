"""The replica's gate: entries of all routers wait here, and the next batch is composed when an instance is free.

    add ──> QUEUED ──next──> RUNNING: in the batch
               │
               ├──next──> DONE: expired, or given up, since it would be late or make more others late
               └──remove─> DONE: its client has left, or another replica runs it

Routers send entries ahead and decide only their order. All routers' entries meet here, so priority, shares and
deadlines hold across routers, and a batch is composed from the latest state.

Theory of operation. `next` is called when an instance is free. It does the following, in this order:

    1. expire    Entries whose deadline has passed are dropped.
    2. choose    The class: the most urgent that waits, or one that has earned a turn (`queueing.shares`). Its head is
                 the earliest deadline of the least served tenants (`queueing.queue`).
    3. wait      `_wait_until`: return an empty decision with the time to ask again, or go on.
    4. compose   The best run of that class, filled up with other entries (`batching.composition`). If all entries
                 looked at are given up, the next head is chosen.
    5. account   Shares, tenants and the instance are charged with the predicted time.

Two measurements feed back: `observe` teaches the latency model, and entries of class `high` record which batch length
they would have tolerated on arrival, which bounds the batches of other classes (`batching.blocking_limit`).

Invariants: an entry leaves exactly once, by `next` or `remove`. An empty decision means that no entry waits or that
``recheck_at`` is finite. All times are seconds on this process's clock. The gate has no clock and no lock: the caller
serialises the calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import NamedTuple

from serve_app.domain.priority import Priority
from serve_app.scheduling.batching.arrivals import ArrivalPattern
from serve_app.scheduling.batching.blocking_limit import BlockingLimit, urgent_until
from serve_app.scheduling.batching.composition import Composition, compose, execution_s
from serve_app.scheduling.batching.latency import LatencyModel
from serve_app.scheduling.batching.limits import BatchLimits
from serve_app.scheduling.batching.overhead import Overhead, TimerLateness
from serve_app.scheduling.batching.policy import PendingBatch, dispatch_at, target_s
from serve_app.scheduling.batching.variants import VariantLatency
from serve_app.scheduling.entry import Entry, EntryState
from serve_app.scheduling.instances import Instance, Instances
from serve_app.scheduling.queueing.queue import ClassQueue, ModelQueue
from serve_app.scheduling.queueing.shares import Shares, fill_parts_of
from serve_app.scheduling.queueing.tenant_queue import Totals
from serve_app.scheduling.settings import ModelScheduling

_HIGH = Priority.HIGH
_LOW = Priority.LOW
_PRIORITIES = tuple(Priority)
_PROBE_S = 1.0
_SHORT_S = 0.002
"""A shorter run never waits for more rows: that would cost the processor more than it saves."""


class BatchDecision(NamedTuple):
    """A batch for an instance.

    Attributes:
        entries: The batch, removed from the gate; empty if nothing runs now.
        bucket: Largest cost bucket.
        predicted_s: Predicted execution time, seconds; 0.0 if the latency is unknown.
        dropped: Removed from the gate without a run: expired, or given up.
        recheck_at: When to ask again if nothing arrives before, seconds; ``inf``: never.
    """

    entries: Sequence[Entry]
    rows: int
    bucket: int
    variant: str
    predicted_s: float
    dropped: Sequence[Entry]
    recheck_at: float = inf


class Gate:
    """Composes the batches of one replica.

    Args:
        min_share: Guaranteed share of the session's time per class, 0 to 1.
        planned: Whether routers compose batches already, as for models that share a device: then nothing waits here,
            and no batch is shortened for class `high`.
        timer_s: Lateness of the caller's timer until it was measured, seconds; waiting ends this much before a deadline
            requires it.
        instances: Concurrent batches; instances are numbered from 0.
        protect: Part of class `high` that runs in time whatever that costs the others, 0 to 1; 0: none.

    Attributes:
        latencies: Measured execution times.
        shares: The classes' credits.
    """

    __slots__ = (
        "_arrivals",
        "_blocking_limit",
        "_idle_since",
        "_instances",
        "_pause",
        "_planned",
        "_queue",
        "_settings",
        "_timer",
        "_tolerable_s",
        "latencies",
        "shares",
    )

    def __init__(
        self,
        settings: ModelScheduling,
        min_share: Mapping[Priority, float],
        *,
        planned: bool = False,
        timer_s: float = 0.0,
        instances: int = 1,
        protect: float = 0.0,
    ) -> None:
        self._settings = settings
        self._planned = planned
        self._timer = TimerLateness(timer_s)
        self._queue = ModelQueue({priority: Totals() for priority in _PRIORITIES}, settings.size_fairness)
        self._arrivals = ArrivalPattern(settings.slo_s)
        self._blocking_limit = BlockingLimit(protect)
        # The longest batch that each entry of class `high` tolerated when it arrived.
        self._tolerable_s: dict[Entry, float] = {}
        self._pause = Overhead(0.0, 0.5)
        self._instances = Instances([Instance() for _ in range(instances)])
        self._idle_since: float | None = None
        self.latencies = VariantLatency()
        self.shares = Shares(min_share)

    def __bool__(self) -> bool:
        return bool(self._queue)

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def rows(self) -> int:
        """Rows that wait."""
        return self._queue.total.rows

    # ---------------------------------------------------------------- events

    def add(self, entry: Entry, now: float) -> None:
        """Queue an entry. Raises ValueError if its id waits already.

        Its deadline is the latest end of its execution, on this process's clock.
        """
        self._queue.fresh[entry.priority - 1].push(entry)
        entry.state = EntryState.QUEUED
        self._arrivals.observe(now)
        if entry.priority is _HIGH:
            blocking_limit, latency = self._blocking_limit, self.latencies.of(entry.variant)
            blocking_limit.arrived(now)
            left_s, run_s = self._instances.first_free(now)
            part = min(1.0, left_s / run_s) if left_s > 0.0 < run_s else 0.0
            rows = self._queue.fresh[_HIGH - 1].rows
            self._tolerable_s[entry] = blocking_limit.tolerable_s(
                entry, rows, latency, self._settings, now + self._pause.seconds, part
            )

    def remove(self, entry: Entry, *, elsewhere: bool = False) -> bool:
        """Remove an entry. Returns whether it waited here.

        Args:
            elsewhere: Whether another replica runs it, which was free sooner.
        """
        if entry not in self._queue:
            return False
        self._queue.remove(entry)
        entry.state = EntryState.DONE
        if self._tolerable_s.pop(entry, None) is not None and elsewhere:
            self._blocking_limit.observe(inf)
        return True

    def observe(self, rows: int, bucket: int, seconds: float, variant: str, instance: int = 0) -> None:
        """Record one execution of a batch; see `LatencyModel.observe`."""
        ran = self._instances[instance]
        ran.runs_until = -inf
        if variant:
            self.latencies.observe(rows, bucket, seconds, variant)
        else:
            self.latencies.exact.observe(rows, bucket, seconds)
        ran.executed_s += seconds

    def ended(self, instance: int = 0) -> None:
        """Free an instance: its batch has ended."""
        ran = self._instances[instance]
        ran.runs_until = -inf
        ran.backlogged = self._queue.total.rows > 0

    def seed(self, points: Iterable[tuple[int, int, float, str]]) -> None:
        """Load a warm-up profile: ``(rows, bucket, seconds, variant)`` per execution."""
        self.latencies.seed(points)

    def outlook_s(self, now: float) -> tuple[float, float]:
        """Predicted seconds until an instance is free, and until everything running and waiting is done.

        The run about to start counts as long as the last one.
        """
        if len(self._instances) > 1 or self._queue.total.rows:
            return self.runs_s(now), self.backlog_s(now)
        left_s = max(0.0, self._instances[0].runs_until - now)
        return left_s, left_s

    @property
    def urgency(self) -> Priority:
        """The most urgent waiting class; `low` if nothing waits."""
        return next((priority for priority in _PRIORITIES if self._queue.fresh[priority - 1].rows), _PRIORITIES[-1])

    def runs_s(self, now: float) -> float:
        """Predicted time until an instance is free, seconds. A run about to start counts as long as the last one."""
        instances = self._instances
        return instances.runs_s(now) if self._queue.total.rows else instances.first_free(now)[0]

    def backlog_s(self, now: float) -> float:
        """Predicted time until everything running and waiting is done, seconds."""
        waiting_s = 0.0
        if rows := self._queue.total.rows:
            buckets = self.latencies.exact.buckets
            waiting_s = self.seconds(rows, buckets[-1] if buckets else 0, "")
        return self._instances.backlog_s(now, waiting_s)

    # ------------------------------------------------------------- decisions

    def seconds(self, rows: int, bucket: int, variant: str) -> float:
        """Predicted execution time, seconds, in pieces if there are more rows than a batch holds; 0.0 if unknown."""
        return execution_s(self.latencies.of(variant), rows, bucket, self._settings.max_rows)

    def next(self, now: float, instance: int = 0) -> BatchDecision:
        """Compose the next batch for a free instance."""
        if self._timer.due < inf:
            self._timer.woken(now)
        if (turn := self._at_once(now, instance)) is not None:
            return turn
        queue = self._queue
        dropped: list[Entry] = []
        queue.expire(now, dropped)
        while queue.total.rows:
            chosen, on_credit, fill_first, spare_s, ready = self._choose(now)
            head = queue.fresh[chosen - 1].turns()[0].head()
            assert head is not None
            if (recheck_at := self._wait_until(head, ready, now, on_credit=on_credit)) > now:
                self._instances[instance].backlogged = False
                self._end(dropped)
                self._timer.due = recheck_at
                return BatchDecision((), 0, 0, "", 0.0, dropped, recheck_at)
            composition = self._compose(chosen, head, fill_first, spare_s, now)
            dropped += composition.given_up
            entries, rows, bucket, variant = composition[:4]
            if not entries:
                continue
            predicted_s = self.seconds(rows, bucket, variant)
            fill_parts = fill_parts_of(entries, rows, chosen) if len(entries) > 1 else ()
            self.shares.dispatched(predicted_s, ready, chosen, fill_parts, on_credit=on_credit)
            queue.served(entries, predicted_s, chosen, fill_parts)
            self._end(dropped)
            return self._turn(entries, rows, bucket, variant, predicted_s, dropped, now, instance)
        self._end(dropped)
        return BatchDecision((), 0, 0, "", 0.0, dropped)

    def _at_once(self, now: float, instance: int) -> BatchDecision | None:
        """Fast path of `next`: run the only entry in the gate, if its execution is short and in time.

        With one entry there is no class, tenant or run to choose. `_wait_until` decides here as well.
        """
        only: ClassQueue | None = None
        for queue in self._queue.fresh:
            if queue.rows:
                if only is not None or queue.totals.entries > 1:
                    return None
                only = queue
        head = None if only is None else only.head()
        if only is None or head is None or head.rows > self._settings.max_rows:
            return None
        latencies = self.latencies
        latency = latencies.of(head.variant) if head.variant else latencies.exact
        solo_s = latency.predict(head.rows, head.bucket)
        if not 0.0 < solo_s <= _SHORT_S or now + solo_s > head.deadline:
            return None
        if self._wait_until(head, (head.priority,), now, on_credit=False) > now:
            return None
        only.remove(head)
        self.shares.dispatched(solo_s, (head.priority,), head.priority, on_credit=False)
        only.served((head,), solo_s, 1.0, head.priority)
        return self._turn((head,), head.rows, head.bucket, head.variant, solo_s, (), now, instance)

    def _turn(
        self,
        entries: Sequence[Entry],
        rows: int,
        bucket: int,
        variant: str,
        predicted_s: float,
        dropped: Sequence[Entry],
        now: float,
        instance: int,
    ) -> BatchDecision:
        runs = self._instances[instance]
        if runs.backlogged:
            self._pause.observe(now - runs.granted_at - runs.executed_s)
            runs.backlogged = False
        runs.granted_at = now
        runs.executed_s = 0.0
        runs.run_s = predicted_s
        runs.runs_until = now + predicted_s
        self._idle_since = None
        for entry in entries:
            entry.state = EntryState.RUNNING
            if self._tolerable_s and entry.priority is _HIGH:
                self._note(entry)
                self._blocking_limit.ended(in_time=True)
                self._blocking_limit.answered(runs.runs_until - entry.arrival)
        return BatchDecision(entries, rows, bucket, variant, predicted_s, dropped)

    def _choose(self, now: float) -> tuple[Priority, bool, Priority | None, float, list[Priority]]:
        """Choose the class that heads the next batch.

        Returns:
            The class; whether it goes first on credit; the class with credit that rides along before all others, if
            any; how long a batch on credit may take with waiting entries of class `high` still in time, seconds; and
            the waiting classes.
        """
        fresh = self._queue.fresh
        ready = [priority for priority in _PRIORITIES if fresh[priority - 1].rows]
        fill_first: Priority | None = None
        for priority in ready[1:]:
            head = fresh[priority - 1].head()
            assert head is not None
            solo_s = self.seconds(head.rows, head.bucket, head.variant)
            if not self.shares.covers(priority, solo_s):
                continue
            if self.shares.credit_s[priority] < self._full_s(head):
                fill_first = fill_first or priority
                continue
            spare_s = self._spare_s(now) if ready[0] is _HIGH else inf
            return priority, True, None, spare_s if spare_s >= solo_s else inf, ready
        return ready[0], False, fill_first, inf, ready

    def _compose(
        self, chosen: Priority, head: Entry, fill_first: Priority | None, spare_s: float, now: float
    ) -> Composition:
        longest_s = inf if self._planned else min(spare_s, self._blocking_limit.bound_s(now))
        may_wait = not self._planned and self._queue.fresh[_LOW - 1].rows > 0
        extra_s = self._blocking_limit.extra_s(self._settings, now) if may_wait else inf
        most = self._settings.max_rows
        if (free := self._instances.free(now)) > 1:  # the free instances share the waiting rows
            most = min(most, -(-self._queue.total.rows // free))
        room = BatchLimits(now, most, longest_s, fill_first, extra_s)
        solo_s = self.seconds(head.rows, head.bucket, head.variant)
        if now + solo_s > head.deadline and self._is_probe(now):
            head.probe = True
        return compose(self._queue, chosen, self._settings, self.latencies, room)

    def _is_probe(self, now: float) -> bool:
        """Whether an entry runs although it is predicted to be late, so that wrong predictions are measured again."""
        if self._idle_since is None:
            self._idle_since = now
        return now - self._idle_since >= _PROBE_S

    def _wait_until(self, head: Entry, ready: Sequence[Priority], now: float, *, on_credit: bool) -> float:
        """Decide until when the next batch waits for more rows, seconds; ``now`` or less: it runs at once.

        This is the only place that decides about waiting. `next` asks again at that time and after each arrival.

        A batch never waits if

            credit       its class goes first on credit, so it has waited for its share already
            planned      routers compose the batches, as for the members of a pool
            eager        the policy forbids waiting
            unknown      no execution has been observed, so neither gain nor deadline can be computed
            full alone   the head leaves no room for another row
            short        it would save less than the waiting costs

        Otherwise the latest of `batching.policy.REASONS` counts, today only "the next request saves a run". The wait
        ends early if the batch has all rows that it may have, or if one more row would make a head late. The head's
        own deadline and those of the other classes' heads count, each less a margin for timers that are late.

        A new reason joins ``starts``; the bounds below apply to it as well. A reason's time must not move while nothing
        arrives: it is counted from an arrival, and not from ``now``, or the batch would never run.

        Args:
            head: Of the class that was chosen.
            ready: Classes with fresh entries.
            on_credit: Whether the class was chosen for its credit.
        """
        settings, latency = self._settings, self.latencies.of(head.variant)
        if (
            on_credit
            or self._planned
            or settings.policy == "eager"
            or not latency.known
            or head.rows >= settings.max_rows
            or latency.predict(head.rows, head.bucket) <= _SHORT_S
        ):
            return -inf
        # The largest batch that `_compose` would make: rows that may not join are not waited for.
        target = target_s(latency, settings, head.rows, head.bucket, head.deadline - now)
        if head.priority is not _HIGH:
            target = min(target, self._blocking_limit.bound_s(now))
            if head.deadline > urgent_until(head.priority, now):
                target = min(target, self._blocking_limit.extra_s(settings, now))
        most = latency.rows_within(target, head.bucket, latency.enough(head.bucket, settings.max_rows))
        margin_s = self._timer.margin_s(now, self._arrivals)
        latest_end = head.deadline - margin_s
        rows = self._queue.fresh_rows
        starts = dispatch_at(PendingBatch(now, rows, most, head.rows, head.bucket, latest_end, latency, self._arrivals))
        return starts if starts <= now else min(starts, self._in_time_until(ready, latency, margin_s))

    def _in_time_until(self, ready: Sequence[Priority], latency: LatencyModel, margin_s: float) -> float:
        """When the batch must start so that each class's head is in time, also with one more entry like it, seconds."""
        rows, latest = self._queue.fresh_rows, inf
        for priority in ready:
            if (head := self._queue.fresh[priority - 1].head()) is not None:
                last_s = margin_s + latency.predict(rows + head.rows, head.bucket)
                latest = min(latest, head.deadline - last_s)
        return latest

    def _spare_s(self, now: float) -> float:
        """How long another batch may run first, so that everything waiting in class `high` is still in time."""
        high = self._queue.fresh[_HIGH - 1]
        head = high.head()
        assert head is not None
        most = self._settings.max_rows
        return head.deadline - now - self.seconds(max(min(most, high.rows), head.rows), head.bucket, head.variant)

    def _full_s(self, head: Entry) -> float:
        """Predicted execution time of the largest batch within the model's target."""
        settings = self._settings
        rows, per_row_s = self.latencies.of(head.variant).best(head.bucket, settings.max_rows, settings.slo_s)
        return rows * per_row_s

    def _end(self, dropped: Iterable[Entry]) -> None:
        for entry in dropped:
            entry.state = EntryState.DONE
            if entry.priority is _HIGH:
                self._note(entry)
                self._blocking_limit.ended(in_time=False)

    def _note(self, entry: Entry) -> None:
        if (tolerated_s := self._tolerable_s.pop(entry, None)) is not None:
            self._blocking_limit.observe(tolerated_s)
