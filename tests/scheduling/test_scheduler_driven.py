"""The scheduler as a dispatcher drives it: decisions after every event and at `wake_at`, and nothing in between."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from math import inf, nan

from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling_builders import AFFINE, HIGH, LOW, NORMAL, Policy, make_class, make_entry, make_scheduler

from serve_app.scheduling.composition import execution_s
from serve_app.scheduling.decisions import Decisions, Dispatch
from serve_app.scheduling.entry import Entry, EntryState, Priority
from serve_app.scheduling.scheduler import Scheduler
from serve_app.scheduling.settings import DeviceGroup, ModelScheduling, ProcessLimits

_WAYS_S = 0.0
"""Bundles are at their replicas at once, and the scheduler knows it."""
_NO_TIE_S = 1e-6
"""What ends exactly at its deadline may be planned, and is late."""
_POLICIES: list[Policy] = ["auto", "deferred", "eager", "window"]
_DECISIONS_PER_EVENT = 30

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


class _Drive:
    """A virtual clock, and replicas that run their bundles one after the other."""

    def __init__(self, scheduler: Scheduler, ratios: list[float]) -> None:
        self.scheduler = scheduler
        self.now = 0.0
        self.decisions = 0
        self.accepted: list[Entry] = []
        self.answered: list[Entry] = []
        self.expired: list[Entry] = []
        self.given_up: list[Entry] = []
        self.sent: set[int] = set()
        self.idle_since: dict[str, float] = {}
        self._ratios = ratios
        self._free: dict[tuple[str, str | None], float] = {}
        self._ends: list[tuple[float, int, Dispatch, float, float]] = []
        self._order = count()

    def decide(self) -> None:
        """Decide now, run what is dispatched, and check that this moment is over."""
        self.decisions += 1
        decisions = self.scheduler.decide(self.now)
        self.expired += decisions.expired
        self.given_up += decisions.given_up
        for dispatch in decisions.dispatches:
            assert not self.sent & {entry.id for entry in dispatch.entries}
            self.sent |= {entry.id for entry in dispatch.entries}
            ratio = self._ratios[dispatch.bundle_id % len(self._ratios)]
            at = (dispatch.model, dispatch.replica)
            seconds = (dispatch.predicted_s or 0.01) * ratio
            waited = max(0.0, self._free.get(at, 0.0) - self.now)
            self._free[at] = end = self.now + waited + seconds
            heappush(self._ends, (end, next(self._order), dispatch, seconds, waited))
        wake_at = self.scheduler.wake_at
        assert wake_at is None or wake_at > self.now

    def run_until(self, moment: float) -> None:
        """Let time pass: answers and timers, in order."""
        while True:
            wake_at = self.scheduler.wake_at
            end = self._ends[0][0] if self._ends else inf
            following = min(end, inf if wake_at is None else wake_at)
            if following > moment or following == inf:
                break
            self.now = following
            while self._ends and self._ends[0][0] <= self.now:
                _, _, dispatch, seconds, waited = heappop(self._ends)
                executions = [(dispatch.rows, dispatch.bucket, seconds, dispatch.variant)]
                self.answered += self.scheduler.on_done(dispatch.bundle_id, executions, self.now, waited_s=waited)
            self.decide()
        if moment < inf:
            self.now = moment

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


def _scheduler(
    policies: tuple[Policy, Policy],
    *,
    grouped: bool,
    early_drop: bool,
    replicas: int,
    known: bool,
    share: float = 0.0,
) -> Scheduler:
    models = [
        ModelScheduling(name, 8, 0.1, policy=policy, early_drop=early_drop, fallbacks=("light",))
        for name, policy in zip("mn", policies, strict=True)
    ]
    scheduler = make_scheduler(
        models=models,
        groups=[DeviceGroup("g", ("m", "n"))] if grouped else [],
        replicas=[f"r{i}" for i in range(replicas)],
        profile=AFFINE if known else (),
        limits=ProcessLimits(total_bytes=10**12, network_s=_WAYS_S),
        normal=make_class(min_share=share),
        low=make_class(min_share=share),
    )
    if known:
        scheduler.seed("m", [(rows, bucket, seconds / 4, "light") for rows, bucket, seconds in AFFINE])
    return scheduler


@settings(max_examples=150)
@given(
    policies=st.tuples(st.sampled_from(_POLICIES), st.sampled_from(_POLICIES)),
    grouped=st.booleans(),
    early_drop=st.booleans(),
    replicas=st.integers(1, 3),
    known=st.booleans(),
    share=st.sampled_from([0.0, 0.1]),
    offered=_OFFERED,
    ratios=st.lists(st.sampled_from([0.3, 0.9, 1.0, 1.0, 2.5]), min_size=1, max_size=7),
)
def test_everything_settles(
    policies: tuple[Policy, Policy],
    grouped: bool,
    early_drop: bool,
    replicas: int,
    known: bool,
    share: float,
    offered: list[Offered],
    ratios: list[float],
) -> None:
    """Every accepted entry ends exactly once, what was given up was never sent, and few decisions were needed."""
    scheduler = _scheduler(
        policies, grouped=grouped, early_drop=early_drop, replicas=replicas, known=known, share=share
    )
    drive = _Drive(scheduler, ratios)
    drive.offer(offered)
    ended = [*drive.answered, *drive.expired, *drive.given_up]

    assert sorted(entry.id for entry in ended) == sorted(entry.id for entry in drive.accepted)
    assert not drive.sent & {entry.id for entry in drive.given_up}
    assert scheduler.wake_at is None
    assert scheduler.decide(drive.now + 1e6) == Decisions([], [], [])
    totals = scheduler.totals()
    assert (totals["bytes"], totals["bundles"]) == (0, 0)
    assert all(scheduler.load(name) == 0 for name in "mn")
    if not grouped:
        assert drive.decisions <= _DECISIONS_PER_EVENT * (1 + len(offered))


@settings(max_examples=100)
@given(
    policy=st.sampled_from([policy for policy in _POLICIES if policy != "eager"]),
    replicas=st.integers(1, 3),
    offered=_OFFERED,
)
def test_no_answer_is_late_when_predictions_hold(policy: Policy, replicas: int, offered: list[Offered]) -> None:
    """With early drop nothing is executed in vain, whatever the policy waits for, except for probes."""
    scheduler = _scheduler((policy, policy), grouped=False, early_drop=True, replicas=replicas, known=True)
    drive = _Drive(scheduler, [1.0])
    drive.offer(offered)

    assert [entry for entry in drive.expired if entry.id in drive.sent and not entry.probe] == []
    assert scheduler.snapshot()["m"]["wasted_rows"] == sum(
        entry.rows for entry in drive.expired if entry.id in drive.sent and entry.model == "m"
    )


@settings(max_examples=100)
@given(policy=st.sampled_from(_POLICIES), early_drop=st.booleans(), offered=_OFFERED)
def test_an_idle_replica_lets_nothing_become_late(policy: Policy, early_drop: bool, offered: list[Offered]) -> None:
    """While it has nothing to do, whatever waits for company is looked at again before it is too late to go alone."""
    scheduler = _scheduler((policy, policy), grouped=False, early_drop=early_drop, replicas=1, known=True)
    drive = _Drive(scheduler, [1.0])
    latest: dict[int, float] = {}
    for gap, model, _, budget, rows in offered:
        drive.offer_one((gap, model, NORMAL, budget, rows))
        for entry in drive.accepted[len(latest) :]:
            alone = execution_s(scheduler.latency(model), rows, 0, 8) if not entry.probe else -inf
            latest[entry.id] = entry.deadline - alone
        picture = scheduler.snapshot()
        for entry in drive.accepted:
            if entry.state is EntryState.QUEUED and picture[entry.model]["slots_in_use"] == 0:
                assert scheduler.wake_at is not None
                assert scheduler.wake_at <= latest[entry.id] - picture[entry.model]["overhead_s"] + 1e-9
    drive.run_until(inf)


@settings(max_examples=50)
@given(
    policy=st.sampled_from(_POLICIES),
    grouped=st.booleans(),
    early_drop=st.booleans(),
    priority=st.sampled_from([HIGH, NORMAL, LOW]),
    budget=st.sampled_from([0.012, 0.1, 3.0]),
    earlier=_OFFERED,
)
def test_a_lone_request_is_always_answered(
    policy: Policy, grouped: bool, early_drop: bool, priority: Priority, budget: float, earlier: list[Offered]
) -> None:
    """Whatever was before: on an idle server, with time for it and predictions that hold, it is in time."""
    scheduler = _scheduler((policy, policy), grouped=grouped, early_drop=early_drop, replicas=1, known=True)
    drive = _Drive(scheduler, [1.0])
    drive.offer(earlier)
    answered = len(drive.answered)
    drive.offer([(300.0, "n", priority, budget, 1)])

    assert len(drive.answered) == answered + 1


@given(
    moments=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=40),
    budget=st.sampled_from([0.01, 0.1, 2.0]),
    policy=st.sampled_from(_POLICIES),
)
def test_a_clock_that_steps_back_loses_nothing(moments: list[float], budget: float, policy: Policy) -> None:
    """Each call goes by the moment that it is told, and every entry still ends exactly once."""
    scheduler = _scheduler((policy, policy), grouped=False, early_drop=True, replicas=2, known=True)
    accepted: list[int] = []
    ended: list[int] = []
    running: list[Dispatch] = []
    for now in [*moments, 10.0]:
        entry = make_entry(deadline=now + budget, arrival=now)
        if scheduler.on_arrival(entry, now) is None:
            accepted.append(entry.id)
        decisions = scheduler.decide(now)
        ended += [each.id for each in (*decisions.expired, *decisions.given_up)]
        running += decisions.dispatches
        if len(running) > 1:
            done = running.pop(0)
            executions = [(done.rows, done.bucket, done.predicted_s, done.variant)]
            ended += [each.id for each in scheduler.on_done(done.bundle_id, executions, now)]
    for done in running:
        ended += [each.id for each in scheduler.on_done(done.bundle_id, (), 10.0)]
    ended += [each.id for each in scheduler.decide(1e6).expired]

    assert sorted(ended) == sorted(accepted)
    assert scheduler.wake_at is None


def test_a_deadline_that_is_no_number_is_refused() -> None:
    """It would never come."""
    scheduler = _scheduler(("auto", "auto"), grouped=False, early_drop=True, replicas=1, known=True)

    assert scheduler.on_arrival(make_entry(deadline=nan), 0.0) is not None
    assert scheduler.wake_at is None
