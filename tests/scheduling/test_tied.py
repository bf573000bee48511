"""An entry that several replicas of a model have: whoever is free first runs it, and it ends once."""

from __future__ import annotations

import pytest
from scheduling_builders import AFFINE, HIGH, accept, make_entry, make_scheduler

from serve_app.payloads import RequestAttributes
from serve_app.scheduling.decisions import Decisions, Dispatch, Requeue
from serve_app.scheduling.entry import Entry, EntryState
from serve_app.scheduling.scheduler import Scheduler

_RUN = [(1, 0, 0.006, "")]
_LATER_S = 0.001


def _linked(
    *replicas: str, unlinked: tuple[str, ...] = (), profile: list[tuple[int, int, float]] = AFFINE
) -> Scheduler:
    """A scheduler whose replicas can agree on who runs what, but for some."""
    scheduler = make_scheduler(profile=profile, replicas=(*replicas, *unlinked))
    for replica in replicas:
        scheduler.on_linked("m", replica, linked=True)
    return scheduler


def _busy(*replicas: str, unlinked: tuple[str, ...] = ()) -> tuple[Scheduler, dict[str, Dispatch]]:
    """Every replica has one bundle. Returns these as well, by replica."""
    scheduler = _linked(*replicas, unlinked=unlinked)
    sent = {}
    for _ in (*replicas, *unlinked):
        accept(scheduler, make_entry(deadline=60.0))
        (dispatch,) = scheduler.decide(0.0).dispatches
        sent[str(dispatch.replica)] = dispatch
    return scheduler, sent


def _tied(*replicas: str, deadline: float = 60.0) -> tuple[Scheduler, Entry, list[Dispatch]]:
    """An entry of 7 bytes that is tied to all of these busy replicas; the bundles that carry it."""
    scheduler, _ = _busy(*replicas)
    (entry,) = accept(scheduler, make_entry(deadline=deadline, nbytes=7), now=_LATER_S)
    sent = scheduler.decide(_LATER_S).dispatches
    assert {dispatch.replica for dispatch in sent} == set(replicas)
    assert all(dispatch.entries == [entry] for dispatch in sent)
    return scheduler, entry, sent


def _states(entry: Entry) -> tuple[EntryState, int, str | None]:
    return entry.state, entry.attempts, entry.avoid


# ------------------------------------------------------------------ who is tied


def test_what_meets_busy_replicas_goes_to_all_of_them() -> None:
    """In bundles of their own, which count as one try and one in each replica's slots."""
    scheduler, entry, sent = _tied("a", "b", "c")

    assert entry.bundles == tuple(dispatch.bundle_id for dispatch in sent)
    assert (entry.attempts, scheduler.snapshot()["m"]["slots_in_use"]) == (1, 6)


def test_an_idle_replica_needs_no_other() -> None:
    """It begins at once."""
    scheduler = _linked("a", "b")
    accept(scheduler, make_entry())

    assert len(scheduler.decide(0.0).dispatches) == 1


def test_what_is_cut_is_not_tied() -> None:
    """Its pieces are taken one by one: a single row of the same length is tied, and so are rows without one."""
    for rows, bucket, carried in ((3, 64, 1), (1, 64, 3), (3, 0, 3)):
        scheduler, _ = _busy("a", "b", "c")
        accept(scheduler, make_entry(rows=rows, bucket=bucket), now=_LATER_S)

        assert len(scheduler.decide(_LATER_S).dispatches) == carried


def test_at_most_eight_have_an_entry() -> None:
    """Those with the fewest rows, besides the one that is chosen."""
    scheduler, _ = _busy(*"abcdefghij")
    accept(scheduler, make_entry(), now=_LATER_S)
    sent = scheduler.decide(_LATER_S).dispatches

    assert len({dispatch.replica for dispatch in sent}) == len(sent) == 8


def test_only_linked_replicas_are_tied() -> None:
    """Others could not know that an entry has been taken."""
    scheduler, _ = _busy("a", unlinked=("b", "c"))
    for _ in range(3):
        accept(scheduler, make_entry(), now=_LATER_S)
        assert len(scheduler.decide(_LATER_S).dispatches) == 1


def test_who_loses_its_links_is_tied_no_more() -> None:
    """And a replica that is not known is nobody."""
    scheduler, _ = _busy("a", "b", "c")
    scheduler.on_linked("m", "c", linked=False)
    scheduler.on_linked("m", "x", linked=True)
    accept(scheduler, make_entry(HIGH), now=_LATER_S)
    sent = scheduler.decide(_LATER_S).dispatches

    assert sorted(str(dispatch.replica) for dispatch in sent) in (["a", "b"], ["c"])


def test_short_executions_are_not_tied() -> None:
    """A message more costs about as much."""
    scheduler = _linked("a", "b", profile=[(1, 0, 0.002), (32, 0, 0.01)])
    for at in range(4):
        accept(scheduler, make_entry(), now=0.001 * at)
        assert len(scheduler.decide(0.001 * at).dispatches) == 1


def test_a_retry_is_not_tied() -> None:
    """It may be what kills replicas."""
    scheduler, sent = _busy("a", "b", "c")
    (again,) = scheduler.on_failed(sent["a"].bundle_id, 0.01, replica_lost=False).requeued
    accept(scheduler, make_entry(deadline=70.0), make_entry(deadline=70.0), now=0.01)
    (retry,) = [sent for sent in scheduler.decide(0.01).dispatches if again in sent.entries]

    assert retry.entries == [again]
    assert again.bundles == (retry.bundle_id,)


# ------------------------------------------------------------------ how it ends


@pytest.mark.parametrize("runs", [0, 1])
def test_whoever_runs_it_answers_it(runs: int) -> None:
    """And the other has it no more: that is no waste, and frees its slot."""
    scheduler, entry, sent = _tied("a", "b")

    assert scheduler.on_done(sent[runs].bundle_id, _RUN, 0.02) == [entry]
    assert (entry.state, scheduler.totals()["bytes"]) == (EntryState.DONE, 0)
    assert scheduler.on_done(sent[1 - runs].bundle_id, [], 0.03, returned=[entry]) == []
    assert scheduler.decide(0.03) == Decisions([], [], [])
    picture = scheduler.snapshot()["m"]
    assert (picture["wasted_rows"], picture["running_rows"], picture["slots_in_use"]) == (0, 2, 2)


@pytest.mark.parametrize("first", [0, 1])
def test_what_one_returns_is_left_to_the_other(first: int) -> None:
    """What both return is queued once, as if it had never been sent."""
    scheduler, entry, sent = _tied("a", "b")
    assert scheduler.on_done(sent[first].bundle_id, [], 0.02, returned=[entry]) == []
    assert _states(entry) == (EntryState.RUNNING, 1, None)
    assert scheduler.decide(0.02).dispatches == []

    assert scheduler.on_done(sent[1 - first].bundle_id, [], 0.03, returned=[entry]) == []
    assert _states(entry) == (EntryState.QUEUED, 0, None)
    again = scheduler.decide(0.03).dispatches
    assert all(dispatch.entries == [entry] for dispatch in again)
    assert scheduler.on_done(again[0].bundle_id, _RUN, 0.04) == [entry]


def test_what_one_gives_up_is_left_to_the_other() -> None:
    """What both give up ends, and its client is told by the last."""
    scheduler, entry, (first, second) = _tied("a", "b")
    assert scheduler.on_done(first.bundle_id, [], 0.02, dropped=[entry]) == []
    assert entry.state is EntryState.RUNNING

    assert scheduler.on_done(second.bundle_id, [], 0.03, dropped=[entry]) == [entry]
    assert (entry.state, scheduler.totals()["bytes"]) == (EntryState.DONE, 0)


def test_neighbours_may_be_run_by_different_replicas() -> None:
    """Of two that are tied together each runs one."""
    scheduler, _ = _busy("a", "b")
    one, two = accept(scheduler, make_entry(), make_entry(), now=_LATER_S)
    first, second = scheduler.decide(_LATER_S).dispatches
    assert first.entries == second.entries == [one, two]

    assert scheduler.on_done(first.bundle_id, _RUN, 0.02, returned=[two]) == [one]
    assert scheduler.on_done(second.bundle_id, _RUN, 0.02, returned=[one]) == [two]


@pytest.mark.parametrize("answers", [False, True])
def test_it_expires_once(answers: bool) -> None:
    """Both of its bundles are due, and may come back at the same moment."""
    scheduler, entry, sent = _tied("a", "b", deadline=0.5)
    if answers:
        for dispatch in sent:
            assert scheduler.on_done(dispatch.bundle_id, [], 0.6, returned=[entry]) == []

    assert scheduler.decide(0.6).expired == [entry]
    assert scheduler.decide(0.6).expired == []
    assert (entry.state, scheduler.totals()["bytes"]) == (EntryState.DONE, 0)


def test_whose_client_has_left_is_recalled_everywhere() -> None:
    """Whoever has it still."""
    scheduler, entry, (first, second, third) = _tied("a", "b", "c")
    scheduler.on_done(second.bundle_id, [], 0.02, returned=[entry])
    scheduler.on_cancel(entry, 0.03)

    assert scheduler.decide(0.03).recalls == {first.bundle_id: [entry], third.bundle_id: [entry]}
    assert scheduler.totals()["bytes"] == 0
    for dispatch in (first, third):
        assert scheduler.on_done(dispatch.bundle_id, [], 0.04, returned=[entry]) == []
    assert scheduler.decide(0.04) == Decisions([], [], [])


# ------------------------------------------------------------------ failures


def test_where_one_fails_the_other_runs_it() -> None:
    """It had not been taken there: nothing is tried again."""
    scheduler, entry, (first, second) = _tied("a", "b")
    assert scheduler.on_failed(first.bundle_id, 0.02, replica_lost=True) == Requeue([], [], [])
    assert (entry.state, entry.bundles) == (EntryState.RUNNING, (second.bundle_id,))

    assert scheduler.on_done(second.bundle_id, _RUN, 0.03) == [entry]


@pytest.mark.parametrize("how", ["failed", "timed out"])
def test_what_a_failed_replica_had_taken_is_tried_once_more(how: str) -> None:
    """The other returns it, whether it hears of the failure or not; a second failure ends it: two replicas in all."""
    scheduler, entry, (first, second) = _tied("a", "b")
    if how == "failed":
        scheduler.on_failed(first.bundle_id, 0.02, replica_lost=True)
    else:
        scheduler.on_timeout(first.bundle_id, 0.02)
    scheduler.on_done(second.bundle_id, [], 0.03, returned=[entry])
    assert _states(entry) == (EntryState.QUEUED, 1, first.replica)

    (retry,) = scheduler.decide(0.03).dispatches
    assert (retry.entries, retry.replica, entry.attempts) == ([entry], second.replica, 2)
    assert scheduler.on_failed(retry.bundle_id, 0.04, replica_lost=True).poisoned == [entry]
    assert scheduler.totals()["bytes"] == 0


def test_a_retry_that_comes_back_is_still_the_second_try() -> None:
    """Only the first counts although its last replica has not run it."""
    scheduler, entry, (first, second) = _tied("a", "b")
    scheduler.on_failed(first.bundle_id, 0.02, replica_lost=True)
    scheduler.on_done(second.bundle_id, [], 0.03, returned=[entry])
    (retry,) = scheduler.decide(0.03).dispatches
    scheduler.on_done(retry.bundle_id, [], 0.04, returned=[entry])
    assert _states(entry) == (EntryState.QUEUED, 1, first.replica)

    (retry,) = scheduler.decide(0.04).dispatches
    assert scheduler.on_done(retry.bundle_id, _RUN, 0.05) == [entry]


def test_what_two_fail_with_is_tried_once_more() -> None:
    """Only one of them can have run it."""
    scheduler, entry, (first, second) = _tied("a", "b")
    scheduler.on_failed(first.bundle_id, 0.02, replica_lost=True)

    assert scheduler.on_failed(second.bundle_id, 0.02, replica_lost=True).requeued == [entry]
    assert _states(entry) == (EntryState.QUEUED, 1, second.replica)


@pytest.mark.parametrize("first_reached", [False, True])
def test_what_reached_nobody_is_no_try(first_reached: bool) -> None:
    """Unless the other replica had it and failed."""
    scheduler, entry, (first, second) = _tied("a", "b")
    scheduler.on_failed(first.bundle_id, 0.02, replica_lost=True, reached=first_reached)

    assert scheduler.on_failed(second.bundle_id, 0.02, replica_lost=True, reached=False).requeued == [entry]
    assert _states(entry) == (EntryState.QUEUED, int(first_reached), first.replica if first_reached else None)


def test_a_late_answer_of_who_timed_out_changes_nothing() -> None:
    """The other has run it."""
    scheduler, entry, (first, second) = _tied("a", "b")
    scheduler.on_timeout(first.bundle_id, 0.02)
    assert scheduler.on_done(second.bundle_id, _RUN, 0.03) == [entry]

    assert scheduler.on_done(first.bundle_id, _RUN, 0.04) == []
    assert scheduler.decide(0.04) == Decisions([], [], [])


@pytest.mark.parametrize("answers", [False, True])
def test_who_vanishes_may_still_run_it(answers: bool) -> None:
    """Or the other does, if it returns it."""
    scheduler, entry, sent = _tied("a", "b")
    gone, stays = sorted(sent, key=lambda dispatch: str(dispatch.replica))
    scheduler.on_replicas("m", ["b"], 0.02)
    assert scheduler.decide(0.02) == Decisions([], [], [])
    if answers:
        scheduler.on_done(stays.bundle_id, [], 0.03, returned=[entry])
        assert scheduler.on_done(gone.bundle_id, _RUN, 0.04) == [entry]
    else:
        scheduler.on_done(gone.bundle_id, [], 0.03, returned=[entry])
        assert scheduler.on_done(stays.bundle_id, _RUN, 0.04) == [entry]
    assert scheduler.totals()["bytes"] == 0


@pytest.mark.parametrize("end", ["answered", "returned", "failed"])
def test_the_model_of_tied_entries_is_removed(end: str) -> None:
    """It may still be answered; it is tried nowhere else, and refused once nobody has it."""
    scheduler, entry, (first, second) = _tied("a", "b")
    assert {first.bundle_id, second.bundle_id} <= set(scheduler.remove_model("m", 0.0))
    assert scheduler.on_done(first.bundle_id, [], 0.02, returned=[entry]) == []
    assert scheduler.decide(0.02) == Decisions([], [], [])
    if end == "answered":
        assert scheduler.on_done(second.bundle_id, _RUN, 0.03) == [entry]
        assert not scheduler.decide(0.03).refused
    else:
        if end == "returned":
            assert scheduler.on_done(second.bundle_id, [], 0.03, returned=[entry]) == []
        else:
            assert scheduler.on_failed(second.bundle_id, 0.03, replica_lost=True) == Requeue([], [], [])
        assert [refused for refused, _ in scheduler.decide(0.03).refused] == [entry]
    assert (entry.state, scheduler.totals()["bytes"]) == (EntryState.DONE, 0)


# ------------------------------------------------------------------ answers in parts


@pytest.mark.parametrize("end", ["returned", "dropped", "done"])
def test_the_replica_that_brings_the_first_part_gives_the_answer(end: str) -> None:
    """It is recalled from the others, and what one of them says of it all the same counts for nothing."""
    scheduler, _ = _busy("a", "b", "c")
    (entry,) = accept(scheduler, make_entry(deadline=60.0, answer_by=90.0), now=_LATER_S)
    first, second, third = scheduler.decide(_LATER_S).dispatches
    assert scheduler.on_part(second.bundle_id, entry, 0.1)

    assert scheduler.decide(0.1).recalls == {first.bundle_id: [entry], third.bundle_id: [entry]}
    assert not scheduler.decide(0.1).recalls
    returned, dropped = ([entry] if end == each else [] for each in ("returned", "dropped"))
    run = _RUN if end == "done" else []
    assert scheduler.on_done(first.bundle_id, run, 0.2, returned=returned, dropped=dropped) == []
    assert scheduler.on_failed(third.bundle_id, 0.2, replica_lost=True) == Requeue([], [], [])
    assert scheduler.on_part(second.bundle_id, entry, 80.0)
    assert scheduler.on_done(second.bundle_id, _RUN, 80.1) == [entry]


# ------------------------------------------------------------------ silent replicas


def test_an_entry_of_a_silent_replica_is_left_to_others_that_have_it() -> None:
    """It is tried elsewhere once the others have returned it: the silent one has taken it."""
    scheduler, entry, (first, second, third) = _tied("a", "b", "c")
    silent = str(first.replica)
    scheduler.on_unresponsive("m", silent, 1.0)
    hedges = [d for d in scheduler.decide(1.0).dispatches if d.entries[0].id == entry.id]
    scheduler.on_done(second.bundle_id, [], 1.1, returned=[entry])
    hedges += [d for d in scheduler.decide(1.1).dispatches if d.entries[0].id == entry.id]
    assert hedges == []

    scheduler.on_done(third.bundle_id, [], 1.2, returned=[entry])
    (hedge,) = [d for d in scheduler.decide(1.2).dispatches if d.entries[0].id == entry.id]
    assert hedge.replica != silent
    assert [e.id for e in scheduler.on_done(hedge.bundle_id, _RUN, 1.3)] == [entry.id]


# ------------------------------------------------------------------ counts


def test_autoscaling_counts_an_entry_once() -> None:
    """Whoever has it, as long as somebody usable does and it is waited for; slots count what they hold."""
    scheduler, entry, sent = _tied("a", "b", "c")
    assert (scheduler.load("m"), scheduler.snapshot()["m"]["running_rows"]) == (4, 6)
    scheduler.quarantine("m", sent[0].replica, 0.01)
    assert scheduler.load("m") == 3
    scheduler.on_done(sent[1].bundle_id, [], 0.02, returned=[entry])
    assert scheduler.load("m") == 3
    scheduler.on_done(sent[2].bundle_id, _RUN, 0.03)
    assert scheduler.load("m") == 2


def test_autoscaling_does_not_count_what_another_has_answered() -> None:
    """It still lies at a gate, where it will not run."""
    scheduler, _, (first, _) = _tied("a", "b")
    scheduler.on_done(first.bundle_id, _RUN, 0.02)

    assert scheduler.load("m") == 2


def test_rows_of_tenants_are_counted_down_everywhere() -> None:
    """Each replica's by itself: when all is answered, no tenant has any in flight and the next goes first again."""
    scheduler, first = _busy("a", "b")
    entries = [make_entry(deadline=60.0) for _ in range(4)]
    for at, entry in enumerate(entries):
        entry.attributes = RequestAttributes("xy"[at % 2])
    accept(scheduler, *entries, now=0.01)
    sent = scheduler.decide(0.01).dispatches
    assert len(sent) > 2
    left = {dispatch.bundle_id: dispatch for dispatch in (*first.values(), *sent)}
    for bundle_id, dispatch in left.items():
        gone = [entry for entry in dispatch.entries if entry.state is EntryState.DONE]
        scheduler.on_done(bundle_id, _RUN, 0.02, returned=gone)
    picture = scheduler.snapshot()["m"]
    assert (picture["running_rows"], picture["slots_in_use"], scheduler.load("m")) == (0, 0, 0)
    assert all(entry.state is EntryState.DONE for entry in entries)
