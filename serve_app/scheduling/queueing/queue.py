"""Queues: the entries of one model by class, tenant and deadline, with the counts that bounds are checked against.

    ModelQueue        one per model
    ├─ fresh[class]   ClassQueue: entries that no bundle has carried
    └─ retry[class]   ClassQueue: entries whose first bundle failed; they travel alone
       └─ tenant      TenantQueue: earliest deadline first
          └─ key      Calendar: one per batch key

Theory of operation. Classes are ordered by the caller (`queueing.shares`). Inside a class `turns` orders tenants by the
server time they have had, divided by their weight (`queueing.tenants`):

    least served       tenants within one batch of the least served one: their entries go first, merged by deadline
                       as if they were one queue (`Merged`)
    the others         fill up a batch that has room, the least served first

`served` charges a composed batch to the tenants in it, by their rows. Inside a tenant the earliest deadline goes first,
and equal deadlines in the order of their ids. A class with one tenant needs no accounting per tenant: ``_sole`` is its
queue, and every call goes there directly. It is unset when a second tenant comes, and set again when one tenant waits
and the others' use is forgotten.

Invariants: an entry is in one queue, found by its class, tenant and whether it has attempts. Rows, bytes and entries of
each level are the sums of those below. To remove an entry is O(1) amortised; the calendar drops it later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heapreplace
from itertools import chain
from math import inf
from typing import Final

from serve_app.domain.priority import Priority
from serve_app.scheduling.decisions import QueueLength
from serve_app.scheduling.entry import Entry
from serve_app.scheduling.queueing.sizes import Size, SizeFairness, size_of
from serve_app.scheduling.queueing.tenant_queue import Counts, Rows, TenantQueue, Totals
from serve_app.scheduling.queueing.tenants import TenantUsage

_EMPTY_ALLOWED: Final = 8


class Merged:
    """Several tenants' entries as if they were in one queue, while a batch is composed.

    Args:
        queues: The tenants'. Entries pushed back are not seen any more.
    """

    __slots__ = ("_batch_key", "_heads", "_queues")

    def __init__(self, queues: Sequence[TenantQueue]) -> None:
        self._queues = {queue.tenant: queue for queue in queues}
        self._batch_key: str | None = None
        self._heads: list[tuple[float, int, TenantQueue]] = []

    def head(self, batch_key: str | None = None) -> Entry | None:
        """The entry with the earliest deadline, as `TenantQueue.head`."""
        return _earliest(self._queues.values(), batch_key)

    def take_head(self, batch_key: str) -> Entry | None:
        """Take the entry with the earliest deadline, as `TenantQueue.take_head`."""
        if batch_key != self._batch_key:
            self._batch_key = batch_key
            heads = ((queue.head(batch_key), queue) for queue in self._queues.values())
            self._heads = [(head.deadline, head.id, queue) for head, queue in heads if head is not None]
            heapify(self._heads)
        if not self._heads:
            return None
        queue = self._heads[0][2]
        entry = queue.take_head(batch_key)
        following = queue.head(batch_key)
        if following is None:
            heappop(self._heads)
        else:
            heapreplace(self._heads, (following.deadline, following.id, queue))
        return entry

    def first_of(self, size: Size) -> Entry | None:
        """The entry of a size with the earliest deadline, as `TenantQueue.first_of`."""
        found = [first for queue in self._queues.values() if (first := queue.first_of(size)) is not None]
        return min(found, key=_order, default=None)

    def push(self, entry: Entry) -> None:
        """Return an entry to its tenant's queue."""
        self._batch_key = None
        self._queues[entry.attributes.tenant].push(entry)


class OfSize:
    """The entries of one size in a queue, while a batch is composed; `restore` returns the others."""

    __slots__ = ("_passed_over", "_queue", "_size")

    def __init__(self, queue: TenantQueue | Merged, size: Size) -> None:
        self._queue = queue
        self._size = size
        self._passed_over: list[Entry] = []

    def take_head(self, batch_key: str) -> Entry | None:
        """Take the entry of the size with the earliest deadline, as `TenantQueue.take_head`."""
        while (entry := self._queue.take_head(batch_key)) is not None and size_of(entry) != self._size:
            self._passed_over.append(entry)
        return entry

    def push(self, entry: Entry) -> None:
        """Return an entry."""
        self._queue.push(entry)

    def restore(self) -> None:
        """Return all entries that were passed over."""
        for entry in self._passed_over:
            self._queue.push(entry)


class ClassQueue(Counts):
    """Entries of one (model, class).

    Attributes:
        has_tenants: Whether more than one tenant counts.
        sizes: Attainment by size of request.
        service: Server time by tenant.
    """

    __slots__ = ("_sole", "_tenants", "has_tenants", "service", "sizes")

    def __init__(self, totals: Totals, size_fairness: float = 0.0, model: Rows | None = None) -> None:
        super().__init__(totals, model or Rows())
        self.has_tenants = False
        self._tenants: dict[str, TenantQueue] = {}
        # The only tenant that counts, if there is one: then nothing is to be decided between tenants.
        self._sole: TenantQueue | None = None
        self.service = TenantUsage()
        self.sizes = SizeFairness(size_fairness)

    def __len__(self) -> int:
        return sum(map(len, self._tenants.values()))

    def __iter__(self) -> Iterator[Entry]:
        return chain.from_iterable(self._tenants.values())

    def __contains__(self, entry: Entry) -> bool:
        queue = self._tenants.get(entry.attributes.tenant)
        return queue is not None and entry in queue

    @property
    def pairs(self) -> int:
        """Pairs held, stale ones included: at most ``2 * len(queue) + 64`` per tenant."""
        return sum(queue.pairs for queue in self._tenants.values())

    @property
    def nbytes(self) -> int:
        """Bytes queued."""
        return sum(queue.nbytes for queue in self._tenants.values())

    def waiting(self) -> list[TenantQueue]:
        """The queues of the tenants that have something queued."""
        return [queue for queue in self._tenants.values() if queue]

    def push(self, entry: Entry) -> None:
        """Queue an entry. Raises ValueError if its id is queued already."""
        sole = self._sole
        if sole is not None and sole.tenant == entry.attributes.tenant:
            sole.push(entry)
            return
        queue = self._tenants.get(entry.attributes.tenant)
        (self._come(entry) if queue is None else queue).push(entry)

    def head(self, batch_key: str | None = None) -> Entry | None:
        """The entry with the earliest deadline, of this batch key or (``None``) of all, or ``None``."""
        sole = self._sole
        if sole is None:
            return _earliest(self._tenants.values(), batch_key)
        return sole.known_head if batch_key is None and sole.known_head is not None else sole.head(batch_key)

    def pop(self) -> Entry:
        """Take the entry with the earliest deadline. Raises IndexError if empty."""
        entry = self.head()
        if entry is None:
            raise IndexError("pop from an empty queue")
        self._tenants[entry.attributes.tenant].take_head(entry.batch_key)
        return entry

    def take_head(self, batch_key: str) -> Entry | None:
        """Take the entry of this batch key with the earliest deadline, or ``None``."""
        sole = self._sole
        if sole is not None:
            return sole.take_head(batch_key)
        entry = self.head(batch_key)
        return None if entry is None else self._tenants[entry.attributes.tenant].take_head(batch_key)

    def take(self, into: list[Entry], room: int, batch_key: str = "") -> int:
        """Take entries of one batch key in order while they fit, as `TenantQueue.take`."""
        sole = self._sole
        return _take(self, into, room, batch_key) if sole is None else sole.take(into, room, batch_key)

    def remove(self, entry: Entry) -> None:
        """Remove an entry. Raises KeyError if it is not queued here."""
        self._tenants[entry.attributes.tenant].remove(entry)

    def expire(self, now: float, into: list[Entry]) -> None:
        """Remove every entry whose deadline has passed."""
        sole = self._sole
        if sole is not None and (head := sole.known_head) is not None and head.deadline > now:
            return
        before = len(into)
        for queue in self._tenants.values():
            queue.expire(now, into)
        for entry in into[before:]:
            self.sizes.ended(entry, ran=False)

    # ------------------------------------------------------------- tenants

    def turns(self) -> tuple[TenantQueue | Merged, Sequence[TenantQueue]]:
        """The queue whose entries go first, by deadline; and the tenants that fill up after it, the least served first.

        At least one entry must be queued.
        """
        if self._sole is not None:
            return self._sole, ()
        waiting = self.waiting()
        if len(waiting) == 1:
            self._settle(waiting[0])
            return waiting[0], ()
        service = self.service
        most = max([queue.weight for queue in waiting])
        had_s = {queue: service.of(queue.tenant, most) for queue in waiting}
        waiting.sort(key=had_s.__getitem__)
        limit = had_s[waiting[0]] + service.alike_s(most)
        first = 1
        while first < len(waiting) and had_s[waiting[first]] <= limit:
            first += 1
        return waiting[0] if first == 1 else Merged(waiting[:first]), waiting[first:]

    def served(self, entries: Sequence[Entry], seconds: float, part: float, priority: Priority) -> None:
        """Charge a composed batch.

        Args:
            entries: Of the batch, all classes.
            seconds: Its predicted time.
            part: Fraction of its rows that is of this class, over 0 to 1.
        """
        service, sole = self.service, self._sole
        service.batch(seconds)
        if sole is not None:
            service.alone(seconds * part, sole.weight)
            return
        rows: dict[str, int] = {}
        for entry in entries:
            if entry.priority is priority:
                rows[entry.attributes.tenant] = rows.get(entry.attributes.tenant, 0) + entry.rows
        most = self._most_weight()
        per_row_s = seconds * part / sum(rows.values())
        for tenant, of_tenant in rows.items():
            service.gave(tenant, per_row_s * of_tenant, self._tenants[tenant].weight, most)
        if waiting := self.waiting():
            service.reach(min([service.of(queue.tenant, most) for queue in waiting]))

    def _most_weight(self) -> float:
        return max([queue.weight for queue in self._tenants.values()])

    def _come(self, entry: Entry) -> TenantQueue:
        """Make a queue for a new tenant."""
        tenants = self._tenants
        if self._sole is not None:
            self.service.at_level(self._sole.tenant)
        waiting = self.waiting()
        if len(tenants) > 2 * len(waiting) + _EMPTY_ALLOWED:
            tenants = self._tenants = {queue.tenant: queue for queue in waiting}
        queue = tenants[entry.attributes.tenant] = TenantQueue(self, entry.attributes.tenant, entry.attributes.weight)
        self._sole = queue if len(tenants) == 1 else None
        self.has_tenants = self._sole is None
        return queue

    def _settle(self, queue: TenantQueue) -> None:
        """Forget the other tenants, if none of them has used server time that counts."""
        service = self.service
        others = [other for other in self._tenants if other != queue.tenant]
        if all(service.is_forgotten(other) for other in others):
            service.reach(service.of(queue.tenant, queue.weight))
            self._tenants = {queue.tenant: queue}
            self._sole = queue
            self.has_tenants = False


def _order(entry: Entry) -> tuple[float, int]:
    return entry.deadline, entry.id


def _earliest(queues: Iterable[TenantQueue], batch_key: str | None) -> Entry | None:
    best: Entry | None = None
    for queue in queues:
        head = queue.head(batch_key)
        if head is not None and (best is None or (head.deadline, head.id) < (best.deadline, best.id)):
            best = head
    return best


def _take(queue: ClassQueue, into: list[Entry], room: int, batch_key: str) -> int:
    left = room
    while left > 0:
        entry = queue.head(batch_key)
        if entry is None or entry.rows > left or entry.is_cut:
            break
        queue.take_head(batch_key)
        into.append(entry)
        left -= entry.rows
    return room - left


class ModelQueue:
    """All queued entries of one model.

    Args:
        totals: Queued per class, over all models.

    Attributes:
        fresh: Per class, in order of urgency: entries that no bundle has carried yet.
        retry: Per class: entries whose first bundle failed. They travel alone.
        total: Rows in all classes, retries included.
    """

    __slots__ = ("_all", "fresh", "retry", "total")

    def __init__(self, totals: dict[Priority, Totals], size_fairness: float = 0.0) -> None:
        self.total = Rows()
        self.fresh = tuple(ClassQueue(totals[priority], size_fairness, self.total) for priority in Priority)
        self.retry = tuple(ClassQueue(totals[priority], 0.0, self.total) for priority in Priority)
        self._all = (*self.fresh, *self.retry)

    def __len__(self) -> int:
        return sum(map(len, self._all))

    def __bool__(self) -> bool:
        return self.total.rows > 0

    @property
    def fresh_rows(self) -> int:
        """Rows queued in all classes, retries not included."""
        return sum(queue.rows for queue in self.fresh)

    def __contains__(self, entry: Entry) -> bool:
        return entry in (self.retry if entry.attempts else self.fresh)[entry.priority - 1]

    def push(self, entry: Entry) -> None:
        """Queue an entry under its class, as a retry if it has attempts."""
        (self.retry if entry.attempts else self.fresh)[entry.priority - 1].push(entry)

    def remove(self, entry: Entry) -> None:
        """Remove an entry. Raises KeyError if it is not queued."""
        (self.retry if entry.attempts else self.fresh)[entry.priority - 1].remove(entry)

    def clear(self) -> list[Entry]:
        """Remove all entries."""
        entries: list[Entry] = []
        self.expire(inf, entries)
        return entries

    def expire(self, now: float, into: list[Entry]) -> None:
        """Remove every entry whose deadline has passed."""
        for queue in self._all:
            if queue.rows:
                queue.expire(now, into)

    def served(
        self, entries: Sequence[Entry], seconds: float, chosen: Priority, fill_parts: Iterable[tuple[Priority, float]]
    ) -> None:
        """Charge a batch of fresh entries, as `ClassQueue.served`.

        Args:
            entries: They have left the queue.
            chosen: The class that heads it.
            fill_parts: Other classes in it with their fractions of its rows, 0 to 1.
        """
        own = 1.0
        for priority, part in fill_parts:
            own -= part
            self.fresh[priority - 1].served(entries, seconds, part, priority)
        self.fresh[chosen - 1].served(entries, seconds, own, chosen)

    def ended(self, entries: Iterable[Entry], *, ran: bool) -> None:
        """Record that fresh entries were run, or given up; expired ones are counted already."""
        for entry in entries:
            self.fresh[entry.priority - 1].sizes.ended(entry, ran=ran)

    def next_deadline(self) -> float:
        """The earliest deadline of all entries; ``inf`` if empty."""
        earliest = inf
        for queue in self._all:
            if queue.rows and (head := queue.head()) is not None and head.deadline < earliest:
                earliest = head.deadline
        return earliest

    def lengths(self) -> dict[Priority, QueueLength]:
        """Queue length per class."""
        return {
            priority: QueueLength(len(fresh) + len(retry), fresh.rows + retry.rows, fresh.nbytes + retry.nbytes)
            for priority, fresh, retry in zip(Priority, self.fresh, self.retry, strict=True)
        }

    def ahead(self, priority: Priority) -> tuple[int, int]:
        """Rows queued in this class and those above it, and their mean cost bucket; ``(0, 0)`` without any."""
        rows = row_buckets = 0
        for queue in (*self.fresh[:priority], *self.retry[:priority]):
            rows += queue.rows
            row_buckets += queue.row_buckets
        return (rows, row_buckets // rows) if rows else (0, 0)
