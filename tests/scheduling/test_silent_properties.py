"""Replicas that die, hang, come back and answer late, in any order: every accepted request ends exactly once."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis_profiles import examples
from scheduling_builders import AFFINE, load_everywhere, make_entry, make_scheduler

from serve_app.domain.priority import Priority
from serve_app.pools.policy.settings import Pool
from serve_app.scheduling.decisions import Dispatch, Requeue
from serve_app.scheduling.entry import Entry, EntryState
from serve_app.scheduling.scheduler import Scheduler
from serve_app.scheduling.settings import ModelScheduling

_MODELS = ("m", "n")
_MODEL = st.sampled_from(_MODELS)
_NAME = st.sampled_from("abc")
_INDEX = st.integers(0, 10**6)


class SilenceMachine(RuleBasedStateMachine):
    """Ids of requests, and which bundles carry them; nothing of how the scheduler decides."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.scheduler: Scheduler | None = None
        self.accepted: dict[int, Entry] = {}
        self.ended: set[int] = set()
        self.reached: dict[int, int] = {}
        self.in_flight: dict[int, Dispatch] = {}
        self.listed: dict[str, list[str]] = {}

    @property
    def it(self) -> Scheduler:
        """The scheduler under test."""
        assert self.scheduler is not None
        return self.scheduler

    @initialize(pooled=st.booleans(), known=st.booleans(), window=st.integers(1, 2), names=st.sampled_from(("ab", "a")))
    def start(self, pooled: bool, known: bool, window: int, names: str) -> None:
        """Two models with up to two replicas each, perhaps in one pool."""
        self.scheduler = make_scheduler(
            models=[ModelScheduling(name, 4, 0.1, window) for name in _MODELS],
            pool=Pool("g", _MODELS, 1, 9) if pooled else None,
            replicas=names,
            profile=AFFINE if known else (),
        )
        self.listed = {model: list(names) for model in _MODELS}

    @rule(
        model=_MODEL,
        priority=st.sampled_from(Priority),
        budget=st.sampled_from([0.05, 0.3, 1.0, 1.0, 5.0, 60.0]),
        number=st.integers(1, 5),
    )
    def arrive(self, model: str, priority: Priority, budget: float, number: int) -> None:
        """Requests come in, and go where there is room."""
        for _ in range(number):
            entry = make_entry(priority, self.now + budget, model=model, nbytes=3, arrival=self.now)
            if self.it.on_arrival(entry, self.now) is None:
                self.accepted[entry.id] = entry
        self.decide()

    @precondition(lambda self: self.in_flight)
    @rule(index=_INDEX, seconds=st.sampled_from([0.001, 0.006, 2.0]), returns=st.sampled_from([0, 0, 1, 99]))
    def answer(self, index: int, seconds: float, returns: int) -> None:
        """A replica answers, in time or long after everybody has given it up, and may give back what it did not run."""
        dispatch = self.take(index)
        executions = [(dispatch.rows, dispatch.bucket, seconds, dispatch.variant)]
        returned = dispatch.entries[:returns]
        if dispatch.replica is not None:
            for entry in returned:
                self.reached[entry.id] -= 1
        for entry in self.it.on_done(dispatch.bundle_id, executions, self.now, returned=returned):
            assert entry not in returned
            assert entry.deadline > self.now
            assert entry.id in {e.id for e in dispatch.entries}, "an answer is to who asked"
            self.end(entry)

    @precondition(lambda self: self.in_flight)
    @rule(index=_INDEX, reached=st.sampled_from([True, True, False]))
    def die(self, index: int, reached: bool) -> None:
        """A replica dies with a bundle, or is found dead."""
        dispatch = self.take(index)
        if not reached and dispatch.replica is not None:
            for entry in dispatch.entries:
                self.reached[entry.id] -= 1
        self.deal_with(self.it.on_failed(dispatch.bundle_id, self.now, True, reached=reached))

    @precondition(lambda self: self.in_flight)
    @rule(index=_INDEX)
    def time_out(self, index: int) -> None:
        """A bundle is not answered for too long; its answer may still come."""
        bundle_id = sorted(self.in_flight)[index % len(self.in_flight)]
        self.deal_with(self.it.on_timeout(bundle_id, self.now))

    @rule(model=_MODEL, name=_NAME)
    def fall_silent(self, model: str, name: str) -> None:
        """Nothing is heard of a replica."""
        self.it.on_unresponsive(model, name, self.now)

    @rule(model=_MODEL, name=_NAME)
    def speak(self, model: str, name: str) -> None:
        """Something is."""
        self.it.on_responsive(model, name, self.now)

    @rule(model=_MODEL, names=st.lists(_NAME, unique=True))
    def replace(self, model: str, names: list[str]) -> None:
        """Replicas come and go."""
        if not self.it.devices:
            self.listed[model] = names
            self.it.on_replicas(model, names, self.now)
        elif names:  # of a pool without hosts nothing goes out
            self.listed = dict.fromkeys(_MODELS, names)
            load_everywhere(self.it, names, self.now)

    @precondition(lambda self: self.accepted)
    @rule(index=_INDEX)
    def leave(self, index: int) -> None:
        """A client goes, perhaps after its answer."""
        entry = self.accepted[sorted(self.accepted)[index % len(self.accepted)]]
        living = entry.id not in self.ended
        assert (entry.state is not EntryState.DONE) == living, "who accepted a request knows whether it lives"
        self.it.on_cancel(entry, self.now)
        if living:
            self.end(entry)

    @rule(seconds=st.sampled_from([0.0, 0.01, 0.1, 0.5, 2.0]))
    def pass_time(self, seconds: float) -> None:
        """Time goes by without a decision."""
        self.now += seconds

    @rule(times=st.integers(1, 8))
    def wake(self, times: int) -> None:
        """The timer fires, as often as it is set."""
        for _ in range(times):
            wake_at = self.it.wake_at
            if wake_at is not None:
                self.now = max(self.now, wake_at)
            self.decide()

    @rule()
    def decide(self) -> None:
        """Nothing that has ended or is late is sent, and nothing is sent to a third replica."""
        decisions = self.it.decide(self.now)
        for entry in (*decisions.expired, *decisions.given_up):
            self.end(entry)
        for entry in decisions.expired:
            assert entry.deadline <= self.now
        for bundle_id, entries in decisions.recalls.items():
            # Its request has ended, or is left to the other copy, since this one's bundle was given up.
            assert [entry for entry in entries if entry.state is not EntryState.DONE] == [], (
                "a copy is recalled that nobody waits for"
            )
            assert bundle_id not in self.in_flight or set(entries) <= set(self.in_flight[bundle_id].entries)
        for dispatch in decisions.dispatches:
            assert dispatch.bundle_id not in self.in_flight
            self.in_flight[dispatch.bundle_id] = dispatch
            listed = self.listed[dispatch.model]
            assert dispatch.replica in listed if listed else dispatch.replica is None
            for entry in dispatch.entries:
                assert entry.id in self.accepted
                assert entry.id not in self.ended
                assert entry.deadline > self.now
                if dispatch.replica is not None:
                    self.reached[entry.id] = self.reached.get(entry.id, 0) + 1
                    assert self.reached[entry.id] <= 2
            assert len({entry.id for entry in dispatch.entries}) == len(dispatch.entries)
        wake_at = self.it.wake_at
        assert wake_at is None or wake_at > self.now

    def deal_with(self, requeue: Requeue) -> None:
        """What became of a failed bundle."""
        for entry in (*requeue.poisoned, *requeue.expired):
            self.end(entry)
        for entry in requeue.requeued:
            assert entry.id not in self.ended

    def take(self, index: int) -> Dispatch:
        """A bundle in flight, which then is no more."""
        return self.in_flight.pop(sorted(self.in_flight)[index % len(self.in_flight)])

    def end(self, entry: Entry) -> None:
        """A request ends, once, and whoever accepted it can see it."""
        assert entry.id in self.accepted
        assert entry.id not in self.ended
        assert self.accepted[entry.id].state is EntryState.DONE
        assert entry.state is EntryState.DONE
        self.ended.add(entry.id)

    @invariant()
    def bytes_are_those_of_living_requests(self) -> None:
        """Each is counted once, wherever it is queued and running."""
        if self.scheduler is None:
            return
        living = 3 * (len(self.accepted) - len(self.ended))
        assert self.it.totals()["bytes"] == living

    def teardown(self) -> None:
        """Everything ends, and nothing is left."""
        if self.scheduler is None:
            return
        for model in _MODELS:
            self.replace(model, ["a", "b", "c"])
        for _ in range(4):
            self.decide()
            self.now += 100.0
        self.decide()
        while self.in_flight:
            self.answer(0, 0.001, 0)
        self.decide()
        assert self.ended == set(self.accepted)
        totals = self.it.totals()
        assert (totals["bytes"], totals["bundles"]) == (0, 0)
        assert [count for count in totals["classes"].values() if count != {"entries": 0, "bytes": 0}] == []
        for picture in self.it.snapshot().values():
            assert (picture["slots_in_use"], picture["running_rows"]) == (0, 0)


SilenceMachine.TestCase.settings = settings(max_examples=examples(80), stateful_step_count=40)
TestSilence = SilenceMachine.TestCase
