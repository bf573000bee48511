"""The scheduler under any sequence of events: a state machine with a virtual clock.

A plain model of what must hold runs beside it: who is queued, who runs in which bundle, who has ended.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis_profiles import examples
from scheduling_builders import HIGH, LOW, NORMAL, Policy, make_class, make_entry

from serve_app.domain.priority import Priority
from serve_app.scheduling.decisions import Decisions, Dispatch, Requeue
from serve_app.scheduling.entry import Entry, EntryState
from serve_app.scheduling.health.breaker import BundleOutcome
from serve_app.scheduling.scheduler import Scheduler
from serve_app.scheduling.settings import BreakerSettings, ModelScheduling, ProcessLimits

_BREAKER = BreakerSettings(
    consecutive_failures=2, window_s=1.0, min_samples=3, reset_s=1.0, probes=1, ejection_s=0.5, max_ejected=0.5
)
_MODELS = {
    "m": ModelScheduling(
        "m", max_rows=4, slo_s=0.5, window=2, fallbacks=("light", "tiny"), variants=("light", "tiny"), breaker=_BREAKER
    ),
    "n": ModelScheduling("n", max_rows=2, slo_s=0.5, window=1),
    "o": ModelScheduling("o", max_rows=4, slo_s=0.5, window=2),
}
_POLICIES: list[Policy] = ["auto", "eager"]
_TOTAL_BYTES = 60
_MODEL = st.sampled_from(sorted(_MODELS))
_VARIANT = st.sampled_from(["", "", "light", "tiny"])
_INDEX = st.integers(0, 10**6)


class SchedulerMachine(RuleBasedStateMachine):
    """Events in any order; after each of them everything that must always hold is checked."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.accepted: list[Entry] = []
        self.queued: dict[int, Entry] = {}
        self.running: dict[int, Entry] = {}
        self.ended: set[int] = set()
        self.tries: dict[int, int] = {}
        self.returned: set[int] = set()
        self.asked: dict[int, tuple[str, bool]] = {}
        self.batch_keys: dict[int, str] = {}
        self.in_flight: dict[int, Dispatch] = {}
        self.answered: list[tuple[int, list[Entry]]] = []
        self.timed_out: dict[int, Dispatch] = {}
        self.replicas: dict[str, list[str]] = {name: [] for name in _MODELS}
        # Bundles at a replica before it vanished, or was quarantined, take no slot of it now.
        self.holding: dict[int, str | None] = {}
        self.sent_rows: dict[int, int] = {}

    @initialize(
        shares=st.booleans(),
        seeded=st.booleans(),
        started=st.booleans(),
        policies=st.tuples(*[st.sampled_from(_POLICIES)] * len(_MODELS)),
    )
    def start(self, shares: bool, seeded: bool, started: bool, policies: tuple[Policy, ...]) -> None:
        """One process with small limits."""
        self.shares = shares
        self.seeded = seeded
        self.models = {
            model.name: replace(model, policy=policy) for model, policy in zip(_MODELS.values(), policies, strict=True)
        }
        self.classes = {
            HIGH: make_class(entries=5, nbytes=40, overflow="demote"),
            NORMAL: make_class(entries=6, nbytes=40, overflow="demote", min_share=0.2 if shares else 0.0),
            LOW: make_class(entries=7, nbytes=40, min_share=0.2 if shares else 0.0),
        }
        self.scheduler = Scheduler(
            self.models.values(),
            self.classes,
            # No hedges: see test_hedging_properties.
            ProcessLimits(_TOTAL_BYTES, high_headroom=0.2, network_s=0.001),
        )
        if seeded:
            profile = [(1, 0, 0.02), (4, 0, 0.05), (1, 8, 0.1), (4, 8, 0.3)]
            for name in _MODELS:
                self.scheduler.seed(name, [(*point, "") for point in profile])
            self.scheduler.seed("m", [(rows, bucket, seconds / 4, "light") for rows, bucket, seconds in profile])
        if started:
            for name in _MODELS:
                self.set_replicas(name, ["a", "b"])

    # ------------------------------------------------------------------ events

    @rule(
        model=_MODEL,
        priority=st.sampled_from(Priority),
        timeout=st.sampled_from([-1.0, 0.0, 0.01, 0.1, 0.5, 1.0, 3.0, 60.0]),
        rows=st.integers(1, 6),
        bucket=st.sampled_from([0, 8, 16]),
        nbytes=st.integers(0, 15),
        variant=_VARIANT,
        exact=st.booleans(),
    )
    def arrive(
        self,
        model: str,
        priority: Priority,
        timeout: float,
        rows: int,
        bucket: int,
        nbytes: int,
        variant: str,
        exact: bool,
    ) -> None:
        """A request comes in."""
        entry = make_entry(
            priority,
            self.now + timeout,
            model=model,
            rows=rows,
            bucket=bucket,
            nbytes=nbytes,
            arrival=self.now,
            variant=variant,
            exact=exact,
        )
        rejection = self.scheduler.on_arrival(entry, self.now)
        if rejection is None:
            assert timeout > 0
            assert entry.priority >= priority
            assert entry.state is EntryState.QUEUED
            self.accepted.append(entry)
            self.queued[entry.id] = entry
            self.tries[entry.id] = 0
            self.asked[entry.id] = (variant, exact)
            self.batch_keys[entry.id] = entry.batch_key
        else:
            assert rejection.code in {"queue_full", "deadline_exceeded", "model_unavailable"}
            assert rejection.code != "model_unavailable" or model == "m"
            assert rejection.code == "deadline_exceeded" or timeout > 0
            assert (rejection.retry_after_s is None) or rejection.code != "deadline_exceeded"
            assert entry.priority is priority

    @rule(
        model=_MODEL,
        priority=st.sampled_from(Priority),
        count=st.integers(3, 20),
        nbytes=st.sampled_from([0, 0, 4, 12]),
        variants=st.lists(_VARIANT, min_size=1, max_size=3),
    )
    def burst(self, model: str, priority: Priority, count: int, nbytes: int, variants: list[str]) -> None:
        """Many requests come in at once."""
        for i in range(count):
            self.arrive(model, priority, 3.0 + i % 3, 1, 0, nbytes, variants[i % len(variants)], i % 5 == 0)

    @precondition(lambda self: self.accepted)
    @rule(index=_INDEX)
    def cancel(self, index: int) -> None:
        """A client goes, perhaps after its answer."""
        entry = self.accepted[index % len(self.accepted)]
        before = entry.state
        self.scheduler.on_cancel(entry, self.now)
        if before is not EntryState.DONE:
            self.end(entry)

    @precondition(lambda self: self.in_flight)
    @rule(
        index=_INDEX,
        seconds=st.sampled_from([0.0, 0.001, 0.05, 2.0]),
        waited=st.sampled_from([0.0, 0.01, 3.0]),
        told=st.sampled_from([0.0, 0.3]),
        returns=st.sampled_from([0, 0, 1, 2, 99]),
        outcome=st.sampled_from([BundleOutcome.ANSWERED, BundleOutcome.ANSWERED, *BundleOutcome]),
    )
    def done(
        self, index: int, seconds: float, waited: float, told: float, returns: int, outcome: BundleOutcome
    ) -> None:
        """A replica answers, may tell that it has more to do, and may give back what it has not run."""
        dispatch = self.take(index)
        returned = dispatch.entries[len(dispatch.entries) - returns :] if returns else []
        in_time = [e for e in self.living(dispatch) if e.deadline > self.now]
        expected = [e for e in in_time if e not in returned]
        variant = dispatch.entries[0].variant if dispatch.entries else ""
        executions = [(dispatch.rows, dispatch.bucket, seconds, variant)] if seconds else []
        if dispatch.replica is not None:
            self.scheduler.on_outcome(dispatch.bundle_id, dispatch.variant, outcome, self.now)
            picture = self.scheduler.breaker_snapshot(dispatch.model, self.now)
            if picture is not None and dispatch.replica in picture["ejected_replicas"]:
                self.let_go(dispatch.model, dispatch.replica)
        answered = self.scheduler.on_done(
            dispatch.bundle_id, executions, self.now, waited, reported_backlog_s=told, returned=returned
        )
        assert answered == expected
        for entry in expected:
            self.end(entry)
        for entry in in_time:
            if entry in returned:
                self.tries[entry.id] -= dispatch.replica is not None
                assert (entry.state, entry.attempts) == (EntryState.QUEUED, self.tries[entry.id])
                self.returned.add(entry.id)
                del self.running[entry.id]
                self.queued[entry.id] = entry
        self.answered.append((dispatch.bundle_id, returned))

    @precondition(lambda self: self.answered)
    @rule(index=_INDEX)
    def answer_again(self, index: int) -> None:
        """An answer that comes twice changes nothing."""
        bundle_id, returned = self.answered[index % len(self.answered)]
        assert self.scheduler.on_done(bundle_id, [(1, 0, 0.01, "")], self.now, returned=returned) == []

    @precondition(lambda self: self.in_flight)
    @rule(index=_INDEX, lost=st.booleans(), reached=st.sampled_from([None, True, False]))
    def fail(self, index: int, lost: bool, reached: bool | None) -> None:
        """A bundle fails as a whole, at a replica or before it reaches one."""
        dispatch = self.take(index)
        living = self.living(dispatch)
        for entry in living:
            if dispatch.replica is not None and reached is False:
                self.tries[entry.id] -= 1
            elif dispatch.replica is None and reached:
                self.tries[entry.id] += 1
        self.check_requeue(living, self.scheduler.on_failed(dispatch.bundle_id, self.now, lost, reached=reached))

    @precondition(lambda self: self.in_flight)
    @rule(index=_INDEX)
    def time_out(self, index: int) -> None:
        """A bundle is not answered for too long; its answer may come later."""
        dispatch = self.take(index)
        living = self.living(dispatch)
        self.timed_out[dispatch.bundle_id] = dispatch
        self.check_requeue(living, self.scheduler.on_timeout(dispatch.bundle_id, self.now))
        self.let_go(dispatch.model, dispatch.replica)

    @precondition(lambda self: self.timed_out)
    @rule(index=_INDEX, failed=st.booleans())
    def answer_after_timeout(self, index: int, failed: bool) -> None:
        """It does, when its entries are elsewhere already."""
        bundle_id = sorted(self.timed_out)[index % len(self.timed_out)]
        del self.timed_out[bundle_id]
        if failed:
            assert self.scheduler.on_failed(bundle_id, self.now, replica_lost=True) == Requeue([], [], [])
        else:
            assert self.scheduler.on_done(bundle_id, [], self.now) == []

    @rule(model=_MODEL, names=st.lists(st.sampled_from("abc"), unique=True))
    def set_replicas(self, model: str, names: list[str]) -> None:
        """Replicas come and go."""
        for name in set(self.replicas[model]) - set(names):
            self.let_go(model, name)
        self.replicas[model] = names
        self.scheduler.on_replicas(model, names, self.now)

    @rule(model=_MODEL, name=st.sampled_from(["a", "b", "c", None]))
    def quarantine(self, model: str, name: str | None) -> None:
        """A replica is declared wedged."""
        self.scheduler.quarantine(model, name, self.now)
        self.let_go(model, name)

    @rule(seconds=st.sampled_from([0.0, 0.005, 0.05, 0.3, 1.0, 5.0]))
    def pass_time(self, seconds: float) -> None:
        """Time goes by, without a decision in between."""
        self.now += seconds

    @rule()
    def wake(self) -> None:
        """The timer fires."""
        wake_at = self.scheduler.wake_at
        if wake_at is not None:
            self.now = max(self.now, wake_at)
        self.decide()
        after = self.scheduler.wake_at
        assert after is None or after > self.now

    @rule()
    def decide(self) -> None:
        """What is decided keeps every promise."""
        decisions = self.scheduler.decide(self.now)
        for entry in decisions.expired:
            assert entry.deadline <= self.now
            self.end(entry)
        assert not decisions.given_up, "gates know best what can be in time"
        for entry, why in decisions.refused:
            assert (why.code, entry.model, entry.id in self.queued) == ("model_unavailable", "m", True)
            self.end(entry)
        for entry in self.queued.values():
            self.batch_keys[entry.id] = entry.batch_key  # a fallback may have taken it over
        living = [*self.queued.values(), *self.running.values()]
        assert [entry for entry in living if entry.deadline <= self.now] == []
        for dispatch in decisions.dispatches:
            self.check_dispatch(dispatch)
        for name, picture in self.scheduler.snapshot().items():
            assert self.scheduler.usable(name) == len(picture["replicas"]) - len(picture["held_replicas"])
            self.check_free_slots(name, picture)
        wake_at = self.scheduler.wake_at
        assert wake_at is None or wake_at > self.now, "a second decision at this moment has nothing to do"

    # ------------------------------------------------------------------ checks

    def check_dispatch(self, dispatch: Dispatch) -> None:
        """One bundle: who is in it, in which order, and where it goes."""
        entries = dispatch.entries
        model = self.models[dispatch.model]
        most = model.max_rows
        assert entries
        assert [e for e in entries if e.id not in self.queued or e.model != dispatch.model] == []
        assert [e for e in entries if e.state is not EntryState.RUNNING] == []
        assert dispatch.rows == sum(e.rows for e in entries)
        assert dispatch.rows <= most or len(entries) == 1
        assert dispatch.bucket == max(e.bucket for e in entries)
        assert {e.variant for e in entries} == {dispatch.variant}, "variants never share a bundle"
        for entry in entries:
            asked, exact = self.asked[entry.id]
            allowed = {asked} if asked or exact else {"", *model.fallbacks}
            assert dispatch.variant in allowed, "only what may be answered by a fallback is"
        fresh = self.tries[entries[0].id] == 0
        assert len(entries) == 1 or all(self.tries[e.id] == 0 for e in entries), "a retried entry travels alone"
        for entry in entries:
            self.tries[entry.id] += dispatch.replica is not None
            assert entry.attempts == self.tries[entry.id]

        listed = self.replicas[dispatch.model]
        assert dispatch.replica in listed if listed else dispatch.replica is None
        for entry in entries:
            del self.queued[entry.id]
        before = [
            e
            for bundle_id, replica in self.holding.items()
            if replica == dispatch.replica and (other := self.in_flight[bundle_id]).model == dispatch.model
            for e in other.entries
        ]
        if dispatch.replica is None:
            assert not before, "one at a time"
        else:
            priority = entries[0].priority
            ahead = sum(self.sent_rows[e.id] for e in before if e.priority <= priority)
            assert ahead < model.window * most
        self.holding[dispatch.bundle_id] = dispatch.replica
        self.sent_rows.update((e.id, e.rows) for e in entries)
        self.in_flight[dispatch.bundle_id] = dispatch
        self.running.update((e.id, e) for e in entries)
        self.check_order(dispatch, fresh)

    def check_free_slots(self, name: str, picture: dict[str, Any]) -> None:
        """What waits beside a replica with nothing to do does so for a retry that must go elsewhere."""
        sent = (*self.in_flight.values(), *self.timed_out.values())
        busy = {dispatch.replica for dispatch in sent if dispatch.model == name}
        idle = set(picture["replicas"]) - set(picture["held_replicas"]) - busy
        if idle:
            assert not self.fresh(name), "a replica is idle and work waits"

    def check_order(self, dispatch: Dispatch, fresh: bool) -> None:
        """Earliest deadline first within a class.

        Entries that fill a bundle may pass over one for which it would be too long, or which has no room at a replica.
        """
        entries = dispatch.entries
        batch_key = self.batch_keys[entries[0].id]
        self.batch_keys.update((entry.id, entry.batch_key) for entry in entries)
        for priority in Priority:
            chosen = [(e.deadline, e.id) for e in entries if e.priority is priority]
            assert chosen == sorted(chosen)
        if not fresh:
            return
        for priority in Priority:
            chosen = [(e.deadline, e.id) for e in entries if e.priority is priority]
            waiting = [
                (e.deadline, e.id)
                for e in self.fresh(dispatch.model)
                if e.priority is priority and self.batch_keys[e.id] == batch_key
            ]
            if chosen and waiting and priority is entries[0].priority:
                assert chosen[-1] < min(waiting), "earliest deadline first"
        others = [(e.deadline, e.id) for e in self.fresh(dispatch.model) if e.priority is entries[0].priority]
        if others:
            assert (entries[0].deadline, entries[0].id) < min(others), "the head is the earliest of all variants"

    def check_requeue(self, living: list[Entry], result: Requeue) -> None:
        """Every living entry of a failed bundle is requeued, refused or expired; at most two replicas get it."""
        assert sorted(e.id for part in result for e in part) == sorted(e.id for e in living)
        for entry in result.requeued:
            assert entry.state is EntryState.QUEUED
            assert entry.attempts == self.tries[entry.id] < 2
            assert entry.deadline > self.now
            self.returned.add(entry.id)
            del self.running[entry.id]
            self.queued[entry.id] = entry
        for entry in result.poisoned:
            assert entry.attempts == self.tries[entry.id] == 2
            self.end(entry)
        for entry in result.expired:
            assert entry.deadline <= self.now
            self.end(entry)

    def take(self, index: int) -> Dispatch:
        """A bundle in flight, which then is no more."""
        bundle_id = sorted(self.in_flight)[index % len(self.in_flight)]
        self.holding.pop(bundle_id, None)
        return self.in_flight.pop(bundle_id)

    def living(self, dispatch: Dispatch) -> list[Entry]:
        """Its entries that somebody waits for."""
        return [e for e in dispatch.entries if e.id in self.running]

    def fresh(self, model: str) -> list[Entry]:
        """Queued entries of a model that no replica has had."""
        return [e for e in self.queued.values() if e.model == model and self.tries[e.id] == 0]

    def let_go(self, model: str, replica: str | None) -> None:
        """The bundles at this replica hold no slot any more."""
        for bundle_id, dispatch in self.in_flight.items():
            if dispatch.model == model and dispatch.replica == replica:
                self.holding.pop(bundle_id, None)

    def end(self, entry: Entry) -> None:
        """An accepted entry ends, once."""
        assert entry.state is EntryState.DONE
        assert entry.id not in self.ended
        self.ended.add(entry.id)
        assert (self.queued.pop(entry.id, None) is None) != (self.running.pop(entry.id, None) is None)

    @invariant()
    def counts_are_exact_and_bounded(self) -> None:
        """Per class, per model and in total."""
        if not hasattr(self, "scheduler"):
            return
        totals: dict[str, Any] = self.scheduler.totals()
        for priority, limits in self.classes.items():
            mine = [e for e in self.queued.values() if e.priority is priority]
            assert totals["classes"][priority.label] == {"entries": len(mine), "bytes": sum(e.nbytes for e in mine)}
            never_sent = [e for e in mine if e.id not in self.returned]
            assert len(never_sent) <= limits.queue_entries
            assert sum(e.nbytes for e in never_sent) <= limits.queue_bytes
            for name in _MODELS:
                here = [e for e in mine if e.model == name]
                assert self.scheduler.queue_lengths(name)[priority] == (
                    len(here),
                    sum(e.rows for e in here),
                    sum(e.nbytes for e in here),
                )
        assert totals["bytes"] == sum(e.nbytes for e in (*self.queued.values(), *self.running.values()))
        assert totals["bytes"] <= _TOTAL_BYTES

    @invariant()
    def nothing_is_forgotten(self) -> None:
        """While anybody waits there is a moment to decide at, no later than the first deadline."""
        if not hasattr(self, "scheduler"):
            return
        first = min((e.deadline for e in (*self.queued.values(), *self.running.values())), default=inf)
        wake_at = self.scheduler.wake_at
        assert (inf if wake_at is None else wake_at) <= first

    def teardown(self) -> None:
        """Drained, everything has ended once and every count is back to zero."""
        if not hasattr(self, "scheduler"):
            return
        self.decide()
        for _ in range(3):
            while self.in_flight:
                self.done(0, 0.01, 0.0, 0.0, 0, BundleOutcome.ANSWERED)
            self.decide()
        self.now += 1000.0
        self.decide()
        while self.in_flight:
            self.done(0, 0.0, 0.0, 0.0, 0, BundleOutcome.ANSWERED)
        while self.timed_out:
            self.answer_after_timeout(0, failed=False)
        self.now += 60.0  # a replica that only gave back what was recalled is held for a while
        assert self.ended == {e.id for e in self.accepted}
        assert self.scheduler.decide(self.now) == Decisions([], [], [])
        assert self.scheduler.wake_at is None
        totals = self.scheduler.totals()
        assert (totals["bytes"], totals["bundles"]) == (0, 0)
        assert [count for count in totals["classes"].values() if count != {"entries": 0, "bytes": 0}] == []
        assert {name: self.scheduler.load(name) for name in _MODELS} == dict.fromkeys(_MODELS, 0)
        pictures = self.scheduler.snapshot()
        assert {name: pictures[name]["slots_in_use"] for name in _MODELS} == dict.fromkeys(_MODELS, 0)


SchedulerMachine.TestCase.settings = settings(max_examples=examples(250), stateful_step_count=60)
TestScheduler = SchedulerMachine.TestCase
