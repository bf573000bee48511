"""The scheduler's results: plain tuples, cheap to make and to compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from serve_app.scheduling.entry import Entry


class Rejection(NamedTuple):
    """An entry was not accepted.

    Attributes:
        code: A code of `serve_app.errors`.
        message: What is wrong and what to do, safe to show to a client.
        retry_after_s: When trying again may help, seconds from now; ``None`` if unknown or never.
    """

    code: str
    message: str
    retry_after_s: float | None = None


class Dispatch(NamedTuple):
    """A bundle to send to a replica in one call. Its slot is taken already.

    Attributes:
        bundle_id: For `Scheduler.on_done` and `Scheduler.on_failed`.
        replica: ``None`` for the one wake-up bundle that may go out while the model has no replica.
        entries: In the order chosen; their state is RUNNING.
        bucket: Largest cost bucket.
        predicted_s: Predicted execution time; 0.0 while the latency is unknown.
        variant: Requested by all entries, empty for the exact model.
        exact: Whether no fallback may stand in for it.
        overhead_s: Expected time besides the execution, both ways included.
    """

    bundle_id: int
    model: str
    replica: str | None
    entries: list[Entry]
    rows: int
    bucket: int
    predicted_s: float
    variant: str = ""
    exact: bool = True
    overhead_s: float = 0.0


class Change(NamedTuple):
    """A moved circuit breaker or an ejected replica, for the log.

    Attributes:
        variant: Empty for the exact model.
        replica: The ejected replica; ``None`` if a breaker moved.
        state: The breaker's new state, or ``ejected``.
        for_s: How long no request is sent.
        reason: Why a breaker opened.
    """

    model: str
    variant: str
    replica: str | None
    state: str
    for_s: float
    reason: str = ""


class Decisions(NamedTuple):
    """The result of one decision.

    Attributes:
        dispatches: Bundles to send.
        expired: Entries whose deadline passed, queued or running; each is reported once and is DONE.
        given_up: Queued entries that cannot be in time any more, or only at the cost of more others. They are DONE and
            were never executed.
        refused: Queued entries of a build whose circuit breaker has opened, with the refusal. They are DONE.
        changes: Moves of circuit breakers since the last decision.
        recalls: By bundle, entries whose answers are no longer needed: their replica answers without those that still
            wait there.
        orders: For shared devices, in this order (`Device.orders`).
    """

    dispatches: list[Dispatch]
    expired: list[Entry]
    given_up: list[Entry]
    refused: Sequence[tuple[Entry, Rejection]] = ()
    changes: Sequence[Change] = ()
    recalls: Mapping[int, Sequence[Entry]] = {}
    orders: Sequence[Any] = ()


class Requeue(NamedTuple):
    """The fate of the entries of a failed bundle that had not ended.

    Attributes:
        requeued: QUEUED again: for one more try at another replica, or for the first one if none was reached.
        poisoned: DONE: they failed twice and are refused.
        expired: DONE: their deadline has passed.
        broken: DONE: a part of their answer has come from there, so they cannot be tried again.
    """

    requeued: list[Entry]
    poisoned: list[Entry]
    expired: list[Entry]
    broken: Sequence[Entry] = ()


class QueueLength(NamedTuple):
    """Entries of one class of one model queued, retries included."""

    entries: int
    rows: int
    nbytes: int
