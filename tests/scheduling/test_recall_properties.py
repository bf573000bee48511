"""A scheduler, its replicas' gates and messages between them in any order: what is recalled ends once, everywhere."""

from __future__ import annotations

from collections import deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis_profiles import examples
from scheduling_builders import AFFINE, make_entry, make_gate, make_scheduler

from serve_app.domain.priority import Priority
from serve_app.payloads import RequestAttributes
from serve_app.scheduling.decisions import Dispatch
from serve_app.scheduling.entry import Entry, EntryState
from serve_app.scheduling.settings import ProcessLimits

_NAMES = "ab"
_NAME = st.sampled_from(_NAMES)
_INDEX = st.integers(0, 10**6)
_TENANTS = st.sampled_from(["", "", "one", "two"])


class _Replica:
    """A gate and the bundles there; a message that was sent later comes later."""

    def __init__(self) -> None:
        self.gate = make_gate(max_rows=4, policy="eager", profile=AFFINE)
        self.mail: deque[tuple[Dispatch, list[Entry] | None]] = deque()
        self.waiting: dict[int, dict[int, Entry]] = {}
        self.back: dict[int, list[Entry]] = {}


class RecallMachine(RuleBasedStateMachine):
    """Clients come and leave, messages arrive, batches run; nothing of how anybody decides."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        limits = ProcessLimits(10**12, network_s=0.002)
        self.scheduler = make_scheduler(max_rows=4, replicas=_NAMES, profile=AFFINE, limits=limits)
        self.replicas = {name: _Replica() for name in _NAMES}
        self.accepted: dict[int, Entry] = {}
        self.ended: set[int] = set()
        self.recalled: set[tuple[int, int]] = set()
        self.in_flight: dict[int, Dispatch] = {}

    @rule(
        priority=st.sampled_from(Priority),
        budget=st.sampled_from([0.02, 0.2, 5.0, 60.0]),
        number=st.integers(1, 6),
        tenant=_TENANTS,
    )
    def arrive(self, priority: Priority, budget: float, number: int, tenant: str) -> None:
        """Requests come in."""
        for _ in range(number):
            entry = make_entry(priority, self.now + budget, nbytes=3, arrival=self.now)
            entry.attributes = RequestAttributes(tenant)
            if self.scheduler.on_arrival(entry, self.now) is None:
                self.accepted[entry.id] = entry
        self.decide()

    @precondition(lambda self: self.accepted)
    @rule(index=_INDEX, number=st.integers(1, 4))
    def leave(self, index: int, number: int) -> None:
        """Clients go, wherever their requests are, perhaps after their answers."""
        ids = sorted(self.accepted)
        for step in range(number):
            entry = self.accepted[ids[(index + step) % len(ids)]]
            living = entry.state is not EntryState.DONE
            self.scheduler.on_cancel(entry, self.now)
            if living:
                self.end(entry)
        self.decide()

    @rule()
    def decide(self) -> None:
        """Bundles and recalls are sent. What is recalled has ended, and is in that bundle."""
        decisions = self.scheduler.decide(self.now)
        for entry in (*decisions.expired, *decisions.given_up):
            self.end(entry)
        for dispatch in decisions.dispatches:
            assert [entry for entry in dispatch.entries if entry.id in self.ended] == []
            self.in_flight[dispatch.bundle_id] = dispatch
            self.replicas[str(dispatch.replica)].mail.append((dispatch, None))
        for bundle_id, entries in decisions.recalls.items():
            dispatch = self.in_flight[bundle_id]
            assert entries
            assert [entry for entry in entries if entry not in dispatch.entries] == []
            assert [entry for entry in entries if entry.state is not EntryState.DONE] == []
            assert not self.recalled & {(bundle_id, entry.id) for entry in entries}, "nothing is recalled twice"
            self.recalled.update((bundle_id, entry.id) for entry in entries)
            self.replicas[str(dispatch.replica)].mail.append((dispatch, list(entries)))

    @rule(name=_NAME, number=st.integers(1, 4))
    def deliver(self, name: str, number: int) -> None:
        """Messages reach a replica."""
        replica = self.replicas[name]
        for _ in range(min(number, len(replica.mail))):
            dispatch, recalled = replica.mail.popleft()
            if recalled is None:
                self.receive(replica, dispatch)
            else:
                self.recall(replica, dispatch, recalled)

    def receive(self, replica: _Replica, dispatch: Dispatch) -> None:
        """A bundle waits at the gate."""
        there = replica.waiting[dispatch.bundle_id] = {}
        replica.back[dispatch.bundle_id] = []
        for entry in dispatch.entries:
            here = make_entry(entry.priority, entry.deadline - dispatch.overhead_s, arrival=self.now)
            here.payload = dispatch, entry
            here.attributes = entry.attributes
            replica.gate.add(here, self.now)
            there[entry.id] = here

    def recall(self, replica: _Replica, dispatch: Dispatch, recalled: list[Entry]) -> None:
        """Some of a bundle is wanted no more: what has run, or left otherwise, is ignored."""
        there = replica.waiting.get(dispatch.bundle_id)
        if there is None:
            return
        for entry in recalled:
            if (here := there.pop(entry.id, None)) is not None:
                assert replica.gate.remove(here)
                assert not replica.gate.remove(here)
                replica.back[dispatch.bundle_id].append(entry)
        if not there:
            self.answer(replica, dispatch, 0)

    @rule(name=_NAME)
    def run(self, name: str) -> None:
        """A batch runs, and its bundles are answered."""
        replica = self.replicas[name]
        turn = replica.gate.next(self.now)
        bundles: dict[int, Dispatch] = {}
        dropped: dict[int, list[Entry]] = {}
        for here in (*turn.dropped, *turn.entries):
            dispatch, entry = here.payload
            assert replica.waiting[dispatch.bundle_id].pop(entry.id) is here, "what was recalled does not run"
        for here in turn.dropped:
            dispatch, entry = here.payload
            dropped.setdefault(dispatch.bundle_id, []).append(entry)
            if not replica.waiting[dispatch.bundle_id]:
                bundles[dispatch.bundle_id] = dispatch
        for here in turn.entries:
            bundles[here.payload[0].bundle_id] = here.payload[0]
        if turn.entries:
            self.now += 0.005 + 0.001 * turn.rows
            replica.gate.ended()
        for bundle_id, dispatch in bundles.items():
            for place, here in replica.waiting[bundle_id].items():
                assert replica.gate.remove(here)
                replica.back[bundle_id].append(next(e for e in dispatch.entries if e.id == place))
            self.answer(replica, dispatch, turn.rows, dropped.get(bundle_id, []))
        self.decide()

    def answer(self, replica: _Replica, dispatch: Dispatch, rows: int, dropped: list[Entry] | None = None) -> None:
        """Each bundle is answered once, and an answer is to who still waits."""
        del self.in_flight[dispatch.bundle_id], replica.waiting[dispatch.bundle_id]
        executions = [(rows, 0, 0.005 + 0.001 * rows, "")] if rows else []
        for entry in self.scheduler.on_done(
            dispatch.bundle_id,
            executions,
            self.now,
            returned=replica.back.pop(dispatch.bundle_id),
            dropped=dropped or (),
        ):
            self.end(entry)

    @rule(seconds=st.sampled_from([0.001, 0.02, 1.0]))
    def pass_time(self, seconds: float) -> None:
        """Time goes by."""
        self.now += seconds

    def end(self, entry: Entry) -> None:
        """A request ends, once."""
        assert entry.id in self.accepted
        assert entry.id not in self.ended
        assert entry.state is EntryState.DONE
        self.ended.add(entry.id)

    @invariant()
    def the_counts_are_those_of_what_is_there(self) -> None:
        """Bytes of the living; rows and bundles of what is in flight, recalled or not; and the gates' own rows."""
        totals = self.scheduler.totals()
        assert totals["bytes"] == 3 * (len(self.accepted) - len(self.ended))
        assert totals["bundles"] == len(self.in_flight)
        picture = self.scheduler.snapshot()["m"]
        assert picture["running_rows"] == sum(dispatch.rows for dispatch in self.in_flight.values())
        for replica in self.replicas.values():
            assert replica.gate.rows == sum(map(len, replica.waiting.values()))

    def teardown(self) -> None:
        """All messages arrive and all batches run: nothing is left anywhere."""
        for _ in range(200):
            for name in _NAMES:
                self.deliver(name, 1000)
                self.run(name)
        self.now += 100.0
        self.decide()
        assert self.ended == set(self.accepted)
        assert not self.in_flight
        self.the_counts_are_those_of_what_is_there()
        assert self.scheduler.load("m") == 0
        assert [name for name, replica in self.replicas.items() if replica.gate] == []


RecallMachine.TestCase.settings = settings(max_examples=examples(80), stateful_step_count=40)
TestRecall = RecallMachine.TestCase
