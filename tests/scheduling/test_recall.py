"""What nobody waits for any more is asked back from the replica that it was sent to."""

from __future__ import annotations

import pytest
from scheduling_builders import AFFINE, LOW, accept, make_entry, make_scheduler, used_to_rows

from serve_app.scheduling.decisions import Decisions, Dispatch
from serve_app.scheduling.entry import Entry
from serve_app.scheduling.scheduler import Scheduler


def _sent(scheduler: Scheduler, *entries: Entry, now: float = 0.0) -> Dispatch:
    """Let entries arrive and go in one bundle."""
    accept(scheduler, *entries, now=now)
    (dispatch,) = scheduler.decide(now).dispatches
    return dispatch


def _cancelled(**settings: object) -> tuple[Scheduler, Dispatch, Entry, Entry]:
    """A bundle of two entries, of which the client of one has left."""
    scheduler = make_scheduler(profile=AFFINE, **settings)  # type: ignore[arg-type]
    used_to_rows(scheduler, 8)
    gone, stays = make_entry(nbytes=3), make_entry(nbytes=5)
    dispatch = _sent(scheduler, gone, stays)
    scheduler.on_cancel(gone, 0.1)
    return scheduler, dispatch, gone, stays


def test_whose_client_has_left_is_recalled_once() -> None:
    """Whether the replica hears of it or not."""
    scheduler, dispatch, gone, _ = _cancelled()
    scheduler.on_cancel(gone, 0.1)

    assert scheduler.decide(0.1) == Decisions([], [], [], recalls={dispatch.bundle_id: [gone]})
    assert scheduler.decide(0.1) == Decisions([], [], [])


def test_what_leaves_in_one_turn_is_recalled_together() -> None:
    """A bundle's entries are named in one place."""
    scheduler, dispatch, gone, stays = _cancelled()
    scheduler.on_cancel(stays, 0.1)

    assert scheduler.decide(0.1).recalls == {dispatch.bundle_id: [gone, stays]}


def test_what_comes_back_of_a_recall_is_no_waste_and_frees_the_slot() -> None:
    """Its neighbour is answered as usual."""
    scheduler, dispatch, gone, stays = _cancelled()
    scheduler.decide(0.1)
    assert scheduler.snapshot()["m"]["running_rows"] == 2

    assert scheduler.on_done(dispatch.bundle_id, [(1, 0, 0.006, "")], 0.2, returned=[gone]) == [stays]
    picture = scheduler.snapshot()["m"]
    assert (picture["wasted_rows"], picture["running_rows"], picture["slots_in_use"]) == (0, 0, 0)
    assert scheduler.totals()["bytes"] == 0
    assert scheduler.decide(0.2) == Decisions([], [], [])


def test_a_recall_that_comes_too_late_is_waste_as_before() -> None:
    """The replica had begun."""
    scheduler, dispatch, _, stays = _cancelled()
    scheduler.decide(0.1)

    assert scheduler.on_done(dispatch.bundle_id, [(2, 0, 0.007, "")], 0.2) == [stays]
    assert scheduler.snapshot()["m"]["wasted_rows"] == 1


@pytest.mark.parametrize("end", ["answered", "failed"])
def test_nothing_is_recalled_of_a_bundle_that_has_ended(end: str) -> None:
    """In the same turn."""
    scheduler, dispatch, *_ = _cancelled()
    if end == "answered":
        scheduler.on_done(dispatch.bundle_id, [(2, 0, 0.007, "")], 0.1)
    else:
        scheduler.on_failed(dispatch.bundle_id, 0.1, replica_lost=False)

    assert not scheduler.decide(0.1).recalls


def test_what_no_replica_has_is_not_recalled() -> None:
    """It is queued, or waits for a replica to start."""
    for replicas in ((), ("a",)):
        scheduler = make_scheduler(max_rows=1, window=1, replicas=replicas)
        (first, second) = accept(scheduler, make_entry(), make_entry())
        scheduler.decide(0.0)
        scheduler.on_cancel(first if not replicas else second, 0.1)
        assert not scheduler.decide(0.1).recalls


def test_what_was_sent_again_is_recalled_from_where_it_is() -> None:
    """Not from where it failed, timed out or came back."""
    for again in ("failed", "timed out", "returned"):
        scheduler = make_scheduler(profile=AFFINE, replicas=("a", "b"))
        entry = make_entry(deadline=60.0)
        first = _sent(scheduler, entry)
        if again == "failed":
            scheduler.on_failed(first.bundle_id, 1.0, replica_lost=True)
        elif again == "timed out":
            scheduler.on_timeout(first.bundle_id, 1.0)
        else:
            scheduler.on_done(first.bundle_id, [], 1.0, returned=[entry])
        (second,) = scheduler.decide(1.0).dispatches
        scheduler.on_cancel(entry, 1.1)
        assert scheduler.decide(1.1).recalls == {second.bundle_id: [entry]}


def _tried_twice() -> tuple[Scheduler, Entry, Dispatch, Dispatch]:
    """An entry at a silent replica, and at another one."""
    scheduler = make_scheduler(profile=AFFINE, replicas=("a", "b"))
    entry = make_entry(LOW, deadline=60.0, nbytes=7)
    first = _sent(scheduler, entry)
    scheduler.on_unresponsive("m", str(first.replica), 2.0)
    (second,) = scheduler.decide(2.0).dispatches
    return scheduler, entry, first, second


@pytest.mark.parametrize("winner", [0, 1], ids=["the first", "the other"])
def test_the_first_answer_recalls_the_other_copy(winner: int) -> None:
    """It ends with it, and is not heard of again."""
    scheduler, entry, *sent = _tried_twice()
    won, lost = sent[winner], sent[1 - winner]
    assert [e.id for e in scheduler.on_done(won.bundle_id, [(1, 0, 0.006, "")], 3.0)] == [entry.id]

    assert scheduler.decide(3.0).recalls == {lost.bundle_id: lost.entries}
    assert scheduler.on_done(lost.bundle_id, [], 3.1, returned=lost.entries) == []
    picture = scheduler.snapshot()["m"]
    assert (picture["wasted_rows"], picture["slots_in_use"], scheduler.totals()["bytes"]) == (0, 0, 0)
    assert scheduler.decide(3.1) == Decisions([], [], [])


def test_whose_client_has_left_is_recalled_in_both_copies() -> None:
    """From either replica."""
    scheduler, entry, first, second = _tried_twice()
    scheduler.on_cancel(entry, 3.0)

    assert scheduler.decide(3.0).recalls == {first.bundle_id: [entry], second.bundle_id: second.entries}


def test_a_replica_whose_session_hangs_stays_held_whatever_is_recalled_from_it() -> None:
    """Its event loop gives back what waits; only what has run tells that it works."""
    scheduler = make_scheduler(profile=AFFINE)
    stuck = _sent(scheduler, make_entry(deadline=60.0))
    behind, last = (_sent(scheduler, make_entry(deadline=60.0), now=now) for now in (0.1, 0.2))
    scheduler.on_timeout(stuck.bundle_id, 30.0)
    for bundle in (behind, last):
        scheduler.on_cancel(bundle.entries[0], 31.0)
        assert scheduler.decide(31.0).recalls == {bundle.bundle_id: bundle.entries}
        scheduler.on_done(bundle.bundle_id, [], 31.0, returned=bundle.entries)
        assert scheduler.snapshot()["m"]["held_replicas"] == ["a"]
    scheduler.on_done(stuck.bundle_id, [(1, 0, 31.0, "")], 32.0)
    assert scheduler.snapshot()["m"]["held_replicas"] == []
