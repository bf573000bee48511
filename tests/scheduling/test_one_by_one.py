"""Builds whose entries share no run: they go one by one, through a pool and through a gate."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduling_builders import AFFINE, HIGH, LOW, NORMAL, accept, make_entry, make_gate, make_scheduler, used_to_rows

from serve_app.domain.priority import Priority
from serve_app.pools.policy.settings import Pool
from serve_app.scheduling.entry import UNBATCHED, Entry
from serve_app.scheduling.scheduler import Scheduler

LIGHT = [(rows, bucket, seconds / 10, "light") for rows, bucket, seconds in AFFINE]


def ran(scheduler: Scheduler, now: float = 0.0) -> list[list[int]]:
    """Ids of the entries of each bundle, as they go to one replica that answers each before it gets the next."""
    bundles = []
    while dispatches := scheduler.decide(now).dispatches:
        (bundle,) = dispatches
        bundles.append([entry.id for entry in bundle.entries])
        now += bundle.predicted_s
        scheduler.on_done(bundle.bundle_id, [(bundle.rows, 0, bundle.predicted_s, "")], now)
    return bundles


def ids(*entries: Entry) -> list[list[int]]:
    """Each in a bundle of its own."""
    return [[entry.id] for entry in entries]


def one_replica(**settings: Any) -> Scheduler:
    """A scheduler that composes for one replica, a batch at a time, and no deadline is near."""
    scheduler = make_scheduler(pool=Pool("g", ("m",), 1, 9), slo_s=5.0, profile=AFFINE, **settings)
    scheduler.seed("m", LIGHT)
    return scheduler


def test_entries_of_a_model_that_joins_nothing_go_one_by_one() -> None:
    """By class and then by deadline, as they would in batches; and together again when they may."""
    scheduler = one_replica()
    scheduler.set_joins("m", "", joins=False)
    low, second, first, high = (
        make_entry(LOW, 4.0),
        make_entry(NORMAL, 9.0),
        make_entry(NORMAL, 8.0),
        make_entry(HIGH, 10.0),
    )
    accept(scheduler, low, second, first, high)
    assert ids(high, first, second, low) == ran(scheduler)
    scheduler.set_joins("m", "", joins=True)
    entries = accept(scheduler, *(make_entry(deadline=10.0 + more) for more in range(3)), now=1.0)
    assert [[entry.id for entry in entries]] == ran(scheduler, 1.0)


def test_a_variant_that_joins_nothing_leaves_the_exact_model_alone() -> None:
    """Its entries go one by one, also where others of its class wait for the exact model, whose share a bundle."""
    scheduler = one_replica()
    scheduler.set_joins("m", "light", joins=False)
    light = [make_entry(deadline=5.0 + number, variant="light") for number in range(3)]
    exact = [make_entry(deadline=20.0 + number) for number in range(3)]
    lower = make_entry(LOW, 30.0, variant="light")
    accept(scheduler, *light, *exact, lower)
    assert [*ids(*light), [entry.id for entry in exact], *ids(lower)] == ran(scheduler)
    scheduler.set_joins("m", "light", joins=True)
    again = accept(scheduler, *(make_entry(deadline=5.0 + number, variant="light") for number in range(3)), now=1.0)
    assert [[entry.id for entry in again]] == ran(scheduler, 1.0)


def test_a_fallback_that_joins_nothing_takes_one_at_a_time() -> None:
    """Where the exact model would be late for all of them."""
    scheduler = one_replica(fallbacks=("light",))
    scheduler.set_joins("m", "light", joins=False)
    entries = accept(scheduler, *(make_entry(deadline=0.005) for _ in range(3)))
    (bundle,) = scheduler.decide(0.0).dispatches
    assert (1, True, "light") == (len(bundle.entries), bundle.entries[0] in entries, bundle.variant)


def test_what_one_of_them_takes_is_predicted() -> None:
    """A batch is full with one entry."""
    scheduler = one_replica()
    scheduler.set_joins("m", "", joins=False)
    accept(scheduler, make_entry(rows=1), make_entry(rows=1))
    (bundle,) = scheduler.decide(0.0).dispatches
    assert 1 == bundle.rows
    assert pytest.approx(0.006) == bundle.predicted_s


def test_entries_that_join_nothing_are_sent_ahead_one_by_one() -> None:
    """Whatever batches usually have."""
    scheduler = make_scheduler(window=9, profile=AFFINE)
    used_to_rows(scheduler, 8)
    scheduler.set_joins("m", "", joins=False)
    entries = accept(scheduler, *(make_entry() for _ in range(4)))
    assert ids(*entries) == [[entry.id for entry in sent.entries] for sent in scheduler.decide(0.0).dispatches]


@given(
    st.lists(st.tuples(st.sampled_from(Priority), st.integers(1, 50), st.integers(1, 9), st.booleans()), max_size=12)
)
def test_whatever_waits_goes_once_and_alone_where_it_must(asked: list[tuple[Priority, int, int, bool]]) -> None:
    """And the first of every batch is the most urgent that waits then."""
    entries = [make_entry(priority, 10.0 + deadline, rows=rows) for priority, deadline, rows, _ in asked]
    for entry, (*_, alone) in zip(entries, asked, strict=True):
        entry.batch_key = UNBATCHED if alone else ""
    gate, waiting = make_gate(*entries, max_rows=8), set(entries)
    while (turn := gate.next(0.0)).entries:
        assert turn.entries[0] == min(waiting, key=lambda entry: (entry.priority, entry.deadline, entry.id))
        assert len(turn.entries) == 1 or not any(entry.batch_key == UNBATCHED for entry in turn.entries)
        waiting -= set(turn.entries)
    assert not waiting
