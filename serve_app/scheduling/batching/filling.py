"""Fills a bundle up after the best run of its class.

Tenants over their part come first, then the fill-first class, then the most urgent. Rows that can wait come last in
their class.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Final

from serve_app.domain.priority import Priority
from serve_app.scheduling.batching.latency import LatencyModel
from serve_app.scheduling.batching.limits import BatchLimits
from serve_app.scheduling.entry import Entry
from serve_app.scheduling.queueing.queue import Merged, ModelQueue
from serve_app.scheduling.queueing.tenant_queue import TenantQueue
from serve_app.scheduling.settings import ModelScheduling

_HIGH: Final = Priority.HIGH
_LOW: Final = Priority.LOW
_PRIORITIES: Final = tuple(Priority)


class Filling:
    """A bundle that is filled up with entries of its batch key that need no larger cost bucket.

    An entry whose deadline is too near for the filled bundle could not be in time after it either: all but probes are
    given up.

    Args:
        entries: The run; not empty.
        bucket: Its largest cost bucket.
        given_up: Entries given up for it.
        latency: Of the variant that runs.
        room: Limits of the bundle.

    Attributes:
        entries: Grows.
        given_up: Grows.
        room: Limits of the bundle.
    """

    __slots__ = ("_batch_key", "_bucket", "_latency", "_settings", "entries", "given_up", "room", "rows")

    def __init__(
        self,
        entries: list[Entry],
        rows: int,
        bucket: int,
        given_up: list[Entry],
        latency: LatencyModel,
        settings: ModelScheduling,
        room: BatchLimits,
    ) -> None:
        self.entries = entries
        self.rows = rows
        self.given_up = given_up
        self._batch_key = entries[0].batch_key
        self._bucket = bucket
        self._latency = latency
        self._settings = settings
        self.room = room

    def fill(self, queue: ModelQueue, chosen: Priority, rest: Sequence[TenantQueue], target: float) -> None:
        """Fill the bundle up.

        Args:
            chosen: The class that heads it.
            rest: That class's tenants over their part.
            target: Longest execution for its head, seconds.
        """
        room, latency, bucket, fresh = self.room, self._latency, self._bucket, queue.fresh
        own = fresh[chosen - 1]
        waiting = sum([other.rows for other in fresh if rest or other is not own])
        enough = latency.enough(bucket, room.max_rows)
        most = min(latency.rows_within(target, bucket, enough), self.rows + waiting)
        if most <= self.rows:
            return
        longest = most if room.longest_s >= target else min(most, latency.rows_within(room.longest_s, bucket, most))
        if chosen is not _HIGH:
            most = longest
        # Rows that can wait fill up only batches of rows that can wait.
        until = room.urgent_until(chosen)
        if self.entries[0].deadline > until:
            until = inf
        for tenant in rest:
            if self.rows >= most:
                break
            most = self._add_run(tenant, most, until)
        most = min(most, longest)
        end = self._ends(max(most, self.rows))
        if room.extra_s < inf and chosen is not _LOW:
            low = fresh[_LOW - 1]
            if (head := low.head()) is not None and head.deadline > room.urgent_until(_LOW):
                # All rows of class low that fill it up can wait: it ends sooner.
                urgent = max(self.rows, min(most, self.rows + waiting - low.rows))
                end = min(end, self._ends(urgent) + room.extra_s)
        others = [priority for priority in _PRIORITIES if priority is not chosen and fresh[priority - 1].rows]
        if room.fill_first in others:
            others.remove(room.fill_first)
            others.insert(0, room.fill_first)
        for other in others:
            if self.rows >= most:
                break
            first, behind = fresh[other - 1].turns()
            until = room.urgent_until(other)
            for source in (first, *behind):
                self._add(source, most, end, until)
            if until < inf:
                few = latency.rows_within(latency.predict(self.rows, bucket) + room.extra_s, bucket, most)
                for source in (first, *behind):
                    self._add(source, few, end, inf)

    def _ends(self, rows: int) -> float:
        """Predicted end of the bundle with so many rows."""
        return self.room.begins_at + self._latency.predict(rows, self._bucket)

    def _add_run(self, tenant: TenantQueue, most: int, until: float) -> int:
        """Add the most consecutive entries of a tenant that are in time for the resulting bundle.

        Args:
            most: Most rows of the bundle.
            until: Latest deadline.

        Returns:
            The most rows of the bundle from now on.
        """
        looked_at: list[Entry] = []
        start = joining = 0
        best, best_rows = (0, 0), 0
        latency, bucket, rows, begin = self._latency, self._bucket, self.rows, self.room.begins_at
        while rows + joining < most and len(looked_at) < 2 * self._settings.max_rows:
            following = tenant.head(self._batch_key)
            if (
                following is None
                or rows + following.rows > most
                or not self._joins(following, joining)
                or following.deadline > until
            ):
                break
            tenant.take_head(self._batch_key)
            looked_at.append(following)
            joining += following.rows
            while joining and (
                rows + joining > most or begin + latency.predict(rows + joining, bucket) > looked_at[start].deadline
            ):
                joining -= looked_at[start].rows
                start += 1
            if joining > best_rows:
                best, best_rows = (start, len(looked_at)), joining
        chosen = looked_at[best[0] : best[1]]
        self.rows += best_rows
        if chosen:
            self.entries += chosen
            most = latency.rows_within(chosen[0].deadline - begin, bucket, most)
        end = self._ends(self.rows)
        for other in (*looked_at[: best[0]], *looked_at[best[1] :]):
            alone = latency.predict(other.rows, other.bucket)
            if other.deadline - end < alone and not other.probe:
                self.given_up.append(other)
            else:
                tenant.push(other)
        return most

    def _joins(self, entry: Entry, more: int = 0) -> bool:
        """Whether an entry needs no larger bucket, and is cheaper here than alone beside ``more`` other rows."""
        if entry.bucket >= self._bucket:
            return entry.bucket == self._bucket
        return self._latency.pays(self.rows + more, self._bucket, entry.rows, entry.bucket)

    def _add(self, source: TenantQueue | Merged, limit: int, end: float, until: float) -> None:
        """Add entries with deadlines up to ``until``, up to ``limit`` rows in all; the bundle then ends at ``end``."""
        passed_over: list[Entry] = []
        while self.rows < limit and len(passed_over) < self._settings.max_rows:
            following = source.head(self._batch_key)
            if following is None or following.deadline > until:
                break
            if following.bucket == self._bucket and self.rows + following.rows > limit:
                break
            source.take_head(self._batch_key)
            if self.rows + following.rows > limit or not self._joins(following):
                passed_over.append(following)
            elif following.deadline >= end:
                self.entries.append(following)
                self.rows += following.rows
            else:
                (passed_over if following.probe else self.given_up).append(following)
        for following in passed_over:
            source.push(following)
