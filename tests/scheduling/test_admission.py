"""Admission: what is refused before it is queued, and why."""

from __future__ import annotations

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
)

from serve_app.domain.priority import Priority
from serve_app.pools.policy.settings import Pool
from serve_app.scheduling.decisions import Rejection
from serve_app.scheduling.entry import EntryState
from serve_app.scheduling.scheduler import Scheduler
from serve_app.scheduling.settings import ProcessLimits


def _code(rejection: Rejection | None) -> str | None:
    return rejection and rejection.code


def test_full_queue_rejects_with_a_reason() -> None:
    """By count: the message names the class, the limit and when to come back."""
    scheduler = make_scheduler(normal=make_class(entries=2))
    accept(scheduler, make_entry(), make_entry())
    entry = make_entry()
    rejection = scheduler.on_arrival(entry, 0.0)

    assert rejection == Rejection(
        "queue_full", "the queue of class normal is full (2 of 2 requests queued); try again in 1.0 s", 1.0
    )
    assert entry.state is EntryState.DONE


def test_limits_count_all_models_together() -> None:
    """A class has one limit per process."""
    scheduler = make_scheduler(models=("m", "n"), normal=make_class(entries=2))
    accept(scheduler, make_entry(model="m"), make_entry(model="n"))

    assert _code(scheduler.on_arrival(make_entry(model="n"), 0.0)) == "queue_full"
    assert scheduler.totals()["classes"]["normal"] == {"entries": 2, "bytes": 0}


def test_full_queue_by_bytes() -> None:
    """Bytes are a limit of their own."""
    scheduler = make_scheduler(normal=make_class(nbytes=100))
    accept(scheduler, make_entry(nbytes=60))
    rejection = scheduler.on_arrival(make_entry(nbytes=50), 0.0)

    assert rejection is not None
    assert rejection.message == ("the queue of class normal is full (60 of 100 bytes queued); try again in 1.0 s")
    accept(scheduler, make_entry(nbytes=40))


def test_what_can_never_fit_is_told_so() -> None:
    """There is no point in trying again."""
    scheduler = make_scheduler(normal=make_class(nbytes=100))
    rejection = scheduler.on_arrival(make_entry(nbytes=101), 0.0)

    message = (
        "the request has 101 bytes; class normal queues at most 100 bytes"
        " (classes.normal.queue_bytes, router.limits.max_bytes)"
    )
    assert rejection == Rejection("queue_full", message, None)


def test_retry_after_follows_the_predicted_drain() -> None:
    """64 rows at 37 ms per 32 on one replica."""
    scheduler = make_scheduler(normal=make_class(entries=16), profile=AFFINE)
    accept(scheduler, *[make_entry(deadline=100.0, rows=4) for _ in range(16)])
    rejection = scheduler.on_arrival(make_entry(deadline=100.0), 0.0)

    assert rejection is not None
    assert rejection.retry_after_s == pytest.approx(0.1)
    accept(scheduler, *[make_entry(HIGH, deadline=100.0, rows=32) for _ in range(20)])
    rejection = scheduler.on_arrival(make_entry(deadline=100.0), 0.0)
    assert rejection is not None
    assert rejection.retry_after_s == pytest.approx(22 * 0.037)


def test_overflow_demotes_down_the_classes_and_keeps_the_deadline() -> None:
    """High overflows into normal, normal into low, low rejects."""
    scheduler = make_scheduler(
        high=make_class(entries=1, overflow="demote"),
        normal=make_class(entries=1, overflow="demote"),
        low=make_class(entries=1, overflow="demote"),
    )
    entries = accept(scheduler, *[make_entry(HIGH, 7.0) for _ in range(3)])

    assert [entry.priority for entry in entries] == list(Priority)
    assert {entry.deadline for entry in entries} == {7.0}
    assert _code(scheduler.on_arrival(make_entry(HIGH), 0.0)) == "queue_full"
    assert queued_rows(scheduler) == {"high": 1, "normal": 1, "low": 1}


def test_demotion_stops_at_a_class_that_rejects() -> None:
    """Normal's own overflow rule holds for what was demoted into it."""
    scheduler = make_scheduler(high=make_class(entries=1, overflow="demote"), normal=make_class(entries=0))
    accept(scheduler, make_entry(HIGH))

    assert _code(scheduler.on_arrival(make_entry(HIGH), 0.0)) == "queue_full"


def test_total_bytes_include_what_runs_until_it_ends() -> None:
    """Dispatching frees the queue, not the memory."""
    scheduler = make_scheduler(limits=ProcessLimits(total_bytes=100, high_headroom=0.0))
    accept(scheduler, make_entry(nbytes=80))
    bundle = scheduler.decide(0.0).dispatches[0]

    assert _code(scheduler.on_arrival(make_entry(nbytes=30), 0.0)) == "queue_full"
    scheduler.on_done(bundle.bundle_id, [], 1.0)
    accept(scheduler, make_entry(nbytes=100))


def test_headroom_is_kept_for_high() -> None:
    """A flood of low cannot lock high out of the process."""
    scheduler = make_scheduler(limits=ProcessLimits(total_bytes=100, high_headroom=0.2))
    accept(scheduler, make_entry(LOW, nbytes=80))

    assert _code(scheduler.on_arrival(make_entry(NORMAL, nbytes=1), 0.0)) == "queue_full"
    accept(scheduler, make_entry(HIGH, nbytes=20))
    assert _code(scheduler.on_arrival(make_entry(HIGH, nbytes=1), 0.0)) == "queue_full"


def test_deadline_in_the_past_is_refused() -> None:
    """Equal is past."""
    scheduler = make_scheduler()

    assert _code(scheduler.on_arrival(make_entry(deadline=5.0), 5.0)) == "deadline_exceeded"
    assert _code(scheduler.on_arrival(make_entry(deadline=float("nan")), 5.0)) == "deadline_exceeded"


def test_unknown_model_is_refused() -> None:
    """By name, early and late."""
    scheduler = make_scheduler()

    assert _code(scheduler.on_arrival(make_entry(model="x"), 0.0)) == "model_not_found"
    assert _code(scheduler.precheck("x", NORMAL, 0, 0.0)) == "model_not_found"


def test_precheck_agrees_with_arrival_and_reserves_nothing() -> None:
    """It refuses what has no room in any class that it may use."""
    scheduler = make_scheduler(high=make_class(entries=1, overflow="demote"), normal=make_class(entries=1))
    for _ in range(5):
        assert scheduler.precheck("m", HIGH, 10, 0.0) is None
    accept(scheduler, make_entry(HIGH))
    assert scheduler.precheck("m", HIGH, 10, 0.0) is None
    accept(scheduler, make_entry(NORMAL))

    assert _code(scheduler.precheck("m", HIGH, 10, 0.0)) == "queue_full"
    assert _code(scheduler.precheck("m", NORMAL, 10, 0.0)) == "queue_full"
    assert scheduler.precheck("m", LOW, 10, 0.0) is None


def _backlog(scheduler: Scheduler, priority: Priority = NORMAL, deadline: float = 100.0, rows: int = 320) -> None:
    accept(scheduler, *[make_entry(priority, deadline, rows=32) for _ in range(rows // 32)])


def test_work_ahead_is_no_reason_to_refuse() -> None:
    """What waits longest may have to be given up for the newest: that is known when a bundle is put together."""
    scheduler = make_scheduler(profile=AFFINE)
    _backlog(scheduler, HIGH)
    _backlog(scheduler, deadline=0.05)

    accept(scheduler, make_entry(deadline=0.05), make_entry(LOW, deadline=0.01))


def _drain_s(scheduler: Scheduler) -> float | None:
    """What a client is told that finds no room in class normal, seconds."""
    rejection = scheduler.precheck("m", NORMAL, 0, 0.0)
    return rejection and rejection.retry_after_s


def test_replicas_share_the_backlog() -> None:
    """Twice the replicas, half the wait; lower classes do not count."""
    for replicas, seconds in ((("a",), 0.37), (("a", "b"), 0.185)):
        scheduler = make_scheduler(profile=AFFINE, replicas=replicas, normal=make_class(entries=0))
        _backlog(scheduler, HIGH)
        _backlog(scheduler, LOW)
        assert _drain_s(scheduler) == pytest.approx(seconds)


def test_without_replicas_waiting_is_not_predicted() -> None:
    """How long a start takes is not the latency model's to say."""
    scheduler = make_scheduler(profile=AFFINE, replicas=(), normal=make_class(entries=0))
    _backlog(scheduler, HIGH)

    assert _drain_s(scheduler) == 1.0


def test_running_work_counts() -> None:
    """Bundles in flight come before anything queued."""
    scheduler = make_scheduler(profile=AFFINE, window=1, normal=make_class(entries=0))
    accept(scheduler, make_entry(HIGH, rows=320))
    scheduler.decide(0.0)

    assert _drain_s(scheduler) == pytest.approx(0.37)


def test_members_of_a_pool_wait_for_each_other() -> None:
    """What is queued for one of them, or runs, is ahead of the other's entries."""
    for pool, seconds in ((None, 0.1), (Pool("g", ("m", "n"), 1, 9), 0.37)):
        for runs in (False, True):
            scheduler = make_scheduler(models=("m", "n"), profile=AFFINE, pool=pool, normal=make_class(entries=0))
            accept(scheduler, make_entry(HIGH, model="n", rows=320))
            if runs:
                scheduler.decide(0.0)
            assert _drain_s(scheduler) == pytest.approx(seconds)


def test_a_deadline_that_is_too_short_in_any_case_is_no_matter_of_load() -> None:
    """Trying again is of no use, and nobody says when."""
    scheduler = make_scheduler(profile=[(1, 0, 6.1)], max_rows=1)
    accept(scheduler, make_entry(deadline=5.0), make_entry(deadline=60.0))  # the first as a probe
    named = scheduler.on_arrival(make_entry(deadline=5.0), 0.0)
    default = scheduler.on_arrival(make_entry(deadline=5.0, default_of=NORMAL), 0.0)

    assert named == (
        "deadline_exceeded",
        (
            "the model takes about 6.1 s alone; this request allows 5 s: name a longer deadline (X-Timeout-Ms,"
            " parameters.timeout)"
        ),
        None,
    )
    assert default == (
        "deadline_exceeded",
        (
            "the model takes about 6.1 s alone; class normal allows 5 s: name a longer deadline (X-Timeout-Ms,"
            " parameters.timeout) or raise classes.normal.timeout_ms"
        ),
        None,
    )


def test_without_predictions_nothing_is_refused_for_its_deadline() -> None:
    """Never reject blindly."""
    scheduler = make_scheduler()
    _backlog(scheduler)

    accept(scheduler, make_entry(LOW, 0.001))


def test_too_slow_a_model_is_still_measured() -> None:
    """One entry passes now and then although its own execution is predicted to be too long."""
    scheduler = make_scheduler(profile=[(1, 0, 5.0)])
    outcomes = [scheduler.on_arrival(make_entry(deadline=1.0), 0.0) is None for _ in range(30)]

    assert outcomes == ([True] + [False] * 9) * 3
    assert scheduler.on_arrival(make_entry(deadline=3.0), 1.5) is None


def test_wrong_prediction_heals_by_probes() -> None:
    """After one absurd profile the model is served normally again, by what its probes measure."""
    scheduler = make_scheduler(profile=[(1, 0, 5.0)])
    now = 0.0
    accepted = 0
    for _ in range(400):
        now += 0.1
        if scheduler.on_arrival(make_entry(deadline=now + 0.5, arrival=now), now) is None:
            accepted += 1
        for bundle in scheduler.decide(now).dispatches:
            scheduler.on_done(bundle.bundle_id, [(bundle.rows, 0, 0.010, "")], now + 0.01)

    assert accepted > 300
    assert scheduler.latency("m").predict(1) == pytest.approx(0.010)


def test_admission_predicts_with_the_variant_asked_for() -> None:
    """What the exact model cannot do in time a light variant can; one never seen counts as exact."""
    scheduler = make_scheduler(profile=[(1, 0, 0.2)], max_rows=1, window=1)
    scheduler.seed("m", [(1, 0, 0.05, "int8")])
    accept(scheduler, make_entry(deadline=0.1), make_entry(deadline=0.9, variant="int8"))  # the first as a probe

    assert scheduler.on_arrival(make_entry(HIGH, 0.1, variant="int8"), 0.0) is None
    assert _code(scheduler.on_arrival(make_entry(deadline=0.1), 0.0)) == "deadline_exceeded"
    assert _code(scheduler.on_arrival(make_entry(deadline=0.1, variant="new"), 0.0)) == "deadline_exceeded"


def test_what_could_not_be_in_time_even_alone_is_refused() -> None:
    """Except for one in ten."""
    scheduler = make_scheduler(profile=AFFINE)
    outcomes = [_code(scheduler.on_arrival(make_entry(deadline=0.0079), 0.0)) for _ in range(20)]

    assert outcomes == ([None] + ["deadline_exceeded"] * 9) * 2
    assert scheduler.on_arrival(make_entry(deadline=0.0081), 0.0) is None


def test_a_probe_is_executed_although_it_will_be_late() -> None:
    """Otherwise nothing would be measured."""
    scheduler = make_scheduler(profile=[(1, 0, 5.0)])
    (probe,) = accept(scheduler, make_entry(deadline=1.0))

    assert probe.probe
    decisions = scheduler.decide(0.0)
    assert [dispatch.entries for dispatch in decisions.dispatches] == [[probe]]
    assert decisions.given_up == []


def test_a_fallback_makes_a_deadline_reachable() -> None:
    """Unless the client wants the exact model."""
    scheduler = make_scheduler(profile=[(1, 0, 0.2)], max_rows=1, fallbacks=("int8",))
    scheduler.seed("m", [(1, 0, 0.05, "int8")])
    accept(scheduler, make_entry(deadline=0.1, exact=True))  # as a probe

    assert scheduler.on_arrival(make_entry(HIGH, 0.1), 0.0) is None
    assert _code(scheduler.on_arrival(make_entry(HIGH, 0.1, exact=True), 0.0)) == "deadline_exceeded"
    assert _code(scheduler.on_arrival(make_entry(HIGH, 0.04), 0.0)) == "deadline_exceeded"


def test_entries_take_no_less_than_they_do_at_all_replicas_at_once() -> None:
    """In batches as large as there may be."""
    assert [make_scheduler(profile=AFFINE).least_s("m", entries) for entries in (1, 32, 64)] == pytest.approx(
        [0.006, 0.037, 0.074]
    )
    two = make_scheduler(profile=AFFINE, replicas=("a", "b"))
    assert [two.least_s("m", entries) for entries in (1, 64, 65)] == pytest.approx([0.006, 0.037, 0.043])
    pool = Pool("pool", ("m", "n"), concurrency=3, memory_bytes=9)
    shared = make_scheduler(models=("m", "n"), pool=pool, profile=AFFINE, replicas=("a",))
    assert shared.least_s("m", 96) == pytest.approx(0.037)


def test_entries_take_no_less_than_on_the_quickest_variant_that_may_run_them() -> None:
    """A fallback of which something is known, unless the client wants the exact model."""
    scheduler = make_scheduler(profile=[(1, 0, 0.2)], fallbacks=("int8", "new"))
    scheduler.seed("m", [(1, 0, 0.05, "int8")])
    assert (scheduler.least_s("m", 1), scheduler.least_s("m", 1, exact=True)) == (0.05, 0.2)


def test_of_what_is_not_known_the_least_is_nothing() -> None:
    """Never reject blindly."""
    scheduler = make_scheduler()
    assert (scheduler.least_s("m", 1), scheduler.least_s("x", 1)) == (0.0, 0.0)
