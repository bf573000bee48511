"""Requests that share no run: bundles that are alone at the gate, and builds whose entries go one by one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduling_builders import AFFINE, HIGH, LOW, NORMAL, accept, make_entry, make_scheduler

from serve_app.scheduling.entry import Entry
from serve_app.scheduling.gate import Gate, Ticket
from serve_app.scheduling.scheduler import Scheduler

LIGHT = [(rows, bucket, seconds / 10, "light") for rows, bucket, seconds in AFFINE]


def ticket(number: int, *, priority: int = 2, deadline: float = 10.0, rows: int = 1, alone: bool = False) -> Ticket:
    """A bundle of one router."""
    return Ticket(number, priority, deadline, rows, alone=alone)


def grants(gate: Gate, max_rows: int = 8) -> list[list[int]]:
    """All batches, in their order."""
    found = []
    while granted := gate.grant(0.0, max_rows).granted:
        found.append(granted)
        gate.ended(0.0)
    return found


def filled(*tickets: Ticket) -> Gate:
    """A gate where these wait."""
    gate = Gate()
    for each in tickets:
        gate.add(each)
    return gate


def test_a_bundle_that_is_alone_shares_no_batch() -> None:
    """It goes at its turn, and those behind it share one without it."""
    waiting = [ticket(number, deadline=float(number), alone=number in {2, 3}) for number in range(1, 6)]
    gate = filled(*waiting)
    assert [1, 4, 5] == gate.upcoming(8)
    assert [[1, 4, 5], [2], [3]] == grants(gate)
    assert [[2], [1, 4, 5], [3]] == grants(filled(waiting[1]._replace(deadline=0.5), waiting[0], *waiting[2:]))


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 50), st.integers(1, 9), st.booleans()), max_size=12))
def test_whatever_waits_goes_once_and_alone_where_it_must(asked: list[tuple[int, int, int, bool]]) -> None:
    """And the first of every batch is the most urgent that waits then."""
    tickets = {
        number: ticket(number, priority=priority, deadline=float(deadline), rows=rows, alone=alone)
        for number, (priority, deadline, rows, alone) in enumerate(asked)
    }
    batches = grants(filled(*tickets.values()))
    assert sorted(tickets) == sorted(number for batch in batches for number in batch)
    for number, batch in enumerate(batches):
        left = [each for later in batches[number:] for each in later]
        assert batch[0] == min(left, key=lambda each: (tickets[each].priority, tickets[each].deadline, each))
        assert len(batch) == 1 or not any(tickets[each].alone for each in batch)


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
    """A scheduler whose replica takes one bundle at a time, and no deadline is near."""
    scheduler = make_scheduler(window=1, slo_s=5.0, profile=AFFINE, **settings)
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


def test_nobody_waits_for_others_where_none_can_join() -> None:
    """A batch is full with one entry, whatever the policy; and what one takes is predicted."""
    scheduler = one_replica(policy="window")
    scheduler.set_joins("m", "", joins=False)
    accept(scheduler, make_entry(rows=1), make_entry(rows=1))
    (bundle,) = scheduler.decide(0.0).dispatches
    assert 1 == bundle.rows
    assert pytest.approx(0.006) == bundle.predicted_s
