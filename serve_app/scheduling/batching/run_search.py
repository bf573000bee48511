"""Which entries of a class make the best bundle.

Entries queue by deadline. With the head in the bundle, the head's slack bounds how long the bundle may execute, and so
how many can share it. Giving up the first few can make room for many: so of all runs of consecutive entries that
execute before the deadline of their first, the one with the most answers per second of server time goes. An entry of
another length is passed over where its padding, or that of the others, costs more than a run of its own; and no run has
more rows than save time per row (`LatencyModel.enough`), since a longer one would only block others. The run is found
by one pass of a sliding window, since later heads have more slack; the pass ends where more slack allows no more rows,
where nothing more is queued, or before entries that can wait, for which no head is given up. If the whole queue can be
in time, that is the queue from its head on.

Sources: Nexus (SOSP 2019) drops heads until the rest can make a batch of a target size, planned from rate and deadline.
Here the size follows from what is queued, which the exact bound shows to be worth more (docs/scheduling.md).
"""

from __future__ import annotations

from math import inf
from typing import Final, NamedTuple

from serve_app.scheduling.batching.latency import LatencyModel
from serve_app.scheduling.batching.limits import BatchLimits
from serve_app.scheduling.batching.policy import target_s
from serve_app.scheduling.entry import Entry, Priority
from serve_app.scheduling.queueing.queue import Merged, OfSize
from serve_app.scheduling.queueing.tenant_queue import TenantQueue
from serve_app.scheduling.settings import ModelScheduling

_BETTER: Final = 1.0 + 1e-9
_ASIDE: Final = 64
"""Most entries that are passed over for one bundle."""
_HIGH: Final = Priority.HIGH


class Run(NamedTuple):
    """Consecutive entries ``[start, end)`` of those looked at; none when nothing before ``start`` can be in time.

    Attributes:
        start: The first.
        end: The one behind the last.
        rows: Their rows.
        bucket: Their largest cost bucket.
        target: The longest that its head's deadline and the model's target let it take, seconds.
    """

    start: int
    end: int
    rows: int
    bucket: int
    target: float


class RunSearch:
    """Looks for the run with the most answers per server second. What it looks at leaves the queue.

    Args:
        own: The class's queue.
        batch_key: That of the entries.
        settings: Of the model.
        room: What bounds the bundle.

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
        """Queue again what is behind a run, and what was passed over for its cost bucket."""
        for entry in (*self.looked_at[run.end :], *self._aside):
            self._own.push(entry)

    def best(self, latency: LatencyModel, places: int) -> Run:
        """The best run, of at most so many entries, on a variant of this latency."""
        own, batch_key, settings, room = self._own, self._batch_key, self._settings, self._room
        looked_at, aside = self.looked_at, self._aside
        best: Run | None = None
        best_rate = 0.0
        most, slack_from = room.max_rows, room.slack_from
        end = rows = start = 0
        bucket = 0
        while True:
            if start == len(looked_at):
                if (following := own.take_head(batch_key)) is None:
                    return best or _nothing(start)
                looked_at.append(following)
            head = looked_at[start]
            if end == start:
                if head.rows >= most:
                    return best or _nothing(start)  # it goes alone, another time
                rows, bucket, end = head.rows, head.bucket, start + 1
            slack = head.deadline - slack_from
            alone = latency.predict(head.rows, head.bucket)
            doubtful = alone > slack
            if doubtful and not head.probe and (settings.fallbacks or latency.typical(head.rows, head.bucket) > slack):
                rows -= head.rows
                start += 1
                if start < end and head.bucket == bucket > looked_at[start].bucket:
                    bucket = max(entry.bucket for entry in looked_at[start:end])
                continue
            target = alone if doubtful else target_s(latency, settings, head.rows, head.bucket, slack)
            until = room.urgent_until(head.priority)
            patient = head.deadline > until
            if patient:
                if best is not None:
                    return best  # of entries that cannot wait, as all behind can
                target = min(target, room.extra_s)
            capped = target if head.priority is _HIGH else max(alone, min(target, room.longest_s))
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
                    last = True  # so can all that follow: together they add no more than that
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
                        # Its turn comes as a head.
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
            seconds = latency.predict(rows, bucket)
            rate = (
                (0.5 if doubtful else 1.0) * (end - start) / seconds if seconds > 0.0 else inf
            )  # half: may be in vain
            if best is None or rate > best_rate * _BETTER:
                best, best_rate = Run(start, end, rows, bucket, max(alone, target)), rate
            if last or limit >= enough or capped < slack or head.probe:
                # Nothing more to add, or more slack would not allow more rows. A probe is not given up.
                return best
            rows -= head.rows
            start += 1
            if start < end and head.bucket == bucket > looked_at[start].bucket:
                bucket = max(entry.bucket for entry in looked_at[start:end])


def _nothing(start: int) -> Run:
    return Run(start, start, 0, 0, 0.0)
