"""What an overdue or silent replica has is tried elsewhere, late enough and not too often."""

from __future__ import annotations

from math import inf

import pytest
from scheduling_builders import AFFINE, HIGH, LOW, accept, make_entry, make_scheduler, used_to_rows

from serve_app.scheduling.decisions import Decisions, Dispatch, Requeue
from serve_app.scheduling.entry import Entry, EntryState
from serve_app.scheduling.health.breaker import BundleOutcome
from serve_app.scheduling.scheduler import Scheduler
from serve_app.scheduling.settings import BreakerSettings, HedgeSettings, ModelScheduling, ProcessLimits

_NO_ANSWER: list[tuple[int, int, float, str]] = []


def _sent(scheduler: Scheduler, *entries: Entry, now: float = 0.0) -> Dispatch:
    """Let entries arrive and go in one bundle."""
    if len(entries) > 1:
        used_to_rows(scheduler, 8, now=now)
    accept(scheduler, *entries, now=now)
    (dispatch,) = scheduler.decide(now).dispatches
    return dispatch


def _until_dispatch(scheduler: Scheduler, most: int = 50) -> tuple[float, list[Dispatch]]:
    """Decide whenever the scheduler asks for it, until it sends something. Returns when, and what."""
    for _ in range(most):
        wake_at = scheduler.wake_at
        if wake_at is None:
            break
        decisions = scheduler.decide(wake_at)
        if decisions.dispatches or decisions.expired:
            return wake_at, decisions.dispatches
    return inf, []


def test_a_wedged_replica_s_entry_is_answered_elsewhere_at_the_last_moment() -> None:
    """Not before, so that nothing runs twice while the first answer may come; and away from that replica."""
    scheduler = make_scheduler(profile=AFFINE, replicas=("a", "b"))
    entry = make_entry(HIGH, deadline=1.0, nbytes=7)
    first = _sent(scheduler, entry)
    when, (second,) = _until_dispatch(scheduler)

    assert 0.8 < when < 0.95
    assert (first.replica, second.replica) == ("a", "b")
    assert [e.id for e in second.entries] == [entry.id]
    assert scheduler.snapshot()["m"]["held_replicas"] == ["a"]
    assert scheduler.totals()["bytes"] == 14

    answered = scheduler.on_done(second.bundle_id, [(1, 0, 0.006, "")], when + 0.01)
    assert [e.id for e in answered] == [entry.id]
    assert entry.state is EntryState.DONE
    assert scheduler.totals()["bytes"] == 0
    assert scheduler.on_done(first.bundle_id, [(1, 0, 4.9, "")], 5.0) == []
    picture = scheduler.snapshot()["m"]
    assert picture["hedges"] == {"made": 1, "won": 1, "duplicates": 1}
    assert (picture["held_replicas"], picture["wasted_rows"]) == ([], 1)
    assert scheduler.wake_at is None


@pytest.mark.parametrize("sent_again", [False, True], ids=["queued", "running"])
def test_the_first_answer_wins_and_the_other_copy_ends(sent_again: bool) -> None:
    """Also when the overdue replica is the first to answer."""
    scheduler = make_scheduler(profile=AFFINE, replicas=("a", "b"), window=1)
    entry = make_entry(HIGH, deadline=1.0, nbytes=7)
    first = _sent(scheduler, entry)
    if sent_again:
        when, (second,) = _until_dispatch(scheduler)
    else:
        when = 0.5
        blocker = _sent(scheduler, make_entry(HIGH, deadline=60.0, rows=32), now=when)
        scheduler.on_unresponsive("m", "a", when)
        assert scheduler.decide(when).dispatches == []  # the hedge waits
    assert scheduler.on_done(first.bundle_id, [(1, 0, 0.006, "")], when) == [entry]
    assert scheduler.totals()["classes"]["high"]["entries"] == 0
    if sent_again:
        assert scheduler.on_done(second.bundle_id, [(1, 0, 0.006, "")], when + 0.01) == []
    else:
        scheduler.on_done(blocker.bundle_id, [(1, 0, 0.006, "")], when + 0.01)
    assert scheduler.totals()["bytes"] == 0
    assert scheduler.snapshot()["m"]["hedges"]["duplicates"] == sent_again


def test_an_entry_without_time_left_expires_once() -> None:
    """When both copies run past the deadline."""
    scheduler = make_scheduler(profile=AFFINE, replicas=("a", "b"))
    entry = make_entry(HIGH, deadline=1.0, nbytes=7)
    _sent(scheduler, entry)
    _until_dispatch(scheduler)
    decisions = scheduler.decide(1.0)
    assert [e.id for e in decisions.expired] == [entry.id]
    assert entry.state is EntryState.DONE
    assert scheduler.totals()["bytes"] == 0
    assert scheduler.decide(2.0) == Decisions([], [], [])


def test_a_bundle_that_is_only_slow_is_left_alone() -> None:
    """Within three times what was predicted, and some more, nothing is done."""
    scheduler = make_scheduler(profile=AFFINE, replicas=("a", "b"))
    bundle = _sent(scheduler, make_entry(HIGH, deadline=1.0))
    scheduler.decide(0.1)
    assert scheduler.snapshot()["m"]["held_replicas"] == []
    scheduler.on_done(bundle.bundle_id, [(1, 0, 0.1, "")], 0.11)
    assert scheduler.snapshot()["m"]["hedges"]["made"] == 0


def test_an_overdue_replica_gets_no_new_work_until_it_answers() -> None:
    """As long as there is another one."""
    scheduler = make_scheduler(profile=AFFINE, replicas=("a", "b"))
    first = _sent(scheduler, make_entry(LOW, deadline=60.0))
    scheduler.decide(0.2)
    assert scheduler.usable("m") == 1
    for number in range(3):
        now = 0.3 + number
        following = _sent(scheduler, make_entry(LOW, deadline=60.0 + now), now=now)
        assert following.replica == "b"
        scheduler.on_done(following.bundle_id, [(1, 0, 0.006, "")], now + 0.006)
    scheduler.on_done(first.bundle_id, [(1, 0, 4.0, "")], 4.0)
    assert scheduler.usable("m") == 2


def test_the_only_replica_stays_in_use() -> None:
    """There is nowhere to go; and when there is, what is overdue goes."""
    scheduler = make_scheduler(profile=AFFINE, window=1)
    entry = make_entry(HIGH, deadline=10.0)
    _sent(scheduler, entry)
    scheduler.decide(5.0)
    assert scheduler.usable("m") == 1
    scheduler.on_unresponsive("m", "a", 5.0)
    assert (scheduler.usable("m"), scheduler.decide(5.0).dispatches) == (0, [])
    scheduler.on_replicas("m", ["a", "b"], 6.0)
    (second,) = scheduler.decide(6.0).dispatches
    assert (second.replica, [e.id for e in second.entries]) == ("b", [entry.id])


def test_a_silent_replica_s_entries_go_elsewhere_at_once_and_it_returns_when_it_speaks() -> None:
    """Each in a bundle of its own: one of them may be why."""
    scheduler = make_scheduler(profile=AFFINE, replicas=("a", "b"))
    entries = [make_entry(LOW, deadline=30.0 + n) for n in range(3)]
    first = _sent(scheduler, *entries)
    silent, other = str(first.replica), {"a": "b", "b": "a"}[str(first.replica)]
    scheduler.on_unresponsive("m", silent, 2.0)
    seen = []
    for _ in entries:
        (dispatch,) = scheduler.decide(2.0).dispatches
        assert dispatch.replica == other
        seen += [e.id for e in dispatch.entries]
        assert len(scheduler.on_done(dispatch.bundle_id, [(1, 0, 0.006, "")], 2.0)) == 1
    assert seen == [e.id for e in entries]
    picture = scheduler.snapshot()["m"]
    assert (picture["held_replicas"], picture["silent_replicas"]) == ([silent], [silent])
    scheduler.on_responsive("m", silent, 3.0)
    assert scheduler.usable("m") == 2
    assert scheduler.snapshot()["m"]["silent_replicas"] == []
    assert scheduler.on_done(first.bundle_id, _NO_ANSWER, 3.0) == []


def test_extra_work_is_bounded() -> None:
    """A share of what was sent, and two full windows at the start; the rest waits for its own replica."""
    scheduler = make_scheduler(profile=AFFINE, replicas=("a", "b"), max_rows=1, window=1)
    made = 0
    for number in range(40):
        now = 10.0 * number
        scheduler.on_replicas("m", [f"a{number}", f"b{number}"], now)
        accept(scheduler, make_entry(HIGH, deadline=now + 1.0, arrival=now), now=now)
        scheduler.decide(now)
        _until_dispatch(scheduler)
        made = scheduler.snapshot()["m"]["hedges"]["made"]
        scheduler.decide(now + 2.0)
    assert 2 <= made <= 2 + 0.05 * 80 + 1


def test_nothing_is_hedged_above_saturation() -> None:
    """What admission would refuse as a new request is not sent twice either."""
    scheduler = make_scheduler(profile=AFFINE, replicas=("a", "b"), max_rows=1, window=1)
    _sent(scheduler, make_entry(HIGH, deadline=1.0))
    accept(scheduler, *[make_entry(HIGH, deadline=0.99) for _ in range(150)], now=0.0)
    scheduler.decide(0.0)
    for moment in (0.3, 0.5, 0.7, 0.85):
        scheduler.decide(moment)
    assert scheduler.snapshot()["m"]["hedges"]["made"] == 0


@pytest.mark.parametrize("original_first", [True, False])
def test_two_replicas_that_fail_are_poison_however_they_came_by_the_entry(original_first: bool) -> None:
    """One failure leaves the entry to the other copy, the second ends it."""
    scheduler = make_scheduler(profile=AFFINE, replicas=("a", "b", "c"))
    entry = make_entry(LOW, deadline=60.0, nbytes=7)
    first = _sent(scheduler, entry)
    scheduler.on_unresponsive("m", "a", 2.0)
    (second,) = scheduler.decide(2.0).dispatches
    order = [first, second] if original_first else [second, first]
    result = scheduler.on_failed(order[0].bundle_id, 3.0, replica_lost=True)
    assert result == Requeue([], [], [])
    assert scheduler.totals()["bytes"] > 0
    assert scheduler.decide(3.0).dispatches == []
    result = scheduler.on_failed(order[1].bundle_id, 4.0, replica_lost=True)
    assert [e.id for e in result.poisoned] == [entry.id]
    assert entry.state is EntryState.DONE
    assert scheduler.totals()["bytes"] == 0


def test_a_client_that_leaves_takes_both_copies_along() -> None:
    """The caller knows the first one only."""
    scheduler = make_scheduler(profile=AFFINE, replicas=("a", "b"), window=1)
    entry = make_entry(LOW, deadline=60.0, nbytes=7)
    _sent(scheduler, entry)
    _sent(scheduler, make_entry(LOW, deadline=60.0, rows=32))
    scheduler.on_unresponsive("m", "a", 2.0)
    scheduler.decide(2.0)
    assert scheduler.queue_lengths("m")[LOW].entries == 1
    scheduler.on_cancel(entry, 3.0)
    assert scheduler.queue_lengths("m")[LOW].entries == 0
    assert scheduler.totals()["bytes"] == 0


def test_a_hedge_that_was_never_sent_is_tried_again_at_once() -> None:
    """The link to its replica had just ended: nothing has run, so that this is no try of it."""
    scheduler = make_scheduler(profile=AFFINE, replicas=("a", "b", "c"), window=1)
    entry = make_entry(LOW, deadline=8.0, nbytes=7)
    first = _sent(scheduler, entry)
    scheduler.on_unresponsive("m", str(first.replica), 2.0)
    (second,) = scheduler.decide(2.0).dispatches
    scheduler.on_failed(second.bundle_id, 2.01, replica_lost=True, reached=False)
    (third,) = scheduler.decide(2.01).dispatches
    assert {first.replica, second.replica, third.replica} == {"a", "b", "c"}
    assert [e.id for e in scheduler.on_done(third.bundle_id, [(1, 0, 0.006, "")], 2.02)] == [entry.id]
    assert (scheduler.totals()["bytes"], scheduler.snapshot()["m"]["hedges"]["made"]) == (0, 1)


def test_a_hedge_that_was_never_sent_expires_with_its_request() -> None:
    """There is nowhere else to go."""
    scheduler = make_scheduler(profile=AFFINE, replicas=("a", "b"), window=1)
    entry = make_entry(LOW, deadline=8.0, nbytes=7)
    _sent(scheduler, entry)
    scheduler.on_unresponsive("m", "a", 2.0)
    (second,) = scheduler.decide(2.0).dispatches
    scheduler.on_replicas("m", ["a"], 2.01)
    scheduler.on_failed(second.bundle_id, 2.01, replica_lost=True, reached=False)
    assert scheduler.decide(2.01).dispatches == []
    assert [e.id for e in scheduler.decide(8.0).expired] == [entry.id]
    assert (scheduler.totals()["bytes"], scheduler.load("m")) == (0, 0)


def test_a_hedge_that_a_breaker_refuses_leaves_the_request_to_the_first_copy() -> None:
    """Which gets another one when the breaker may let it through, and not in a tight loop before."""
    breaker = BreakerSettings(consecutive_failures=2, reset_s=3.0, max_ejected=0.0)
    model = ModelScheduling("m", max_rows=1, slo_s=0.1, window=1, breaker=breaker)
    scheduler = make_scheduler(models=[model], profile=AFFINE, replicas=("a", "b"))
    entry = make_entry(LOW, deadline=10.0, nbytes=7)
    _sent(scheduler, entry)
    busy = _sent(scheduler, make_entry(LOW, deadline=9.0))
    scheduler.on_unresponsive("m", "a", 2.0)
    for last in (False, True):
        accept(scheduler, make_entry(HIGH, deadline=9.0), now=2.0)
        scheduler.on_outcome(busy.bundle_id, "", BundleOutcome.FAILURE, 2.0)
        scheduler.on_done(busy.bundle_id, (), 2.0)
        if not last:
            (busy,) = scheduler.decide(2.0).dispatches
    decisions = scheduler.decide(2.0)
    assert (len(decisions.refused), decisions.dispatches, entry.state) == (1, [], EntryState.RUNNING)
    when, (again,) = _until_dispatch(scheduler, most=3)
    assert (when, again.replica, [e.id for e in again.entries]) == (5.0, "b", [entry.id])


def test_what_could_not_be_afforded_goes_elsewhere_when_its_replica_falls_silent() -> None:
    """The share bounds what is sent twice because it is late, not because its replica hangs."""
    scheduler = make_scheduler(profile=[(1, 0, 0.5)], replicas=("a", "b"), window=1, max_rows=1, slo_s=1.0)
    entry = make_entry(HIGH, deadline=10.0, rows=3)  # more than the two full bundles of the share
    _sent(scheduler, entry)
    while (scheduler.wake_at or inf) < 7.0:
        assert scheduler.decide(scheduler.wake_at or inf).dispatches == []
    assert scheduler.snapshot()["m"]["held_replicas"] == ["a"]
    scheduler.on_unresponsive("m", "a", 7.0)
    assert [(sent.replica, sent.rows) for sent in scheduler.decide(7.0).dispatches] == [("b", 3)]


@pytest.mark.parametrize("share", [0.0, 0.05])
@pytest.mark.parametrize("silent_at", [2.0, 4.0], ids=["before", "after"])
def test_a_silent_replica_that_is_listed_no_more_is_silent_all_the_same(share: float, silent_at: float) -> None:
    """What it has goes elsewhere as soon as it can; its answers count until then."""
    limits = ProcessLimits(10**9, hedge=HedgeSettings(share=share))
    scheduler = make_scheduler(profile=AFFINE, window=1, limits=limits)
    entry = make_entry(LOW, deadline=60.0)
    first = _sent(scheduler, entry)
    if silent_at < 3.0:
        scheduler.on_unresponsive("m", "a", silent_at)
        assert scheduler.decide(silent_at).dispatches == []
    scheduler.on_replicas("m", ["b"], 3.0)
    if silent_at > 3.0:
        assert scheduler.decide(3.0).dispatches == []
        scheduler.on_unresponsive("m", "a", silent_at)
    (second,) = scheduler.decide(max(3.0, silent_at)).dispatches
    assert (second.replica, [e.id for e in second.entries]) == ("b", [entry.id])
    assert scheduler.on_done(first.bundle_id, [(1, 0, 0.006, "")], 4.5) == [entry]
    assert scheduler.on_done(second.bundle_id, [(1, 0, 0.006, "")], 4.5) == []
    assert (scheduler.totals()["bundles"], scheduler.wake_at) == (0, None)


def test_a_silent_replica_that_speaks_again_is_waited_for_though_it_is_listed_no_more() -> None:
    """It drains, after all."""
    limits = ProcessLimits(10**9, hedge=HedgeSettings(share=0.0))
    scheduler = make_scheduler(profile=AFFINE, window=1, limits=limits)
    _sent(scheduler, make_entry(LOW, deadline=60.0))
    scheduler.on_replicas("m", [], 1.0)
    scheduler.on_unresponsive("m", "a", 2.0)
    scheduler.on_responsive("m", "a", 3.0)
    scheduler.on_replicas("m", ["b"], 4.0)
    assert scheduler.decide(4.0).dispatches == []
