"""To look only at what is touched decides the same as to look at everything, whatever happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis_profiles import examples
from scheduling_builders import HIGH, LOW, NORMAL, accept, load_everywhere, make_class, make_entry, make_scheduler

from serve_app.domain.priority import Priority
from serve_app.payloads import NO_ATTRIBUTES
from serve_app.pools.policy.device import PoolDevice
from serve_app.pools.policy.settings import Pool
from serve_app.scheduling.decisions import Decisions, Dispatch, Requeue
from serve_app.scheduling.entry import Entry, EntryState
from serve_app.scheduling.health.breaker import BundleOutcome
from serve_app.scheduling.scheduler import Scheduler
from serve_app.scheduling.settings import BreakerSettings, ModelScheduling, ProcessLimits

_BREAKER = BreakerSettings(
    consecutive_failures=2, window_s=1.0, min_samples=3, reset_s=1.0, probes=1, ejection_s=0.5, max_ejected=0.5
)
_MODELS = {
    "m": ModelScheduling("m", 4, 0.5, fallbacks=("light",), variants=("light",), breaker=_BREAKER),
    "n": ModelScheduling("n", 2, 0.5, window=1, resident_bytes=3),
    "o": ModelScheduling("o", 4, 0.5, resident_bytes=3, breaker=_BREAKER),
    "p": ModelScheduling("p", 4, 0.5),
}
_POOL = Pool("g", ("n", "o"), concurrency=1, memory_bytes=14)
_PROFILE = [(1, 0, 0.02, ""), (4, 0, 0.05, ""), (1, 0, 0.01, "light"), (4, 0, 0.02, "light")]
_MODEL = st.sampled_from(sorted(_MODELS))
_NAME = st.sampled_from(["a", "b", "c"])
_INDEX = st.integers(0, 10**6)

_Picture = tuple[Any, ...]


def _ids(entries: list[Entry]) -> list[int]:
    return sorted(entry.id for entry in entries)


def _key(dispatch: Dispatch) -> _Picture:
    return dispatch.model, dispatch.replica or "", tuple(_ids(dispatch.entries)), dispatch.variant


def _picture(decisions: Decisions) -> _Picture:
    return (
        sorted(map(_key, decisions.dispatches)),
        _ids(decisions.expired),
        _ids(decisions.given_up),
        sorted((entry.id, *why) for entry, why in decisions.refused),
        sorted(decisions.changes, key=str),
    )


class _Side:
    """One of the two schedulers, its own copies of the entries, and its bundles by what they carry."""

    def __init__(self, pooled: bool) -> None:
        classes = {HIGH: make_class(min_share=0.1), NORMAL: make_class(entries=8), LOW: make_class(min_share=0.1)}
        devices = [PoolDevice(_POOL, classes)] if pooled else []
        self.scheduler = Scheduler(_MODELS.values(), classes, ProcessLimits(10**6, network_s=0.001), devices)
        load_everywhere(self.scheduler, ["a", "b"])
        self.entries: dict[int, Entry] = {}
        self.bundles: dict[_Picture, int] = {}

    def decide(self, now: float) -> Decisions:
        decisions = self.scheduler.decide(now)
        for dispatch in decisions.dispatches:
            self.bundles[_key(dispatch)] = dispatch.bundle_id
        return decisions


class ActiveMachine(RuleBasedStateMachine):
    """Every event happens to both; the second one is made to look at every model before each decision."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.sides: tuple[_Side, ...] = ()
        self.there: set[str] = set()
        self.in_flight: list[Dispatch] = []
        self.ended: set[int] = set()
        self.last_id = 0
        self.pooled = False

    @initialize(pooled=st.booleans(), seeded=st.booleans())
    def start(self, pooled: bool, seeded: bool) -> None:
        """Four models with two replicas each, of which two may be in a pool."""
        self.pooled = pooled
        self.sides = (_Side(pooled), _Side(pooled))
        self.there = set(_MODELS)
        for side in self.sides:
            for model in _MODELS:
                if not (pooled and model in _POOL.models):
                    side.scheduler.on_replicas(model, ["a", "b"], self.now)
                if seeded:
                    side.scheduler.seed(model, _PROFILE)

    def is_member(self, model: str) -> bool:
        """Whether a model is in the pool: it stays loaded at both hosts, so that nothing waits for a load."""
        return self.pooled and model in _POOL.models

    def both(self, event: Callable[[_Side], Any]) -> Any:
        """Let something happen to both. What comes of it is the same."""
        first, second = map(event, self.sides)
        assert first == second
        return first

    # ------------------------------------------------------------------ events

    @rule(
        model=_MODEL,
        priority=st.sampled_from(Priority),
        timeout=st.sampled_from([0.01, 0.1, 0.5, 1.0, 3.0, 60.0]),
        rows=st.sampled_from([1, 1, 1, 2, 3, 6]),
        variant=st.sampled_from(["", "", "light"]),
        exact=st.booleans(),
    )
    def arrive(self, model: str, priority: Priority, timeout: float, rows: int, variant: str, exact: bool) -> None:
        """A request comes in."""
        self.last_id += 1
        deadline = self.now + timeout

        def arrival(side: _Side) -> Any:
            entry = Entry(
                self.last_id,
                model,
                priority,
                self.now,
                deadline,
                rows,
                nbytes=3,
                variant=variant,
                attributes=NO_ATTRIBUTES,
                exact=exact,
            )
            rejection = side.scheduler.on_arrival(entry, self.now)
            if rejection is None:
                side.entries[entry.id] = entry
            return rejection

        rejection = self.both(arrival)
        assert (rejection is not None and rejection.code == "model_not_found") == (model not in self.there)

    @rule(index=_INDEX)
    def leave(self, index: int) -> None:
        """A client goes."""
        living = sorted(set(self.sides[0].entries) - self.ended)
        if living:
            entry_id = living[index % len(living)]
            self.both(lambda side: side.scheduler.on_cancel(side.entries[entry_id], self.now))
            self.ended.add(entry_id)

    @precondition(lambda self: self.in_flight)
    @rule(
        index=_INDEX,
        seconds=st.sampled_from([0.001, 0.02, 0.4]),
        outcome=st.sampled_from(
            [BundleOutcome.ANSWERED, BundleOutcome.ANSWERED, BundleOutcome.FAILURE, BundleOutcome.SUSPECTED]
        ),
        returned=st.sampled_from([0, 0, 1, 2]),
    )
    def answer(self, index: int, seconds: float, outcome: BundleOutcome, returned: int) -> None:
        """A replica answers; some of what it was sent may come back."""
        dispatch = self.take(index)
        back = _ids(dispatch.entries)[:returned]
        executions = [(dispatch.rows, 0, seconds, dispatch.variant)]

        def done(side: _Side) -> list[int]:
            bundle_id = side.bundles[_key(dispatch)]
            side.scheduler.on_outcome(bundle_id, dispatch.variant, outcome, self.now)
            coming = [entry for entry in self.carried(side, dispatch) if entry.id in back]
            return _ids(side.scheduler.on_done(bundle_id, executions, self.now, returned=coming))

        self.end(*self.both(done))

    @precondition(lambda self: self.in_flight)
    @rule(index=_INDEX, lost=st.booleans(), reached=st.sampled_from([None, True, False]))
    def fail(self, index: int, lost: bool, reached: bool | None) -> None:
        """A bundle fails."""
        dispatch = self.take(index)
        self.requeued(
            lambda side: side.scheduler.on_failed(side.bundles[_key(dispatch)], self.now, lost, reached=reached)
        )

    @precondition(lambda self: self.in_flight)
    @rule(index=_INDEX)
    def time_out(self, index: int) -> None:
        """A bundle is not answered for too long; it still may be."""
        dispatch = self.in_flight[index % len(self.in_flight)]
        self.requeued(lambda side: side.scheduler.on_timeout(side.bundles[_key(dispatch)], self.now))

    @rule(model=_MODEL, name=_NAME, speaks=st.booleans())
    def fall_silent(self, model: str, name: str, speaks: bool) -> None:
        """A replica becomes unresponsive, or sends data again."""
        if model in self.there:
            self.both(
                lambda side: (side.scheduler.on_responsive if speaks else side.scheduler.on_unresponsive)(
                    model, name, self.now
                )
            )

    @rule(model=_MODEL, name=_NAME | st.none())
    def quarantine(self, model: str, name: str | None) -> None:
        """A replica is wedged, or the wake-up bundle is given up."""
        if model in self.there:
            self.both(lambda side: side.scheduler.quarantine(model, name, self.now))

    @rule(model=_MODEL, names=st.lists(_NAME, unique=True))
    def replace(self, model: str, names: list[str]) -> None:
        """Replicas come and go."""
        if model in self.there and not self.is_member(model):
            self.both(lambda side: side.scheduler.on_replicas(model, names, self.now))

    @rule(model=_MODEL)
    def remove(self, model: str) -> None:
        """A model goes."""
        if model in self.there and not self.is_member(model):
            self.forget(model)

    @rule(model=_MODEL, names=st.lists(_NAME, unique=True))
    def add(self, model: str, names: list[str]) -> None:
        """A model comes back."""
        if model not in self.there:
            self.there.add(model)
            self.both(lambda side: side.scheduler.add_model(_MODELS[model]))
            self.both(lambda side: side.scheduler.on_replicas(model, names, self.now))

    @rule(seconds=st.sampled_from([0.0, 0.01, 0.1, 0.5, 2.0]))
    def pass_time(self, seconds: float) -> None:
        """Time goes by without a decision."""
        self.now += seconds

    # --------------------------------------------------------------- decisions

    @rule()
    def decide(self) -> None:
        """What is not touched has nothing to decide."""
        for model in self.there:
            self.sides[1].scheduler.seed(model, ())  # tells nothing, and touches it
        decisions, reference = (side.decide(self.now) for side in self.sides)
        assert _picture(decisions) == _picture(reference)
        self.in_flight += decisions.dispatches
        self.end(*_ids([*decisions.expired, *decisions.given_up, *(entry for entry, _ in decisions.refused)]))
        wake_at = self.both(lambda side: side.scheduler.wake_at)
        assert wake_at is None or wake_at > self.now
        for dispatch in decisions.dispatches:
            assert dispatch.model in self.there
            assert self.ended.isdisjoint(_ids(dispatch.entries))

    @rule(times=st.integers(1, 6))
    def wake(self, times: int) -> None:
        """The timer fires, as often as it is set."""
        for _ in range(times):
            wake_at = self.sides[0].scheduler.wake_at
            if wake_at is not None:
                self.now = max(self.now, wake_at)
            self.decide()

    @invariant()
    def the_same_time_is_named(self) -> None:
        """Also between decisions."""
        if self.sides:
            self.both(lambda side: side.scheduler.wake_at)
            self.both(lambda side: side.scheduler.totals())

    # ------------------------------------------------------------------- helpers

    def carried(self, side: _Side, dispatch: Dispatch) -> list[Entry]:
        """The requests of a bundle that are still waited for, as this side knows them."""
        living = [entry_id for entry_id in _ids(dispatch.entries) if entry_id not in self.ended]
        return [side.entries[entry_id] for entry_id in living]

    def requeued(self, event: Callable[[_Side], Requeue]) -> None:
        """A bundle failed."""
        self.end(*self.both(lambda side: _ids([*(gone := event(side)).poisoned, *gone.expired])))

    def forget(self, model: str) -> None:
        """A model is removed."""
        self.there.remove(model)
        self.both(lambda side: len(side.scheduler.remove_model(model, 0.0)))

    def take(self, index: int) -> Dispatch:
        """A bundle in flight, which then is no more."""
        return self.in_flight.pop(index % len(self.in_flight))

    def end(self, *ids: int) -> None:
        """Requests end, once each."""
        assert self.ended.isdisjoint(ids)
        assert len(set(ids)) == len(ids)
        self.ended.update(ids)
        for entry_id in ids:
            assert self.sides[0].entries[entry_id].state is EntryState.DONE

    def teardown(self) -> None:
        """Without models everything ends, and nothing is left."""
        if not self.sides:
            return
        for model in sorted(self.there):
            self.forget(model)
        for _ in range(2):
            self.decide()
            self.now += 100.0
        self.decide()
        assert self.ended == set(self.sides[0].entries)
        totals = self.sides[0].scheduler.totals()
        assert (totals["bytes"], totals["bundles"]) == (0, 0)
        assert [count for count in totals["classes"].values() if count != {"entries": 0, "bytes": 0}] == []
        assert self.sides[0].scheduler.wake_at is None


ActiveMachine.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=40)
TestActiveDevices = ActiveMachine.TestCase


def test_a_replica_that_speaks_again_gets_what_waited_for_it() -> None:
    """At once, though nothing has arrived since."""
    scheduler = make_scheduler()
    first, second = make_entry(), make_entry()
    accept(scheduler, first)
    scheduler.decide(0.0)
    scheduler.on_unresponsive("m", "a", 1.0)
    accept(scheduler, second, now=1.0)
    assert scheduler.decide(1.0).dispatches == []

    scheduler.on_responsive("m", "a", 2.0)
    assert [dispatch.entries for dispatch in scheduler.decide(2.0).dispatches] == [[second]]
