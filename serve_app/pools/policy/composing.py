"""Decides which member's bundle goes next, and with which entries.

Members contend for shared processes, so their bundles go one after the other. The next one is chosen over all of them,
by class and slack, and a long bundle of a lower class is cut short or held back if an urgent one is due.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import NamedTuple

from serve_app.domain.priority import Priority
from serve_app.pools.policy.settings import Pool
from serve_app.scheduling.batching.blocking_limit import BlockingLimit
from serve_app.scheduling.batching.composition import Composition, compose, execution_s
from serve_app.scheduling.batching.limits import BatchLimits
from serve_app.scheduling.entry import Entry
from serve_app.scheduling.model_state import ModelState
from serve_app.scheduling.placement.devices import Device, NextBundle
from serve_app.scheduling.queueing.shares import Shares, fill_parts_of
from serve_app.scheduling.settings import ClassSettings
from serve_app.scheduling.slots import Replica

_PRIORITIES = tuple(Priority)
_HOLD_FRACTION = 0.25
"""A bundle that is held back is reconsidered after this fraction of its predicted time."""


class Candidate(NamedTuple):
    """The next bundle of one member."""

    model: ModelState
    priority: Priority
    head: Entry
    replica: Replica
    ready: list[Priority]
    on_credit: bool
    fill_first: Priority | None
    slack_s: float
    solo_s: float


class ComposingDevice(Device):
    """Models whose bundles are composed in the router. A subclass decides where they run.

    Args:
        classes: Limits of every class: their ``min_share`` is guaranteed over all members.

    Attributes:
        shares: The classes' credits.
    """

    __slots__ = ("_blocking_limit", "_held_since", "shares")

    def __init__(self, pool: Pool, classes: Mapping[Priority, ClassSettings]) -> None:
        super().__init__(pool.name, pool.models, pool.concurrency)
        self.shares = Shares({priority: settings.min_share for priority, settings in classes.items()})
        self._blocking_limit = BlockingLimit()
        self._held_since: float | None = None

    def arrived(self, entry: Entry, model: ModelState, now: float) -> None:
        """Record an accepted entry."""
        if entry.priority is Priority.HIGH:
            blocking_limit, latency = self._blocking_limit, model.latencies.of(entry.variant)
            blocking_limit.arrived(now)
            blocking_limit.observe(blocking_limit.tolerable_s(entry, entry.rows, latency, model.settings, now, 1.0))

    def _is_full(self) -> bool:
        """Whether nothing has room now."""
        raise NotImplementedError

    def _choose(self, model: ModelState, priority: Priority, again: Entry | None = None) -> Replica | None:
        """The replica for a bundle of a model, whether it has room or not; ``again`` is a retried entry."""
        raise NotImplementedError

    def _has_room(self, replica: Replica, priority: Priority) -> bool:
        """Whether a bundle headed by this class may go there now."""
        raise NotImplementedError

    def _begins(self, candidate: Candidate, now: float) -> float:
        """Predicted begin of a bundle sent now, seconds."""
        raise NotImplementedError

    def next_bundle(self, now: float, given_up: list[Entry]) -> NextBundle | None:
        """Take the next bundle from a queue, for a host with room; ``None`` if nothing goes now."""
        while True:
            self.recheck_at = inf
            if self._is_full():
                return None
            found = (self._candidate(model, now) for model in self.active if model.queue)
            candidates = [candidate for candidate in found if candidate is not None]
            if len(candidates) > 1:
                most_urgent = min(candidate.priority for candidate in candidates)
                candidates = [self._on_credit_if_full(candidate, most_urgent) for candidate in candidates]
                candidates.sort(key=_urgency)
            waiting = sorted({priority for candidate in candidates for priority in candidate.ready})
            before = len(given_up)
            for candidate in candidates:
                following = self._try(candidate, waiting, now, given_up)
                if following is not None:
                    return following
            if len(given_up) == before:
                return None
            # Entries were given up: look again at the rest.

    def _candidate(self, model: ModelState, now: float) -> Candidate | None:
        """The next bundle of a model and its destination; ``None`` if none can go."""
        queue = model.queue
        ready: list[Priority] = []
        heads: list[tuple[Entry, Replica]] = []
        for priority in _PRIORITIES:
            fresh = queue.fresh[priority - 1]
            head = fresh.turns()[0].head() if fresh.rows else None
            retry = queue.retry[priority - 1]
            again = retry.head() if retry.rows else None
            if head is None and again is None:
                continue
            replica = self._choose(model, priority)
            if again is not None and (head is None or (again.deadline, again.id) <= (head.deadline, head.id)):
                elsewhere = self._choose(model, priority, again)
                if elsewhere is not None:
                    head, replica = again, elsewhere
            if head is not None and replica is not None and self._has_room(replica, priority):
                ready.append(priority)
                heads.append((head, replica))
        if not ready:
            return None
        chosen, on_credit = 0, False
        fill_first: Priority | None = None
        for at in range(1, len(ready)):
            if not self.shares.covers(ready[at], model.solo_s(heads[at][0])):
                continue
            if self.shares.credit_s[ready[at]] < model.full_s(heads[at][0]):
                fill_first = fill_first or ready[at]
                continue
            chosen, on_credit, fill_first = at, True, None
            break
        head, replica = heads[chosen]
        solo_s = model.solo_s(head)
        slack_s = head.deadline - now - solo_s
        return Candidate(model, ready[chosen], head, replica, ready, on_credit, fill_first, slack_s, solo_s)

    def _on_credit_if_full(self, candidate: Candidate, most_urgent: Priority) -> Candidate:
        """Drop a candidate's credit unless it is worth a full batch, which is required over several models."""
        priority = candidate.priority
        cost_s = max(candidate.solo_s, candidate.model.full_s(candidate.head))
        return candidate._replace(on_credit=priority > most_urgent and self.shares.covers(priority, cost_s))

    def _try(
        self, candidate: Candidate, waiting: list[Priority], now: float, given_up: list[Entry]
    ) -> NextBundle | None:
        """Take a candidate's bundle; ``None`` if it is held back, or cannot be in time."""
        longest_s = self._blocking_limit.bound_s(now)
        if self._holds_back(candidate, longest_s, now):
            return None
        taken = self._take(candidate, longest_s, now)
        given_up += taken.given_up
        return self._account(candidate, waiting, taken, now) if taken.entries else None

    def _holds_back(self, candidate: Candidate, longest_s: float, now: float) -> bool:
        """Whether it would probably block more urgent entries; then it is reconsidered a little later."""
        priority, solo_s = candidate.priority, candidate.solo_s
        if candidate.on_credit or solo_s <= longest_s or not self._blocking_limit.likely_blocks(priority, solo_s, now):
            return False
        if self._held_since is not None:
            self.shares.held_back(priority, min(solo_s, now - self._held_since))
        self._held_since = now
        self.recheck_at = min(self.recheck_at, now + _HOLD_FRACTION * solo_s)
        return True

    def _take(self, candidate: Candidate, longest_s: float, now: float) -> Composition:
        """Take entries from the queue: a retry goes alone."""
        model, priority, head = candidate.model, candidate.priority, candidate.head
        if head.attempts:
            model.queue.retry[priority - 1].pop()
            return Composition([head], head.rows, head.bucket, head.variant, [])
        begins, extra_s = self._begins(candidate, now), self._blocking_limit.extra_s(model.settings, now)
        room = BatchLimits(
            begins + model.overhead.at(now), model.settings.max_rows, longest_s, candidate.fill_first, extra_s
        )
        return compose(model.queue, priority, model.settings, model.latencies, room)

    def _account(self, candidate: Candidate, waiting: list[Priority], taken: Composition, now: float) -> NextBundle:
        """Charge classes and tenants for the bundle, and record the times of `high`."""
        model, priority = candidate.model, candidate.priority
        entries, rows, bucket, variant, _ = taken
        predicted_s = execution_s(model.latencies.of(variant), rows, bucket, model.settings.max_rows)
        self._held_since = None
        fill_parts = fill_parts_of(entries, rows, priority)
        self.shares.dispatched(predicted_s, waiting, priority, fill_parts, on_credit=candidate.on_credit)
        ends = self._begins(candidate, now) + predicted_s
        for entry in entries:
            if entry.priority is Priority.HIGH:
                self._blocking_limit.answered(ends - entry.arrival)
        if not candidate.head.attempts:
            model.queue.served(entries, predicted_s, priority, fill_parts)
        return NextBundle(model, candidate.replica, entries, rows, bucket, variant, predicted_s)


def _urgency(candidate: Candidate) -> tuple[bool, Priority, float, str]:
    # By name among equals, so that the order of events has no effect.
    return not candidate.on_credit, candidate.priority, candidate.slack_s, candidate.model.settings.name
