"""Queues: earliest deadline first per (model, class), with counts that bounds are checked against.

A `ClassQueue` is a `Calendar` of ``(deadline, id)`` beside a dict ``id -> entry``. Cancelling deletes from the dict
only; the calendar forgets lazily and is rebuilt when more than half of it is stale. So an entry is referenced exactly
as long as it is queued, cancelling is O(1) amortised, and there are at most ``2 * entries + 64`` pairs. Every lane
has a calendar of its own, so that a bundle of one variant does not end at the first entry of another.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import NamedTuple

from serve_app.scheduling.calendar import Calendar, Pair
from serve_app.scheduling.decisions import QueueLength
from serve_app.scheduling.entry import Entry, Priority

_STALE_ALLOWED = 64


class Totals:
    """Entries and bytes queued in one class over all models."""

    __slots__ = ("entries", "nbytes")

    def __init__(self) -> None:
        self.entries = 0
        self.nbytes = 0


class DeadlineHistogram:
    """Rows by deadline, to estimate how many of them go first: O(1) updates, two short sums per question.

    A ring of 2,048 cells of 1/32 s, and a ring of 64 sums over 32 cells each. Entries with a deadline more than 48 s
    after their arrival are counted apart and are never ahead of a nearer deadline. The 16 s between that horizon and
    the ring's span of 64 s are slack for entries that have expired and are not removed yet.
    """

    __slots__ = ("_coarse", "_fine", "total")

    HORIZON_S = 48.0
    _CELLS_PER_S = 32

    def __init__(self) -> None:
        self.total = 0
        self._fine = [0] * 2048
        self._coarse = [0] * 64

    def add(self, arrival: float, deadline: float, rows: int) -> None:
        """Count ``rows`` in, or out when negative; ``arrival`` and ``deadline`` must be the same both times."""
        self.total += rows
        if deadline - arrival <= self.HORIZON_S:
            cell = int(deadline * self._CELLS_PER_S)
            self._fine[cell & 2047] += rows
            self._coarse[(cell >> 5) & 63] += rows

    def rows_until(self, now: float, deadline: float) -> int:
        """Rows with a deadline no later than ``deadline``, to a cell's precision (31 ms)."""
        if deadline - now > self.HORIZON_S:
            return self.total
        cell = int(deadline * self._CELLS_PER_S) & 2047
        first, last = int(now) & 63, cell >> 5
        coarse = self._coarse
        rows = sum(coarse[first:last]) if first <= last else sum(coarse[first:]) + sum(coarse[:last])
        return rows + sum(self._fine[last << 5 : cell + 1])


class ClassQueue:
    """Entries of one (model, class), earliest deadline first; equal deadlines in the order of their ids.

    Attributes:
        rows: Rows queued.
        nbytes: Bytes queued.
        row_buckets: Sum of rows times bucket, for the mean cost bucket of what waits.
        variant_rows: Rows per variant, of those variants that have any; the exact model's are not among them.
        histogram: Rows by deadline.
    """

    __slots__ = (
        "_calendars",
        "_entries",
        "_head",
        "_pairs",
        "_totals",
        "histogram",
        "nbytes",
        "row_buckets",
        "rows",
        "variant_rows",
    )

    def __init__(self, totals: Totals) -> None:
        # Per lane with anything queued; an empty calendar goes when somebody next looks at it.
        self._calendars: dict[str, Calendar] = {}
        self._pairs = 0
        self._entries: dict[int, Entry] = {}
        # The head, where it is known: most questions for it come while it stays the same.
        self._head: Entry | None = None
        self._totals = totals
        self.rows = 0
        self.nbytes = 0
        self.row_buckets = 0
        self.variant_rows: dict[str, int] = {}
        self.histogram = DeadlineHistogram()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, entry: Entry) -> bool:
        return self._entries.get(entry.id) is entry

    @property
    def pairs(self) -> int:
        """Pairs held, stale ones included: at most ``2 * len(self) + 64``."""
        return self._pairs

    def push(self, entry: Entry) -> None:
        """Queue an entry. Raises ValueError when its id is queued here already."""
        if entry.id in self._entries:
            raise ValueError(f"entry {entry.id} is queued already")
        self._entries[entry.id] = entry
        pair = (entry.deadline, entry.id)
        calendar = self._calendars.get(entry.lane)
        if calendar is None:
            calendar = self._calendars[entry.lane] = Calendar()
        calendar.push(pair)
        self._pairs += 1
        head = self._head
        if head is not None and entry.deadline <= head.deadline and pair < (head.deadline, head.id):
            self._head = entry
        rows, nbytes, totals = entry.rows, entry.nbytes, self._totals
        if entry.variant:
            self.variant_rows[entry.variant] = self.variant_rows.get(entry.variant, 0) + rows
        self.rows += rows
        self.nbytes += nbytes
        self.row_buckets += rows * entry.bucket
        totals.entries += 1
        totals.nbytes += nbytes
        self.histogram.add(entry.arrival, entry.deadline, rows)

    def head(self, lane: str | None = None) -> Entry | None:
        """The entry with the earliest deadline, of this lane or (``None``) of all; ``None`` without any."""
        head = self._head
        if head is not None and (lane is None or lane == head.lane):
            return head
        entries, calendars = self._entries, self._calendars
        if not entries:
            return None
        if lane is None:
            if len(calendars) > 1:
                earliest = min(first for name in tuple(calendars) if (first := self._first(name)) is not None)
                self._head = entries[earliest[1]]
                return self._head
            (lane,) = calendars
        first = self._first(lane)
        if first is None:
            return None
        head = entries[first[1]]
        if len(calendars) == 1:
            self._head = head
        return head

    def pop(self) -> Entry:
        """Take the entry with the earliest deadline. Raises IndexError when empty."""
        entry = self.head()
        if entry is None:
            raise IndexError("pop from an empty queue")
        self.take_head(entry.lane)
        return entry

    def take_head(self, lane: str) -> Entry | None:
        """Take the entry of this lane with the earliest deadline, or ``None``."""
        calendar = self._calendars.get(lane)
        if calendar is None:
            return None
        entries = self._entries
        while (first := calendar.pop()) is not None:
            self._pairs -= 1
            entry = entries.pop(first[1], None)
            if entry is not None:
                self._forget(entry)
                return entry
        del self._calendars[lane]
        return None

    def take(self, into: list[Entry], room: int, bucket: int, lane: str = "") -> int:
        """Pop entries of one lane in order while they fit: their rows in ``room``, their bucket in ``bucket``.

        Args:
            into: Receives the entries.
            room: Most rows to take.
            bucket: Largest cost bucket to take.
            lane: The lane to take from; others are passed over.

        Returns:
            The rows taken. The first entry that does not fit ends it and stays the head.
        """
        left = room
        while left > 0:
            entry = self.head(lane)
            if entry is None or entry.rows > left or entry.bucket > bucket:
                break
            self.take_head(lane)
            into.append(entry)
            left -= entry.rows
        return room - left

    def remove(self, entry: Entry) -> None:
        """Take an entry out of the middle. Raises KeyError when it is not queued here."""
        del self._entries[entry.id]
        self._forget(entry)

    def expire(self, now: float, into: list[Entry]) -> None:
        """Pop every entry whose deadline has passed."""
        while (entry := self.head()) is not None and entry.deadline <= now:
            self.take_head(entry.lane)
            into.append(entry)

    def _first(self, lane: str) -> Pair | None:
        """The first pair of a lane that is not stale, or ``None`` when nothing of it is queued."""
        calendar = self._calendars.get(lane)
        if calendar is None:
            return None
        while (first := calendar.first()) is not None:
            if first[1] in self._entries:
                return first
            calendar.pop()
            self._pairs -= 1
        del self._calendars[lane]
        return None

    def _forget(self, entry: Entry) -> None:
        """Count out an entry that has left the dict, and rebuild the calendars when too much of them is stale."""
        if entry is self._head:
            self._head = None
        rows, nbytes, totals = entry.rows, entry.nbytes, self._totals
        if entry.variant:
            left = self.variant_rows.pop(entry.variant) - rows
            if left:
                self.variant_rows[entry.variant] = left
        self.rows -= rows
        self.nbytes -= nbytes
        self.row_buckets -= rows * entry.bucket
        totals.entries -= 1
        totals.nbytes -= nbytes
        self.histogram.add(entry.arrival, entry.deadline, -rows)
        if self._pairs > 2 * len(self._entries) + _STALE_ALLOWED:
            for calendar in self._calendars.values():
                calendar.keep(self._entries)
            self._pairs = len(self._entries)


class Ahead(NamedTuple):
    """Work that goes before an entry.

    Attributes:
        rows: Its rows.
        bucket: Their mean cost bucket; 0 where there are none.
        shares: The variants' parts of them, 0 to 1 each; the rest is the exact model's.
    """

    rows: int
    bucket: int
    shares: Mapping[str, float]


class ModelQueue:
    """Everything queued for one model.

    Attributes:
        fresh: Per class, in order of urgency: entries that no bundle has carried yet.
        retry: Per class: entries whose first bundle failed. They are kept apart because they travel alone.
    """

    __slots__ = ("_all", "_down_to", "fresh", "retry")

    def __init__(self, totals: dict[Priority, Totals]) -> None:
        self.fresh = tuple(ClassQueue(totals[priority]) for priority in Priority)
        self.retry = tuple(ClassQueue(totals[priority]) for priority in Priority)
        self._all = (*self.fresh, *self.retry)
        # By class: the queues of this class and those above it, and which of them are its own.
        self._down_to = tuple(
            tuple(
                (queue, at == least - 1)
                for queues in (self.fresh, self.retry)
                for at, queue in enumerate(queues[:least])
            )
            for least in range(len(Priority) + 1)
        )

    def __len__(self) -> int:
        return sum(map(len, self._all))

    def __bool__(self) -> bool:
        for queue in self._all:  # noqa: SIM110 - a quarter of the time of any()
            if queue.rows:
                return True
        return False

    @property
    def rows(self) -> int:
        """Rows queued in all classes."""
        return sum(queue.rows for queue in self._all)

    @property
    def fresh_rows(self) -> int:
        """Rows queued in all classes, retries not included."""
        return sum(queue.rows for queue in self.fresh)

    def __contains__(self, entry: Entry) -> bool:
        return entry in (self.retry if entry.attempts else self.fresh)[entry.priority - 1]

    def push(self, entry: Entry) -> None:
        """Queue an entry under its class; a retry is recognised by its attempts."""
        (self.retry if entry.attempts else self.fresh)[entry.priority - 1].push(entry)

    def remove(self, entry: Entry) -> None:
        """Take an entry out. Raises KeyError when it is not queued."""
        (self.retry if entry.attempts else self.fresh)[entry.priority - 1].remove(entry)

    def expire(self, now: float, into: list[Entry]) -> None:
        """Pop every entry whose deadline has passed."""
        for queue in self._all:
            if queue.rows:
                queue.expire(now, into)

    def next_deadline(self) -> float:
        """The earliest deadline of all entries; ``inf`` when empty."""
        earliest = inf
        for queue in self._all:
            if queue.rows and (head := queue.head()) is not None and head.deadline < earliest:
                earliest = head.deadline
        return earliest

    def lengths(self) -> dict[Priority, QueueLength]:
        """What each class has queued."""
        return {
            priority: QueueLength(len(fresh) + len(retry), fresh.rows + retry.rows, fresh.nbytes + retry.nbytes)
            for priority, fresh, retry in zip(Priority, self.fresh, self.retry, strict=True)
        }

    def ahead(self, priority: Priority, deadline: float, now: float) -> Ahead:
        """Estimate the work that goes before an entry of this class and deadline.

        Everything of the classes above counts, and what has an earlier deadline in its own class. Mean bucket and
        shares are those of all that is queued in these classes.
        """
        rows = row_buckets = counted = 0
        shares: dict[str, float] = {}
        for queue, own in self._down_to[priority]:
            queued = queue.rows
            if not queued:
                continue
            rows += queue.histogram.rows_until(now, deadline) if own else queued
            counted += queued
            row_buckets += queue.row_buckets
            if queue.variant_rows:
                for variant, count in queue.variant_rows.items():
                    shares[variant] = shares.get(variant, 0) + count
        if not counted:
            return _NOTHING_AHEAD
        if shares:
            shares = {variant: count / counted for variant, count in shares.items()}
        return Ahead(rows, row_buckets // counted, shares)


_NOTHING_AHEAD = Ahead(0, 0, {})
