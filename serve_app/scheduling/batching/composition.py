"""How the next bundle is put together, and which entries are given up for it.

Entries queue by deadline. With the head in the bundle, the head's slack bounds how long the bundle may execute, and so
how many can share it. Giving up the first few can make room for many: so of all runs of consecutive entries that
execute before the deadline of their first, the one with the most answers per second of server time goes. An entry
that makes the bundle more expensive than a run of its own, since it is longer than all others, is passed over. The
run is found by one pass of a sliding window, since later heads have more slack; the pass ends where more slack allows
no more rows or where nothing more is queued. If the whole queue can be in time, that is the queue from its head on.

Sources: Nexus (SOSP 2019) drops heads until the rest can make a batch of a target size, planned from rate and deadline.
Here the size follows from what is queued, which the exact bound shows to be worth more (docs/scheduling.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from serve_app.scheduling.batching.blocking_limit import urgent_until
from serve_app.scheduling.batching.latency import LatencyModel
from serve_app.scheduling.batching.policy import target_s
from serve_app.scheduling.batching.variants import VariantLatency
from serve_app.scheduling.entry import UNBATCHED, Entry, Priority
from serve_app.scheduling.health.breaker import ALL
from serve_app.scheduling.queueing.queue import Merged, ModelQueue, OfSize
from serve_app.scheduling.queueing.tenant_queue import TenantQueue
from serve_app.scheduling.settings import ModelScheduling


class BatchLimits(NamedTuple):
    """What bounds a bundle besides the deadlines of its entries.

    Attributes:
        slack_from: When execution can begin at the chosen replica, plus the overhead, seconds.
        max_rows: Most rows.
        longest_s: The longest predicted execution that rows of a class below `high` may be part of, so that it is not
            blocked too long; the head alone may take longer.
        fill_first: The class that fills the bundle up before all others.
        extra_s: How long an execution for rows that can wait may take, and what they may add to another; ``inf``: any
            time.
    """

    slack_from: float
    max_rows: int
    longest_s: float = inf
    fill_first: Priority | None = None
    extra_s: float = inf

    def urgent_until(self, priority: Priority) -> float:
        """Entries of a class with later deadlines can wait, and are bounded by ``extra_s``; ``inf``: none is."""
        return urgent_until(priority, self.slack_from) if self.extra_s < inf else inf


class Composition(NamedTuple):
    """Entries taken from the queue.

    Attributes:
        entries: For one bundle; empty when none of those looked at could be in time.
        rows: Their rows.
        bucket: Their largest cost bucket.
        variant: What they run on.
        given_up: Entries that cannot be in time any more, or not without costing more than they are worth.
    """

    entries: list[Entry]
    rows: int
    bucket: int
    variant: str
    given_up: list[Entry]


class _Run(NamedTuple):
    """Consecutive entries ``[start, end)`` of those looked at; none when nothing before ``start`` can be in time."""

    start: int
    end: int
    rows: int
    bucket: int
    limit: int
    target: float
    """The longest that its head's deadline and the model's target let it take, seconds."""


def execution_s(latency: LatencyModel, rows: int, bucket: int, max_rows: int) -> float:
    """Predicted execution time, in pieces of ``max_rows`` where there are more rows than that."""
    if rows <= max_rows:
        return latency.predict(rows, bucket)
    pieces, rest = divmod(rows, max_rows)
    seconds = pieces * latency.predict(max_rows, bucket)
    return seconds + latency.predict(rest, bucket) if rest else seconds


def compose(
    queue: ModelQueue,
    priority: Priority,
    settings: ModelScheduling,
    latencies: VariantLatency,
    room: BatchLimits,
) -> Composition:
    """Take a bundle of fresh entries of one class, filled up with what fits of the others.

    All of one variant, and of one size where one is short (`scheduling.queueing.sizes`). An entry of a larger cost
    bucket joins only where that costs less than running it alone; else it is passed over.
    Where the exact model would have to give entries up, the first of its fallbacks that need not is taken, or else
    the last; a fallback that is to be probed gets no more entries than it has places for. The other classes follow,
    first the fill-first class, then the most urgent, in order, where they need no larger bucket, the bundle still meets
    their own deadlines, and no more urgent class is blocked longer.

    Args:
        queue: Must hold a fresh entry of that class.
        priority: The class that heads the bundle.
        settings: Of the model.
        latencies: Of the model.
        room: What bounds the bundle.
    """
    of_class = queue.fresh[priority - 1]
    own: TenantQueue | Merged | OfSize
    own, rest = of_class.turns()
    head = own.head()
    for size in of_class.sizes.short():
        if (first := own.first_of(size)) is not None:
            head, own = first, OfSize(own, size)
            break
    assert head is not None
    composition = _compose(queue, priority, settings, latencies, room, own, rest, head)
    if isinstance(own, OfSize):
        own.restore()
    queue.ended(composition.entries, ran=True)
    queue.ended(composition.given_up, ran=False)
    return composition


def _compose(
    queue: ModelQueue,
    priority: Priority,
    settings: ModelScheduling,
    latencies: VariantLatency,
    room: BatchLimits,
    own: TenantQueue | Merged | OfSize,
    rest: Sequence[TenantQueue],
    head: Entry,
) -> Composition:
    """See `compose`; the bundle is made of ``own`` from its first entry on, and of ``rest``."""
    batch_key, variant = head.batch_key, head.variant
    latency = latencies.of(variant)
    if head.rows >= room.max_rows:
        # More than a batch: it goes alone, in pieces.
        own.take_head(batch_key)
        return _alone(head, latencies, settings, room)
    looked_at: list[Entry] = []
    aside: list[Entry] = []
    places = 1 if batch_key == UNBATCHED else _places(latencies, variant, ALL)
    run = _best_run(own, batch_key, looked_at, aside, settings, latency, room, places)
    if run.start and not batch_key:
        for fallback in settings.fallbacks:
            if latencies.has(fallback):
                variant, latency = fallback, latencies.of(fallback)
                places = _places(latencies, fallback, latencies.places(fallback))
                run = _best_run(own, batch_key, looked_at, aside, settings, latency, room, places)
                if not run.start:
                    break
    given_up = looked_at[: run.start]
    for entry in (*looked_at[run.end :], *aside):
        own.push(entry)
    entries = looked_at[run.start : run.end]
    if not entries:
        return Composition([], 0, 0, variant, given_up)
    if places < ALL:
        return Composition(entries, run.rows, run.bucket, variant, given_up)
    rows = _fill(queue, priority, rest, batch_key, entries, run, latency, settings, room, given_up)
    return Composition(entries, rows, run.bucket, variant, given_up)


def _places(latencies: VariantLatency, variant: str, places: int) -> int:
    """For how many entries a bundle has room: one where the variant's requests are run one by one."""
    return 1 if variant in latencies.whole else places


def _alone(entry: Entry, latencies: VariantLatency, settings: ModelScheduling, room: BatchLimits) -> Composition:
    variant = entry.variant
    slack = entry.deadline - room.slack_from
    alone = execution_s(latencies.of(variant), entry.rows, entry.bucket, settings.max_rows)
    if alone > slack and not entry.batch_key:
        for fallback in settings.fallbacks:
            if latencies.has(fallback):
                variant = fallback
                alone = execution_s(latencies.of(variant), entry.rows, entry.bucket, settings.max_rows)
                if alone <= slack:
                    break
    if alone > slack and not entry.probe:
        return Composition([], 0, 0, variant, [entry])
    return Composition([entry], entry.rows, entry.bucket, variant, [])


def _best_run(
    own: TenantQueue | Merged | OfSize,
    batch_key: str,
    looked_at: list[Entry],
    aside: list[Entry],
    settings: ModelScheduling,
    latency: LatencyModel,
    room: BatchLimits,
    places: int,
) -> _Run:
    """The run with the most answers per server second.

    Args:
        own: The class's queue. Entries that are looked at leave it.
        batch_key: That of the entries.
        looked_at: Entries looked at so far, by deadline; grows.
        aside: Those passed over, since they need a larger cost bucket than is worth it; grows.
        settings: Of the model.
        latency: Of the variant that is to run.
        room: What bounds the bundle.
        places: Most entries.
    """
    best: _Run | None = None
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
            target = min(target, room.extra_s)
        capped = target if head.priority is _HIGH else max(alone, min(target, room.longest_s))
        limit = latency.rows_within(capped, bucket, most)
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
                limit = latency.rows_within(capped, bucket, most)
            joined = rows + entry.rows
            if entry.bucket > bucket:
                together = latency.predict(joined, entry.bucket)
                apart = latency.predict(rows, bucket) + latency.predict(entry.rows, entry.bucket)
                if joined > most or together > min(capped, apart):
                    # Its turn comes as a head.
                    if len(aside) < _ASIDE:
                        aside.append(looked_at.pop(end))
                        continue
                    last = True
                    break
                bucket = entry.bucket
                limit = latency.rows_within(capped, bucket, most)
            elif joined > limit:
                break
            if end - start == places:
                last = True
                break
            rows, end = joined, end + 1
        seconds = latency.predict(rows, bucket)
        rate = (0.5 if doubtful else 1.0) * (end - start) / seconds if seconds > 0.0 else inf  # half: may be in vain
        if best is None or rate > best_rate * _BETTER:
            best, best_rate = _Run(start, end, rows, bucket, limit, max(alone, target)), rate
        if last or limit >= most or capped < slack or head.probe:
            # Nothing more to add, or more slack would not allow more rows. A probe is not given up: it is to be run.
            return best
        rows -= head.rows
        start += 1
        if start < end and head.bucket == bucket > looked_at[start].bucket:
            bucket = max(entry.bucket for entry in looked_at[start:end])


def _nothing(start: int) -> _Run:
    return _Run(start, start, 0, 0, 0, 0.0)


def _fill(
    queue: ModelQueue,
    chosen: Priority,
    rest: Sequence[TenantQueue],
    batch_key: str,
    entries: list[Entry],
    run: _Run,
    latency: LatencyModel,
    settings: ModelScheduling,
    room: BatchLimits,
    given_up: list[Entry],
) -> int:
    """Fill a bundle up: tenants over their part, then the fill-first class, then the most urgent. Returns its rows.

    Rows that can wait come last in their class. An entry whose deadline is too near for the filled bundle could not be
    in time after it either: all but probes are given up.
    """
    rows, bucket, fresh = run.rows, run.bucket, queue.fresh
    own = fresh[chosen - 1]
    waiting = sum([other.rows for other in fresh if rest or other is not own])
    most = min(latency.rows_within(run.target, bucket, room.max_rows), rows + waiting)
    if most <= rows:
        return rows
    longest = most if room.longest_s >= run.target else min(most, latency.rows_within(room.longest_s, bucket, most))
    if chosen is not _HIGH:
        most = longest
    # What can wait fills up no batch of its class, but for one of its own.
    until = room.urgent_until(chosen)
    if entries[0].deadline > until:
        until = inf
    for tenant in rest:
        if rows >= most:
            break
        rows, most = _fill_by(tenant, batch_key, entries, rows, most, bucket, latency, settings, room, given_up, until)
    most = min(most, longest)
    end = room.slack_from + latency.predict(max(most, rows), bucket)
    if room.extra_s < inf and chosen is not _LOW:
        low = fresh[_LOW - 1]
        if (head := low.head()) is not None and head.deadline > room.urgent_until(_LOW):
            # Of what fills it up, all rows of this class can wait: it ends sooner.
            urgent = max(rows, min(most, rows + waiting - low.rows))
            end = min(end, room.slack_from + latency.predict(urgent, bucket) + room.extra_s)
    others = [priority for priority in _PRIORITIES if priority is not chosen and fresh[priority - 1].rows]
    if room.fill_first in others:
        others.remove(room.fill_first)
        others.insert(0, room.fill_first)
    for other in others:
        if rows >= most:
            break
        first, behind = fresh[other - 1].turns()
        until = room.urgent_until(other)
        for source in (first, *behind):
            rows = _fill_from(source, batch_key, entries, rows, most, bucket, end, settings, given_up, until)
        if until < inf:
            few = latency.rows_within(latency.predict(rows, bucket) + room.extra_s, bucket, most)
            for source in (first, *behind):
                rows = _fill_from(source, batch_key, entries, rows, few, bucket, end, settings, given_up, inf)
    return rows


def _fill_by(
    tenant: TenantQueue,
    batch_key: str,
    entries: list[Entry],
    rows: int,
    most: int,
    bucket: int,
    latency: LatencyModel,
    settings: ModelScheduling,
    room: BatchLimits,
    given_up: list[Entry],
    until: float,
) -> tuple[int, int]:
    """Fill a bundle up with the most consecutive entries of a tenant that are in time for what it becomes with them.

    None has a later deadline than ``until``.

    Returns:
        Its rows, and the most that it may have now.
    """
    looked_at: list[Entry] = []
    start = joining = 0
    best, best_rows = (0, 0), 0
    begin = room.slack_from
    while rows + joining < most and len(looked_at) < 2 * settings.max_rows:
        following = tenant.head(batch_key)
        if following is None or rows + following.rows > most or following.bucket > bucket or following.deadline > until:
            break
        tenant.take_head(batch_key)
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
    rows += best_rows
    if chosen:
        entries += chosen
        most = latency.rows_within(chosen[0].deadline - begin, bucket, most)
    end = begin + latency.predict(rows, bucket)
    for other in (*looked_at[: best[0]], *looked_at[best[1] :]):
        alone = latency.predict(other.rows, other.bucket)
        if other.deadline - end < alone and not other.probe:
            given_up.append(other)
        else:
            tenant.push(other)
    return rows, most


def _fill_from(
    source: TenantQueue | Merged,
    batch_key: str,
    entries: list[Entry],
    rows: int,
    limit: int,
    bucket: int,
    end: float,
    settings: ModelScheduling,
    given_up: list[Entry],
    until: float,
) -> int:
    """Fill a bundle of so many rows up to ``limit``, which would end then, with deadlines ``until`` one.

    Returns:
        Its rows.
    """
    probes: list[Entry] = []
    while rows < limit and len(probes) < settings.max_rows:
        following = source.head(batch_key)
        if following is None or rows + following.rows > limit or following.bucket > bucket:
            break
        if following.deadline > until:
            break
        source.take_head(batch_key)
        if following.deadline >= end:
            entries.append(following)
            rows += following.rows
        else:
            (probes if following.probe else given_up).append(following)
    for following in probes:
        source.push(following)
    return rows


_BETTER = 1.0 + 1e-9
_ASIDE = 64
"""Most entries that are passed over for one bundle."""
_HIGH = Priority.HIGH
_LOW = Priority.LOW
_PRIORITIES = tuple(Priority)
