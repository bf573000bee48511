"""Queues: earliest deadline first, exact counts, bounded memory."""

from __future__ import annotations

import gc
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduling_builders import HIGH, LOW, NORMAL, make_entry

from serve_app.domain.priority import Priority
from serve_app.payloads import NO_ATTRIBUTES
from serve_app.scheduling.decisions import QueueLength
from serve_app.scheduling.entry import Entry
from serve_app.scheduling.queueing.queue import ClassQueue, ModelQueue
from serve_app.scheduling.queueing.tenant_queue import Totals


class _Payload:
    """Something a weak reference can point to."""


def _queue_of(*entries: Entry) -> ClassQueue:
    queue = ClassQueue(Totals())
    for entry in entries:
        queue.push(entry)
    return queue


def test_pops_by_deadline_then_by_id() -> None:
    """The earliest deadline goes first; equal deadlines keep the order of arrival."""
    late, early, tie_1, tie_2 = (make_entry(deadline=d) for d in (9.0, 1.0, 5.0, 5.0))
    queue = _queue_of(late, tie_1, early, tie_2)

    assert [early, tie_1, tie_2, late] == [queue.pop() for _ in range(4)]


def test_removed_entry_is_never_the_head() -> None:
    """An entry taken out of the middle leaves no trace in the order or the counts."""
    first, second = make_entry(deadline=1.0, rows=3, nbytes=10), make_entry(deadline=2.0, rows=5, nbytes=20)
    queue = _queue_of(first, second)

    queue.remove(first)

    assert second is queue.head()
    assert (len(queue), queue.rows, queue.nbytes) == (1, 5, 20)
    assert first not in queue


def test_removing_what_is_not_queued_raises() -> None:
    """Removing twice is a fault of the caller."""
    entry = make_entry()
    queue = _queue_of(entry)
    queue.remove(entry)

    with pytest.raises(KeyError):
        queue.remove(entry)


def test_pushing_the_same_id_twice_raises() -> None:
    """Ids are unique."""
    entry = make_entry()
    queue = _queue_of(entry)

    with pytest.raises(ValueError, match="queued already"):
        queue.push(entry)


def test_popping_an_empty_queue_raises() -> None:
    """There is no entry to give."""
    with pytest.raises(IndexError):
        ClassQueue(Totals()).pop()


def test_stale_heap_pairs_are_bounded() -> None:
    """However many entries come and are cancelled, the heap stays within twice the queue and a bit."""
    queue = ClassQueue(Totals())
    keep = [make_entry(deadline=1e6 + i) for i in range(10)]
    for entry in keep:
        queue.push(entry)
    for i in range(5000):
        entry = make_entry(deadline=float(i))
        queue.push(entry)
        queue.remove(entry)

    assert queue.pairs <= 2 * len(queue) + 64
    assert keep == [queue.pop() for _ in keep]


def test_cancelled_payload_is_released_at_once() -> None:
    """The heap's memory of a cancelled entry does not keep its payload alive."""
    payload = _Payload()
    reference = weakref.ref(payload)
    entry = Entry(10**9, "m", NORMAL, 0.0, 5.0, payload=payload, attributes=NO_ATTRIBUTES)
    queue = _queue_of(make_entry(deadline=1.0), entry)

    queue.remove(entry)
    del entry, payload
    gc.collect()

    assert reference() is None


def test_take_stops_at_the_first_that_does_not_fit() -> None:
    """Order is kept: what is behind an entry that does not fit is not taken before it."""
    small, big, tiny = make_entry(deadline=1.0, rows=2), make_entry(deadline=2.0, rows=8), make_entry(deadline=3.0)
    queue = _queue_of(small, big, tiny)
    taken: list[Entry] = []

    assert queue.take(taken, 5) == 2
    assert [small] == taken
    assert big is queue.head()


def test_take_stops_at_what_is_cut() -> None:
    """Any cost bucket is taken, and order is kept: what travels alone is not passed over."""
    short, long, cut, last = (
        make_entry(deadline=at, rows=rows, bucket=bucket)
        for at, rows, bucket in ((1.0, 1, 32), (2.0, 1, 128), (3.0, 2, 32), (4.0, 1, 32))
    )
    queue = _queue_of(short, long, cut, last)
    taken: list[Entry] = []

    assert queue.take(taken, 10) == 2
    assert queue.take(taken, 10) == 0
    assert [short, long] == taken
    assert [cut, last] == [queue.pop(), queue.pop()]


def test_expire_takes_exactly_what_is_due() -> None:
    """A deadline equal to the time has passed."""
    past, due, future = (make_entry(deadline=d) for d in (1.0, 2.0, 2.5))
    queue = _queue_of(future, due, past)
    expired: list[Entry] = []

    queue.expire(2.0, expired)

    assert [past, due] == expired
    assert future is queue.head()


def test_model_queue_counts_per_class_and_in_total() -> None:
    """Rows and bytes are counted per class, and per class over all models."""
    totals = {priority: Totals() for priority in Priority}
    one, other = ModelQueue(totals), ModelQueue(totals)
    one.push(make_entry(HIGH, rows=2, nbytes=5))
    one.push(make_entry(LOW, rows=3, nbytes=7))
    other.push(make_entry(LOW, rows=1, nbytes=11))

    assert one.lengths() == {HIGH: (1, 2, 5), NORMAL: (0, 0, 0), LOW: (1, 3, 7)}
    assert QueueLength(1, 1, 11) == other.lengths()[LOW]
    assert (totals[LOW].entries, totals[LOW].nbytes) == (2, 18)
    assert (len(one), one.total.rows, bool(one)) == (2, 5, True)


def test_retries_queue_apart_and_count_with_their_class() -> None:
    """An entry that a bundle carried before is kept apart, so that it can travel alone."""
    queue = ModelQueue({priority: Totals() for priority in Priority})
    entry = make_entry(HIGH, deadline=3.0, rows=2)
    entry.attempts = 1
    queue.push(entry)

    assert entry is queue.retry[0].head()
    assert queue.next_deadline() == 3.0
    assert QueueLength(1, 2, 0) == queue.lengths()[HIGH]
    queue.remove(entry)
    assert not queue


def test_work_ahead_is_that_of_the_class_and_those_above() -> None:
    """Retries count as well; the bucket is the mean over rows."""
    queue = ModelQueue({priority: Totals() for priority in Priority})
    assert queue.ahead(LOW) == (0, 0)
    for priority, rows, bucket in ((HIGH, 1, 16), (NORMAL, 3, 32), (LOW, 8, 64)):
        queue.push(make_entry(priority, rows=rows, bucket=bucket))
    retried = make_entry(NORMAL, rows=4, bucket=16)
    retried.attempts = 1
    queue.push(retried)

    assert queue.ahead(HIGH) == (1, 16)
    assert queue.ahead(NORMAL) == (8, 22)
    assert queue.ahead(LOW) == (16, 43)


def test_take_passes_over_other_variants() -> None:
    """They stay, in order."""
    exact_1, light_1, exact_2, light_2 = (
        make_entry(deadline=float(at), variant=variant) for at, variant in enumerate(("", "int8", "", "int8"))
    )
    queue = _queue_of(light_2, exact_2, light_1, exact_1)
    taken: list[Entry] = []

    assert queue.take(taken, 10, "int8") == 2
    assert [light_1, light_2] == taken
    assert queue.head("int8") is None
    assert [exact_1, exact_2] == [queue.pop(), queue.pop()]


@given(st.lists(st.tuples(st.sampled_from(["push", "pop", "remove", "take"]), st.integers(0, 50)), max_size=200))
def test_behaves_like_a_sorted_list(operations: list[tuple[str, int]]) -> None:
    """Any mix of operations gives the order and counts of a list that is sorted every time."""
    totals = Totals()
    queue = ClassQueue(totals)
    model: list[Entry] = []
    for operation, number in operations:
        if operation == "push":
            variant = ("", "", "x", "y")[number % 4]
            entry = make_entry(deadline=number / 2, rows=number + 1, nbytes=number, bucket=number % 3, variant=variant)
            queue.push(entry)
            model.append(entry)
            model.sort(key=lambda e: (e.deadline, e.id))
        elif model and operation == "pop":
            assert model.pop(0) is queue.pop()
        elif model and operation == "take":
            variant = model[number % len(model)].variant
            expected = next(e for e in model if e.variant == variant)
            taken: list[Entry] = []
            first = [] if expected.is_cut else [expected]
            assert sum(entry.rows for entry in first) == queue.take(taken, expected.rows, variant)
            assert first == taken
            model = [entry for entry in model if entry not in taken]
        elif model:
            queue.remove(model.pop(number % len(model)))
        assert (model[0] if model else None) is queue.head()
        for variant in ("", "x", "y"):
            of_variant = [e for e in model if e.variant == variant]
            assert (of_variant[0] if of_variant else None) is queue.head(variant)
        assert len(model) == len(queue) == totals.entries
        assert sum(e.rows for e in model) == queue.rows
        assert sum(e.nbytes for e in model) == queue.nbytes == totals.nbytes
        assert sum(e.rows * e.bucket for e in model) == queue.row_buckets
        assert queue.pairs <= 2 * len(queue) + 64
