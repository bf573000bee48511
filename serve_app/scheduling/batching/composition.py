"""Composes the next bundle, and finds the entries given up for it.

The best run of entries of one class (`run_search`) is filled up with fitting entries of the others (`filling`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from serve_app.domain.priority import Priority
from serve_app.scheduling.batching.filling import Filling
from serve_app.scheduling.batching.latency import LatencyModel
from serve_app.scheduling.batching.limits import BatchLimits
from serve_app.scheduling.batching.run_search import Run, RunSearch
from serve_app.scheduling.batching.variants import VariantLatency
from serve_app.scheduling.entry import UNBATCHED, Entry
from serve_app.scheduling.health.breaker import ALL
from serve_app.scheduling.queueing.queue import Merged, ModelQueue, OfSize
from serve_app.scheduling.queueing.sizes import Size
from serve_app.scheduling.queueing.tenant_queue import TenantQueue
from serve_app.scheduling.settings import ModelScheduling

_FREE: Final = 0.5
"""A run of a short size with so much of the best run's rate costs no answers, since others still run after it."""


class Composition(NamedTuple):
    """Entries taken from the queue.

    Attributes:
        entries: Of one bundle; empty if none of those looked at could be in time.
        bucket: Largest cost bucket.
        variant: The variant that runs.
        given_up: Entries that cannot be in time any more, or only at a cost above their worth.
    """

    entries: list[Entry]
    rows: int
    bucket: int
    variant: str
    given_up: list[Entry]


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
    """Take a bundle of fresh entries of one class, filled up with fitting entries of the others.

    All are of one variant, and of one size if one is short and may go first (`scheduling.queueing.sizes`). An entry of
    a larger cost bucket joins only if that costs less than to run it alone. If the exact model would have to give
    entries up, the first of its fallbacks that need not is used, or else the last; a fallback that is to be probed gets
    no more entries than it has places for. The other classes follow, first the fill-first class, then the most urgent,
    in order, if they need no larger bucket, the bundle still meets their own deadlines, and no more urgent class is
    blocked longer.

    Args:
        queue: Must hold a fresh entry of that class.
        priority: The class that heads the bundle.
        room: Limits of the bundle.
    """
    of_class = queue.fresh[priority - 1]
    own: TenantQueue | Merged | OfSize
    own, rest = of_class.turns()
    head = own.head()
    for size in of_class.sizes.short():
        first = own.first_of(size)
        if first is not None and (
            settings.size_fairness > 0.0 or _is_free(own, size, first, settings, latencies, room)
        ):
            head, own = first, OfSize(own, size)
            break
    assert head is not None
    composition = _compose(queue, priority, settings, latencies, room, own, rest, head)
    if isinstance(own, OfSize):
        own.restore()
    queue.ended(composition.entries, ran=True)
    queue.ended(composition.given_up, ran=False)
    return composition


def _is_free(
    own: TenantQueue | Merged,
    size: Size,
    first: Entry,
    settings: ModelScheduling,
    latencies: VariantLatency,
    room: BatchLimits,
) -> bool:
    """Whether a run of a size answers nearly as many entries per second as the best of all."""
    head, of_size = own.head(), OfSize(own, size)
    assert head is not None
    rate = _best_rate(of_size, first, settings, latencies, room)
    of_size.restore()
    return rate > 0.0 and rate >= _FREE * _best_rate(own, head, settings, latencies, room)


def _best_rate(
    own: TenantQueue | Merged | OfSize,
    head: Entry,
    settings: ModelScheduling,
    latencies: VariantLatency,
    room: BatchLimits,
) -> float:
    """Entries per second of the best run, which stays in the queue; 0.0 if there is none."""
    latency = latencies.of(head.variant)
    search = RunSearch(own, head.batch_key, settings, room)
    run = search.best(latency, 1 if head.batch_key == UNBATCHED else _places(latencies, head.variant, ALL))
    search.put_back(Run(0, 0, 0, 0, 0.0))
    seconds = latency.predict(run.rows, run.bucket)
    return (run.end - run.start) / seconds if seconds > 0.0 else 0.0


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
    """Compose from ``own``, from its first entry on, and from ``rest``; as `compose`."""
    batch_key, variant = head.batch_key, head.variant
    latency = latencies.of(variant)
    if head.rows >= room.max_rows:
        # It has more rows than a batch: it goes alone, in pieces.
        own.take_head(batch_key)
        return _alone(head, latencies, settings, room)
    search = RunSearch(own, batch_key, settings, room)
    places = 1 if batch_key == UNBATCHED else _places(latencies, variant, ALL)
    run = search.best(latency, places)
    if run.start and not batch_key:
        for fallback in settings.fallbacks:
            if latencies.has(fallback):
                variant, latency = fallback, latencies.of(fallback)
                places = _places(latencies, fallback, latencies.places(fallback))
                run = search.best(latency, places)
                if not run.start:
                    break
    given_up, entries = search.looked_at[: run.start], search.looked_at[run.start : run.end]
    search.put_back(run)
    if not entries:
        return Composition([], 0, 0, variant, given_up)
    filling = Filling(entries, run.rows, run.bucket, given_up, latency, settings, room)
    if places >= ALL:
        filling.fill(queue, priority, rest, run.target)
    return Composition(entries, filling.rows, run.bucket, variant, given_up)


def _places(latencies: VariantLatency, variant: str, places: int) -> int:
    """Most entries of a bundle: 1 if the variant's requests are run one by one."""
    return 1 if variant in latencies.whole else places


def _alone(entry: Entry, latencies: VariantLatency, settings: ModelScheduling, room: BatchLimits) -> Composition:
    variant = entry.variant
    left = entry.deadline - room.begins_at
    alone = execution_s(latencies.of(variant), entry.rows, entry.bucket, settings.max_rows)
    if alone > left and not entry.batch_key:
        for fallback in settings.fallbacks:
            if latencies.has(fallback):
                variant = fallback
                alone = execution_s(latencies.of(variant), entry.rows, entry.bucket, settings.max_rows)
                if alone <= left:
                    break
    if alone > left and not entry.probe:
        return Composition([], 0, 0, variant, [entry])
    return Composition([entry], entry.rows, entry.bucket, variant, [])
