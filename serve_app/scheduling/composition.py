"""How the next bundle is put together."""

from __future__ import annotations

from typing import NamedTuple

from serve_app.scheduling.batching import BatchPolicy
from serve_app.scheduling.entry import Entry, Priority
from serve_app.scheduling.latency import LatencyModel
from serve_app.scheduling.queue import ModelQueue
from serve_app.scheduling.settings import ModelScheduling
from serve_app.scheduling.variants import VariantLatency


class Composition(NamedTuple):
    """Entries taken from the queue for one bundle."""

    entries: list[Entry]
    rows: int
    bucket: int


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
    policy: BatchPolicy,
    latencies: VariantLatency,
    slack_from: float,
) -> Composition:
    """Take a bundle of fresh entries, headed by the class's earliest deadline.

    Behind the head, entries of its variant only: its own class, in order, as far as rows and the policy's target allow;
    an entry of a larger cost bucket raises the whole bundle's and must still meet the target. Then the other classes,
    most urgent first, in order, where they need no larger bucket and the bundle still meets their own deadlines.

    Args:
        queue: Must hold a fresh entry of that class.
        priority: The class that heads the bundle.
        settings: Of the model.
        policy: Of the model.
        latencies: Of the model.
        slack_from: When execution can begin at the chosen replica, plus the network allowance.
    """
    own = queue.fresh[priority - 1]
    head = own.pop()
    variant, latency = head.variant, latencies.of(head.variant)
    entries, rows, bucket, most = [head], head.rows, head.bucket, settings.max_rows
    if rows >= most:
        return Composition(entries, rows, bucket)
    target = policy.target_s(latency, settings, rows, bucket, head.deadline - slack_from)
    limit = latency.rows_within(target, bucket, most)
    rows += own.take(entries, limit - rows, bucket, variant)
    while rows < limit and (following := own.head(variant)) is not None and following.bucket > bucket:
        wider = latency.rows_within(target, following.bucket, most)
        if rows + following.rows > wider:
            break
        bucket, limit = following.bucket, wider
        rows += own.take(entries, limit - rows, bucket, variant)
    for other in queue.fresh:
        if other is own:
            continue
        if rows >= limit:
            break
        following = other.head(variant)
        if following is None or rows + following.rows > limit or following.bucket > bucket:
            continue
        tighter = min(target, following.deadline - slack_from)
        fitting = latency.rows_within(tighter, bucket, most)
        if rows + following.rows <= fitting:
            target, limit = tighter, fitting
            rows += other.take(entries, limit - rows, bucket, variant)
    return Composition(entries, rows, bucket)
