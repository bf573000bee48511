"""The gate under any sequence of events, with a virtual clock: every entry leaves exactly once."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis_profiles import examples
from scheduling_builders import AFFINE, Policy, make_entry, make_gate

from serve_app.domain.priority import Priority
from serve_app.scheduling.batching.composition import compose, execution_s
from serve_app.scheduling.batching.limits import BatchLimits
from serve_app.scheduling.batching.variants import VariantLatency
from serve_app.scheduling.entry import EXACT_ONLY, UNBATCHED, Entry, EntryState
from serve_app.scheduling.gate import Gate
from serve_app.scheduling.queueing.queue import ModelQueue
from serve_app.scheduling.queueing.tenant_queue import Totals
from serve_app.scheduling.settings import ModelScheduling

_POLICIES: list[Policy] = ["auto", "eager"]
_MAX_ROWS = 6
_INDEX = st.integers(0, 10**6)
_BATCH_KEY = st.sampled_from(["", "", "", "exact", "light", "alone"])


def _entry(priority: Priority, now: float, budget: float, rows: int, bucket: int, batch_key: str) -> Entry:
    entry = make_entry(
        priority,
        now + budget,
        rows=rows,
        bucket=bucket,
        arrival=now,
        variant="light" if batch_key == "light" else "",
        exact=batch_key == "exact",
    )
    if batch_key == "alone":
        entry.batch_key = UNBATCHED
    return entry


class GateMachine(RuleBasedStateMachine):
    """Who waits, who runs and who has left; nothing of how the gate decides."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.gate: Gate | None = None
        self.waiting: dict[int, Entry] = {}
        self.gone: list[Entry] = []
        self.known = False
        self.planned = False

    @property
    def it(self) -> Gate:
        """The gate under test."""
        assert self.gate is not None
        return self.gate

    @initialize(
        policy=st.sampled_from(_POLICIES),
        planned=st.booleans(),
        known=st.booleans(),
        share=st.sampled_from([0.0, 0.2]),
        fallbacks=st.sampled_from([(), ("light",)]),
    )
    def start(
        self,
        policy: Policy,
        planned: bool,
        known: bool,
        share: float,
        fallbacks: tuple[str, ...],
    ) -> None:
        """An empty gate."""
        self.known, self.planned = known, planned
        self.gate = make_gate(
            max_rows=_MAX_ROWS,
            slo_s=0.1,
            policy=policy,
            fallbacks=fallbacks,
            share=share,
            planned=planned,
            profile=AFFINE if known else (),
        )
        if known and fallbacks:
            self.gate.seed((rows, 0, seconds / 4, "light") for rows, _, seconds in AFFINE)

    @rule(
        priority=st.sampled_from(Priority),
        budget=st.sampled_from([-1.0, 0.0, 0.001, 0.008, 0.02, 0.1, 3.0]),
        rows=st.integers(1, _MAX_ROWS + 3),
        bucket=st.sampled_from([0, 0, 8]),
        batch_key=_BATCH_KEY,
        number=st.integers(1, 9),
    )
    def add(self, priority: Priority, budget: float, rows: int, bucket: int, batch_key: str, number: int) -> None:
        """Entries come in, perhaps late already."""
        for _ in range(number):
            entry = _entry(priority, self.now, budget, rows, bucket, batch_key)
            self.it.add(entry, self.now)
            assert entry.state is EntryState.QUEUED
            self.waiting[entry.id] = entry

    @precondition(lambda self: self.waiting)
    @rule(index=_INDEX)
    def remove(self, index: int) -> None:
        """A client has gone, or an entry goes back to its router."""
        entry = self.waiting[sorted(self.waiting)[index % len(self.waiting)]]
        assert self.it.remove(entry)
        self.leave(entry, EntryState.DONE)
        assert not self.it.remove(entry)

    @precondition(lambda self: self.gone)
    @rule(index=_INDEX)
    def remove_what_has_left(self, index: int) -> None:
        """It changes nothing."""
        entry = self.gone[index % len(self.gone)]
        before = entry.state
        assert not self.it.remove(entry)
        assert entry.state is before

    @rule(
        rows=st.integers(1, _MAX_ROWS),
        seconds=st.sampled_from([0.0, 0.001, 0.01, 0.5]),
        variant=st.sampled_from(["", "light"]),
    )
    def observe(self, rows: int, seconds: float, variant: str) -> None:
        """An execution ends."""
        self.known = True
        self.it.observe(rows, 0, seconds, variant)

    @rule(seconds=st.sampled_from([0.0, 0.001, 0.01, 0.1, 1.0, 90.0, -0.01, -2.0, -1e6]))
    def pass_time(self, seconds: float) -> None:
        """Time goes by; a clock that goes back loses nothing."""
        self.now += seconds

    @rule()
    def ask(self) -> None:
        """The session is free."""
        before = min(self.waiting.values(), key=lambda e: (e.priority, e.deadline), default=None)
        turn = self.it.next(self.now)
        for entry in turn.dropped:
            assert self.known or entry.deadline <= self.now, "without predictions nothing is given up"
            self.leave(entry, EntryState.DONE)
        entries = turn.entries
        for entry in entries:
            assert entry.deadline > self.now
            self.leave(entry, EntryState.RUNNING)
        assert turn.rows == sum(entry.rows for entry in entries)
        assert turn.rows <= _MAX_ROWS or len(entries) == 1
        if entries:
            assert turn.bucket == max(entry.bucket for entry in entries)
            batch_keys = {entry.batch_key for entry in entries}
            assert len(batch_keys) == 1
            assert len(entries) == 1 or UNBATCHED not in batch_keys
            asked = {entry.variant for entry in entries}
            assert asked == {turn.variant} or batch_keys == {""}
        else:
            assert turn.recheck_at > self.now
            assert before is None or not self.planned or not self.waiting, "nobody has anything to wait for"
            assert not self.waiting or turn.recheck_at <= max(entry.deadline for entry in self.waiting.values())

    @invariant()
    def counts_are_exact(self) -> None:
        """What waits, and never less than no work ahead."""
        if self.gate is None:
            return
        assert len(self.it) == len(self.waiting)
        assert bool(self.it) == bool(self.waiting)
        assert self.it.rows == sum(entry.rows for entry in self.waiting.values())
        assert self.it.backlog_s(self.now) >= 0.0

    def leave(self, entry: Entry, state: EntryState) -> None:
        """An entry leaves, once."""
        assert self.waiting.pop(entry.id) is entry
        assert entry.state is state
        self.gone.append(entry)

    def teardown(self) -> None:
        """Asked when it opens, everything leaves."""
        for _ in range(2 * len(self.waiting) + 2):
            if not self.waiting:
                return
            turn = self.it.next(self.now)
            for entry in turn.dropped:
                self.leave(entry, EntryState.DONE)
            for entry in turn.entries:
                self.leave(entry, EntryState.RUNNING)
            self.now = turn.recheck_at if not turn.entries and self.waiting else self.now
        assert not self.waiting


GateMachine.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=40)
TestGate = GateMachine.TestCase

_Offered = tuple[Priority, float, int, int, str]
"""Class, budget, rows, bucket, batch key."""

_OFFERED = st.lists(
    st.tuples(
        st.sampled_from(Priority),
        st.sampled_from([0.004, 0.01, 0.02, 0.05, 1.0]),
        st.integers(1, _MAX_ROWS + 1),
        st.sampled_from([0, 8]),
        _BATCH_KEY,
    ),
    max_size=20,
)


@given(offered=_OFFERED, order=st.randoms(use_true_random=False), share=st.sampled_from([0.0, 0.2]))
def test_it_is_all_the_same_which_routers_entries_came_by(offered: list[_Offered], order: Random, share: float) -> None:
    """Whatever the order in which they sent what waits now, the runs are the same."""
    entries = [
        _entry(priority, 0.0, budget, rows, bucket, batch_key) for priority, budget, rows, bucket, batch_key in offered
    ]
    shuffled = list(entries)
    order.shuffle(shuffled)
    first, second = _runs(entries, share), _runs(shuffled, share)

    assert first == second
    assert sorted(entry.id for entry in entries) == sorted(each for ids, dropped in first for each in ids + dropped)


def _runs(entries: list[Entry], share: float) -> list[tuple[list[int], list[int]]]:
    """Ids of the entries of each batch, and of those dropped for it."""
    gate, now = make_gate(*entries, max_rows=_MAX_ROWS, share=share), 0.0
    runs = []
    while (turn := gate.next(now)).entries or turn.dropped:
        runs.append(([entry.id for entry in turn.entries], sorted(entry.id for entry in turn.dropped)))
        now += turn.predicted_s
    return runs


@given(offered=_OFFERED)
def test_nothing_runs_late_where_predictions_hold(offered: list[_Offered]) -> None:
    """Whatever is run is in time; and the first of every batch is of the most urgent class."""
    entries = [
        _entry(priority, 0.0, budget, rows, bucket, batch_key) for priority, budget, rows, bucket, batch_key in offered
    ]
    gate, now = make_gate(*entries, max_rows=_MAX_ROWS), 0.0
    waiting = set(entries)
    while (turn := gate.next(now)).entries or turn.dropped:
        waiting -= set(turn.dropped)
        if turn.entries:
            assert turn.entries[0].priority is min(entry.priority for entry in waiting)
        now += turn.predicted_s
        waiting -= set(turn.entries)
        assert [entry for entry in turn.entries if entry.deadline < now - 1e-9] == []


@given(
    st.sampled_from(Priority),
    st.integers(1, 8),
    st.sampled_from(["", "", EXACT_ONLY, UNBATCHED]),
    st.floats(0.0, 0.004),
    st.floats(1e-5, 1e-3),
    st.integers(1, 8),
)
def test_a_lone_entry_runs_as_it_would_be_composed(
    priority: Priority, rows: int, batch_key: str, deadline: float, row_s: float, max_rows: int
) -> None:
    """What is quick runs without anything being weighed: the batch is the one that weighing makes."""
    profile = [(each, 0, row_s * each) for each in (1, 2, 4, 8)]
    here, same = (make_entry(priority, deadline, rows=rows) for _ in range(2))
    here.batch_key = same.batch_key = batch_key
    turn = make_gate(here, max_rows=max_rows, profile=profile).next(0.0)
    queue, latencies = ModelQueue({each: Totals() for each in Priority}), VariantLatency()
    queue.push(same)
    latencies.exact.seed(profile)
    expired: list[Entry] = []
    queue.expire(0.0, expired)
    scheduling = ModelScheduling("m", max_rows, 10.0, policy="eager")
    composed = None if expired else compose(queue, priority, scheduling, latencies, BatchLimits(0.0, max_rows))
    assert [here] * (composed is not None and composed.entries == [same]) == list(turn.entries)
    assert bool(turn.dropped) == (composed is None or composed.given_up == [same])
    if composed is not None and composed.entries:
        assert (turn.rows, turn.bucket, turn.variant) == (composed.rows, composed.bucket, composed.variant)
        assert turn.predicted_s == execution_s(latencies.exact, rows, 0, max_rows)
