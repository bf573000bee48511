"""The scheduler: what happens to entries and bundles, one situation at a time."""

from __future__ import annotations

import gc
import json
import weakref

import pytest
from scheduling_builders import (
    AFFINE,
    HIGH,
    LOW,
    NORMAL,
    accept,
    make_class,
    make_entry,
    make_scheduler,
    queued_rows,
    used_to_rows,
)

from serve_app.domain.priority import Priority
from serve_app.payloads import NO_ATTRIBUTES
from serve_app.scheduling.decisions import Decisions, Dispatch, QueueLength, Requeue
from serve_app.scheduling.entry import Entry, EntryState
from serve_app.scheduling.scheduler import Scheduler
from serve_app.scheduling.settings import ProcessLimits


class _Payload:
    """Something a weak reference can point to."""


def _dispatch(scheduler: Scheduler, now: float = 0.0) -> Dispatch:
    """Decide, expecting exactly one bundle and nothing that ends."""
    dispatches, expired, given_up = scheduler.decide(now)[:3]
    assert (len(dispatches), expired, given_up) == (1, [], [])
    return dispatches[0]


def test_entry_goes_its_way() -> None:
    """Accepted, dispatched, answered; nothing stays behind."""
    scheduler = make_scheduler(profile=AFFINE)
    entry = make_entry(rows=3, bucket=0, nbytes=7)
    accept(scheduler, entry)
    assert entry.state is EntryState.QUEUED

    bundle = _dispatch(scheduler)
    assert bundle == Dispatch(1, "m", "a", [entry], 3, 0, bundle.predicted_s, exact=False, overhead_s=0.002)
    assert bundle.predicted_s == pytest.approx(0.008)
    assert (entry.state, entry.attempts, scheduler.load("m")) == (EntryState.RUNNING, 1, 3)

    assert scheduler.on_done(1, [(3, 0, 0.009, "")], 0.01) == [entry]
    assert (entry.state, scheduler.load("m"), scheduler.wake_at) == (EntryState.DONE, 0, None)
    assert scheduler.totals()["bytes"] == 0
    assert scheduler.on_done(1, [], 0.02) == []


def test_executions_feed_the_latency_model() -> None:
    """Also those of bundles whose entries have all gone."""
    scheduler = make_scheduler()
    (entry,) = accept(scheduler, make_entry())
    bundle = _dispatch(scheduler)
    scheduler.on_cancel(entry, 0.0)
    scheduler.on_done(bundle.bundle_id, [(4, 0, 0.040, "")], 0.1)

    assert scheduler.latency("m").predict(4) == pytest.approx(0.040)


def test_a_variant_learns_for_itself() -> None:
    """Until it has run it is predicted as the exact model; after that neither moves the other."""
    scheduler = make_scheduler(profile=[(1, 0, 0.2)], max_rows=1)
    assert scheduler.latency("m", "int8").predict(1) == pytest.approx(0.2)
    for at in range(40):
        accept(scheduler, make_entry(deadline=at + 10.0, arrival=float(at), variant="int8"), now=float(at))
        scheduler.on_done(_dispatch(scheduler, float(at)).bundle_id, [(1, 0, 0.05, "int8")], at + 0.05)

    assert scheduler.latency("m").predict(1) == pytest.approx(0.2)
    assert scheduler.latency("m", "int8").predict(1) == pytest.approx(0.05)
    accept(scheduler, make_entry(deadline=50.0, arrival=40.0, variant="int8"), now=40.0)
    assert _dispatch(scheduler, 40.0).predicted_s == pytest.approx(0.05)
    assert scheduler.snapshot()["m"]["latency_s"] == {"0": {"1": pytest.approx(0.2)}}
    assert scheduler.snapshot()["m"]["variants"] == {"int8": {"latency_s": {"0": {"1": pytest.approx(0.05)}}}}


def test_warm_up_seeds_the_exact_model_and_its_variants() -> None:
    """Each with its own points; nonsense seeds nothing."""
    scheduler = make_scheduler()
    scheduler.seed("m", [(1, 0, 0.2, ""), (1, 0, 0.05, "int8"), (0, 0, 1.0, "broken")])

    assert scheduler.latency("m").predict(1) == pytest.approx(0.2)
    assert scheduler.latency("m", "int8").predict(1) == pytest.approx(0.05)
    assert scheduler.latency("m", "broken") is scheduler.latency("m")


def test_classes_then_deadlines_order_the_dispatch() -> None:
    """One row per bundle shows the order."""
    scheduler = make_scheduler(max_rows=1, window=9)
    low, normal_late, normal_early, high = accept(
        scheduler, make_entry(LOW, 1.0), make_entry(NORMAL, 9.0), make_entry(NORMAL, 5.0), make_entry(HIGH, 10.0)
    )

    assert [d.entries for d in scheduler.decide(0.0).dispatches] == [[high], [normal_early], [normal_late], [low]]


def test_no_more_bundles_than_slots() -> None:
    """The rest waits for an answer."""
    scheduler = make_scheduler(max_rows=1, window=2, replicas=("a", "b"))
    accept(scheduler, *[make_entry() for _ in range(6)])
    first = scheduler.decide(0.0).dispatches

    assert sorted(str(d.replica) for d in first) == ["a", "a", "b", "b"]
    assert scheduler.decide(0.0) == Decisions([], [], [])
    scheduler.on_done(first[0].bundle_id, [], 0.1)
    assert _dispatch(scheduler, 0.1).replica == first[0].replica


def test_cancelling_a_queued_entry_removes_it() -> None:
    """It is never dispatched; cancelling again changes nothing."""
    scheduler = make_scheduler()
    (entry,) = accept(scheduler, make_entry(nbytes=5))
    scheduler.on_cancel(entry, 0.0)
    scheduler.on_cancel(entry, 0.0)

    assert scheduler.decide(0.0) == Decisions([], [], [])
    assert scheduler.totals()["bytes"] == 0
    assert scheduler.queue_lengths("m")[NORMAL] == QueueLength(0, 0, 0)


def test_cancelling_a_running_entry_keeps_the_slot() -> None:
    """The replica still works on it, so the slot is freed by the answer; its rows count as waste."""
    scheduler = make_scheduler(max_rows=2, window=1)
    used_to_rows(scheduler, 8)
    gone, stays, waits = accept(scheduler, *[make_entry(nbytes=5) for _ in range(3)])
    bundle = _dispatch(scheduler)
    scheduler.on_cancel(gone, 0.0)

    assert scheduler.totals()["bytes"] == 10
    assert scheduler.decide(0.0) == Decisions([], [], [], recalls={bundle.bundle_id: [gone]})
    assert scheduler.on_done(bundle.bundle_id, [(2, 0, 0.05, "")], 0.1) == [stays]
    assert _dispatch(scheduler, 0.1).entries == [waits]
    assert scheduler.snapshot()["m"]["wasted_rows"] == 1


def test_queued_entry_expires_at_its_deadline_and_is_not_executed() -> None:
    """`wake_at` names the moment."""
    scheduler = make_scheduler(max_rows=1, window=1)
    running, waiting = accept(scheduler, make_entry(deadline=1.0), make_entry(deadline=2.0))
    bundle = _dispatch(scheduler)
    scheduler.on_cancel(running, 0.0)

    assert scheduler.wake_at == 2.0
    assert scheduler.decide(1.999) == Decisions([], [], [], recalls={bundle.bundle_id: [running]})
    assert scheduler.decide(2.0) == Decisions([], [waiting], [])
    assert waiting.state is EntryState.DONE
    scheduler.on_done(bundle.bundle_id, [], 3.0)
    assert scheduler.decide(3.0) == Decisions([], [], [])


def test_running_entry_expires_at_its_deadline_and_its_late_result_is_waste() -> None:
    """Its neighbour in the bundle is answered."""
    scheduler = make_scheduler()
    used_to_rows(scheduler, 8)
    short, long = accept(scheduler, make_entry(deadline=1.0, rows=2), make_entry(deadline=5.0))
    bundle = _dispatch(scheduler)

    assert scheduler.wake_at == 1.0
    assert scheduler.decide(1.0) == Decisions([], [short], [])
    assert scheduler.wake_at == 5.0
    assert scheduler.on_done(bundle.bundle_id, [(3, 0, 1.4, "")], 1.5) == [long]
    assert scheduler.snapshot()["m"]["wasted_rows"] == 2


def test_result_that_comes_late_before_anyone_noticed_is_reported_as_expired() -> None:
    """The answer arrives after the deadline and before the timer: the next decision expires it, at once."""
    scheduler = make_scheduler()
    used_to_rows(scheduler, 8)
    late, cancelled = accept(scheduler, make_entry(deadline=1.0), make_entry(deadline=1.0))
    bundle = _dispatch(scheduler)

    assert scheduler.on_done(bundle.bundle_id, [], 1.2) == []
    assert scheduler.wake_at == 1.0
    scheduler.on_cancel(cancelled, 1.2)
    assert scheduler.decide(1.2) == Decisions([], [late], [])
    assert scheduler.decide(1.2) == Decisions([], [], [])


def test_wake_up_bundle_goes_out_without_replicas() -> None:
    """Just one; the others wait for a replica to appear."""
    scheduler = make_scheduler(max_rows=1, replicas=())
    accept(scheduler, make_entry(), make_entry())
    wake_up = _dispatch(scheduler)

    assert wake_up.replica is None
    assert scheduler.decide(0.0) == Decisions([], [], [])
    scheduler.on_replicas("m", ["a"], 1.0)
    assert _dispatch(scheduler, 1.0).replica == "a"
    assert scheduler.on_done(wake_up.bundle_id, [], 2.0) == wake_up.entries


def test_failed_bundle_is_tried_once_more_elsewhere_one_entry_at_a_time() -> None:
    """Away from the replica it failed at, and not beside anybody else."""
    scheduler = make_scheduler(replicas=("a", "b", "c"))
    used_to_rows(scheduler, 8)
    first, second = accept(scheduler, make_entry(), make_entry())
    bundle = _dispatch(scheduler)
    fresh = make_entry(deadline=50.0)

    assert scheduler.on_failed(bundle.bundle_id, 0.1, replica_lost=True) == Requeue([first, second], [], [])
    assert (first.state, first.avoid) == (EntryState.QUEUED, bundle.replica)
    assert queued_rows(scheduler)["normal"] == 2
    accept(scheduler, fresh, now=0.1)
    again = scheduler.decide(0.1).dispatches

    assert [d.entries for d in again] == [[first], [second], [fresh]]
    assert len({again[0].replica, again[1].replica, bundle.replica}) == 3


def test_two_suspects_never_share_a_replica() -> None:
    """The second waits until the first is answered, so that a poisonous one takes no other with it."""
    scheduler = make_scheduler(replicas=("a", "b"))
    used_to_rows(scheduler, 8)
    first, second = accept(scheduler, make_entry(), make_entry())
    failed = _dispatch(scheduler)
    scheduler.on_failed(failed.bundle_id, 0.1, replica_lost=True)
    bundle = _dispatch(scheduler, 0.1)

    assert bundle.entries == [first]
    scheduler.on_done(bundle.bundle_id, [], 0.2)
    assert _dispatch(scheduler, 0.2).entries == [second]


def test_entry_that_fails_twice_is_poison() -> None:
    """It is refused; its former neighbours are answered."""
    scheduler = make_scheduler(replicas=("a", "b", "c"))
    used_to_rows(scheduler, 8)
    poison, innocent = accept(scheduler, make_entry(nbytes=1), make_entry(nbytes=2))
    failed = _dispatch(scheduler)
    scheduler.on_failed(failed.bundle_id, 0.1, replica_lost=True)
    one, other = scheduler.decide(0.1).dispatches

    assert scheduler.on_failed(one.bundle_id, 0.2, replica_lost=True) == Requeue([], [poison], [])
    assert poison.state is EntryState.DONE
    assert scheduler.on_done(other.bundle_id, [], 0.3) == [innocent]
    assert scheduler.totals()["bytes"] == 0


def test_failed_entries_past_their_deadline_are_expired() -> None:
    """There is nothing to retry, and nothing is reported twice."""
    scheduler = make_scheduler()
    used_to_rows(scheduler, 8)
    past, gone, ahead = accept(scheduler, make_entry(deadline=1.0), make_entry(deadline=5.0), make_entry(deadline=9.0))
    bundle = _dispatch(scheduler)
    scheduler.on_cancel(gone, 0.5)

    assert scheduler.on_failed(bundle.bundle_id, 2.0, replica_lost=False) == Requeue([ahead], [], [past])
    assert scheduler.on_failed(bundle.bundle_id, 2.0, replica_lost=False) == Requeue([], [], [])


def test_only_replica_gets_its_failed_entry_again() -> None:
    """At once when it is not lost; after the hold when it is, and `wake_at` says when."""
    scheduler = make_scheduler()
    accept(scheduler, make_entry())
    bundle = _dispatch(scheduler)
    scheduler.on_failed(bundle.bundle_id, 0.0, replica_lost=True)

    assert scheduler.decide(0.0) == Decisions([], [], [])
    assert scheduler.wake_at == 1.0
    assert _dispatch(scheduler, 1.0).replica == "a"


def test_timed_out_bundle_is_tried_elsewhere_and_its_replica_waits_for_an_answer() -> None:
    """The late answer is discarded and ends the quarantine."""
    scheduler = make_scheduler(max_rows=1, window=1, replicas=("a", "b"))
    entry, other = accept(scheduler, make_entry(), make_entry())
    stuck, _ = scheduler.decide(0.0).dispatches
    accept(scheduler, make_entry(), make_entry())

    assert scheduler.on_timeout(stuck.bundle_id, 5.0) == Requeue([entry], [], [])
    assert scheduler.snapshot()["m"]["held_replicas"] == ["a"]
    assert scheduler.decide(5.0) == Decisions([], [], [])
    assert scheduler.on_done(stuck.bundle_id, [], 8.0) == []
    assert scheduler.snapshot()["m"]["held_replicas"] == []
    assert _dispatch(scheduler, 8.0).replica == "a"
    assert other.state is EntryState.RUNNING


def test_timeout_of_a_bundle_at_a_vanished_replica_or_without_one() -> None:
    """Nothing is left to quarantine; the entries are tried again."""
    scheduler = make_scheduler(max_rows=1)
    (entry,) = accept(scheduler, make_entry())
    bundle = _dispatch(scheduler)
    scheduler.on_replicas("m", [], 1.0)
    assert scheduler.on_timeout(bundle.bundle_id, 2.0) == Requeue([entry], [], [])
    wake_up = _dispatch(scheduler, 2.0)
    assert wake_up.replica is None

    assert scheduler.on_timeout(wake_up.bundle_id, 3.0) == Requeue([entry], [], [])
    assert scheduler.on_timeout(wake_up.bundle_id, 3.0) == Requeue([], [], [])
    assert scheduler.totals()["bundles"] == 0
    assert (entry.attempts, entry.avoid) == (1, "a")


def test_waiting_for_a_replica_to_start_is_no_try() -> None:
    """However often the wake-up bundle times out, its entries stay fresh until a replica has had them."""
    scheduler = make_scheduler(replicas=())
    used_to_rows(scheduler, 8)
    first, second = accept(scheduler, make_entry(deadline=300.0), make_entry(deadline=300.0))
    for now in (0.0, 60.0, 120.0):
        wake_up = _dispatch(scheduler, now)
        assert (wake_up.replica, wake_up.entries, first.attempts) == (None, [first, second], 0)
        assert scheduler.on_timeout(wake_up.bundle_id, now + 60.0) == Requeue([first, second], [], [])
    scheduler.on_replicas("m", ["a"], 200.0)
    bundle = _dispatch(scheduler, 200.0)

    assert (bundle.entries, first.attempts) == ([first, second], 1)
    assert scheduler.on_done(bundle.bundle_id, [], 201.0) == [first, second]


def test_failed_wake_up_bundle_is_no_try_and_the_next_one_waits() -> None:
    """Nobody is asked in a tight loop; a replica that appears meanwhile takes the work at once."""
    scheduler = make_scheduler(replicas=())
    (entry,) = accept(scheduler, make_entry())
    assert scheduler.on_failed(_dispatch(scheduler).bundle_id, 0.0, replica_lost=False) == Requeue([entry], [], [])
    assert scheduler.decide(0.0) == Decisions([], [], [])
    assert scheduler.wake_at == 1.0
    again = _dispatch(scheduler, 1.0)
    assert scheduler.on_failed(again.bundle_id, 1.0, replica_lost=True) == Requeue([entry], [], [])
    assert (scheduler.wake_at, entry.attempts, entry.avoid) == (3.0, 0, None)

    scheduler.on_replicas("m", ["a"], 1.5)
    assert _dispatch(scheduler, 1.5).replica == "a"


def test_wake_up_bundle_that_killed_the_replica_it_came_to_is_a_try() -> None:
    """Who sent it knows that it came to one; then its entries travel alone, as after any failure."""
    scheduler = make_scheduler(replicas=())
    used_to_rows(scheduler, 8)
    poison, innocent = accept(scheduler, make_entry(), make_entry())
    wake_up = _dispatch(scheduler)

    assert scheduler.on_failed(wake_up.bundle_id, 0.0, replica_lost=True, reached=True) == Requeue(
        [poison, innocent], [], []
    )
    again = _dispatch(scheduler, 1.0)
    assert (again.entries, poison.attempts) == ([poison], 1)
    assert scheduler.on_failed(again.bundle_id, 1.0, replica_lost=True, reached=True) == Requeue([], [poison], [])
    last = _dispatch(scheduler, 3.0)
    assert scheduler.on_done(last.bundle_id, [], 4.0) == [innocent]


def test_bundle_that_found_its_replica_gone_is_no_try() -> None:
    """Its entries are as fresh as before and may go together; a retried one keeps its one try."""
    scheduler = make_scheduler(replicas=("a", "b", "c"))
    used_to_rows(scheduler, 8)
    first, second = accept(scheduler, make_entry(), make_entry())
    unsent = _dispatch(scheduler)
    assert scheduler.on_failed(unsent.bundle_id, 0.0, replica_lost=True, reached=False) == Requeue(
        [first, second], [], []
    )
    assert (first.attempts, first.avoid) == (0, None)
    bundle = _dispatch(scheduler)
    assert bundle.entries == [first, second]
    assert bundle.replica != unsent.replica

    scheduler.on_failed(bundle.bundle_id, 0.1, replica_lost=False)
    again = _dispatch(scheduler, 0.1)
    assert again.entries == [first]
    assert scheduler.on_failed(again.bundle_id, 0.1, replica_lost=True, reached=False).requeued == [first]
    assert (first.attempts, first.avoid) == (1, bundle.replica)


def test_usable_replicas_are_those_not_held() -> None:
    """Busy ones count; a hold is over when its time has come, with or without work."""
    scheduler = make_scheduler(max_rows=1, window=1, replicas=("a", "b"))
    accept(scheduler, make_entry(), make_entry())
    first, second = scheduler.decide(0.0).dispatches
    assert scheduler.usable("m") == 2

    scheduler.on_done(first.bundle_id, [], 0.1)
    scheduler.on_done(second.bundle_id, [], 0.1)
    (entry,) = accept(scheduler, make_entry(), now=0.1)
    lost = _dispatch(scheduler, 0.1)
    scheduler.on_failed(lost.bundle_id, 0.5, replica_lost=True)
    scheduler.on_cancel(entry, 0.5)
    assert (scheduler.usable("m"), scheduler.wake_at) == (1, 1.5)

    scheduler.quarantine("m", "b" if lost.replica == "a" else "a", 0.6)
    assert scheduler.usable("m") == 0
    scheduler.decide(1.6)
    assert (scheduler.usable("m"), scheduler.wake_at) == (2, None)
    scheduler.on_replicas("m", [], 2.0)
    assert scheduler.usable("m") == 0


def test_quarantine_leaves_entries_where_they_are() -> None:
    """They may be answered late, or expire."""
    scheduler = make_scheduler()
    used_to_rows(scheduler, 8)
    quick, slow = accept(scheduler, make_entry(deadline=1.0), make_entry(deadline=9.0))
    bundle = _dispatch(scheduler)
    scheduler.quarantine("m", "a", 0.5)

    assert scheduler.load("m") == 0
    assert scheduler.decide(1.0) == Decisions([], [quick], [])
    assert scheduler.on_done(bundle.bundle_id, [], 2.0) == [slow]


def test_vanished_replica_s_bundle_may_still_be_answered() -> None:
    """A replica that is being stopped finishes its work."""
    scheduler = make_scheduler()
    (entry,) = accept(scheduler, make_entry())
    bundle = _dispatch(scheduler)
    scheduler.on_replicas("m", ["b"], 0.5)

    assert scheduler.on_done(bundle.bundle_id, [], 1.0) == [entry]


def test_dead_bundles_of_vanished_replicas_are_forgotten() -> None:
    """They may never be reported, so they must not pile up."""
    scheduler = make_scheduler()
    for i in range(5):
        (entry,) = accept(scheduler, make_entry(deadline=i + 0.9), now=float(i))
        scheduler.decide(float(i))
        if i % 2:
            scheduler.on_replicas("m", [f"r{i}"], i + 0.1)
            scheduler.decide(i + 0.95)
        else:
            scheduler.on_cancel(entry, i + 0.1)
            scheduler.on_replicas("m", [f"r{i}"], i + 0.2)

    assert scheduler.totals()["bundles"] == 0


def test_ended_entries_are_released_while_their_bundle_is_still_out() -> None:
    """A wedged replica keeps a slot, not the payloads of what has expired."""
    scheduler = make_scheduler()
    payload = _Payload()
    reference = weakref.ref(payload)
    accept(scheduler, Entry(10**9, "m", NORMAL, 0.0, 1.0, payload=payload, attributes=NO_ATTRIBUTES))
    _dispatch(scheduler)
    del payload
    scheduler.decide(1.0)
    gc.collect()

    assert reference() is None
    assert scheduler.totals()["bundles"] == 1


def test_an_entry_arrives_once() -> None:
    """Submitting it again is a fault of the caller."""
    scheduler = make_scheduler()
    (entry,) = accept(scheduler, make_entry())

    with pytest.raises(ValueError, match="has arrived already"):
        scheduler.on_arrival(entry, 0.0)


def test_settings_are_checked() -> None:
    """Missing classes and shares of more than everything are refused at the start."""
    limits = ProcessLimits(100)
    with pytest.raises(ValueError, match="no settings for class normal, low"):
        Scheduler([], {HIGH: make_class()}, limits)
    with pytest.raises(ValueError, match="min_share"):
        Scheduler([], dict.fromkeys(Priority, make_class(min_share=0.5)), limits)


def test_unknown_model_is_a_key_error() -> None:
    """For everything but arrivals."""
    with pytest.raises(KeyError):
        make_scheduler().on_replicas("x", [], 0.0)


def test_snapshot_is_json() -> None:
    """Every number that metrics and people need, per model and class."""
    scheduler = make_scheduler(profile=AFFINE, max_rows=2, window=1)
    accept(scheduler, make_entry(HIGH, rows=2, nbytes=3))
    scheduler.decide(0.0)
    accept(scheduler, make_entry(LOW, rows=1, nbytes=4))
    picture = json.loads(json.dumps(scheduler.snapshot()))["m"]

    assert picture == {
        "queues": {
            "high": {"entries": 0, "rows": 0, "bytes": 0},
            "normal": {"entries": 0, "rows": 0, "bytes": 0},
            "low": {"entries": 1, "rows": 1, "bytes": 4},
        },
        "overhead_s": 0.002,
        "running_rows": 2,
        "replicas": ["a"],
        "held_replicas": [],
        "slots_in_use": 1,
        "latency_s": {"0": {"1": pytest.approx(0.006), "2": pytest.approx(0.007)}},
        "wasted_rows": 0,
        "silent_replicas": [],
    }
    assert json.loads(json.dumps(scheduler.totals())) == {
        "bytes": 7,
        "bundles": 1,
        "classes": {
            "high": {"entries": 0, "bytes": 0},
            "normal": {"entries": 0, "bytes": 0},
            "low": {"entries": 1, "bytes": 4},
        },
    }
