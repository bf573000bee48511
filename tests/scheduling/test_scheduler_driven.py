"""The scheduler as a dispatcher drives it: decisions after every event and at `wake_at`, and nothing in between."""

from __future__ import annotations

from math import inf

from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples
from scheduling_builders import AFFINE, HIGH, LOW, NORMAL, Policy, make_class, make_entry, make_scheduler

from serve_app.domain.priority import Priority
from serve_app.pools.policy.settings import Pool
from serve_app.scheduling.decisions import Decisions, Dispatch
from serve_app.scheduling.entry import Entry
from serve_app.scheduling.gate import Gate
from serve_app.scheduling.scheduler import Scheduler
from serve_app.scheduling.settings import ModelScheduling, ProcessLimits

_WAYS_S = 0.0
"""Bundles are at their replicas at once, and the scheduler knows it."""
_NO_TIE_S = 1e-6
"""What ends exactly at its deadline may be planned, and is late."""
_POLICIES: list[Policy] = ["auto", "eager"]
_DECISIONS_PER_EVENT = 30
_MAX_ROWS = 8

Offered = tuple[float, str, Priority, float, int]
"""Gap since the one before, model, class, budget, rows."""

_OFFERED = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.0, 0.0005, 0.003, 0.01, 0.1]),
        st.sampled_from(["m", "n"]),
        st.sampled_from(Priority),
        st.sampled_from([0.009, 0.02, 0.05, 0.2, 2.0]),
        st.sampled_from([1, 1, 1, 3, 40]),
    ),
    min_size=1,
    max_size=60,
)


class _Replica:
    """A gate, and a session that runs its batches one after the other; what a batch leaves of its bundles goes back."""

    def __init__(self, gate: Gate, ratios: list[float]) -> None:
        self.gate = gate
        self.wakes_at = inf
        self.probes: list[Entry] = []
        self._ratios = ratios
        self._runs = 0
        self._of: dict[int, _Sent] = {}
        self._running: list[_Sent] = []
        self._executions: list[tuple[int, int, float, str]] = []

    def arrive(self, dispatch: Dispatch, now: float) -> list[_Sent]:
        """A bundle is there. Returns those that are answered now."""
        sent = _Sent(dispatch, now)
        for entry in dispatch.entries:
            here = make_entry(
                entry.priority,
                entry.deadline - dispatch.overhead_s,
                rows=entry.rows,
                arrival=now,
                variant=entry.variant,
                exact=dispatch.exact,
            )
            here.payload = entry
            sent.waiting.append(here)
            self._of[here.id] = sent
            self.gate.add(here, now)
        return [] if self._running else self._open(now)

    def wake(self, now: float) -> list[_Sent]:
        """The run has ended, or the gate opens. Returns the bundles that are answered now."""
        done = self._running
        for sent in done:
            sent.executions = self._executions
        for execution in self._executions:
            self.gate.observe(*execution)
        self._running, self._executions = [], []
        return done + self._open(now)

    def _open(self, now: float) -> list[_Sent]:
        turn = self.gate.next(now)
        self.wakes_at = turn.recheck_at
        left: dict[_Sent, None] = {}
        for here in turn.dropped:
            sent = self._leave(here)
            sent.dropped.append(here.payload)
            left[sent] = None
        for here in turn.entries:
            sent = self._leave(here)
            if sent not in self._running:
                self._running.append(sent)
                sent.waited = now - sent.at
            sent.ran.append(here.payload)
            self.probes += [here.payload] if here.probe else []
        for sent in self._running:
            for here in [*sent.waiting]:
                assert self.gate.remove(here)
                self._leave(here)
                sent.returned.append(here.payload)
        if turn.entries:
            ratio = self._ratios[self._runs % len(self._ratios)]
            self._runs += 1
            for done in range(0, turn.rows, _MAX_ROWS):  # what is longer than a batch runs in pieces
                rows = min(turn.rows - done, _MAX_ROWS)
                seconds = (self.gate.seconds(rows, turn.bucket, turn.variant) or 0.01) * ratio
                self._executions.append((rows, turn.bucket, seconds, turn.variant))
            self.wakes_at = now + sum(seconds for _, _, seconds, _ in self._executions)
        return [sent for sent in left if not sent.waiting and not sent.ran]

    def _leave(self, here: Entry) -> _Sent:
        sent = self._of.pop(here.id)
        sent.waiting.remove(here)
        return sent


class _Sent:
    """A bundle at a replica: which of its entries wait there, run, were dropped or go back."""

    def __init__(self, dispatch: Dispatch, at: float) -> None:
        self.dispatch = dispatch
        self.at = at
        self.waited = 0.0
        self.waiting: list[Entry] = []
        self.ran: list[Entry] = []
        self.dropped: list[Entry] = []
        self.returned: list[Entry] = []
        self.executions: list[tuple[int, int, float, str]] = []


class _Drive:
    """A virtual clock, and replicas with gates."""

    def __init__(self, scheduler: Scheduler, replicas: dict[tuple[str, str], _Replica]) -> None:
        self.scheduler = scheduler
        self.now = 0.0
        self.decisions = 0
        self.accepted: list[Entry] = []
        self.answered: list[Entry] = []
        self.expired: list[Entry] = []
        self.given_up: list[Entry] = []
        self.ran: list[Entry] = []
        self._replicas = replicas

    @property
    def probes(self) -> set[Entry]:
        """What gates have run although it was predicted to be late."""
        return {entry for replica in self._replicas.values() for entry in replica.probes}

    def decide(self) -> None:
        """Decide now, until nothing more happens at this moment."""
        while True:
            self.decisions += 1
            decisions = self.scheduler.decide(self.now)
            self.expired += decisions.expired
            self.given_up += decisions.given_up
            done = []
            for dispatch in decisions.dispatches:
                done += self._replicas[dispatch.model, str(dispatch.replica)].arrive(dispatch, self.now)
            if not done:
                break
            self._answer(done)
        wake_at = self.scheduler.wake_at
        assert wake_at is None or wake_at > self.now

    def run_until(self, moment: float) -> None:
        """Let time pass: answers and timers, in order."""
        while True:
            wake_at = self.scheduler.wake_at
            first = min(self._replicas.values(), key=lambda replica: replica.wakes_at)
            following = min(first.wakes_at, inf if wake_at is None else wake_at)
            if following > moment or following == inf:
                break
            self.now = following
            if first.wakes_at <= self.now:
                self._answer(first.wake(self.now))
            self.decide()
        if moment < inf:
            self.now = moment

    def _answer(self, done: list[_Sent]) -> None:
        for sent in done:
            living = self.scheduler.on_done(
                sent.dispatch.bundle_id,
                sent.executions,
                self.now,
                sent.waited,
                returned=sent.returned,
                dropped=sent.dropped,
            )
            self.ran += sent.ran
            self.given_up += [entry for entry in living if entry in sent.dropped]
            self.answered += [entry for entry in living if entry not in sent.dropped]

    def offer(self, offered: list[Offered]) -> None:
        """Let requests arrive."""
        for one in offered:
            self.offer_one(one)
        self.run_until(inf)

    def offer_one(self, offered: Offered) -> None:
        """Let time pass, and then one request arrive."""
        gap, model, priority, budget, rows = offered
        self.run_until(self.now + gap)
        deadline = self.now + budget + _NO_TIE_S
        entry = make_entry(priority, deadline, model=model, rows=rows, arrival=self.now)
        if self.scheduler.on_arrival(entry, self.now) is None:
            self.accepted.append(entry)
        self.decide()


def _drive(
    policies: tuple[Policy, Policy],
    ratios: list[float],
    *,
    pooled: bool,
    replicas: int,
    known: bool,
    share: float = 0.0,
) -> _Drive:
    """Models ``m`` and ``n``, the first of which has a fallback."""
    models = [
        ModelScheduling(name, _MAX_ROWS, 0.1, policy=policy, fallbacks=("light",))
        for name, policy in zip("mn", policies, strict=True)
    ]
    names = [f"r{i}" for i in range(replicas)]
    scheduler = make_scheduler(
        models=models,
        pool=Pool("g", ("m", "n"), 1, 9) if pooled else None,
        replicas=names,
        limits=ProcessLimits(total_bytes=10**12, network_s=_WAYS_S),
        normal=make_class(min_share=share),
        low=make_class(min_share=share),
    )
    min_share = {HIGH: 0.0, NORMAL: share, LOW: share}
    there = {
        (model.name, name): _Replica(Gate(model, min_share, planned=pooled), ratios)
        for model in models
        for name in names
    }
    for model in models if known else []:
        points = [(*point, "") for point in AFFINE]
        if model.name == "m":
            points += [(rows, bucket, seconds / 4, "light") for rows, bucket, seconds in AFFINE]
        scheduler.seed(model.name, points)
        for name in names:
            there[model.name, name].gate.seed(points)
    return _Drive(scheduler, there)


@settings(max_examples=examples(150))
@given(
    policies=st.tuples(st.sampled_from(_POLICIES), st.sampled_from(_POLICIES)),
    pooled=st.booleans(),
    replicas=st.integers(1, 3),
    known=st.booleans(),
    share=st.sampled_from([0.0, 0.1]),
    offered=_OFFERED,
    ratios=st.lists(st.sampled_from([0.3, 0.9, 1.0, 1.0, 2.5]), min_size=1, max_size=7),
)
def test_everything_settles(
    policies: tuple[Policy, Policy],
    pooled: bool,
    replicas: int,
    known: bool,
    share: float,
    offered: list[Offered],
    ratios: list[float],
) -> None:
    """Every accepted entry ends exactly once, what was given up never ran, and few decisions were needed."""
    drive = _drive(policies, ratios, pooled=pooled, replicas=replicas, known=known, share=share)
    drive.offer(offered)
    ended = [*drive.answered, *drive.expired, *drive.given_up]
    scheduler = drive.scheduler

    assert sorted(entry.id for entry in ended) == sorted(entry.id for entry in drive.accepted)
    assert len({entry.id for entry in drive.ran}) == len(drive.ran), "nothing runs twice"
    assert not {entry.id for entry in drive.ran} & {entry.id for entry in drive.given_up}
    assert scheduler.wake_at is None
    assert scheduler.decide(drive.now + 1e6) == Decisions([], [], [])
    totals = scheduler.totals()
    assert (totals["bytes"], totals["bundles"]) == (0, 0)
    assert [scheduler.load(name) for name in "mn"] == [0, 0]
    if not pooled:
        assert drive.decisions <= _DECISIONS_PER_EVENT * (1 + len(offered))


@settings(max_examples=examples(100))
@given(policy=st.sampled_from(_POLICIES), pooled=st.booleans(), replicas=st.integers(1, 3), offered=_OFFERED)
def test_no_answer_is_late_when_predictions_hold(
    policy: Policy, pooled: bool, replicas: int, offered: list[Offered]
) -> None:
    """Nothing is executed in vain, whatever the policy waits for, except for probes."""
    drive = _drive((policy, policy), [1.0], pooled=pooled, replicas=replicas, known=True)
    drive.offer(offered)
    in_vain = [entry for entry in drive.ran if entry in drive.expired]

    assert not set(in_vain) - drive.probes
    for name in "mn":
        wasted = sum(entry.rows for entry in in_vain if entry.model == name)
        assert drive.scheduler.snapshot()[name]["wasted_rows"] == wasted


@settings(max_examples=examples(50))
@given(
    policy=st.sampled_from(_POLICIES),
    pooled=st.booleans(),
    priority=st.sampled_from([HIGH, NORMAL, LOW]),
    budget=st.sampled_from([0.012, 0.1, 3.0]),
    earlier=_OFFERED,
)
@example(  # requests longer than a batch, each of which is learned from in pieces
    policy="auto",
    pooled=False,
    priority=HIGH,
    budget=0.012,
    earlier=[*[(0.0, "m", HIGH, 0.009, 1)] * 3, *[(0.0, "n", HIGH, 0.2, 40)] * 2, *[(0.0, "n", HIGH, 2.0, 40)] * 2],
)
def test_a_lone_request_is_always_answered(
    policy: Policy, pooled: bool, priority: Priority, budget: float, earlier: list[Offered]
) -> None:
    """Whatever was before: on an idle server, with time for it and predictions that hold, it is in time."""
    drive = _drive((policy, policy), [1.0], pooled=pooled, replicas=1, known=True)
    drive.offer(earlier)
    answered = len(drive.answered)
    drive.offer([(300.0, "n", priority, budget, 1)])

    assert len(drive.answered) == answered + 1
