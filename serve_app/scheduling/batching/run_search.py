"""Finds the entries of one class that make the best bundle.

Theory of operation. Entries queue by deadline. The deadline of a bundle's first entry, its head, bounds how long the
bundle may execute, and so how many rows it may have. To give up the first few entries can make room for many. So the
search compares *runs* of consecutive entries ``[start, end)`` that execute before the deadline of their first, and
takes the one with the most answers per second of server time.

    by deadline    e0 e1      [e2 e3 e4 e5)   e6 ...
                   given up   the run         queued again

One pass of a sliding window finds it: ``start`` and ``end`` only move right, since a later head has no less time. For
each head the window grows up to the bound ``limit``, the rate is compared, and the head is left out. The bound is the
least of the head's deadline, the model's latency target, the limits of the bundle (`BatchLimits`), and the rows beyond
which a batch saves no time per row (`LatencyModel.enough`), since longer ones would only block others.

The pass ends if another head could not improve the run:

    limit >= enough, capped < left   more time would not allow more rows
    last                              nothing more is queued or may join
    a head that can wait              no such entry is given up for another
    a probe                           it is never given up

A head that is predicted to be late is skipped. Without fallbacks, one that would be in time by the median counts half.
An entry of another cost bucket is put aside if its padding, or that of the others, costs more than a run of its own.

Invariants: what is looked at has left the queue, and `put_back` returns all but the run and the entries before it. If
the whole queue can be in time, the run begins at the queue's head.

Source: Nexus (SOSP 2019) drops heads until the rest can make a batch of a target size, planned from rate and deadline.
Here the size follows from the queue, which the exact bound shows to be worth more (docs/scheduling.md).
"""

from __future__ import annotations

from math import inf
from typing import Final, NamedTuple

from serve_app.domain.priority import Priority
from serve_app.scheduling.batching.latency import LatencyModel
from serve_app.scheduling.batching.limits import BatchLimits
from serve_app.scheduling.batching.policy import target_s
from serve_app.scheduling.entry import Entry
from serve_app.scheduling.queueing.queue import Merged, OfSize
from serve_app.scheduling.queueing.tenant_queue import TenantQueue
from serve_app.scheduling.settings import ModelScheduling

_BETTER: Final = 1.0 + 1e-9
_ASIDE: Final = 64
"""Most entries put aside for one bundle."""
_HIGH: Final = Priority.HIGH


class Run(NamedTuple):
    """Consecutive entries ``[start, end)`` of those looked at; empty if no entry can be in time.

    Attributes:
        bucket: Largest cost bucket.
        target: The longest execution that its head's deadline and the model's target allow, seconds.
    """

    start: int
    end: int
    rows: int
    bucket: int
    target: float


class RunSearch:
    """Searches for the run with the most answers per server second. Entries it looks at leave the queue.

    Args:
        own: The class's queue.
        batch_key: That of the entries.
        room: Limits of the bundle.

    Attributes:
        looked_at: Entries looked at so far, by deadline.
    """

    __slots__ = ("_aside", "_batch_key", "_own", "_room", "_settings", "looked_at")

    def __init__(
        self, own: TenantQueue | Merged | OfSize, batch_key: str, settings: ModelScheduling, room: BatchLimits
    ) -> None:
        self._own = own
        self._batch_key = batch_key
        self._settings = settings
        self._room = room
        self._aside: list[Entry] = []
        self.looked_at: list[Entry] = []

    def put_back(self, run: Run) -> None:
        """Queue again the entries behind a run, and those put aside for their cost bucket."""
        for entry in (*self.looked_at[run.end :], *self._aside):
            self._own.push(entry)

    def best(self, latency: LatencyModel, places: int) -> Run:
        """The best run of at most ``places`` entries on a variant of this latency."""
        own, batch_key, settings, room, looked_at = (
            self._own,
            self._batch_key,
            self._settings,
            self._room,
            self.looked_at,
        )
        best: Run | None = None
        best_rate = 0.0
        start = end = rows = bucket = 0
        while True:
            if start == len(looked_at):
                if (following := own.take_head(batch_key)) is None:
                    return best or _nothing(start)
                looked_at.append(following)
            head = looked_at[start]
            if end == start:
                if head.rows >= room.max_rows:
                    return best or _nothing(start)  # it goes alone, another time
                rows, bucket, end = head.rows, head.bucket, start + 1
            left = head.deadline - room.begins_at
            alone = latency.predict(head.rows, head.bucket)
            late = alone > left
            if not late or head.probe or not (settings.fallbacks or latency.typical(head.rows, head.bucket) > left):
                target = alone if late else target_s(latency, settings, head.rows, head.bucket, left)
                until = room.urgent_until(head.priority)
                if head.deadline > until:
                    if best is not None:
                        return best  # everything behind can wait
                    target = min(target, room.extra_s)
                capped = target if head.priority is _HIGH else max(alone, min(target, room.longest_s))
                end, rows, bucket, capped, full = self._grow(start, end, rows, bucket, capped, until, latency, places)
                seconds = latency.predict(rows, bucket)
                worth = 0.5 if late else 1.0  # half: it may be late
                rate = worth * (end - start) / seconds if seconds > 0.0 else inf
                if best is None or rate > best_rate * _BETTER:
                    best, best_rate = Run(start, end, rows, bucket, max(alone, target)), rate
                if full or capped < left or head.probe:
                    # A later head could not improve the run; see the table at the top.
                    return best
            rows -= head.rows
            start += 1
            if start < end and head.bucket == bucket > looked_at[start].bucket:
                bucket = max(entry.bucket for entry in looked_at[start:end])

    def _grow(
        self,
        start: int,
        end: int,
        rows: int,
        bucket: int,
        capped: float,
        until: float,
        latency: LatencyModel,
        places: int,
    ) -> tuple[int, int, int, float, bool]:
        """Extend the run ``[start, end)`` by the entries behind it.

        Args:
            capped: The longest execution, seconds.
            until: Entries with later deadlines can wait.

        Returns:
            The end, rows and bucket of the run; its longest execution; and whether more time would not extend it.
        """
        own, batch_key, room, looked_at, aside = self._own, self._batch_key, self._room, self.looked_at, self._aside
        most, patient = room.max_rows, looked_at[start].deadline > until
        enough = latency.enough(bucket, most)
        limit = latency.rows_within(capped, bucket, enough)
        last = False
        while rows < limit:
            if end == len(looked_at):
                if (following := own.take_head(batch_key)) is None:
                    last = True
                    break
                looked_at.append(following)
            entry = looked_at[end]
            if entry.deadline > until and not (patient or last):
                last = True  # everything behind can wait too, and may add this much in all
                capped = min(capped, latency.predict(rows, bucket) + room.extra_s)
                limit = latency.rows_within(capped, bucket, enough)
            joined = rows + entry.rows
            if entry.bucket != bucket:
                longer = entry.bucket > bucket
                if (
                    joined > (latency.enough(entry.bucket, most) if longer else limit)
                    or (longer and latency.predict(joined, entry.bucket) > capped)
                    or not latency.pays(rows, bucket, entry.rows, entry.bucket)
                ):
                    # It can head a later bundle.
                    if len(aside) < _ASIDE:
                        aside.append(looked_at.pop(end))
                        continue
                    last = True
                    break
            elif joined > limit:
                break
            if end - start == places:
                last = True
                break
            if entry.bucket > bucket:
                bucket = entry.bucket
                enough = latency.enough(bucket, most)
                limit = latency.rows_within(capped, bucket, enough)
            rows, end = joined, end + 1
        return end, rows, bucket, capped, last or limit >= enough


def _nothing(start: int) -> Run:
    return Run(start, start, 0, 0, 0.0)
