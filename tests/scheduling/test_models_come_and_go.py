"""Models that are added and removed while the scheduler runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scheduling_builders import AFFINE, accept, load_everywhere, make_class, make_entry, make_scheduler

from serve_app.pools.policy.settings import Pool
from serve_app.scheduling.decisions import Change, Dispatch, Rejection
from serve_app.scheduling.entry import Entry, EntryState
from serve_app.scheduling.health.breaker import BundleOutcome
from serve_app.scheduling.scheduler import Scheduler
from serve_app.scheduling.settings import BreakerSettings, ModelScheduling, ProcessLimits

_M = ModelScheduling("m", max_rows=4, slo_s=0.1)
_PROFILE = [(*point, "") for point in AFFINE]
_REMOVED = Rejection("model_not_found", "model m was removed")


def _sent(scheduler: Scheduler, *entries: Entry, now: float = 0.0) -> Dispatch:
    """Let entries arrive, and return the one bundle that is sent."""
    accept(scheduler, *entries, now=now)
    (dispatch,) = scheduler.decide(now).dispatches
    return dispatch


def _nothing_is_left(scheduler: Scheduler) -> bool:
    totals = scheduler.totals()
    counts = totals["classes"].values()
    return totals["bytes"] == totals["bundles"] == 0 and all(count == {"entries": 0, "bytes": 0} for count in counts)


def test_a_model_is_added_and_serves() -> None:
    """As one that was there from the beginning."""
    scheduler = make_scheduler()
    scheduler.add_model(replace(_M, name="n"))
    scheduler.on_replicas("n", ["b"], 0.0)
    scheduler.seed("n", _PROFILE)
    entry = make_entry(model="n")
    dispatch = _sent(scheduler, entry)

    assert (dispatch.model, dispatch.replica) == ("n", "b")
    assert scheduler.on_done(dispatch.bundle_id, [(1, 0, 0.006, "")], 0.01) == [entry]
    assert set(scheduler.snapshot()) == {"m", "n"}


def test_names_are_checked() -> None:
    """There is one model of a name at most, and only what is there can be removed."""
    scheduler = make_scheduler()
    with pytest.raises(ValueError, match="model m is scheduled already"):
        scheduler.add_model(_M)
    with pytest.raises(KeyError):
        scheduler.remove_model("n", 0.0)
    with pytest.raises(KeyError):
        scheduler.add_model(replace(_M, name="n"), "g")
    assert scheduler.remove_model("m", 0.0) == []
    with pytest.raises(KeyError):
        scheduler.remove_model("m", 0.0)
    with pytest.raises(KeyError):
        scheduler.load("m")


def test_what_is_queued_is_refused_by_the_next_decision() -> None:
    """Once each; whoever leaves before it is not told, and what comes later finds no such model."""
    scheduler = make_scheduler(replicas=[])
    waking = make_entry(nbytes=5)
    _sent(scheduler, waking)  # waits for a first replica
    queued, leaving = accept(scheduler, make_entry(nbytes=7), make_entry(nbytes=9))

    assert scheduler.remove_model("m", 0.0) == []
    scheduler.on_cancel(leaving, 0.1)
    late = make_entry(deadline=5.0)
    rejection = scheduler.on_arrival(late, 0.1)
    decisions = scheduler.decide(0.1)

    assert rejection is not None
    assert rejection.code == "model_not_found"
    assert sorted((entry.id, why) for entry, why in decisions.refused) == [(waking.id, _REMOVED), (queued.id, _REMOVED)]
    assert waking.state is queued.state is EntryState.DONE
    assert scheduler.decide(0.2).refused == ()
    assert _nothing_is_left(scheduler)
    assert scheduler.wake_at is None


def test_what_runs_may_still_be_answered() -> None:
    """It counts as any answer, and what it brings back unexecuted is refused."""
    scheduler = make_scheduler(profile=AFFINE)
    answered, back = make_entry(nbytes=5), make_entry(nbytes=7)
    bundles = [_sent(scheduler, answered), _sent(scheduler, back, now=1.0)]

    assert scheduler.remove_model("m", 0.0) == [bundle.bundle_id for bundle in bundles]
    scheduler.on_outcome(bundles[0].bundle_id, "", BundleOutcome.ANSWERED, 1.0)
    assert scheduler.on_done(bundles[0].bundle_id, [(1, 0, 0.006, "")], 1.0) == [answered]
    assert scheduler.on_done(bundles[1].bundle_id, [], 1.0, returned=[back]) == []
    assert list(scheduler.decide(1.0).refused) == [(back, _REMOVED)]
    assert _nothing_is_left(scheduler)


def test_what_fails_is_tried_nowhere_else() -> None:
    """It is refused at its first failure, and poisoned at its second as ever."""
    scheduler = make_scheduler(replicas=["a", "b"], profile=AFFINE)
    tried, fresh = make_entry(), make_entry()
    dispatch = _sent(scheduler, tried)
    scheduler.on_failed(dispatch.bundle_id, 0.0, False)
    (again,) = scheduler.decide(0.0).dispatches
    once = _sent(scheduler, fresh)
    scheduler.remove_model("m", 0.0)

    poisoned = scheduler.on_failed(again.bundle_id, 0.1, True)
    refused = scheduler.on_failed(once.bundle_id, 0.1, True)
    assert (poisoned.poisoned, poisoned.requeued) == ([tried], [])
    assert (refused.poisoned, refused.requeued) == ([], [])
    assert list(scheduler.decide(0.1).refused) == [(fresh, _REMOVED)]
    assert _nothing_is_left(scheduler)


@pytest.mark.parametrize("pool", [None, Pool("pool", ("m", "n"), 1, 9)], ids=["replicas of their own", "a pool"])
def test_what_is_tried_again_moves_to_the_successor(pool: Pool | None) -> None:
    """As if it had arrived there: it is sent, answered, or cancelled."""
    scheduler = make_scheduler(models=("m", "n"), pool=pool, profile=AFFINE)
    sent, left = make_entry(nbytes=3), make_entry(nbytes=5)
    for entry in (sent, left):
        accept(scheduler, entry)
    (bundle,) = scheduler.decide(0.0).dispatches
    scheduler.on_failed(bundle.bundle_id, 0.1, True, reached=True)
    scheduler.remove_model("m", 0.1, "n")
    scheduler.on_cancel(left, 0.1)

    (dispatch,) = scheduler.decide(0.1).dispatches
    assert (dispatch.model, dispatch.entries) == ("n", [sent])
    assert scheduler.on_done(dispatch.bundle_id, [(1, 0, 0.006, "")], 0.2) == [sent]
    assert _nothing_is_left(scheduler)


def test_a_hedge_that_waits_does_not_move_to_the_successor() -> None:
    """The copy that runs answers, once."""
    scheduler = make_scheduler(models=("m", "n"), profile=AFFINE)
    first, second, other = make_entry(nbytes=3), make_entry(nbytes=5), make_entry(model="n", nbytes=7)
    accept(scheduler, first, second, other)
    bundles = scheduler.decide(0.0).dispatches
    scheduler.on_replicas("m", ["a", "b"], 0.1)
    scheduler.on_unresponsive("m", "a", 0.1)
    (hedge,) = scheduler.decide(0.1).dispatches  # one at a time at a replica; the other one waits
    assert hedge.replica == "b"
    scheduler.remove_model("m", 0.1, "n")

    answered = [
        entry for bundle in [*bundles, hedge] for entry in scheduler.on_done(bundle.bundle_id, [(1, 0, 0.006, "")], 0.2)
    ]
    while dispatches := scheduler.decide(0.3).dispatches:
        answered += [
            entry for bundle in dispatches for entry in scheduler.on_done(bundle.bundle_id, [(1, 0, 0.006, "")], 0.4)
        ]
    assert sorted(entry.id for entry in answered) == sorted(entry.id for entry in (first, second, other))
    assert _nothing_is_left(scheduler)


def test_what_is_never_answered_expires_and_is_forgotten() -> None:
    """Nothing waits for a replica that nobody lists any more."""
    scheduler = make_scheduler()
    entry = make_entry(deadline=3.0, nbytes=5)
    timed_out = make_entry(deadline=30.0)
    _sent(scheduler, entry)
    watched = _sent(scheduler, timed_out, now=1.0)
    scheduler.remove_model("m", 0.0)

    scheduler.on_timeout(watched.bundle_id, 2.0)
    assert [each for each, _ in scheduler.decide(2.0).refused] == [timed_out]
    assert scheduler.wake_at == 3.0
    assert scheduler.decide(3.0).expired == [entry]
    assert _nothing_is_left(scheduler)
    assert scheduler.wake_at is None


def test_a_model_of_the_same_name_is_a_new_one() -> None:
    """Answers and failures of the old one's bundles change neither its slots nor what is known of its latency."""
    scheduler = make_scheduler(profile=AFFINE, max_rows=4, window=1)
    old = [
        _sent(scheduler, make_entry()),
        _sent(scheduler, make_entry(), now=1.0),
        _sent(scheduler, make_entry(), now=2.0),
    ]
    scheduler.remove_model("m", 0.0)
    scheduler.add_model(_M)
    scheduler.on_replicas("m", ["a"], 2.0)
    new = make_entry()
    dispatch = _sent(scheduler, new, now=2.0)
    before = scheduler.snapshot()

    assert len(scheduler.on_done(old[0].bundle_id, [(1, 0, 9.0, "")], 2.1)) == 1
    assert scheduler.on_failed(old[1].bundle_id, 2.1, True).requeued == []
    assert scheduler.on_timeout(old[2].bundle_id, 2.1).requeued == []
    scheduler.on_unresponsive("m", "b", 2.1)
    assert scheduler.snapshot() == before
    assert scheduler.usable("m") == 1
    assert not scheduler.latency("m").known
    assert scheduler.on_done(dispatch.bundle_id, [(1, 0, 0.006, "")], 2.2) == [new]


def test_a_request_in_two_copies_ends_once() -> None:
    """Whether the copies were sent or only one of them was."""
    for both_sent in (True, False):
        scheduler = make_scheduler(
            models=[replace(_M, window=1)],
            replicas=["a", "b"],
            profile=AFFINE,
            limits=ProcessLimits(10**6),
        )
        entry = make_entry(nbytes=5)
        first = _sent(scheduler, entry)
        scheduler.on_unresponsive("m", str(first.replica), 0.1)
        if both_sent:
            assert len(scheduler.decide(0.1).dispatches) == 1
        scheduler.remove_model("m", 0.0)

        assert scheduler.decide(0.1).refused == ()
        assert scheduler.on_done(first.bundle_id, [(1, 0, 0.006, "")], 0.2) == [entry]
        assert scheduler.decide(100.0).expired == []
        assert _nothing_is_left(scheduler)


def test_breakers_and_holds_go_with_their_model() -> None:
    """Nothing is done at the times that it had set."""
    model = replace(_M, breaker=BreakerSettings(consecutive_failures=1))
    scheduler = make_scheduler(models=[model])
    dispatch = _sent(scheduler, make_entry())
    scheduler.on_outcome(dispatch.bundle_id, "", BundleOutcome.FAILURE, 0.0)
    scheduler.on_failed(dispatch.bundle_id, 0.0, True)
    scheduler.decide(0.0)
    assert scheduler.wake_at is not None

    scheduler.remove_model("m", 0.0)
    assert scheduler.wake_at is None
    scheduler.add_model(model)
    scheduler.on_replicas("m", ["a"], 1.0)
    assert _sent(scheduler, make_entry(), now=1.0).replica == "a"


def test_an_open_breaker_s_time_is_waited_for() -> None:
    """So that it is told when it lets probes through, whether anything arrives or not."""
    scheduler = make_scheduler(models=[replace(_M, breaker=BreakerSettings(consecutive_failures=1, reset_s=7.0))])
    dispatch = _sent(scheduler, make_entry(deadline=100.0))
    scheduler.on_outcome(dispatch.bundle_id, "", BundleOutcome.FAILURE, 1.0)
    scheduler.on_done(dispatch.bundle_id, [], 1.0)

    assert [change.state for change in scheduler.decide(1.0).changes] == ["open"]
    assert scheduler.wake_at == 8.0
    assert [change.state for change in scheduler.decide(8.0).changes] == ["half_open"]
    assert scheduler.wake_at is None


def test_what_a_member_leaves_is_free_for_the_others_at_once() -> None:
    """And it comes again."""
    models = [replace(_M, name=name) for name in ("m", "n")]
    scheduler = make_scheduler(models=models, pool=Pool("g", ("m", "n"), 1, 9), profile=AFFINE, normal=make_class())
    first = _sent(scheduler, make_entry())
    waiting = make_entry(model="n")
    accept(scheduler, waiting)
    assert scheduler.decide(0.0).dispatches == []

    scheduler.remove_model("m", 0.0)
    (second,) = scheduler.decide(0.0).dispatches
    assert second.entries == [waiting]
    assert len(scheduler.on_done(first.bundle_id, [(1, 0, 0.006, "")], 0.1)) == 1
    assert scheduler.on_done(second.bundle_id, [(1, 0, 0.006, "")], 0.1) == [waiting]

    scheduler.add_model(replace(models[0], resident_bytes=1), "g")
    load_everywhere(scheduler, ["a"], 1.0)
    assert _sent(scheduler, make_entry(), now=1.0).model == "m"


def test_a_model_moves_out_of_its_pool() -> None:
    """It is alone then, and does not wait for the others."""
    models = [replace(_M, name=name) for name in ("m", "n")]
    scheduler = make_scheduler(models=models, pool=Pool("g", ("m", "n"), 1, 9), profile=AFFINE)
    _sent(scheduler, make_entry())
    scheduler.remove_model("n", 0.0)
    scheduler.add_model(models[1])
    scheduler.on_replicas("n", ["a"], 0.0)

    assert _sent(scheduler, make_entry(model="n")).model == "n"


def test_asking_for_the_time_loses_no_news_of_a_member() -> None:
    """A breaker that closes while nothing is queued is told by the next decision all the same."""
    breaker = BreakerSettings(consecutive_failures=1, probes=1, reset_s=1.0)
    models = [replace(_M, name=name, breaker=breaker) for name in ("m", "n")]
    scheduler = make_scheduler(models=models, pool=Pool("g", ("m", "n"), 1, 9), profile=AFFINE)
    changes: list[Change] = []
    for now, outcome in ((0.0, BundleOutcome.FAILURE), (2.0, BundleOutcome.ANSWERED)):
        dispatch = _sent(scheduler, make_entry(), now=now)
        scheduler.on_outcome(dispatch.bundle_id, "", outcome, now)
        scheduler.on_done(dispatch.bundle_id, [], now)
        assert scheduler.wake_at is None or scheduler.wake_at > now
        changes += scheduler.decide(now).changes

    assert [change.state for change in changes] == ["open", "closed"]
