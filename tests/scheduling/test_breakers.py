"""Circuit breakers and ejections in the scheduler: who is refused, who runs elsewhere, and nobody is forgotten."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduling_builders import AFFINE, HIGH, LOW, NORMAL, accept, make_entry, make_scheduler

from serve_app.pools.policy.settings import Pool
from serve_app.scheduling.decisions import Change, Dispatch
from serve_app.scheduling.entry import Entry, EntryState
from serve_app.scheduling.health.breaker import BundleOutcome, State
from serve_app.scheduling.scheduler import Scheduler
from serve_app.scheduling.settings import BreakerSettings, ModelScheduling

ANSWERED, FAILURE, SUSPECTED, NOT_COUNTED = (
    BundleOutcome.ANSWERED,
    BundleOutcome.FAILURE,
    BundleOutcome.SUSPECTED,
    BundleOutcome.NOT_COUNTED,
)
SETTINGS = BreakerSettings(consecutive_failures=3, min_samples=4, reset_s=60.0, probes=2, ejection_s=30.0)


def with_breaker(
    *,
    fallbacks: tuple[str, ...] = (),
    replicas: tuple[str, ...] = ("a",),
    max_rows: int = 1,
    pooled: bool = False,
    profile: list[tuple[int, int, float]] = AFFINE,
    **changes: Any,
) -> Scheduler:
    """A scheduler of one model with breakers; its fallbacks are known to run.

    In a pool the scheduler says itself what runs on a fallback; otherwise gates do.
    """
    model = ModelScheduling(
        "m",
        max_rows,
        slo_s=0.1,
        window=1,
        fallbacks=fallbacks,
        variants=fallbacks,
        breaker=replace(SETTINGS, **changes),
    )
    scheduler = make_scheduler(
        models=[model], pool=Pool("g", ("m",), 1, 9) if pooled else None, replicas=replicas, profile=profile
    )
    for variant in fallbacks:
        scheduler.seed("m", [(*point, variant) for point in AFFINE])
    return scheduler


def answer(scheduler: Scheduler, dispatch: Dispatch, outcome: BundleOutcome, now: float) -> list[Entry]:
    """A bundle comes back."""
    scheduler.on_outcome(dispatch.bundle_id, dispatch.variant, outcome, now)
    return scheduler.on_done(dispatch.bundle_id, (), now)


def run(scheduler: Scheduler, outcome: BundleOutcome, now: float, **entry: Any) -> Dispatch:
    """One entry goes its way, alone."""
    accept(scheduler, make_entry(deadline=now + 10.0, arrival=now, **entry), now=now)
    (dispatch,) = scheduler.decide(now).dispatches
    answer(scheduler, dispatch, outcome, now)
    return dispatch


def trip(scheduler: Scheduler, now: float = 0.0, **entry: Any) -> None:
    """Let as many entries fail as it takes."""
    for _ in range(3):
        run(scheduler, FAILURE, now, **entry)


def test_an_open_breaker_refuses_at_once() -> None:
    """With the time until it tries again, also before the payload is decoded."""
    scheduler = with_breaker()
    trip(scheduler)
    for rejection in (
        scheduler.on_arrival(make_entry(deadline=20.0, arrival=10.0), 10.0),
        scheduler.precheck("m", NORMAL, 0, 10.0),
    ):
        assert rejection is not None
        assert (rejection.code, rejection.retry_after_s) == ("model_unavailable", 50.0)
        assert rejection.message == "the circuit breaker of model m is open after repeated failures; try again in 50 s"
    assert scheduler.breakers()["m"].refused == {"": 2}


def test_what_is_queued_when_it_opens_is_refused_then() -> None:
    """Entries of every class, also those that forbid fallbacks; none is left to expire."""
    scheduler = with_breaker()
    run(scheduler, FAILURE, 0.0)
    run(scheduler, FAILURE, 0.0)
    entries = accept(
        scheduler, *(make_entry(priority, exact=exact) for priority in (HIGH, NORMAL, LOW) for exact in (False, True))
    )
    (third,) = scheduler.decide(0.0).dispatches
    answer(scheduler, third, FAILURE, 0.1)
    decisions = scheduler.decide(0.1)
    assert {entry for entry, _ in decisions.refused} == set(entries) - set(third.entries)
    assert all(entry.state is EntryState.DONE for entry in entries)
    assert {why.retry_after_s for _, why in decisions.refused} == {60.0}
    assert list(decisions.changes) == [Change("m", "", None, "open", 60.0, "3 failures in a row")]
    assert (scheduler.load("m"), scheduler.totals()["classes"]["high"]["entries"]) == (0, 0)
    assert scheduler.decide(0.1).changes == ()


def test_fallbacks_answer_while_the_exact_model_fails() -> None:
    """What comes and what is queued; only those that forbid it get an error."""
    scheduler = with_breaker(fallbacks=("int8",))
    run(scheduler, FAILURE, 0.0)
    run(scheduler, FAILURE, 0.0)
    queued = make_entry()
    strict = make_entry(exact=True)
    first = make_entry(deadline=5.0)
    accept(scheduler, first, queued, strict)
    (third,) = scheduler.decide(0.0).dispatches
    assert third.entries == [first]
    answer(scheduler, third, FAILURE, 0.1)
    decisions = scheduler.decide(0.1)
    assert [entry for entry, _ in decisions.refused] == [strict]
    assert [(d.variant, d.entries) for d in decisions.dispatches] == [("int8", [queued])]
    assert scheduler.precheck("m", NORMAL, 0, 0.2) is None
    assert scheduler.on_arrival(make_entry(exact=True, arrival=0.2), 0.2) is not None
    answer(scheduler, decisions.dispatches[0], ANSWERED, 0.2)
    assert run(scheduler, ANSWERED, 0.3).variant == "int8"


def test_each_build_has_its_own_breaker() -> None:
    """An open variant refuses those who name it; when all builds are open, so is the model."""
    scheduler = with_breaker(fallbacks=("int8",))
    trip(scheduler, variant="int8")
    assert scheduler.on_arrival(make_entry(variant="int8"), 0.0) is not None
    assert run(scheduler, ANSWERED, 0.1).variant == ""
    assert scheduler.precheck("m", NORMAL, 0, 0.1) is None
    trip(scheduler, 0.2)
    assert scheduler.precheck("m", NORMAL, 0, 0.3) is not None
    assert scheduler.on_arrival(make_entry(arrival=0.3), 0.3) is not None


def test_an_open_fallback_does_not_stand_in_where_the_exact_model_is_late() -> None:
    """Better late than failed."""
    scheduler = with_breaker(fallbacks=("int8",), pooled=True, profile=[(rows, 0, 30.0) for rows, _, _ in AFFINE])
    assert run(scheduler, ANSWERED, 0.0).variant == "int8"
    trip(scheduler)
    assert run(scheduler, ANSWERED, 0.0).variant == ""


def test_gates_are_told_when_no_fallback_may_stand_in() -> None:
    """They compose what is sent ahead, and know nothing of breakers."""
    scheduler = with_breaker(fallbacks=("int8",))
    assert not run(scheduler, ANSWERED, 0.0).exact
    assert run(scheduler, ANSWERED, 0.0, exact=True).exact
    trip(scheduler, variant="int8")
    assert run(scheduler, ANSWERED, 0.0).exact
    scheduler.decide(60.0)
    assert not run(scheduler, ANSWERED, 60.0).exact


def test_half_open_lets_a_few_through() -> None:
    """The rest is answered as when it is open; answers close it for everybody."""
    scheduler = with_breaker(replicas=("a", "b"), max_ejected=0.0)
    trip(scheduler)
    probes = accept(
        scheduler, make_entry(arrival=60.0, deadline=70.0), make_entry(arrival=60.0, deadline=70.0), now=60.0
    )
    assert scheduler.on_arrival(make_entry(arrival=60.0, deadline=70.0), 60.0) is not None
    assert scheduler.precheck("m", NORMAL, 0, 60.0) is not None
    dispatches = scheduler.decide(60.0).dispatches
    assert [entry for dispatch in dispatches for entry in dispatch.entries] == probes
    for dispatch in dispatches:
        answer(scheduler, dispatch, ANSWERED, 60.1)
    assert scheduler.on_arrival(make_entry(arrival=60.1, deadline=70.0), 60.1) is None
    assert [change.state for change in scheduler.decide(60.1).changes] == ["closed"]


def test_a_half_open_fallback_stands_in_for_probes_only() -> None:
    """Where the exact model is too slow: as many at once as there may be probes, not a whole batch; then for all."""
    slow = [(rows, 0, 30.0) for rows, _, _ in AFFINE]
    scheduler = with_breaker(fallbacks=("int8",), max_rows=32, pooled=True, profile=slow, max_ejected=0.0)
    trip(scheduler, variant="int8")
    accept(scheduler, *(make_entry(arrival=60.0, deadline=70.0) for _ in range(5)), now=60.0)
    for now in (60.0, 60.1):  # two places, two answers
        (probes,) = scheduler.decide(now).dispatches
        assert (probes.variant, len(probes.entries)) == ("int8", 2)
        answer(scheduler, probes, ANSWERED, now + 0.1)
    accept(scheduler, *(make_entry(arrival=60.2, deadline=70.0) for _ in range(20)), now=60.2)
    (sent,) = scheduler.decide(60.2).dispatches
    assert (sent.variant, len(sent.entries)) == ("int8", 21)


def test_a_probe_that_leaves_frees_its_place() -> None:
    """Nobody is locked out by clients that do not wait."""
    scheduler = with_breaker()
    trip(scheduler)
    for _ in range(10):
        (probe,) = accept(scheduler, make_entry(arrival=60.0, deadline=70.0), now=60.0)
        scheduler.on_cancel(probe, 60.0)


def test_a_replica_that_fails_alone_is_ejected_first() -> None:
    """Its model goes on without it, and it comes back after a while; a first fault then ejects it for longer."""
    scheduler = with_breaker(replicas=("bad", "good"))
    now = 0.0
    for _ in range(30):
        accept(scheduler, make_entry(arrival=now, deadline=now + 10.0), now=now)
        (sent,) = scheduler.decide(now).dispatches
        answer(scheduler, sent, FAILURE if sent.replica == "bad" else ANSWERED, now)
        now += 0.01
    breakers = scheduler.breakers()["m"]
    assert (breakers.ejection.count, breakers.tripped, scheduler.usable("m")) == (1, False, 1)
    picture = scheduler.breaker_snapshot("m", now)
    assert picture is not None
    assert list(picture["ejected_replicas"]) == ["bad"]
    scheduler.decide(31.0)
    assert scheduler.usable("m") == 2
    accept(scheduler, make_entry(arrival=31.0, deadline=40.0), make_entry(arrival=31.0, deadline=40.0), now=31.0)
    for sent in scheduler.decide(31.0).dispatches:
        answer(scheduler, sent, FAILURE if sent.replica == "bad" else ANSWERED, 31.0)
    assert breakers.ejection.count == 2
    scheduler.decide(90.0)
    assert scheduler.usable("m") == 1
    scheduler.decide(91.1)
    assert scheduler.usable("m") == 2


def test_no_more_than_a_part_is_ejected() -> None:
    """Three of six fail, a third may be ejected: the third one goes on failing, and the model answers."""
    scheduler = with_breaker(replicas=("a", "x", "b", "y", "c", "z"), max_ejected=0.34, min_samples=99)
    now = 0.0
    for _ in range(60):
        accept(scheduler, make_entry(arrival=now, deadline=now + 10.0), now=now)
        (sent,) = scheduler.decide(now).dispatches
        answer(scheduler, sent, FAILURE if sent.replica in {"a", "b", "c"} else ANSWERED, now)
        now += 0.01
    breakers = scheduler.breakers()["m"]
    assert (breakers.ejection.count, scheduler.usable("m"), breakers.tripped) == (2, 4, False)


def test_what_fails_everywhere_is_the_model() -> None:
    """The breaker opens, and no replica is blamed."""
    scheduler = with_breaker(replicas=("a", "b", "c", "d"))
    trip(scheduler)
    breakers = scheduler.breakers()["m"]
    assert (breakers.ejection.count, scheduler.usable("m"), breakers.by_variant[""].state) == (0, 4, State.OPEN)


def eject(scheduler: Scheduler, names: set[str], now: float) -> float:
    """Let these replicas fail what the others answer until they are ejected, one after the other. Returns when."""
    ejection = scheduler.breakers()["m"].ejection
    most = ejection.count + len(names)
    while ejection.count < most:
        now += 0.01
        accept(scheduler, make_entry(arrival=now, deadline=now + 10.0), now=now)
        (sent,) = scheduler.decide(now).dispatches
        answer(scheduler, sent, FAILURE if sent.replica in names else ANSWERED, now)
    return now


def test_an_ejected_replica_comes_back_when_it_is_the_only_one_left() -> None:
    """The others die, go or fall silent: better one that failed than none. It is not held against it twice."""
    scheduler = with_breaker(replicas=("a", "b"))
    now = eject(scheduler, {"a"}, 0.0)
    scheduler.on_replicas("m", ["a"], now)
    assert run(scheduler, ANSWERED, now).replica == "a"

    scheduler.on_replicas("m", ["a", "b"], now)
    now = eject(scheduler, {"a"}, now)
    picture = scheduler.breaker_snapshot("m", now)
    assert picture is not None
    assert picture["ejected_replicas"] == {"a": {"retry_in_s": pytest.approx(60.0, abs=1.0)}}
    entries = accept(scheduler, make_entry(arrival=now, deadline=now + 10.0), now=now)
    (lost,) = scheduler.decide(now).dispatches
    assert lost.replica == "b"
    scheduler.on_failed(lost.bundle_id, now, True)
    (again,) = scheduler.decide(now).dispatches
    assert (again.replica, again.entries) == ("a", entries)

    scheduler.on_done(again.bundle_id, (), now)
    now = eject(scheduler, {"a"}, now + 1.5)
    accept(scheduler, make_entry(arrival=now, deadline=now + 10.0), now=now)
    (silent,) = scheduler.decide(now).dispatches
    scheduler.on_unresponsive("m", str(silent.replica), now + 2.0)
    (hedge,) = scheduler.decide(now + 2.0).dispatches
    assert (silent.replica, hedge.replica, scheduler.snapshot()["m"]["held_replicas"]) == ("b", "a", ["b"])


def test_the_part_that_is_ejected_is_of_those_that_are_left() -> None:
    """Two of four, then one of three: the one comes back that was ejected first."""
    scheduler = with_breaker(replicas=("a", "b", "c", "d"))
    now = eject(scheduler, {"a", "b"}, 0.0)
    ejected = scheduler.snapshot()["m"]["held_replicas"]
    assert set(ejected) == {"a", "b"}
    scheduler.on_replicas("m", ["a", "b", "c"], now)
    scheduler.decide(now)
    assert scheduler.snapshot()["m"]["held_replicas"] == ejected[1:]


def test_answers_of_an_ejected_replica_do_not_bring_it_back() -> None:
    """What was on its way there comes back failed, and is nothing new."""
    model = ModelScheduling("m", 1, slo_s=0.1, window=3, policy="eager", breaker=SETTINGS)
    scheduler = make_scheduler(models=[model], replicas=("bad", "good"), profile=AFFINE)
    accept(scheduler, *(make_entry() for _ in range(6)))
    at_bad = [dispatch for dispatch in scheduler.decide(0.0).dispatches if dispatch.replica == "bad"]
    assert len(at_bad) == 3
    for dispatch in at_bad:
        answer(scheduler, dispatch, FAILURE, 0.1)
        scheduler.decide(0.1)
    assert scheduler.usable("m") == 1
    assert scheduler.breakers()["m"].by_variant[""].failures == 0


def test_bad_inputs_neither_eject_nor_open() -> None:
    """Where the model still runs what it should, whoever sent the rest is to blame."""
    scheduler = with_breaker(replicas=("a", "b"))
    for number in range(100):
        run(scheduler, SUSPECTED if number % 3 else NOT_COUNTED, number * 0.05)
    assert (scheduler.usable("m"), scheduler.breakers()["m"].tripped) == (2, False)


@pytest.mark.parametrize("outcome", BundleOutcome)
def test_without_breakers_nothing_changes(outcome: BundleOutcome) -> None:
    """A model that has none is asked whatever it answers."""
    scheduler = make_scheduler(max_rows=1)
    for _ in range(20):
        run(scheduler, outcome, 0.0)
    assert (scheduler.breakers(), scheduler.breaker_snapshot("m", 0.0)) == ({}, None)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["arrive", "arrive", "answer", "wait"]),
            st.sampled_from(["", "", "int8", "="]),
            st.sampled_from([ANSWERED, FAILURE, FAILURE, SUSPECTED, NOT_COUNTED]),
            st.sampled_from([0.0, 0.01, 5.0, 61.0]),
        ),
        max_size=80,
    )
)
def test_every_entry_ends_once_and_the_counts_stay_right(events: list[tuple[str, str, BundleOutcome, float]]) -> None:
    """Whatever opens and closes: answered, refused, expired or given up, and nothing is left behind."""
    scheduler = with_breaker(fallbacks=("int8",), replicas=("a", "b", "c"), max_rows=2)
    now, out, accepted, ended = 0.0, list[Dispatch](), list[Entry](), list[Entry]()

    def decide() -> None:
        decisions = scheduler.decide(now)
        out.extend(decisions.dispatches)
        ended.extend([*decisions.expired, *decisions.given_up, *(entry for entry, _ in decisions.refused)])
        for dispatch in decisions.dispatches:
            breaker = scheduler.breakers()["m"].by_variant.get(dispatch.variant)
            assert breaker is None or breaker.state is not State.OPEN

    for kind, lane, outcome, seconds in events:
        if kind == "arrive":
            entry = make_entry(
                arrival=now, deadline=now + 20.0, nbytes=1, variant=lane if lane == "int8" else "", exact=lane == "="
            )
            if scheduler.on_arrival(entry, now) is None:
                accepted.append(entry)
        elif kind == "answer" and out:
            ended.extend(answer(scheduler, out.pop(0), outcome, now))
        else:
            now += seconds
        decide()
    now += 30.0
    decide()
    while out:
        ended.extend(answer(scheduler, out.pop(0), ANSWERED, now))
        decide()
    assert sorted(entry.id for entry in ended) == sorted(entry.id for entry in accepted)
    assert (scheduler.totals()["bytes"], scheduler.load("m")) == (0, 0)
