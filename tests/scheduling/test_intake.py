"""In which order requests leave the intake, and which of them are given up."""

from __future__ import annotations

from collections import Counter
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from serve_app.domain.priority import Priority
from serve_app.scheduling.intake import Intake, Tenant

HIGH, NORMAL, LOW = Priority

requests = st.lists(st.tuples(st.sampled_from(list(Priority)), st.floats(0.001, 10.0)), max_size=40)


def drained(intake: Intake[str], now: float = 0.0) -> list[str]:
    """All that wait, in their order."""
    return [taken[0] for _ in range(intake.waiting) if (taken := intake.take(now)) is not None]


def test_the_most_urgent_class_goes_first_and_in_it_the_earliest_deadline() -> None:
    """Equal deadlines go in the order of their arrival; those without one go last."""
    intake = Intake[str]({}, 100)
    for name, priority, deadline in (
        ("low", LOW, 0.5),
        ("patient", NORMAL, inf),
        ("first", NORMAL, 2.0),
        ("second", NORMAL, 2.0),
        ("tight", NORMAL, 1.0),
        ("high", HIGH, 9.0),
    ):
        intake.offer(name, priority, deadline, 0.0)

    assert drained(intake) == ["high", "tight", "first", "second", "patient", "low"]
    assert intake.take(0.0) is None


def test_a_class_gets_its_share_beside_a_more_urgent_one() -> None:
    """One of eight turns, here and however long it lasts; the rest are those of the more urgent class."""
    intake = Intake[Priority]({NORMAL: 0.125}, 10_000)
    for _ in range(1000):
        intake.offer(HIGH, HIGH, inf, 0.0)
        intake.offer(NORMAL, NORMAL, inf, 0.0)

    assert Counter(taken[0] for _ in range(500) if (taken := intake.take(0.0))) == {HIGH: 438, NORMAL: 62}


def test_what_is_too_late_is_given_up() -> None:
    """Whatever its class; the others stay."""
    intake = Intake[str]({}, 100)
    intake.offer("late", HIGH, 0.05, 0.0)
    intake.offer("in time", HIGH, 100.0, 0.0)

    assert list(intake.give_up(0.05)) == ["late"]
    assert drained(intake, 0.05) == ["in time"]


def test_what_is_taken_tells_whether_it_is_late() -> None:
    """Rounds that refuse much may not get to the urgent class before its requests are taken."""
    intake = Intake[str]({}, 100)
    intake.offer("late", HIGH, 0.05, 0.0)
    intake.offer("in time", HIGH, 100.0, 0.0)

    assert intake.take(0.05) == ("late", True)
    assert intake.take(0.05) == ("in time", False)


def test_a_class_that_is_never_begun_is_given_up_before_its_deadline() -> None:
    """Its clients can still do something else then."""
    intake = Intake[str]({}, 100)
    intake.offer("low", LOW, 0.1, 0.0)

    assert list(intake.give_up(0.03)) == []
    assert list(intake.give_up(0.04)) == ["low"]


def overload(intake: Intake[float], seconds: float, end: float) -> tuple[list[float], int]:
    """One is begun each 2 ms and two come, with 0.2 s each: how long each waited, and how many were given up."""
    waited, given_up, now, step = [], 0, end - seconds, 0
    while now < end:
        step += 1
        now = end - seconds + step * 0.002
        for _ in range(2):
            intake.offer(now, NORMAL, now + 0.2, now)
        given_up += len(list(intake.give_up(now)))
        taken = intake.take(now)
        assert taken is not None
        waited.append(now - taken[0])
    return waited, given_up


def test_a_burst_may_wait_for_half_the_time_that_is_left() -> None:
    """Those beyond that are given up: the ones with the least time left."""
    intake = Intake[float]({}, 10_000)
    for _ in range(200):
        intake.offer(0.0, NORMAL, 0.2, 0.0)
    begun = 0
    for step in range(1, 100):
        list(intake.give_up(step * 0.002))
        begun += intake.take(step * 0.002) is not None

    assert 30 < begun < 70


def test_in_an_overload_that_lasts_the_queue_is_short() -> None:
    """As many are begun as can be, and they have waited for a few milliseconds only."""
    waited, given_up = overload(Intake[float]({}, 10_000), 10.0, 10.0)

    assert given_up > 4000
    assert max(waited[500:]) < 0.02


def test_long_rounds_are_no_reason_to_refuse() -> None:
    """Requests that are begun in the round after they came have waited for no queue."""
    intake, given_up = Intake[float]({}, 10_000), 0
    for step in range(1000):
        now = step * 0.05
        given_up += len(list(intake.give_up(now)))
        while intake.take(now) is not None:
            pass
        for _ in range(8):
            intake.offer(now, HIGH, now + 1.0, now)

    assert given_up == 0


def test_no_more_wait_than_there_is_room_for() -> None:
    """The least urgent class makes room."""
    intake = Intake[str]({}, 2)
    for name, priority in (("low", LOW), ("high", HIGH), ("normal", NORMAL)):
        intake.offer(name, priority, inf, 0.0)

    assert list(intake.give_up(0.0)) == ["low"]
    assert drained(intake) == ["high", "normal"]


@given(requests, st.floats(0.0, 10.0))
def test_nothing_is_lost_and_nothing_comes_twice(offered: list[tuple[Priority, float]], now: float) -> None:
    """Each request is begun or given up; without shares no class is begun before a more urgent one."""
    intake = Intake[int]({}, 20)
    for number, (priority, deadline) in enumerate(offered):
        intake.offer(number, priority, deadline, 0.0)
    given_up = list(intake.give_up(now))
    begun = []
    while (taken := intake.take(now)) is not None:
        begun.append(taken[0])
        assert not taken[1]

    assert sorted(given_up + begun) == list(range(len(offered)))
    assert len(begun) <= 20
    assert all(offered[number][1] > now for number in begun)
    assert [offered[number] for number in begun] == sorted(offered[number] for number in begun)


def test_who_floods_a_class_loses_its_own_requests() -> None:
    """Others of the class are begun in their time, by their weights."""
    intake, now = Intake[str]({}, 10_000), 0.0
    begun, given_up = Counter[str](), Counter[str]()
    for step in range(2000):
        now = step * 0.002
        for name, weight, every in (("flood", 1.0, 1), ("flood", 1.0, 1), ("some", 1.0, 4), ("heavy", 3.0, 2)):
            if step % every == 0:
                intake.offer(name, NORMAL, now + 0.2, now, Tenant(name, weight))
        given_up.update(intake.give_up(now))
        if (taken := intake.take(now)) is not None:
            (given_up if taken[1] else begun)[taken[0]] += 1

    assert begun["some"] + begun["heavy"] > 1480  # of 1,500
    assert given_up["flood"] > 2500
    assert begun["flood"] > 400


def test_a_tight_deadline_of_one_tenant_costs_others_nothing() -> None:
    """Those behind it cannot make it earlier."""
    intake = Intake[str]({}, 10_000)
    for _ in range(100):
        intake.offer("patient", HIGH, 10.0, 0.0, Tenant("patient"))
    intake.offer("hasty", HIGH, 0.03, 0.0, Tenant("hasty"))

    assert list(intake.give_up(0.02)) == ["hasty"]
