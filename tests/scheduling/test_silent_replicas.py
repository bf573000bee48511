"""Entries that only a silent replica has are tried elsewhere; the answer of that replica still counts."""

from __future__ import annotations

import pytest
from scheduling_builders import AFFINE, HIGH, LOW, accept, make_entry, make_scheduler, used_to_rows

from serve_app.pools.policy.messages import HostsListed, Load, LoadFailed, MemberLoaded
from serve_app.pools.policy.settings import Pool
from serve_app.scheduling.decisions import Dispatch, Rejection, Requeue
from serve_app.scheduling.entry import Entry, EntryState
from serve_app.scheduling.health.breaker import BundleOutcome
from serve_app.scheduling.scheduler import Scheduler
from serve_app.scheduling.settings import BreakerSettings, ModelScheduling

_NO_ANSWER: list[tuple[int, int, float, str]] = []


def _sent(scheduler: Scheduler, *entries: Entry, now: float = 0.0) -> Dispatch:
    """Let entries arrive and go in one bundle."""
    if len(entries) > 1:
        used_to_rows(scheduler, 8, now=now)
    accept(scheduler, *entries, now=now)
    (dispatch,) = scheduler.decide(now).dispatches
    return dispatch


@pytest.mark.parametrize("sent_again", [False, True], ids=["queued", "running"])
def test_the_first_answer_wins(sent_again: bool) -> None:
    """Also when the silent replica is the first to answer."""
    scheduler = make_scheduler(profile=AFFINE, replicas=("a", "b"), window=1)
    entry = make_entry(HIGH, deadline=1.0, nbytes=7)
    first = _sent(scheduler, entry)
    when = 0.5
    if not sent_again:
        blocker = _sent(scheduler, make_entry(HIGH, deadline=60.0, rows=32), now=when)
    scheduler.on_unresponsive("m", "a", when)
    sent = scheduler.decide(when).dispatches
    assert len(sent) == sent_again  # else it waits
    assert scheduler.on_done(first.bundle_id, [(1, 0, 0.006, "")], when) == [entry]
    assert scheduler.totals()["classes"]["high"]["entries"] == 0
    if sent_again:
        assert scheduler.decide(when).recalls == {sent[0].bundle_id: [entry]}
        assert scheduler.on_done(sent[0].bundle_id, [(1, 0, 0.006, "")], when + 0.01) == []
    else:
        scheduler.on_done(blocker.bundle_id, [(1, 0, 0.006, "")], when + 0.01)
    assert scheduler.totals()["bytes"] == 0
    assert scheduler.snapshot()["m"]["wasted_rows"] == sent_again


def test_the_only_replica_stays_in_use() -> None:
    """There is nowhere to go; and when there is, its entries go."""
    scheduler = make_scheduler(profile=AFFINE, window=1)
    entry = make_entry(HIGH, deadline=10.0)
    _sent(scheduler, entry)
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


@pytest.mark.parametrize("original_first", [True, False])
def test_two_replicas_that_fail_are_poison_however_they_came_by_the_entry(original_first: bool) -> None:
    """One failure leaves the entry to the other replica, the second ends it."""
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


def test_a_client_that_leaves_takes_the_retry_along() -> None:
    """Nothing of it is queued, running or counted any more."""
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


def test_a_retry_that_was_never_sent_is_tried_again_at_once() -> None:
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
    assert scheduler.totals()["bytes"] == 0


def test_a_retry_that_was_never_sent_expires_with_its_request() -> None:
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


def test_a_retry_that_a_breaker_refuses_is_left_to_the_silent_replica() -> None:
    """Its answer, its loss or the deadline ends the entry."""
    breaker = BreakerSettings(consecutive_failures=2, reset_s=3.0, max_ejected=0.0)
    model = ModelScheduling("m", max_rows=1, slo_s=0.1, window=1, breaker=breaker)
    scheduler = make_scheduler(models=[model], profile=AFFINE, replicas=("a", "b"))
    entry = make_entry(LOW, deadline=10.0, nbytes=7)
    first = _sent(scheduler, entry)
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
    assert scheduler.on_done(first.bundle_id, [(1, 0, 0.006, "")], 3.0) == [entry]
    assert (scheduler.totals()["bytes"], scheduler.totals()["bundles"]) == (0, 0)


@pytest.mark.parametrize("silent_at", [2.0, 4.0], ids=["before", "after"])
def test_a_silent_replica_that_is_listed_no_more_is_silent_all_the_same(silent_at: float) -> None:
    """What it has goes elsewhere as soon as it can; its answers count until then."""
    scheduler = make_scheduler(profile=AFFINE, window=1)
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
    scheduler = make_scheduler(profile=AFFINE, window=1)
    _sent(scheduler, make_entry(LOW, deadline=60.0))
    scheduler.on_replicas("m", [], 1.0)
    scheduler.on_unresponsive("m", "a", 2.0)
    scheduler.on_responsive("m", "a", 3.0)
    scheduler.on_replicas("m", ["b"], 4.0)
    assert scheduler.decide(4.0).dispatches == []


def test_a_retry_that_waits_goes_back_to_a_replica_that_speaks_again() -> None:
    """It is not run twice while the first replica is at it."""
    scheduler = make_scheduler(profile=AFFINE, replicas=("a", "b"), window=1)
    entry = make_entry(LOW, deadline=60.0)
    first = _sent(scheduler, entry)
    busy = _sent(scheduler, make_entry(LOW, deadline=60.0, rows=32))
    scheduler.on_unresponsive("m", str(first.replica), 2.0)
    assert scheduler.decide(2.0).dispatches == []
    scheduler.on_responsive("m", str(first.replica), 2.1)
    scheduler.on_done(busy.bundle_id, [(32, 0, 0.04, "")], 2.2)
    assert scheduler.decide(2.2).dispatches == []
    assert scheduler.on_done(first.bundle_id, [(1, 0, 0.006, "")], 2.3) == [entry]
    assert scheduler.totals()["bytes"] == 0


def test_an_entry_ends_once_when_its_load_fails_while_a_silent_host_has_it() -> None:
    """It is left to that host, and its bytes are counted once."""
    model = ModelScheduling("a", max_rows=1, slo_s=0.1, window=1, resident_bytes=1)
    pool = Pool("pool", ("a",), memory_bytes=10)
    scheduler = make_scheduler(models=[model], pool=pool, replicas=())
    scheduler.on_device_event("pool", HostsListed(["h1", "h2"]), 0.0)
    entry = make_entry(HIGH, deadline=60.0, nbytes=100, model="a")
    accept(scheduler, entry, now=0.0)
    (load,) = scheduler.decide(0.0).orders
    scheduler.on_device_event("pool", MemberLoaded("a", load.host, 0.1, 1), 0.1)
    (first,) = scheduler.decide(0.1).dispatches
    scheduler.on_unresponsive("a", load.host, 2.0)
    other = "h2" if load.host == "h1" else "h1"
    scheduler.on_device_event("pool", HostsListed([other]), 2.0)
    (again,) = [order for order in scheduler.decide(2.0).orders if isinstance(order, Load)]
    refusal = Rejection("model_unavailable", "no such file")
    scheduler.on_device_event("pool", LoadFailed("a", again.host, refusal), 3.0)
    assert scheduler.decide(3.0).refused == ()
    assert scheduler.totals()["bytes"] == 100
    assert scheduler.on_done(first.bundle_id, [(1, 0, 0.006, "")], 4.0) == [entry]
    assert (scheduler.totals()["bytes"], scheduler.decide(4.0).refused) == (0, ())


def test_a_silent_replica_that_answers_keeps_its_other_entries() -> None:
    """They are not sent to it a second time, and its death later is their first failure."""
    scheduler = make_scheduler(profile=AFFINE, replicas=("a",), window=4)
    first, second = (_sent(scheduler, make_entry(LOW, deadline=60.0), now=now) for now in (0.0, 0.1))
    scheduler.on_unresponsive("m", "a", 2.0)
    assert scheduler.decide(2.0).dispatches == []
    assert scheduler.on_done(first.bundle_id, [(1, 0, 0.006, "")], 3.0) == first.entries
    assert scheduler.decide(3.0).dispatches == []
    assert [entry.state for entry in second.entries] == [EntryState.RUNNING]
    result = scheduler.on_failed(second.bundle_id, 4.0, replica_lost=True)
    assert (result.requeued, result.poisoned) == (second.entries, [])


def test_a_silence_is_no_failure() -> None:
    """An entry that is given back after it, and fails once, is tried again."""
    scheduler = make_scheduler(profile=AFFINE, replicas=("a",))
    first = _sent(scheduler, make_entry(LOW, deadline=60.0))
    scheduler.on_unresponsive("m", "a", 2.0)
    scheduler.decide(2.0)
    scheduler.on_responsive("m", "a", 3.0)
    assert scheduler.on_done(first.bundle_id, _NO_ANSWER, 3.1, returned=first.entries) == []
    (again,) = scheduler.decide(3.1).dispatches
    result = scheduler.on_failed(again.bundle_id, 4.0, replica_lost=False)
    assert (result.requeued, result.poisoned) == (first.entries, [])


def test_an_entry_that_a_breaker_kept_at_a_silent_replica_goes_elsewhere_when_it_closes() -> None:
    """It does not wait for a replica that may never answer."""
    breaker = BreakerSettings(consecutive_failures=2, reset_s=1.0, probes=1, max_ejected=0.0)
    model = ModelScheduling("m", max_rows=32, slo_s=0.1, window=1, breaker=breaker)
    scheduler = make_scheduler(models=[model], profile=AFFINE, replicas=("a", "b"))
    entry = make_entry(HIGH, deadline=60.0, nbytes=7)
    first = _sent(scheduler, entry)
    sent: list[Dispatch] = []

    def ask(now: float, outcome: BundleOutcome) -> None:
        accept(scheduler, make_entry(HIGH, deadline=now + 20.0, arrival=now), now=now)
        for dispatch in scheduler.decide(now).dispatches:
            sent.append(dispatch)
            scheduler.on_outcome(dispatch.bundle_id, dispatch.variant, outcome, now)
            scheduler.on_done(dispatch.bundle_id, [(1, 0, 0.006, "")], now)

    ask(0.5, BundleOutcome.FAILURE)
    ask(0.6, BundleOutcome.FAILURE)
    scheduler.on_unresponsive("m", str(first.replica), 0.7)
    scheduler.decide(0.7)
    assert entry.state is EntryState.RUNNING
    for now in (2.0, 2.5, 3.0):
        ask(now, BundleOutcome.ANSWERED)
    assert [each.replica != first.replica for each in sent if entry in each.entries] == [True]
    assert scheduler.totals()["bytes"] == 0
