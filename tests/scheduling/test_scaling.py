"""How many replicas a load asks for."""

from __future__ import annotations

import random
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.domain.priority import Priority
from serve_app.scheduling.demand import Demand
from serve_app.scheduling.scaling import (
    ReplicaPolicy,
    Sizing,
    StartTimes,
    busy_replicas,
    desired_replicas,
    replicas_for,
)


@pytest.mark.parametrize(
    ("load", "target", "current", "minimum", "maximum", "expected"),
    [
        (0, 8.0, 1, 1, 4, 1),
        (0, 8.0, 1, 0, 4, 0),
        (1, 8.0, 0, 0, 4, 1),
        (9, 8.0, 1, 1, 4, 2),
        (8, 8.0, 1, 1, 4, 1),
        (17, 8.0, 2, 1, 4, 2),
        (20, 8.0, 2, 1, 4, 3),
        (1000, 8.0, 2, 1, 4, 4),
        (8, 8.0, 4, 1, 4, 1),
    ],
)
def test_replicas_follow_the_load(
    load: int, target: float, current: int, minimum: int, maximum: int, expected: int
) -> None:
    """Enough replicas for the target, within the limits, and none changed for a tenth."""
    assert expected == desired_replicas(load, target, current, minimum, maximum)


def test_impossible_settings_raise() -> None:
    """They are faults of the caller."""
    with pytest.raises(ValueError, match="target_rows"):
        desired_replicas(1, 0.0, 1, 1, 2)
    with pytest.raises(ValueError, match="replica limits"):
        desired_replicas(1, 1.0, 1, 3, 2)


@given(st.integers(0, 10**6), st.floats(0.1, 1e4), st.integers(0, 50), st.integers(0, 5), st.integers(5, 50))
def test_result_is_stable_and_within_limits(load: int, target: float, current: int, minimum: int, maximum: int) -> None:
    """The answer is a fixed point: with that many replicas the same load asks for the same number."""
    wanted = desired_replicas(load, target, current, minimum, maximum)

    assert minimum <= wanted <= maximum
    assert wanted == desired_replicas(load, target, wanted, minimum, maximum)


@pytest.mark.parametrize(
    ("busy", "idle_cores", "expected"),
    [
        ([0.7], 1.0, 1),
        ([0.88], 1.0, 1),
        ([0.95], 1.0, 2),
        ([0.95], 0.25, 2),
        ([0.95], 0.2, 1),
        ([1.0, 1.0], 8.0, 3),
        ([1.0, 1.0, 1.0, 1.0, 1.0], 8.0, 6),
        ([0.5, 0.45], 1.0, 2),
        ([0.3, 0.3], 1.0, 1),
        ([0.3, 0.3], 0.0, 1),
        ([0.0, 0.0], 2.0, 0),
    ],
)
def test_busy_processes_ask_for_one_more_while_cores_are_idle(
    busy: list[float], idle_cores: float, expected: int
) -> None:
    """One at a time, as what it takes is known only when it is there; none where cores are taken."""
    assert busy_replicas(busy, idle_cores, len(busy)) == expected


def test_none_is_added_while_one_is_being_started() -> None:
    """It has told nothing yet, and will take its part."""
    assert busy_replicas([1.0], 4.0, 2) == 2
    assert busy_replicas([1.0, 1.0, 1.0], 4.0, 4) == 4


def constant(work: float, slack_s: float = 1.0, variance: float = 0.001) -> dict[Priority, Demand]:
    """A demand of one class."""
    return {Priority.NORMAL: Demand(work, variance * work, work * slack_s)} if work else {}


class Fleet:
    """Replicas that start after a while, under a virtual clock of seconds."""

    def __init__(self, start_s: int = 10, replicas: int = 1, minimum: int = 1, hold_s: float | None = None) -> None:
        self.policy = ReplicaPolicy(hold_s)
        self.target = self.listed = replicas
        self.now = 0
        self.changes: list[tuple[int, int]] = []
        self._start_s, self._minimum = start_s, minimum
        self._ready_at: list[int] = []
        self.last: Sizing | None = None

    def run(self, seconds: int, demand: dict[Priority, Demand], backlog_s: float = 0.0) -> Fleet:
        """Let time pass."""
        for _ in range(seconds):
            self.now += 1
            self.listed += sum(at == self.now for at in self._ready_at)
            self._ready_at = [at for at in self._ready_at if at > self.now]
            self.last = self.policy.decide(
                demand,
                self.now,
                listed=self.listed,
                target=self.target,
                minimum=self._minimum,
                maximum=20,
                backlog_s=backlog_s,
            )
            wanted = self.last.replicas
            if wanted != self.target:
                self.changes.append((self.now, wanted))
            self._ready_at += [self.now + self._start_s] * (wanted - self.target)
            for _ in range(self.target - wanted):
                if self._ready_at:
                    self._ready_at.pop()
                else:
                    self.listed -= 1
            self.target = wanted
        return self


def test_short_deadlines_and_bursts_need_idle_time() -> None:
    """Without variance the work fits exactly; the shorter the slack and the larger the variance, the more is needed."""
    assert replicas_for([Demand(2.0, 0.0, 2.0)]) == pytest.approx(2.0)
    needs = [replicas_for([Demand(2.0, 0.01, 2.0 * slack_s)]) for slack_s in (10.0, 1.0, 0.1, 0.01)]
    assert needs == sorted(needs)
    assert needs[0] < 2.01
    assert 2.1 < needs[2] < 2.5
    assert replicas_for([Demand(2.0, 0.1, 2.0)]) > replicas_for([Demand(2.0, 0.01, 2.0)])


@given(
    st.lists(
        st.tuples(st.floats(0.01, 10.0), st.floats(0.0, 1.0), st.floats(0.001, 10.0)).map(
            lambda each: Demand(each[0], each[1], each[0] * each[2])
        ),
        min_size=1,
        max_size=3,
    )
)
def test_more_demand_never_needs_fewer(demands: list[Demand]) -> None:
    """Neither does a class on top, and there are always enough for the work itself."""
    needed = replicas_for(demands)
    assert needed >= sum(demand.work for demand in demands) * (1 - 1e-9)
    assert needed >= max(replicas_for([demand]) for demand in demands) * (1 - 1e-9)
    assert replicas_for([demand.times(2.0) for demand in demands]) >= needed


def test_a_step_is_answered_at_once_and_once() -> None:
    """Two samples show it, and the number is right at the first or second change."""
    fleet = Fleet().run(100, constant(0.8)).run(60, constant(4.2))
    assert fleet.target == 5
    assert fleet.changes[0][0] <= 102
    assert len(fleet.changes) <= 2


def test_a_number_is_held_and_then_given_up() -> None:
    """For five seconds if a start takes no longer than half a minute."""
    fleet = Fleet().run(100, constant(0.8)).run(60, constant(4.2)).run(4, constant(0.8))
    assert fleet.target == 5
    assert fleet.run(20, constant(0.8)).target == 1


def test_a_slow_start_is_held_for_longer() -> None:
    """A sixth of the time of a start, if nothing else is known."""
    fleet = Fleet(start_s=120).run(300, constant(4.2)).run(18, constant(0.8))
    assert fleet.target == 5
    assert fleet.run(10, constant(0.8)).target == 1


def test_gaps_that_come_again_are_held() -> None:
    """Bursts every 40 s: after a few, replicas wait for the next one instead of starting anew."""
    fleet = Fleet()
    for _ in range(6):
        fleet.run(10, constant(3.2)).run(40, constant(0.5))
    changes = len(fleet.changes)
    for _ in range(6):
        fleet.run(10, constant(3.2)).run(40, constant(0.5))
    assert len(fleet.changes) == changes


def test_short_bursts_hold_no_replica_that_starts_slowly() -> None:
    """Ten seconds of work every 300 s: a start of a minute ends after them, and holding costs more than they do."""
    fleet = Fleet(start_s=60).run(90, constant(3.2)).run(400, constant(0.5))
    for _ in range(6):
        fleet.run(10, constant(3.2)).run(290, constant(0.5))
    assert fleet.target == 1


def test_long_bursts_hold_a_replica_that_starts_slowly() -> None:
    """A minute and a half of work every 290 s: a start would leave a minute of it late."""
    fleet = Fleet(start_s=60)
    for _ in range(6):
        fleet.run(90, constant(3.2)).run(200, constant(0.5))
    assert fleet.target == 4


def test_each_number_has_its_own_hold() -> None:
    """A second replica is wanted again every 30 s, a fifth was wanted once."""
    fleet = Fleet()
    for _ in range(6):
        fleet.run(20, constant(1.6)).run(30, constant(0.5))
    assert fleet.target == 2
    assert fleet.run(60, constant(4.2)).run(20, constant(2.5)).target == 3


def test_noise_around_a_level_does_not_hold_what_the_level_asked_for() -> None:
    """A sixth replica is wanted now and then, and held for longer than ten seconds; after the level falls all go."""
    fleet = Fleet()
    for _ in range(8):
        fleet.run(4, constant(5.3)).run(26, constant(4.9))
    assert fleet.last is not None
    assert (fleet.target, fleet.last.because) == (6, "hold")
    assert fleet.run(25, constant(0.8)).target == 1


def test_work_that_comes_at_equal_times_is_expected() -> None:
    """Every ten minutes: for the fourth time replicas have started before, and they go again if nothing comes."""
    fleet = Fleet()
    for _ in range(3):
        fleet.run(560, constant(0.5)).run(40, constant(3.2))
    assert fleet.run(556, constant(0.5)).target == 4
    assert fleet.listed == 4
    assert fleet.last is not None
    assert fleet.last.because == "period"
    assert fleet.run(60, constant(0.5)).target == 1


def test_the_first_requests_after_idle_time_are_no_burst() -> None:
    """A jump from nothing is not variance."""
    assert Fleet().run(1, {}).run(5, constant(1.0, 0.06)).target == 2


def test_a_ramp_is_continued_for_the_time_of_a_start() -> None:
    """Replicas are asked for before they are needed, and none too many at the end."""
    fleet = Fleet(start_s=20, replicas=1)
    for second in range(120):
        fleet.run(1, constant(1.0 + second / 20.0))
    assert fleet.last is not None
    assert fleet.last.because == "trend"
    assert fleet.target >= 8
    assert fleet.run(90, constant(7.3)).target == 8


def test_a_backlog_that_can_wait_is_spread() -> None:
    """Work with a minute left: as many as finish it after a start; work with a second left is not worth a start."""
    assert Fleet(start_s=10).run(1, constant(0.5, 60.0), 150.0).target == 4
    assert Fleet(start_s=10).run(1, constant(0.5, 1.0), 150.0).target == 1


def test_nothing_asked_for_a_while_is_zero() -> None:
    """Where the minimum allows it, and any demand is at least one."""
    fleet = Fleet(minimum=0).run(30, constant(0.01))
    assert fleet.target == 1
    assert fleet.run(100, {}).target == 0
    assert fleet.run(2, constant(0.0001)).target == 1


def test_a_pause_without_reports_is_no_burst() -> None:
    """As while the only router is replaced: what differs before and after it is no more variance than usual."""
    policy, rng = ReplicaPolicy(), random.Random(1)

    def asked(now: float) -> int:
        demand = constant(rng.uniform(0.4, 0.6))
        return policy.decide(demand, now, listed=1, target=1, minimum=1, maximum=10).replicas

    assert {asked(float(now)) for now in range(60)} == {1}
    assert {asked(3600.0 + now) for now in range(60)} == {1}


def test_a_fixed_hold_counts() -> None:
    """Whatever was learned."""
    fleet = Fleet(hold_s=30.0).run(20, constant(3.2)).run(28, constant(0.5))
    assert fleet.target == 4
    assert fleet.run(30, constant(0.5)).target == 1


def test_starts_are_measured() -> None:
    """From the decision to the listing, nine of ten; one that is called off counts only if it took longer already."""
    starts = StartTimes()
    assert starts.seconds == 10.0
    starts.look(1, 3, 0.0)
    starts.look(2, 3, 4.0)
    assert starts.seconds == 4.0
    starts.look(3, 3, 20.0)
    assert starts.seconds == 20.0
    starts.look(3, 5, 30.0)
    starts.look(3, 3, 35.0)
    assert starts.seconds == 20.0
    starts.look(3, 4, 40.0)
    starts.look(3, 3, 100.0)
    assert starts.seconds == 60.0


@given(
    st.lists(st.tuples(st.sampled_from([0.0]) | st.floats(1e-6, 30.0), st.integers(1, 40)), min_size=1, max_size=6),
    st.integers(1, 60),
)
def test_the_number_stays_within_its_bounds(phases: list[tuple[float, int]], start_s: int) -> None:
    """Whatever is asked."""
    fleet = Fleet(start_s=start_s)
    for work, seconds in phases:
        assert 1 <= fleet.run(seconds, constant(work)).target <= 20


@given(st.integers(0, 1000))
def test_a_steady_demand_does_not_flap(seed: int) -> None:
    """Poisson arrivals at a load that one number holds: the last two minutes have at most two changes."""
    random = Random(seed)
    fleet = Fleet()
    for second in range(180):
        work = 2.5 + random.gauss(0.0, 0.1)
        fleet.run(1, {Priority.NORMAL: Demand(work, 0.01, work)})
        if second == 60:
            before = len(fleet.changes)
    assert len(fleet.changes) - before <= 2
    assert fleet.target == 3
