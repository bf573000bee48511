"""The queue of one tenant: earliest deadline first.

A `TenantQueue` is a `Calendar` of ``(deadline, id)`` beside a dict ``id -> entry``. Cancelling deletes from the dict
only; the calendar forgets lazily and is rebuilt when more than half of it is stale. So an entry is referenced exactly
as long as it is queued, cancelling is O(1) amortised, and there are at most ``2 * entries + 64`` pairs. Every batch key
has a calendar of its own, so that a bundle of one variant does not end at the first entry of another.
"""

from __future__ import annotations

from collections.abc import Iterator

from serve_app.scheduling.entry import Entry
from serve_app.scheduling.queueing.calendar import Calendar, Pair
from serve_app.scheduling.queueing.sizes import Size, size_of

_STALE_ALLOWED = 64


class Totals:
    """Entries and bytes queued in one class over all models."""

    __slots__ = ("entries", "nbytes")

    def __init__(self) -> None:
        self.entries = 0
        self.nbytes = 0


class Rows:
    """Rows queued for one model in all classes."""

    __slots__ = ("rows",)

    def __init__(self) -> None:
        self.rows = 0


class Counts:
    """What one class of one model has queued, over all its tenants.

    Args:
        totals: Of the class over all models.
        model: Of the model over all classes.

    Attributes:
        row_buckets: Sum of rows times bucket, for the mean cost bucket of what waits.
        totals: Of the class over all models.
        model: Of the model over all classes.
    """

    __slots__ = ("model", "row_buckets", "rows", "totals")

    def __init__(self, totals: Totals, model: Rows) -> None:
        self.rows = 0
        self.row_buckets = 0
        self.totals = totals
        self.model = model


class TenantQueue:
    """Entries of one tenant of one (model, class), earliest deadline first; equal deadlines in the order of their ids.

    Args:
        counts: Of its class, which it updates.

    Attributes:
        nbytes: Bytes queued.
        known_head: The head, if known: most reads of it come while it stays the same.
    """

    __slots__ = (
        "_calendars",
        "_counts",
        "_entries",
        "_pairs",
        "known_head",
        "nbytes",
        "tenant",
        "weight",
    )

    def __init__(self, counts: Counts, tenant: str = "", weight: float = 1.0) -> None:
        # Per batch key with anything queued; an empty calendar is removed at the next look at it.
        self._calendars: dict[str, Calendar] = {}
        self._pairs = 0
        self._entries: dict[int, Entry] = {}
        self.known_head: Entry | None = None
        self._counts = counts
        self.tenant = tenant
        self.weight = weight
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def __contains__(self, entry: Entry) -> bool:
        return self._entries.get(entry.id) is entry

    @property
    def pairs(self) -> int:
        """Pairs held, stale ones included: at most ``2 * len(self) + 64``."""
        return self._pairs

    def push(self, entry: Entry) -> None:
        """Queue an entry. Raises ValueError if its id is queued already."""
        entries = self._entries
        if entry.id in entries:
            raise ValueError(f"entry {entry.id} is queued already")
        if not entries:
            self.known_head = entry
        entries[entry.id] = entry
        pair = (entry.deadline, entry.id)
        calendar = self._calendars.get(entry.batch_key)
        if calendar is None:
            calendar = self._calendars[entry.batch_key] = Calendar()
        calendar.push(pair)
        self._pairs += 1
        head = self.known_head
        if head is not None and entry.deadline <= head.deadline and pair < (head.deadline, head.id):
            self.known_head = entry
        rows, nbytes, counts = entry.rows, entry.nbytes, self._counts
        self.nbytes += nbytes
        counts.rows += rows
        counts.model.rows += rows
        counts.row_buckets += rows * entry.bucket
        totals = counts.totals
        totals.entries += 1
        totals.nbytes += nbytes

    def head(self, batch_key: str | None = None) -> Entry | None:
        """The entry with the earliest deadline, of this batch key or (``None``) of all, or ``None``."""
        head = self.known_head
        if head is not None and (batch_key is None or batch_key == head.batch_key):
            return head
        entries, calendars = self._entries, self._calendars
        if not entries:
            return None
        if batch_key is None:
            if len(calendars) > 1:
                earliest = min(first for name in tuple(calendars) if (first := self._first(name)) is not None)
                self.known_head = entries[earliest[1]]
                return self.known_head
            (batch_key,) = calendars
        first = self._first(batch_key)
        if first is None:
            return None
        head = entries[first[1]]
        if len(calendars) == 1:
            self.known_head = head
        return head

    def first_of(self, size: Size) -> Entry | None:
        """The entry of a size with the earliest deadline, or ``None``."""
        found = (entry for entry in self._entries.values() if size_of(entry) == size)
        return min(found, key=lambda entry: (entry.deadline, entry.id), default=None)

    def pop(self) -> Entry:
        """Take the entry with the earliest deadline. Raises IndexError if empty."""
        entry = self.head()
        if entry is None:
            raise IndexError("pop from an empty queue")
        self.take_head(entry.batch_key)
        return entry

    def take_head(self, batch_key: str) -> Entry | None:
        """Take the entry of this batch key with the earliest deadline, or ``None``."""
        calendar = self._calendars.get(batch_key)
        if calendar is None:
            return None
        entries = self._entries
        while (first := calendar.pop()) is not None:
            self._pairs -= 1
            entry = entries.pop(first[1], None)
            if entry is not None:
                self._forget(entry)
                return entry
        del self._calendars[batch_key]
        return None

    def take(self, into: list[Entry], room: int, batch_key: str = "") -> int:
        """Take entries of one batch key in order while their rows fit into ``room``, and none of them `Entry.is_cut`.

        Args:
            into: Receives the entries.
            room: Most rows.
            batch_key: Other entries are passed over.

        Returns:
            The rows taken. The first entry that does not fit ends it and stays the head.
        """
        left = room
        while left > 0:
            entry = self.head(batch_key)
            if entry is None or entry.rows > left or entry.is_cut:
                break
            self.take_head(batch_key)
            into.append(entry)
            left -= entry.rows
        return room - left

    def newest(self) -> Entry:
        """The entry queued last. Raises StopIteration if empty."""
        return next(reversed(self._entries.values()))

    def remove(self, entry: Entry) -> None:
        """Remove an entry. Raises KeyError if it is not queued here."""
        del self._entries[entry.id]
        self._forget(entry)

    def expire(self, now: float, into: list[Entry]) -> None:
        """Remove every entry whose deadline has passed."""
        while (entry := self.known_head or self.head()) is not None and entry.deadline <= now:
            self.take_head(entry.batch_key)
            into.append(entry)

    def _first(self, batch_key: str) -> Pair | None:
        """The first pair of a batch key that is not stale, or ``None``."""
        calendar = self._calendars.get(batch_key)
        if calendar is None:
            return None
        while (first := calendar.first()) is not None:
            if first[1] in self._entries:
                return first
            calendar.pop()
            self._pairs -= 1
        del self._calendars[batch_key]
        return None

    def _forget(self, entry: Entry) -> None:
        """Update the counts after an entry has left the dict, and rebuild the calendars if they are too stale."""
        if entry is self.known_head:
            self.known_head = None
        rows, nbytes, counts = entry.rows, entry.nbytes, self._counts
        self.nbytes -= nbytes
        counts.rows -= rows
        counts.model.rows -= rows
        counts.row_buckets -= rows * entry.bucket
        totals = counts.totals
        totals.entries -= 1
        totals.nbytes -= nbytes
        if self._pairs > 2 * len(self._entries) + _STALE_ALLOWED:
            for calendar in self._calendars.values():
                calendar.keep(self._entries)
            self._pairs = len(self._entries)
