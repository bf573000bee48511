"""What each step of a pipeline gets of a deadline, against a naive reckoning and what must always hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduling_builders import make_entry, make_scheduler

from serve_app.domain.priority import Priority
from serve_app.pipelines.policy import Course

NORMAL = Priority.NORMAL
LENIENCE = 0.3
TWO = Course({"a": ("b",), "b": ()}, {"a", "b"})


def test_each_step_gets_its_part_of_what_is_left() -> None:
    """A quarter is its share, and 5 s are the most that leave enough for the other; the last one gets everything."""
    budget = TWO.budget({"a": 1.0, "b": 3.0}, NORMAL)
    assert budget.least_s == 4.0
    assert budget.timeout_s("a", 8.0) == pytest.approx(2.0 + LENIENCE * 3.0)
    assert budget.timeout_s("b", 7.0) == pytest.approx(7.0)


def test_a_wait_that_was_measured_counts() -> None:
    """For its class only; and no step is left less than its own cost."""
    course = Course({"a": ("b",), "b": ()}, {"a", "b"})
    course.measured("b", NORMAL, 1.0, 3.0)
    budget = course.budget({"a": 1.0, "b": 1.0}, NORMAL)
    assert budget.timeout_s("a", 8.0) == pytest.approx(2.0 + LENIENCE * 5.0)
    high = course.budget({"a": 1.0, "b": 1.0}, Priority.HIGH)
    assert high.timeout_s("a", 8.0) == pytest.approx(4.0 + LENIENCE * 3.0)
    assert budget.timeout_s("a", 2.5) == pytest.approx(1.0 + LENIENCE * 0.5)


def test_waits_are_smoothed() -> None:
    """A new one counts a tenth."""
    course = Course({"a": ()}, {"a"})
    for took_s in (1.0, 2.0):
        course.measured("a", NORMAL, 0.0, took_s)
    assert course.wait_s("a", NORMAL) == pytest.approx(1.1)


def test_where_nothing_is_known_a_step_gets_all() -> None:
    """Until something is measured."""
    assert TWO.budget({}, NORMAL).timeout_s("a", 5.0) == 5.0


def test_nothing_is_left_where_what_follows_cannot_be_in_time() -> None:
    """The step is not begun."""
    assert TWO.budget({"a": 1.0, "b": 3.0}, NORMAL).timeout_s("a", 3.0) <= 0.0


def test_what_may_not_run_is_no_reason_to_refuse() -> None:
    """A step behind a switch counts for what others are left, and not for what a request takes at least."""
    course = Course({"a": ("b",), "b": ()}, {"a"})
    budget = course.budget({"a": 1.0, "b": 3.0}, NORMAL)
    assert budget.least_s == 1.0
    assert budget.timeout_s("a", 8.0) == pytest.approx(2.0 + LENIENCE * 6.0)


def test_what_steps_cost_at_least_may_be_less_than_what_is_expected() -> None:
    """Shares are of what is expected; only the least is kept for what follows, and refused for."""
    budget = TWO.budget({"a": 1.0, "b": 3.0}, NORMAL, {"a": 1.0, "b": 0.5})
    assert budget.least_s == 1.5
    assert budget.timeout_s("a", 8.0) == pytest.approx(2.0 + LENIENCE * 5.5)
    assert budget.timeout_s("a", 2.0) == pytest.approx(1.0 + LENIENCE * 0.5)


def test_the_most_expensive_way_counts_what_may_not_run() -> None:
    """Without what steps wait."""
    course = Course({"a": ("b", "c"), "b": (), "c": ()}, {"a"})
    course.measured("a", NORMAL, 1.0, 9.0)
    assert course.budget({"a": 1.0, "b": 3.0, "c": 2.0}, NORMAL).most_s == 4.0


def test_what_could_not_be_in_time_is_refused_but_for_one_in_ten_or_one_per_second() -> None:
    """As at the admission to a model; each step of such a probe may take all that is left."""
    course = Course({"a": ("b",), "b": ()}, {"a", "b"})
    course.measured("b", NORMAL, 3.0, 4.0)
    budget = course.budget({"a": 1.0, "b": 3.0}, NORMAL)
    assert course.admit(budget, 4.0, 0.0) is budget
    assert course.admit(budget, 0.0, 0.0) is None
    found = [course.admit(budget, 3.9, 0.0) for _ in range(20)]
    assert [each is not None for each in found] == ([True] + [False] * 9) * 2
    probe = course.admit(budget, 3.9, 1.0)
    assert probe is not None
    assert [probe.timeout_s(step, 3.9) for step in ("a", "b")] == [3.9, 3.9]


def test_a_wrong_prediction_heals_by_probes() -> None:
    """After one absurd profile nearly all requests are served again, by what the probes of both steps measure."""
    scheduler = make_scheduler(models=("a", "b"), profile=[(1, 0, 5.0)])
    course = Course({"a": ("b",), "b": ()}, {"a", "b"})
    answered, now = 0, 0.0
    for _ in range(1000):
        now += 0.1
        at, deadline = now, now + 0.5
        budget = course.budget({step: scheduler.solo_s(step, 1, 0) for step in ("a", "b")}, NORMAL)
        admitted = course.admit(budget, deadline - at, at)
        for step in ("a", "b"):
            if admitted is None:
                break
            entry = make_entry(model=step, arrival=at, deadline=at + admitted.timeout_s(step, deadline - at))
            if scheduler.on_arrival(entry, at) is not None:
                break
            (bundle,) = scheduler.decide(at).dispatches
            scheduler.on_done(bundle.bundle_id, [(1, 0, 0.010, "")], at + 0.01)
            at += 0.01
        else:
            answered += 1

    assert answered > 500
    assert scheduler.solo_s("a", 1, 0) == scheduler.solo_s("b", 1, 0) == pytest.approx(0.010)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[dict[str, tuple[str, ...]], dict[str, float], dict[str, float]]:
    """Followers, in any order; own costs; waits."""
    count = draw(st.integers(1, 7))
    names = [f"s{number}" for number in range(count)]
    followers = {
        name: tuple(draw(st.sets(st.sampled_from(names[at + 1 :]))) if at + 1 < count else ())
        for at, name in enumerate(names)
    }
    order = draw(st.permutations(names))
    costs = st.floats(0.001, 10.0)
    return {name: followers[name] for name in order}, {n: draw(costs) for n in names}, {n: draw(costs) for n in names}


def longest(step: str, followers: Mapping[str, Sequence[str]], cost: Mapping[str, float]) -> float:
    """The most expensive way from a step on, by trying all."""
    return cost[step] + max((longest(each, followers, cost) for each in followers[step]), default=0.0)


@given(graphs(), st.floats(0.01, 1000.0))
def test_any_graph(graph: tuple[dict[str, tuple[str, ...]], dict[str, float], dict[str, float]], left_s: float) -> None:
    """The part is that of the naive reckoning, and no way through the graph gets more than there is."""
    followers, own, waits = graph
    course = Course(followers, followers)
    for step, wait_s in waits.items():
        course.measured(step, NORMAL, own[step], own[step] + wait_s)
    budget = course.budget(own, NORMAL)
    expected = {step: own[step] + course.wait_s(step, NORMAL) for step in followers}
    assert math.isclose(budget.least_s, max(longest(step, followers, own) for step in followers))
    assert math.isclose(budget.most_s, budget.least_s)  # every request runs all of them
    for step in followers:
        rest = longest(step, followers, expected)
        behind = longest(step, followers, own) - own[step]
        assert math.isclose(budget.rest_s[step], rest)
        share, most = max(left_s * expected[step] / rest, own[step]), left_s - behind
        wanted = most if share >= most else share + LENIENCE * (most - share)
        assert math.isclose(budget.timeout_s(step, left_s), wanted, abs_tol=1e-6)
        assert budget.timeout_s(step, left_s) <= left_s
        if left_s >= rest:  # then the most expensive way uses all of it, and no step less than it is expected to take
            assert budget.timeout_s(step, left_s) >= expected[step] * (1.0 - 1e-9)
