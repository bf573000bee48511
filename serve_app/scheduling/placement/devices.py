"""Devices: which model's entries go to a replica next, and when.

Every model belongs to one device. A model on its own sends its entries ahead, so that its replicas' gates can compose
batches of them (`DedicatedDevice`). Models of a group contend for what they compute on, so their bundles go one after
the other, ``concurrency`` at a time (`SharedDevice`): which one is next is decided here over all of them, by class and
slack, and a long bundle of a lower class is cut short or held back when an urgent one is due.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from math import inf
from typing import NamedTuple

from serve_app.scheduling.batching.blocking_limit import BlockingLimit
from serve_app.scheduling.batching.composition import Composition, compose, execution_s
from serve_app.scheduling.batching.limits import BatchLimits
from serve_app.scheduling.entry import Entry, Priority
from serve_app.scheduling.model_state import ModelState
from serve_app.scheduling.queueing.shares import Shares, fill_parts_of
from serve_app.scheduling.settings import DeviceGroup
from serve_app.scheduling.slots import Replica

_PRIORITIES = tuple(Priority)
_HOLD_FRACTION = 0.25
"""A bundle that is held back is looked at again after this part of its predicted time."""
_COALESCE_FRACTION = 0.0625
"""Entries that come within this part of an execution travel together to a busy replica."""
_COALESCE_S = 0.001
"""The same where an execution is so short that a bundle, a task and a message in two processes, costs more."""
_TIED_FROM_S = 0.005
"""Entries are tied where executions take as long: a copy costs two processes a message, and saves a part of one."""
_APART_S = 0.002
"""Bundles of models whose rows take as long hold no more than share a run; where lengths differ, that is one entry."""
_MAX_PARTS_OF_BATCH = 2
_MIN_ROWS = 2
"""A bundle for a busy replica has at most the rows of a usual batch over the first, and may have the second: what a
batch leaves over of a bundle goes back to its router."""
_BUNDLE_S = 0.005
"""Beside an execution that takes as long, what a bundle costs its two processes is small: it may have so much."""


class NextBundle(NamedTuple):
    """A bundle that was taken from a queue, and where it goes."""

    model: ModelState
    replica: Replica
    entries: list[Entry]
    rows: int
    bucket: int
    variant: str
    predicted_s: float
    tied: Sequence[Replica] = ()
    """Other replicas that get the same entries: who is free first runs them."""


class DedicatedDevice:
    """A model whose replicas share nothing with other models.

    Entries go to a replica at once while there is room (`Slots`), so that its gate has them when the session is free.
    What comes within a part of an execution travels together, unless it is more urgent than all that is there.

    Args:
        model: The model.

    Attributes:
        active: The model, always.
        recheck_at: When `next_bundle` is to be called again if nothing else happens, seconds; ``inf``: never.
    """

    concurrency = 0

    __slots__ = ("_model", "active", "recheck_at")

    def __init__(self, model: ModelState) -> None:
        self._model = model
        self.active = {model: None}
        self.recheck_at = inf

    @property
    def wake_at(self) -> float:
        """When to ask again for the next bundle, or something else happens by itself, seconds; ``inf``: never."""
        return min(self.recheck_at, self._model.wake_at)

    def wait_s(self, now: float) -> float:  # noqa: ARG002 - see `SharedDevice`
        """How long until one more execution has room on the device: none, whatever its replicas do."""
        return 0.0

    def next_bundle(self, now: float, given_up: list[Entry]) -> NextBundle | None:  # noqa: ARG002 - see `SharedDevice`
        """Take the next bundle from the queue, for a replica with room; ``None`` when nothing goes now."""
        self.recheck_at = inf
        model = self._model
        queue, slots, most = model.queue, model.slots, model.settings.max_rows
        for priority in _PRIORITIES:
            fresh, retry = queue.fresh[priority - 1], queue.retry[priority - 1]
            head = fresh.head() if fresh.rows else None
            again = retry.head() if retry.rows else None
            if again is not None and (head is None or (again.deadline, again.id) <= (head.deadline, head.id)):
                replica = slots.choose(priority, most, now, 0.0, again.avoid, suspect=True)
                if replica is not None:
                    retry.pop()
                    return self._bundle(replica, [again])
            if head is None:
                continue
            if fresh.has_tenants:
                if (following := self._dealt(priority, now)) is not None:
                    return following
                continue
            # Of one replica nothing is to be compared.
            replica = slots.choose(priority, most, now, model.per_row_s if len(slots.replicas) > 1 else 0.0)
            if replica is None:
                continue
            if not replica.bundles:
                return self._bundle(replica, self._take(priority, head, replica, most))
            part = min(self._part(), self._together(head))
            if fresh.rows < part and replica.rows_before(priority):
                alone_s = model.latencies.of(head.variant).predict(1, head.bucket)
                send_at = replica.sent_at + (_COALESCE_S if 0.0 < alone_s < _APART_S else _COALESCE_FRACTION * alone_s)
                if now < send_at:
                    self.recheck_at = send_at
                    return None  # what is less urgent does not go before it
            tied = self._tied(priority, replica, head)
            return self._bundle(replica, self._take(priority, head, replica, part if replica.rows else most), tied)
        return None

    def _tied(self, priority: Priority, replica: Replica, head: Entry) -> Sequence[Replica]:
        """Where else entries go that this replica cannot begin at once, so that the first free replica runs them."""
        model, copies = self._model, self._model.settings.copies
        if not replica.bundles or not replica.linked or copies == 1 or head.is_cut:
            return ()
        if model.per_row_s * model.run_rows < _TIED_FROM_S:
            return ()
        return model.slots.beside(replica, priority, model.settings.max_rows, copies - 1)

    def _part(self) -> int:
        """Most rows of a bundle for a busy replica."""
        model = self._model
        per_row_s = model.per_row_s
        light = int(_BUNDLE_S / per_row_s) if per_row_s else 0
        return min(model.settings.max_rows, max(_MIN_ROWS, round(model.run_rows / _MAX_PARTS_OF_BATCH), light))

    def _together(self, head: Entry) -> int:
        """Most rows of a bundle with this head: what its gate would not run at once goes back, and is made again."""
        model = self._model
        if model.per_row_s < _APART_S:
            return model.settings.max_rows
        latency = model.latencies.of(head.variant)
        return 1 if len(latency.buckets) > 1 else latency.enough(head.bucket, model.settings.max_rows)

    def _take(self, priority: Priority, head: Entry, replica: Replica, most: int) -> list[Entry]:
        """Entries of one batch key, those of the class first and then of less urgent ones, as far as there is room."""
        model = self._model
        queue, batch_key = model.queue, head.batch_key
        room = model.slots.window * model.settings.max_rows
        queue.fresh[priority - 1].take_head(batch_key)
        entries, rows = [head], head.rows
        if rows > 1 and head.is_cut:
            return entries
        if queue.total.rows:
            most = min(most, self._together(head))
        for other in _PRIORITIES[priority - 1 :]:
            if rows < most and queue.fresh[other - 1].rows:
                left = min(most, room - replica.rows_before(other)) - rows
                rows += queue.fresh[other - 1].take(entries, left, batch_key)
        return entries

    def _dealt(self, priority: Priority, now: float) -> NextBundle | None:
        """A bundle of several tenants' entries, first of the one with the fewest rows at the replicas for its weight.

        A tenant with less there than its part of the room finds room in any case: else the entries of one that sends
        more would be all that the gates can choose from.
        """
        model = self._model
        slots, most = model.slots, model.settings.max_rows
        waiting = model.queue.fresh[priority - 1].waiting()
        turns = []
        for queue in waiting:
            head = queue.head()
            assert head is not None
            turns.append((slots.rows_of(priority, queue.tenant) / queue.weight, head.deadline, head.id, queue))
        heapify(turns)
        head = turns[0][3].head()
        assert head is not None
        part = slots.window * most * max(1, slots.usable) / sum([queue.weight for queue in waiting])
        replica = slots.choose(priority, most, now, model.per_row_s)
        if replica is None and turns[0][0] < part:
            replica = slots.choose(priority, inf, now, model.per_row_s)
        if replica is None:
            return None
        longest = min(self._part() if replica.rows else most, self._together(head))
        batch_key, rows = head.batch_key, 0
        entries: list[Entry] = []
        room = slots.window * most - replica.rows_before(priority)
        while turns:
            ahead, _, _, queue = turns[0]
            following = queue.head(batch_key)
            if following is None or (rows >= room and ahead >= part):
                heappop(turns)
                continue
            if entries and (rows + following.rows > longest or following.is_cut or entries[0].is_cut):
                break
            queue.take_head(batch_key)
            entries.append(following)
            rows += following.rows
            heapreplace(turns, (ahead + following.rows / queue.weight, following.deadline, following.id, queue))
        return self._bundle(replica, entries, self._tied(priority, replica, entries[0]))

    def _bundle(self, replica: Replica, entries: list[Entry], tied: Sequence[Replica] = ()) -> NextBundle:
        model = self._model
        head = entries[0]
        rows, bucket = head.rows, head.bucket
        if len(entries) > 1:
            rows = sum([entry.rows for entry in entries])
            bucket = max([entry.bucket for entry in entries])
        latencies, most = model.latencies, model.settings.max_rows
        latency = latencies.of(head.variant) if head.variant else latencies.exact
        predicted_s = latency.predict(rows, bucket) if rows <= most else execution_s(latency, rows, bucket, most)
        return NextBundle(model, replica, entries, rows, bucket, head.variant, predicted_s, tied)


class Candidate(NamedTuple):
    """What one model of a group would dispatch next."""

    model: ModelState
    priority: Priority
    head: Entry
    replica: Replica
    ready: list[Priority]
    on_credit: bool
    fill_first: Priority | None
    slack_s: float
    solo_s: float


class _Running(NamedTuple):
    """A bundle on a shared device."""

    end: float
    nbytes: int


class SharedDevice:
    """Models that compute on one device.

    Args:
        group: Its settings; models join one by one.
        min_share: Guaranteed share per class, over all members.

    Attributes:
        active: Members with anything queued, and those to which something else may happen.
        members: How many there are.
        shares: The classes' credits.
        concurrency: Executions at once over all members.
        recheck_at: As of `DedicatedDevice`.
    """

    __slots__ = (
        "_blocking_limit",
        "_group",
        "_held_since",
        "_memory_bytes",
        "_running",
        "active",
        "concurrency",
        "members",
        "recheck_at",
        "shares",
    )

    def __init__(self, group: DeviceGroup, min_share: Mapping[Priority, float]) -> None:
        self.active: dict[ModelState, None] = {}
        self.members = 0
        self.shares = Shares(min_share)
        self.concurrency = group.concurrency
        self.recheck_at = inf
        self._blocking_limit = BlockingLimit()
        self._held_since: float | None = None
        self._group = group
        # What is left for running batches.
        self._memory_bytes = group.memory_bytes
        self._running: dict[int, _Running] = {}

    def join(self, model: ModelState) -> None:
        """A model is to run here."""
        self.members += 1
        self._memory_bytes -= model.settings.resident_bytes

    def leave(self, model: ModelState, bundles: Iterable[int]) -> None:
        """A member runs here no more, and its bundles no longer count."""
        self.members -= 1
        self._memory_bytes += model.settings.resident_bytes
        self.active.pop(model, None)
        for bundle_id in bundles:
            self._running.pop(bundle_id, None)

    def arrived(self, entry: Entry, model: ModelState, now: float) -> None:
        """An entry of a member was accepted."""
        if entry.priority is Priority.HIGH:
            blocking_limit, latency = self._blocking_limit, model.latencies.of(entry.variant)
            blocking_limit.arrived(now)
            blocking_limit.observe(blocking_limit.tolerable_s(entry, entry.rows, latency, model.settings, now, 1.0))

    def launched(self, bundle_id: int, following: NextBundle, now: float) -> None:
        """A bundle was sent. One that only wakes a model up computes nothing yet."""
        if following.replica.name is not None:
            nbytes = min(following.rows, following.model.settings.max_rows) * following.model.settings.bytes_per_row
            self._running[bundle_id] = _Running(now + following.predicted_s, nbytes)

    def ended(self, bundle_id: int) -> None:
        """A bundle was answered, failed, or was given up."""
        self._running.pop(bundle_id, None)

    @property
    def wake_at(self) -> float:
        """As of `DedicatedDevice`."""
        return min([self.recheck_at, *(model.wake_at for model in self.active)])

    def rest(self) -> None:
        """After a decision: members with nothing to do are not active any more."""
        for model in [model for model in self.active if not model.queue and model.wake_at == inf]:
            del self.active[model]

    @property
    def needed(self) -> bool:
        """Whether it is to be kept: it has members."""
        return self.members > 0

    def ready_s(self, model: ModelState, now: float) -> float:  # noqa: ARG002 - see `PoolDevice`
        """How long until a member can run at all, if nothing is ahead of it, seconds."""
        return 0.0

    def wait_s(self, now: float) -> float:
        """How long until one more execution is predicted to have room on the device, seconds."""
        if len(self._running) < self.concurrency:
            return 0.0
        ends = sorted(running.end for running in self._running.values())
        return max(0.0, ends[len(ends) - self.concurrency] - now)

    def next_bundle(self, now: float, given_up: list[Entry]) -> NextBundle | None:
        """Take the next bundle from a queue, for a replica with nothing in flight; ``None`` when nothing goes now.

        Expired entries must have been taken out before. The caller counts the bundle in.

        Args:
            now: Seconds.
            given_up: Receives the entries that are not worth executing any more. The caller ends them.
        """
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
            # Something that was looked at is given up: look again at what is left.

    def _is_full(self) -> bool:
        """Whether nothing at all has room now."""
        return len(self._running) >= self.concurrency

    def _choose(self, model: ModelState, priority: Priority, now: float, again: Entry | None = None) -> Replica | None:  # noqa: ARG002 - see `PoolDevice`
        """The replica where a bundle of a model would go, whether it has room or not; ``again`` is a retried entry."""
        most = model.settings.max_rows
        if again is None:
            return model.slots.choose(_LOW, most, now)
        return model.slots.choose(_LOW, most, now, 0.0, again.avoid, suspect=True)

    def _has_room(self, replica: Replica, priority: Priority) -> bool:  # noqa: ARG002 - see `PoolDevice`
        """Whether a bundle that is headed by this class may go there now."""
        return not replica.bundles

    def _begins(self, candidate: Candidate, now: float) -> float:  # noqa: ARG002 - see `PoolDevice`
        """When what is sent now is predicted to begin there, seconds."""
        return now

    def _candidate(self, model: ModelState, now: float) -> Candidate | None:
        """What a model would dispatch next, and where; ``None`` without anything that can go."""
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
            replica = self._choose(model, priority, now)
            if again is not None and (head is None or (again.deadline, again.id) <= (head.deadline, head.id)):
                elsewhere = self._choose(model, priority, now, again)
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
        slack_s = (head.deadline - now - solo_s) / model.settings.weight
        return Candidate(model, ready[chosen], head, replica, ready, on_credit, fill_first, slack_s, solo_s)

    def _on_credit_if_full(self, candidate: Candidate, most_urgent: Priority) -> Candidate:
        """Over several models, a class goes first on credit only where that is worth a full batch."""
        priority = candidate.priority
        cost_s = max(candidate.solo_s, candidate.model.full_s(candidate.head))
        return candidate._replace(on_credit=priority > most_urgent and self.shares.covers(priority, cost_s))

    def _try(
        self, candidate: Candidate, waiting: list[Priority], now: float, given_up: list[Entry]
    ) -> NextBundle | None:
        """Take a candidate's bundle; ``None`` where it is held back, finds no memory, or cannot be in time."""
        longest_s = self._blocking_limit.bound_s(now)
        if self._holds_back(candidate, longest_s, now):
            return None
        most = self._most_rows(candidate)
        if not most:
            return None  # when something that runs has ended
        taken = self._take(candidate, most, longest_s, now)
        given_up += taken.given_up
        return self._account(candidate, waiting, taken, now) if taken.entries else None

    def _holds_back(self, candidate: Candidate, longest_s: float, now: float) -> bool:
        """Whether it would be likely to block what is more urgent; then it is looked at again a little later."""
        priority, solo_s = candidate.priority, candidate.solo_s
        if candidate.on_credit or solo_s <= longest_s or not self._blocking_limit.likely_blocks(priority, solo_s, now):
            return False
        if self._held_since is not None:
            self.shares.held_back(priority, min(solo_s, now - self._held_since))
        self._held_since = now
        self.recheck_at = min(self.recheck_at, now + _HOLD_FRACTION * solo_s)
        return True

    def _most_rows(self, candidate: Candidate) -> int:
        """Most rows that the device's memory has room for beside what runs; 0 where the head has none."""
        settings = candidate.model.settings
        most = settings.max_rows
        if not self._group.memory_bytes or not settings.bytes_per_row:
            return most
        free = self._memory_bytes - sum(running.nbytes for running in self._running.values())
        fitting = free // settings.bytes_per_row
        return 0 if fitting < min(candidate.head.rows, most) else min(most, fitting)

    def _take(self, candidate: Candidate, most: int, longest_s: float, now: float) -> Composition:
        """Take entries from the queue: one that is tried again goes alone."""
        model, priority, head = candidate.model, candidate.priority, candidate.head
        if head.attempts:
            model.queue.retry[priority - 1].pop()
            return Composition([head], head.rows, head.bucket, head.variant, [])
        begins, extra_s = self._begins(candidate, now), self._blocking_limit.extra_s(model.settings, now)
        room = BatchLimits(begins + model.overhead.at(now), most, longest_s, candidate.fill_first, extra_s)
        return compose(model.queue, priority, model.settings, model.latencies, room)

    def _account(self, candidate: Candidate, waiting: list[Priority], taken: Composition, now: float) -> NextBundle:
        """Charge classes and tenants for what was taken, and note how long `high` takes."""
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


Device = DedicatedDevice | SharedDevice


def _urgency(candidate: Candidate) -> tuple[bool, Priority, float, str]:
    # By name where all else is equal, so that it does not matter to which of them something happened first.
    return not candidate.on_credit, candidate.priority, candidate.slack_s, candidate.model.settings.name


_LOW = Priority.LOW
