"""Linked replicas that take entries from a shared table, die, hang and come back, in any order."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis_profiles import examples
from scheduling_builders import AFFINE, make_entry, make_scheduler

from serve_app.domain.priority import Priority
from serve_app.payloads import RequestAttributes
from serve_app.scheduling.decisions import Dispatch, Requeue
from serve_app.scheduling.entry import Entry, EntryState

_NAMES = "abcd"
_NAME = st.sampled_from(_NAMES)
_INDEX = st.integers(0, 10**6)


class _Replica:
    """What waits at a replica, by bundle, and what runs: the entries that it has taken."""

    def __init__(self) -> None:
        self.bundles: dict[int, tuple[Dispatch, list[Entry]]] = {}
        self.runs: dict[int, list[Entry]] = {}


class TiedMachine(RuleBasedStateMachine):
    """One model whose replicas share a table of the entries that one of them has taken."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.accepted: dict[int, Entry] = {}
        self.ended: set[int] = set()
        self.runs: dict[int, int] = {}
        self.taken: set[Entry] = set()
        self.in_flight: dict[int, Dispatch] = {}
        self.timed_out: set[int] = set()
        self.dropped: dict[int, list[Entry]] = {}
        self.replicas = {name: _Replica() for name in _NAMES}
        self.most_tied = 0

    @initialize(window=st.integers(1, 2), tenants=st.booleans())
    def start(self, window: int, tenants: bool) -> None:
        """All replicas are linked and busy, and more is tied to them."""
        self.scheduler = make_scheduler(max_rows=4, window=window, profile=AFFINE, replicas=_NAMES)
        self.tenants = tenants
        for name in _NAMES:
            self.scheduler.on_linked("m", name, linked=True)
        self.arrive(Priority.NORMAL, 60.0, 3 * len(_NAMES))

    @rule(
        priority=st.sampled_from(Priority),
        budget=st.sampled_from([0.05, 1.0, 60.0, 60.0]),
        number=st.integers(1, 8),
    )
    def arrive(self, priority: Priority, budget: float, number: int) -> None:
        """Requests come in, more than the replicas can begin at once."""
        for at in range(number):
            entry = make_entry(priority, self.now + budget, nbytes=3, arrival=self.now)
            entry.attributes = RequestAttributes(str(at % 2) if self.tenants else "")
            if self.scheduler.on_arrival(entry, self.now) is None:
                self.accepted[entry.id] = entry
            self.now += 0.0005
            self.decide()

    @rule()
    def decide(self) -> None:
        """Bundles reach their replicas; recalled entries that wait there go back."""
        decisions = self.scheduler.decide(self.now)
        wake_at = self.scheduler.wake_at
        assert wake_at is None or wake_at > self.now
        for entry in (*decisions.expired, *decisions.given_up):
            self.end(entry)
        for dispatch in decisions.dispatches:
            assert dispatch.bundle_id not in self.in_flight
            assert dispatch.replica is not None
            if dispatch.entries[0].attempts > 1:
                self.taken.difference_update(dispatch.entries)
            for entry in dispatch.entries:
                assert entry.state is EntryState.RUNNING
                assert entry.id not in self.ended
                assert entry.attempts == 1 or entry.bundles[1:] in ((), (dispatch.bundle_id,)), "a retry is not tied"
                assert dispatch.bundle_id in entry.bundles
                self.most_tied = max(self.most_tied, len(entry.bundles))
            self.in_flight[dispatch.bundle_id] = dispatch
            self.replicas[dispatch.replica].bundles[dispatch.bundle_id] = (dispatch, list(dispatch.entries))
        for bundle_id, entries in decisions.recalls.items():
            waiting = self.replicas[str(self.in_flight[bundle_id].replica)].bundles[bundle_id][1]
            waiting[:] = [entry for entry in waiting if entry not in entries]
        for replica in self.replicas.values():
            self.answer_the_empty(replica)

    @rule(name=_NAME, rows=st.integers(0, 4), drops=st.integers(0, 1))
    def begin(self, name: str, rows: int, drops: int) -> None:
        """A free replica finds what others have taken, drops some of the rest, and takes a batch; the rest waits."""
        replica = self.replicas[name]
        if replica.runs:
            return
        for bundle_id, (_, waiting) in replica.bundles.items():
            here = [entry for entry in waiting if entry not in self.taken]
            drops_now, here = here[:drops], here[drops:]
            if drops_now:
                self.dropped.setdefault(bundle_id, []).extend(drops_now)
            drops -= len(drops_now)
            if batch := here[:rows]:
                self.taken.update(batch)
                for entry in batch:
                    self.runs[entry.id] = self.runs.get(entry.id, 0) + 1
                    assert self.runs[entry.id] <= 2, "run once, and once again where it failed"
                replica.runs[bundle_id] = batch
                rows -= len(batch)
            waiting[:] = here[len(batch) :]
        self.answer_the_empty(replica)

    def answer_the_empty(self, replica: _Replica) -> None:
        """A bundle of which nothing waits or runs any more is answered."""
        for bundle_id, (_, waiting) in list(replica.bundles.items()):
            if not waiting and bundle_id not in replica.runs:
                self.answer(replica, bundle_id, [])

    @rule(name=_NAME)
    def finish(self, name: str) -> None:
        """The batch has run: its bundles are answered, and what they still had waiting goes back."""
        replica = self.replicas[name]
        ran, replica.runs = replica.runs, {}
        self.now += 0.005 + 0.001 * sum(map(len, ran.values()))
        for bundle_id, batch in ran.items():
            self.answer(replica, bundle_id, batch)
        self.decide()

    def answer(self, replica: _Replica, bundle_id: int, ran: list[Entry]) -> None:
        """What was neither run nor dropped is returned."""
        dispatch, _ = replica.bundles.pop(bundle_id)
        self.in_flight.pop(bundle_id)
        dropped = self.dropped.pop(bundle_id, [])
        returned = [entry for entry in dispatch.entries if entry not in ran and entry not in dropped]
        executions = [(len(ran), 0, 0.005 + 0.001 * len(ran), "")] if ran else []
        answered = self.scheduler.on_done(bundle_id, executions, self.now, returned=returned, dropped=dropped)
        assert bundle_id not in self.timed_out or not answered, "its entries are elsewhere"
        for entry in answered:
            assert entry in ran or entry in dropped
            self.end(entry)

    @precondition(lambda self: self.in_flight)
    @rule(index=_INDEX, lost=st.booleans())
    def fail(self, index: int, lost: bool) -> None:
        """A bundle fails; what it had taken stays taken."""
        bundle_id = sorted(self.in_flight)[index % len(self.in_flight)]
        replica = self.replicas[str(self.in_flight.pop(bundle_id).replica)]
        del replica.bundles[bundle_id]
        replica.runs.pop(bundle_id, None)
        self.dropped.pop(bundle_id, None)
        self.deal_with(self.scheduler.on_failed(bundle_id, self.now, lost))

    @precondition(lambda self: set(self.in_flight) - self.timed_out)
    @rule(index=_INDEX)
    def time_out(self, index: int) -> None:
        """A bundle is not answered for too long; its replica may still run it and answer."""
        waited_for = sorted(set(self.in_flight) - self.timed_out)
        bundle_id = waited_for[index % len(waited_for)]
        self.timed_out.add(bundle_id)
        waiting = self.replicas[str(self.in_flight[bundle_id].replica)].bundles[bundle_id][1]
        waiting.clear()  # its deadline there has passed
        self.deal_with(self.scheduler.on_timeout(bundle_id, self.now))

    def deal_with(self, requeue: Requeue) -> None:
        """What became of a failed bundle."""
        for entry in (*requeue.poisoned, *requeue.expired):
            self.end(entry)
        assert [entry for entry in requeue.requeued if entry.state is not EntryState.QUEUED] == []

    @rule(name=_NAME)
    def fall_silent(self, name: str) -> None:
        """Nothing is heard of a replica: entries that only it has are tried elsewhere."""
        self.scheduler.on_unresponsive("m", name, self.now)

    @rule(name=_NAME)
    def speak(self, name: str) -> None:
        """Something is."""
        self.scheduler.on_responsive("m", name, self.now)

    @rule(name=_NAME, linked=st.sampled_from([True, True, False]))
    def link(self, name: str, linked: bool) -> None:
        """A replica loses its links, or has them again: what it has already it can still ask for."""
        self.scheduler.on_linked("m", name, linked=linked)

    @rule(names=st.sets(_NAME, min_size=2))
    def replace(self, names: set[str]) -> None:
        """Replicas come and go; those that are gone finish what they have."""
        self.scheduler.on_replicas("m", sorted(names), self.now)
        for name in sorted(names):
            self.scheduler.on_linked("m", name, linked=True)

    @precondition(lambda self: self.accepted)
    @rule(index=_INDEX)
    def leave(self, index: int) -> None:
        """A client goes, perhaps after its answer."""
        entry = self.accepted[sorted(self.accepted)[index % len(self.accepted)]]
        living = entry.id not in self.ended
        assert (entry.state is not EntryState.DONE) == living
        self.scheduler.on_cancel(entry, self.now)
        if living:
            self.end(entry)

    @rule(seconds=st.sampled_from([0.001, 0.01, 0.5]))
    def pass_time(self, seconds: float) -> None:
        """Time goes by."""
        self.now += seconds

    def end(self, entry: Entry) -> None:
        """A request ends, once, and whoever accepted it can see it."""
        assert entry.id in self.accepted
        assert entry.id not in self.ended
        assert self.accepted[entry.id].state is entry.state is EntryState.DONE
        self.ended.add(entry.id)

    @invariant()
    def the_counts_are_those_of_the_living(self) -> None:
        """Bytes and the load count a tied entry once."""
        if not hasattr(self, "scheduler"):
            return
        living = len(self.accepted) - len(self.ended)
        totals = self.scheduler.totals()
        assert totals["bytes"] == 3 * living
        assert self.scheduler.load("m") <= living
        picture = self.scheduler.snapshot()["m"]
        assert picture["running_rows"] <= sum(dispatch.rows for dispatch in self.in_flight.values())
        for entry in self.accepted.values():
            if entry.state is EntryState.RUNNING and entry.deadline > self.now:
                assert set(entry.bundles) & set(self.in_flight), "somebody has it"

    def teardown(self) -> None:
        """All replicas run what they have: nothing is left anywhere."""
        if not hasattr(self, "scheduler"):
            return
        for _ in range(60):
            for name in _NAMES:
                self.begin(name, 4, 0)
                self.finish(name)
        self.now += 100.0
        self.decide()
        for name in _NAMES:
            self.begin(name, 0, 0)
        assert self.ended == set(self.accepted)
        assert not self.in_flight
        totals = self.scheduler.totals()
        assert (totals["bytes"], totals["bundles"], self.scheduler.load("m")) == (0, 0, 0)
        picture = self.scheduler.snapshot()["m"]
        assert (picture["slots_in_use"], picture["running_rows"]) == (0, 0)


TiedMachine.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=40)
TestTied = TiedMachine.TestCase
