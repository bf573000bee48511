"""The intake under any sequence of events, with a virtual clock: every request leaves exactly once."""

from __future__ import annotations

from itertools import islice
from math import inf
from typing import NamedTuple, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from hypothesis_profiles import examples

from serve_app.domain.priority import Priority
from serve_app.scheduling.intake import Intake

_T = TypeVar("_T")
_PRIORITIES = st.sampled_from(list(Priority))
_SECONDS = st.one_of(
    st.sampled_from([0.0, -1.0, -1e300, 5e-324, 1e-6, 0.1, 1.0, 86400.0, 1e300, inf]), st.floats(-1.0, 10.0)
)
"""What a request has left when it comes: also nothing, less, and any time."""
_STEPS = st.one_of(st.sampled_from([0.0, 0.0, 0.001, 0.005, 0.1, 3600.0, 1e9]), st.floats(0.0, 1.0))
"""What the clock moves on by: also not at all, and by years in one round."""


class Request(NamedTuple):
    """A request that waits; the first in this order is the first to leave."""

    priority: Priority
    deadline: float
    number: int


def take(intake: Intake[_T], now: float) -> _T | None:
    """What leaves next, begun or given up."""
    taken = intake.take(now)
    return None if taken is None else taken[0]


class IntakeMachine(RuleBasedStateMachine):
    """Which requests wait; nothing of how the intake expects what will be late."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.offered = 0
        self.waiting: set[Request] = set()

    @initialize(most=st.integers(0, 20), shares=st.dictionaries(_PRIORITIES, st.floats(0.0, 0.3)))
    def start(self, most: int, shares: dict[Priority, float]) -> None:
        """An empty intake."""
        self.most = most
        self.shared = any(shares.values())
        self.intake = Intake[Request](shares, most)

    @rule(priority=_PRIORITIES, seconds=_SECONDS, number=st.integers(1, 5))
    def offer(self, priority: Priority, seconds: float, number: int) -> None:
        """Some requests come."""
        for _ in range(number):
            request = Request(priority, self.now + seconds, self.offered)
            self.offered += 1
            self.waiting.add(request)
            self.intake.offer(request, priority, request.deadline, self.now)

    @rule(seconds=_STEPS)
    def pass_time(self, seconds: float) -> None:
        """The clock moves on, or does not."""
        self.now += seconds

    @rule(number=st.integers(1, 20))
    def begin(self, number: int) -> None:
        """Begin some: the most urgent first but for shares, and of a class always the one with the least time left."""
        for _ in range(number):
            found = self.intake.take(self.now)
            if found is None:
                assert not self.waiting
                return
            taken, late = found
            assert late or taken.deadline > self.now
            assert taken in self.waiting
            of_class = (each for each in self.waiting if each.priority is taken.priority)
            assert taken == min(self.waiting if not self.shared else of_class)
            self.waiting.remove(taken)

    @rule(number=st.integers(0, 5))
    def give_up_some(self, number: int) -> None:
        """Give up no more than there is time for."""
        for given_up in islice(self.intake.give_up(self.now), number):  # the rest stays
            self.note(given_up)

    @rule()
    def give_up(self) -> None:
        """Give up all that is too late or too much: nothing that is begun now is late then."""
        for given_up in self.intake.give_up(self.now):
            self.note(given_up)
        assert len(self.waiting) <= self.most
        assert all(each.deadline > self.now for each in self.waiting)

    def note(self, given_up: Request) -> None:
        """Note that a request was given up: of its class the one with the least time left."""
        assert given_up in self.waiting
        assert given_up == min(each for each in self.waiting if each.priority is given_up.priority)
        self.waiting.remove(given_up)

    @invariant()
    def counts(self) -> None:
        """What waits is counted."""
        assert not self.offered or self.intake.waiting == len(self.waiting)

    def teardown(self) -> None:
        """All leave in the end."""
        self.begin_all()
        assert not self.waiting

    def begin_all(self) -> None:
        """Begin what still waits."""
        while self.offered and (taken := take(self.intake, self.now)) is not None:
            self.waiting.remove(taken)


IntakeMachine.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)
TestIntake = IntakeMachine.TestCase


@given(st.lists(st.tuples(_PRIORITIES, st.floats(0.001, 10.0)), min_size=1, max_size=60), st.floats(0.0, 1e9))
def test_only_differences_of_times_matter(offered: list[tuple[Priority, float]], start: float) -> None:
    """What happens is the same whenever it does: to the power of two, so that no sum is rounded."""
    start = float(int(start))

    def outcome(start: float) -> list[tuple[str, int]]:
        intake, left = Intake[int]({Priority.LOW: 0.125}, 20), []
        for number, (priority, seconds) in enumerate(offered):
            now = start + number / 1024
            intake.offer(number, priority, now + round(seconds * 64) / 64, now)
            left += [("given up", each) for each in intake.give_up(now)]
            if number % 3 == 0 and (taken := take(intake, now)) is not None:
                left.append(("begun", taken))
        return left

    assert outcome(0.0) == outcome(start)


@pytest.mark.parametrize("pause", [0.11, 0.5, 4.0])
@pytest.mark.parametrize("before", [0, 100])
def test_one_long_round_is_no_reason_to_refuse(pause: float, before: int) -> None:
    """What came before it or while it lasted is begun in the rounds that follow, where its deadline allows that."""
    intake, now = Intake[int]({}, 1000), 0.0
    for _ in range(before):  # rounds that keep up
        now += 0.002
        intake.offer(-1, Priority.HIGH, now + 10.0, now)
        assert list(intake.give_up(now)) == []
        assert take(intake, now) == -1
    for number in range(200):
        intake.offer(number, Priority.HIGH, now + 10.0, now)
    assert list(intake.give_up(now)) == []
    now += pause
    begun: list[int | None] = []
    while intake.waiting:
        assert list(intake.give_up(now)) == []
        begun += [take(intake, now) for _ in range(min(16, intake.waiting))]
        now += 0.002
    assert begun == list(range(200))


@pytest.mark.parametrize("pause", [1.0, 60.0, 3600.0, 1e6])
def test_a_long_round_does_not_make_others_late(pause: float) -> None:
    """How long one took that waited through it is not what the next ones will take."""
    intake, now = Intake[int]({}, 100), 0.0
    intake.offer(-1, Priority.HIGH, inf, now)
    assert list(intake.give_up(now)) == []
    now += pause
    assert list(intake.give_up(now)) == []
    assert take(intake, now) == -1
    for number in range(100):
        intake.offer(number, Priority.HIGH, now + 0.1, now)
        now += 0.002
        assert list(intake.give_up(now)) == []
        assert take(intake, now) == number


@pytest.mark.parametrize("seconds", [0.1, 1.0, inf])
def test_a_class_that_is_kept_from_its_turn_is_given_up_in_rounds_of_any_length(seconds: float) -> None:
    """Rounds that are long all the time are no pause."""
    intake, now, given_up = Intake[int]({}, 1000), 0.0, 0
    for number in range(300):
        now += 0.05
        intake.offer(number, Priority.LOW, now + seconds, now)
        intake.offer(-1, Priority.HIGH, inf, now)
        given_up += len(list(intake.give_up(now)))
        assert take(intake, now) == -1
    assert given_up >= 290


@given(st.lists(_SECONDS, min_size=1, max_size=60), st.lists(_SECONDS, max_size=60))
def test_what_is_hostile_below_never_makes_a_more_urgent_class_give_up(urgent: list[float], below: list[float]) -> None:
    """Without guaranteed shares: of `high` the same are begun, and as soon, whatever waits in class `low`."""

    def begun(hostile: list[float]) -> list[int]:
        intake, found, now = Intake[int]({}, 1000), [], 0.0
        for number, seconds in enumerate(urgent):
            now = number * 0.004
            intake.offer(number, Priority.HIGH, now + seconds, now)
            for each in hostile:
                intake.offer(-1, Priority.LOW, now + each, now)
            list(intake.give_up(now))
            if number % 2:
                taken = take(intake, now)
                found += [] if taken is None or taken == -1 else [taken]
        return found

    assert begun(below[:10]) == begun([])
