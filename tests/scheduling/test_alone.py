"""A model on its own: what is sent ahead to its replicas' gates, where to and when; and what comes back."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduling_builders import (
    AFFINE,
    HIGH,
    LOW,
    NORMAL,
    Policy,
    accept,
    make_entry,
    make_scheduler,
    queued_rows,
    used_to_rows,
)

from serve_app.domain.priority import Priority
from serve_app.pools.policy.settings import Pool
from serve_app.scheduling.decisions import Decisions, Dispatch
from serve_app.scheduling.entry import EntryState
from serve_app.scheduling.scheduler import Scheduler
from serve_app.scheduling.settings import ModelScheduling

_COALESCE_S = 0.006 / 16
"""A sixteenth of one row's execution."""


def _bundles(scheduler: Scheduler, now: float = 0.0) -> list[list[int]]:
    """Decide; ids of the entries of each bundle."""
    return [[entry.id for entry in dispatch.entries] for dispatch in scheduler.decide(now).dispatches]


def _only(scheduler: Scheduler, now: float = 0.0) -> Dispatch:
    (dispatch,) = scheduler.decide(now).dispatches
    return dispatch


def _busy(rows: int = 8, priority: Priority = NORMAL, **settings: object) -> tuple[Scheduler, Dispatch]:
    """A scheduler whose one replica has got a bundle of one row at time 0; up to so many rows travel together."""
    scheduler = make_scheduler(profile=AFFINE, **settings)  # type: ignore[arg-type]
    used_to_rows(scheduler, rows, now=-1.0)
    accept(scheduler, make_entry(priority))
    return scheduler, _only(scheduler)


# ------------------------------------------------------------------ when


def test_what_comes_goes_at_once_to_an_idle_replica() -> None:
    """Whatever the policy: waiting is the gate's business."""
    policies: tuple[Policy, Policy] = ("auto", "eager")
    for policy in policies:
        scheduler = make_scheduler(policy=policy, profile=AFFINE)
        (entry,) = accept(scheduler, make_entry())
        assert _bundles(scheduler) == [[entry.id]]


def test_what_comes_for_a_busy_replica_travels_together() -> None:
    """For a sixteenth of an execution; `wake_at` says until when."""
    scheduler, _ = _busy()
    first, second = accept(scheduler, make_entry(), make_entry(), now=0.0002)
    assert _bundles(scheduler, 0.0002) == []
    assert scheduler.wake_at == pytest.approx(_COALESCE_S)
    assert _bundles(scheduler, 0.0003) == []

    assert _bundles(scheduler, _COALESCE_S) == [[first.id, second.id]]


def test_what_comes_shortly_before_the_replica_is_free_goes_at_once() -> None:
    """Later, it would miss the next batch: the run of one row ends 6 ms after it was sent."""
    scheduler, _ = _busy()
    for now in (0.005, 0.0057, 0.0058):
        (entry,) = accept(scheduler, make_entry(), now=now)
        assert _bundles(scheduler, now) == [[entry.id]]


def test_a_light_model_gets_what_comes_within_a_millisecond_together() -> None:
    """A sixteenth of its execution is less than a bundle costs."""
    scheduler = make_scheduler(profile=[(rows, 0, 0.0001 + 0.00001 * rows) for rows in (1, 2, 4, 8)])
    used_to_rows(scheduler, 8, now=-1.0)
    accept(scheduler, make_entry())
    _only(scheduler)
    (first,) = accept(scheduler, make_entry(), now=0.0002)
    assert _bundles(scheduler, 0.0009) == []
    (second,) = accept(scheduler, make_entry(), now=0.0009)
    assert _bundles(scheduler, 0.001) == [[first.id, second.id]]


def test_what_comes_long_after_the_last_bundle_goes_at_once() -> None:
    """The replica is busy; nothing was sent for a while."""
    scheduler, _ = _busy()
    (entry,) = accept(scheduler, make_entry(), now=0.002)

    assert _bundles(scheduler, 0.002) == [[entry.id]]


def test_what_is_more_urgent_than_all_that_is_there_goes_at_once() -> None:
    """It may be next. What is less urgent rides along as far as there is room in the bundle."""
    scheduler, _ = _busy()
    normal, high, low = accept(scheduler, make_entry(), make_entry(HIGH), make_entry(LOW), now=0.0001)
    assert _bundles(scheduler, 0.0001) == [[high.id, normal.id, low.id]]
    accept(scheduler, make_entry(HIGH), now=0.0002)

    assert _bundles(scheduler, 0.0002) == []


def test_what_fills_a_bundle_goes_at_once() -> None:
    """A usual batch has 16 rows, a bundle half of them."""
    scheduler, _ = _busy()
    entries = accept(scheduler, *(make_entry() for _ in range(19)), now=0.0001)

    assert _bundles(scheduler, 0.0001) == [
        [entry.id for entry in entries[:8]],
        [entry.id for entry in entries[8:16]],
    ]
    assert _bundles(scheduler, 0.0001 + _COALESCE_S) == [[entry.id for entry in entries[16:]]]


def test_an_answer_lets_what_waits_go() -> None:
    """The replica may be idle."""
    scheduler, running = _busy()
    (entry,) = accept(scheduler, make_entry(), now=0.0001)
    assert _bundles(scheduler, 0.0001) == []
    scheduler.on_done(running.bundle_id, [(1, 0, 0.0001, "")], 0.0002)

    assert _bundles(scheduler, 0.0002) == [[entry.id]]


def test_nothing_to_send_asks_for_nothing() -> None:
    """The moment for what was cancelled is forgotten."""
    scheduler, running = _busy()
    (entry,) = accept(scheduler, make_entry(), now=0.0001)
    scheduler.decide(0.0001)
    scheduler.on_cancel(entry, 0.0002)
    scheduler.decide(0.0002)

    assert scheduler.wake_at == running.entries[0].deadline


# ------------------------------------------------------------------ what


def test_a_bundle_for_a_busy_replica_is_a_part_of_a_usual_batch() -> None:
    """Half of it: the gate may take some of it and send the rest back. An idle one takes a full batch."""
    for rows, most in ((1, 2), (2, 2), (8, 8), (40, 32)):
        scheduler, _ = _busy(rows)
        accept(scheduler, *(make_entry() for _ in range(40)), now=0.002)
        assert max(map(len, _bundles(scheduler, 0.002))) == most
    scheduler = make_scheduler(profile=AFFINE)
    accept(scheduler, *(make_entry() for _ in range(40)))

    assert len(_bundles(scheduler)[0]) == 32


def test_bundles_of_a_light_model_hold_what_takes_5_ms() -> None:
    """Smaller ones would cost their processes more than their rows do."""
    profile = [(rows, 0, 0.0002 * rows) for rows in (1, 32)]
    scheduler = make_scheduler(profile=profile)
    accept(scheduler, make_entry())
    _only(scheduler)
    accept(scheduler, *(make_entry() for _ in range(40)), now=0.002)

    assert max(map(len, _bundles(scheduler, 0.002))) == 25


def test_bundles_follow_what_batches_usually_have() -> None:
    """Smaller ones again when there is less to do."""
    scheduler = make_scheduler(profile=AFFINE)
    used_to_rows(scheduler, 8)
    for step in range(1, 60):
        accept(scheduler, make_entry(deadline=step + 10.0), now=float(step))
        scheduler.on_done(_only(scheduler, float(step)).bundle_id, [(1, 0, 0.006, "")], step + 0.01)
    accept(scheduler, *(make_entry(deadline=80.0, rows=32) for _ in range(1)), now=60.0)
    scheduler.decide(60.0)
    accept(scheduler, *(make_entry(deadline=80.0) for _ in range(8)), now=61.0)

    assert max(map(len, _bundles(scheduler, 61.0))) == 2


def test_a_bundle_says_what_it_is() -> None:
    """Its rows, its largest bucket, its variant, whether a fallback may stand in, and when it may be done."""
    scheduler = make_scheduler(profile=AFFINE)
    used_to_rows(scheduler, 8)
    entries = accept(scheduler, make_entry(rows=3, bucket=0), make_entry(rows=1, bucket=64))
    bundle = _only(scheduler)

    assert bundle == Dispatch(2, "m", "a", entries, 4, 64, bundle.predicted_s, "", exact=False, overhead_s=0.002)
    assert bundle.predicted_s == pytest.approx(scheduler.latency("m").predict(4, 64))
    for now, entry in ((1.0, make_entry(exact=True)), (2.0, make_entry(variant="light"))):
        accept(scheduler, entry, now=now)
        again = _only(scheduler, now)
        assert (again.variant, again.exact) == (entry.variant, True)


def test_what_is_cut_travels_alone() -> None:
    """Nobody waits for the answer to all of its rows, and order is kept; rows of a model without buckets are joined."""
    for bucket, alone in ((64, True), (0, False)):
        scheduler = make_scheduler()
        used_to_rows(scheduler, 8)
        entries = accept(
            scheduler,
            *(make_entry(deadline=1.0 + at, rows=rows, bucket=bucket) for at, rows in enumerate((1, 1, 3, 2, 1))),
        )
        first, second, cut, too, last = (entry.id for entry in entries)

        together = [[first, second], [cut], [too], [last]] if alone else [[first, second, cut, too, last]]
        assert _bundles(scheduler) == together


def test_what_is_cut_travels_alone_whosever_it_is() -> None:
    """Entries of other tenants are dealt into other bundles."""
    scheduler = make_scheduler(profile=[(1, 64, 0.006), (32, 64, 0.037)])
    used_to_rows(scheduler, 8)
    accept(
        scheduler,
        *(make_entry(rows=rows, bucket=64, tenant=tenant) for tenant in ("x", "y") for rows in (1, 3, 1)),
    )
    bundles = scheduler.decide(0.0).dispatches

    assert [sorted(entry.rows for entry in dispatch.entries) for dispatch in bundles] == [[1, 1], [3], [3], [1, 1]]


def test_variants_never_share_a_bundle() -> None:
    """The earliest deadline first."""
    scheduler = make_scheduler()
    used_to_rows(scheduler, 8)
    entries = accept(scheduler, *(make_entry(deadline=1.0 + at, variant=("light", "")[at % 2]) for at in range(8)))

    assert _bundles(scheduler) == [[entry.id for entry in entries[::2]], [entry.id for entry in entries[1::2]]]


def test_an_entry_larger_than_a_bundle_goes_alone() -> None:
    """It cannot be sent in parts."""
    scheduler = make_scheduler()
    used_to_rows(scheduler, 4)
    big, small = accept(scheduler, make_entry(deadline=1.0, rows=100), make_entry(deadline=2.0))

    assert _bundles(scheduler) == [[big.id]], "there is no more room"
    assert small.state is EntryState.QUEUED


def test_what_is_predicted_to_be_late_is_sent_all_the_same() -> None:
    """The gate knows best what can be in time."""
    scheduler, _ = _busy()
    accept(scheduler, make_entry(deadline=0.05), now=0.04)

    assert _only(scheduler, 0.04).rows == 1
    assert scheduler.decide(0.045) == Decisions([], [], [])


# ------------------------------------------------------------------ where


def test_the_replica_where_it_begins_first_gets_it() -> None:
    """What runs there ends first, or what is ahead of it there."""
    scheduler = make_scheduler(replicas=("a", "b"), profile=AFFINE)
    sent = []
    for rows in (4, 2, 3):
        accept(scheduler, make_entry(rows=rows))
        sent.append(_only(scheduler))

    assert sent[2].replica == sent[1].replica != sent[0].replica


def test_no_more_than_the_window_goes() -> None:
    """Two full batches of four rows per replica; more urgent classes have room of their own."""
    scheduler = make_scheduler(max_rows=4, window=2, replicas=("a", "b"), profile=AFFINE)
    accept(scheduler, *(make_entry(LOW) for _ in range(40)))
    for _ in range(40):
        scheduler.decide(1.0)
    assert queued_rows(scheduler) == {"high": 0, "normal": 0, "low": 24}
    accept(scheduler, *(make_entry(NORMAL, rows=2) for _ in range(12)), now=1.0)
    scheduler.decide(1.0)
    accept(scheduler, *(make_entry(HIGH, rows=2) for _ in range(12)), now=1.0)
    scheduler.decide(1.0)

    assert queued_rows(scheduler) == {"high": 8, "normal": 8, "low": 24}


def test_a_retry_travels_alone_and_elsewhere() -> None:
    """At once, although its replica is busy; fresh ones go as ever."""
    scheduler = make_scheduler(replicas=("a", "b"), profile=AFFINE)
    used_to_rows(scheduler, 8)
    first, second = accept(scheduler, make_entry(), make_entry())
    failed = _only(scheduler)
    scheduler.on_failed(failed.bundle_id, 0.001, replica_lost=False)
    again = _only(scheduler, 0.001)
    assert (again.entries, again.replica == failed.replica) == ([first], False)
    assert _bundles(scheduler, 0.001) == [], "one such bundle at a time, and not where it failed"
    scheduler.on_done(again.bundle_id, [(1, 0, 0.006, "")], 0.01)

    assert _only(scheduler, 0.01).entries == [second]


def test_a_retry_does_not_keep_fresh_entries_back() -> None:
    """It waits for another replica; they have room where it failed."""
    scheduler = make_scheduler(replicas=("a", "b"), max_rows=1, window=1, profile=AFFINE)
    accept(scheduler, make_entry(deadline=5.0), make_entry(deadline=6.0))
    one, _ = scheduler.decide(0.0).dispatches
    scheduler.on_failed(one.bundle_id, 0.01, replica_lost=False)
    (fresh,) = accept(scheduler, make_entry(deadline=7.0), now=0.01)
    sent = _only(scheduler, 0.01)

    assert (sent.entries, sent.replica) == ([fresh], one.replica)


# ------------------------------------------------------------------ what comes back


def test_what_was_not_run_is_queued_again_as_fresh() -> None:
    """It may share a bundle and fail twice more; it is not answered, and nothing was wasted."""
    scheduler = make_scheduler(profile=AFFINE, replicas=("a", "b", "c"))
    used_to_rows(scheduler, 8)
    ran, back, too = accept(scheduler, *(make_entry(nbytes=1) for _ in range(3)))
    sent = _only(scheduler)

    assert scheduler.on_done(sent.bundle_id, [(1, 0, 0.006, "")], 0.01, returned=[back, too]) == [ran]
    assert [(entry.state, entry.attempts, entry.avoid) for entry in (back, too)] == [(EntryState.QUEUED, 0, None)] * 2
    assert (scheduler.totals()["bytes"], scheduler.snapshot()["m"]["wasted_rows"]) == (2, 0)
    again = _only(scheduler, 0.01)
    assert (again.entries, back.attempts) == ([back, too], 1)
    assert scheduler.on_failed(again.bundle_id, 0.02, replica_lost=False).requeued == [back, too]


def test_a_retry_that_was_not_run_keeps_its_one_try() -> None:
    """And still travels alone, away from where it failed."""
    scheduler = make_scheduler(profile=AFFINE, replicas=("a", "b"))
    (entry,) = accept(scheduler, make_entry())
    failed = _only(scheduler)
    scheduler.on_failed(failed.bundle_id, 0.01, replica_lost=False)
    second = _only(scheduler, 0.01)
    scheduler.on_done(second.bundle_id, [], 0.02, returned=[entry])
    accept(scheduler, make_entry(deadline=20.0), now=0.02)
    third, fresh = scheduler.decide(0.02).dispatches

    assert (third.entries, third.replica, entry.attempts) == ([entry], second.replica, 2)
    assert fresh.entries != [entry]
    assert scheduler.on_failed(third.bundle_id, 0.03, replica_lost=False).poisoned == [entry]


def test_what_comes_back_too_late_expires() -> None:
    """It is reported once, by the next decision."""
    scheduler = make_scheduler(profile=AFFINE)
    (entry,) = accept(scheduler, make_entry(deadline=1.0, nbytes=1))
    sent = _only(scheduler)

    assert scheduler.on_done(sent.bundle_id, [], 1.5, returned=[entry]) == []
    assert scheduler.decide(1.5) == Decisions([], [entry], [])
    assert (entry.state, scheduler.totals()["bytes"]) == (EntryState.DONE, 0)
    assert scheduler.decide(1.5) == Decisions([], [], [])


def test_what_was_cancelled_meanwhile_is_forgotten() -> None:
    """Nobody waits for it."""
    scheduler = make_scheduler(profile=AFFINE)
    (entry,) = accept(scheduler, make_entry(nbytes=1))
    sent = _only(scheduler)
    scheduler.on_cancel(entry, 0.01)

    assert scheduler.on_done(sent.bundle_id, [], 0.02, returned=[entry]) == []
    assert scheduler.decide(0.02) == Decisions([], [], [])
    assert (scheduler.totals()["bytes"], scheduler.load("m"), scheduler.wake_at) == (0, 0, None)


def test_an_answer_that_comes_twice_is_ignored() -> None:
    """So is one to a bundle that was never sent."""
    scheduler = make_scheduler(profile=AFFINE)
    (entry,) = accept(scheduler, make_entry(nbytes=1))
    sent = _only(scheduler)
    scheduler.on_done(sent.bundle_id, [], 0.01, returned=[entry])

    assert scheduler.on_done(sent.bundle_id, [], 0.01, returned=[entry]) == []
    assert scheduler.on_done(10**6, [], 0.01, returned=[entry]) == []
    assert queued_rows(scheduler)["normal"] == 1
    assert _bundles(scheduler, 0.01) == [[entry.id]]


def test_what_comes_back_after_a_time_out_is_elsewhere_already() -> None:
    """The late answer ends the quarantine and no more."""
    scheduler = make_scheduler(profile=AFFINE, replicas=("a", "b"))
    (entry,) = accept(scheduler, make_entry(deadline=60.0))
    stuck = _only(scheduler)
    scheduler.on_timeout(stuck.bundle_id, 5.0)
    again = _only(scheduler, 5.0)

    assert scheduler.on_done(stuck.bundle_id, [], 6.0, returned=[entry]) == []
    assert (scheduler.usable("m"), scheduler.decide(6.0).dispatches) == (2, [])
    assert scheduler.on_done(again.bundle_id, [(1, 0, 0.006, "")], 6.5) == [entry]


def test_what_a_wake_up_bundle_brings_back_is_fresh() -> None:
    """It was never counted as a try."""
    scheduler = make_scheduler(replicas=())
    used_to_rows(scheduler, 8)
    first, second = accept(scheduler, make_entry(), make_entry())
    wake_up = _only(scheduler)
    scheduler.on_replicas("m", ["a"], 1.0)
    scheduler.on_done(wake_up.bundle_id, [], 1.0, returned=[first, second])

    assert (first.attempts, second.attempts) == (0, 0)
    assert _only(scheduler, 1.0).entries == [first, second]


@pytest.mark.parametrize("pooled", [False, True])
def test_a_copy_that_comes_back_leaves_its_request_to_the_other(pooled: bool) -> None:
    """The one that was sent first: its hedge is queued or runs. It ends once, with the hedge or at its deadline."""
    for ends in ("answered", "expired", "cancelled", "failed"):
        scheduler = make_scheduler(
            profile=AFFINE, replicas=("a", "b"), pool=Pool("g", ("m",), 1, 9) if pooled else None
        )
        (entry,) = accept(scheduler, make_entry(deadline=60.0, nbytes=7))
        first = _only(scheduler)
        scheduler.on_unresponsive("m", str(first.replica), 1.0)
        hedge = _only(scheduler, 1.0)
        assert scheduler.on_done(first.bundle_id, [], 2.0, returned=[entry]) == []
        assert _bundles(scheduler, 2.0) == []
        if ends == "answered":
            assert [e.id for e in scheduler.on_done(hedge.bundle_id, [(1, 0, 0.006, "")], 3.0)] == [entry.id]
        elif ends == "expired":
            assert [e.id for e in scheduler.decide(60.0).expired] == [entry.id]
        elif ends == "cancelled":
            scheduler.on_cancel(entry, 3.0)
        else:
            assert [e.id for e in scheduler.on_failed(hedge.bundle_id, 3.0, replica_lost=False).poisoned] == [entry.id]
        assert (entry.state, scheduler.totals()["bytes"]) == (EntryState.DONE, 0)


def test_a_hedge_that_comes_back_is_queued_again() -> None:
    """Its gate had others to run; the first copy still runs."""
    scheduler = make_scheduler(profile=AFFINE, replicas=("a", "b"))
    (entry,) = accept(scheduler, make_entry(deadline=60.0, nbytes=7))
    first = _only(scheduler)
    scheduler.on_unresponsive("m", str(first.replica), 1.0)
    hedge = _only(scheduler, 1.0)
    assert scheduler.on_done(hedge.bundle_id, [], 2.0, returned=list(hedge.entries)) == []
    again = _only(scheduler, 2.0)

    assert ([e.id for e in again.entries], again.replica) == ([entry.id], hedge.replica)
    assert scheduler.on_done(first.bundle_id, [(1, 0, 0.006, "")], 3.0) == [entry]
    assert scheduler.on_done(again.bundle_id, [(1, 0, 0.006, "")], 3.0) == []
    assert scheduler.totals()["bytes"] == 0


# ------------------------------------------------------------------ any sequence


@given(
    offered=st.lists(
        st.tuples(
            st.sampled_from([0.0, 0.0002, 0.001, 0.02]),
            st.sampled_from(Priority),
            st.integers(1, 9),
            st.sampled_from(["arrive", "arrive", "arrive", "answer", "return"]),
        ),
        min_size=1,
        max_size=80,
    ),
    window=st.integers(1, 3),
    usual=st.integers(1, 12),
)
def test_rows_in_flight_are_bounded_and_nothing_waits_beside_an_idle_replica(
    offered: list[tuple[float, Priority, int, str]], window: int, usual: int
) -> None:
    """Per class the window and one entry more, whatever comes back; and what waits has a moment when it goes."""
    model = ModelScheduling("m", 8, 0.1, window)
    scheduler = make_scheduler(models=[model], profile=AFFINE)
    used_to_rows(scheduler, usual)
    part = max(2, min(8, usual))
    in_flight: dict[int, Dispatch] = {}
    now = 1.0
    for gap, priority, rows, what in offered:
        now += gap
        if what == "arrive" or not in_flight:
            accept(scheduler, make_entry(priority, 1e6, rows=rows), now=now)
        else:
            done = in_flight.pop(min(in_flight))
            back = done.entries[1:] if what == "return" else []
            scheduler.on_done(done.bundle_id, [(2 * usual, 0, 0.006, "")], now, returned=back)
        for dispatch in scheduler.decide(now).dispatches:
            latency = scheduler.latency("m")
            per_row_s = min(latency.predict(each) / each for each in range(1, 25))
            light = min(8, int(0.005 / per_row_s))
            assert dispatch.rows <= (max(part, light) if in_flight else 8) or len(dispatch.entries) == 1
            in_flight[dispatch.bundle_id] = dispatch
        queued = scheduler.queue_lengths("m")
        there = 0
        for up_to in Priority:
            own = sum(entry.rows for each in in_flight.values() for entry in each.entries if entry.priority is up_to)
            assert own < window * 8 + 9
            there += own
            if queued[up_to].rows:
                assert there >= window * 8 or (scheduler.wake_at or inf) <= now + 0.001, "it has room"
        assert in_flight or not sum(length.rows for length in queued.values())
