"""Guaranteed shares."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduling_builders import HIGH, LOW, NORMAL

from serve_app.domain.priority import Priority
from serve_app.scheduling.queueing.shares import Shares


def _shares(normal: float = 0.05, low: float = 0.05) -> Shares:
    return Shares({HIGH: 0.0, NORMAL: normal, LOW: low})


def test_credit_grows_while_work_waits() -> None:
    """A class earns its share of every bundle's cost, and only while it waits."""
    shares = _shares()
    shares.dispatched(2.0, [HIGH, LOW], HIGH, on_credit=False)

    assert shares.credit_s == {HIGH: 0.0, NORMAL: 0.0, LOW: pytest.approx(0.1)}


def test_goes_first_when_the_credit_covers_the_head() -> None:
    """Not a moment earlier; never without a share."""
    shares = _shares()
    shares.dispatched(2.0, [HIGH, LOW], HIGH, on_credit=False)

    assert (shares.covers(LOW, 0.2), shares.covers(LOW, 0.09)) == (False, True)
    assert not Shares({HIGH: 0.0, NORMAL: 0.0, LOW: 0.0}).covers(LOW, 0.0)


def test_pays_in_full_and_may_owe() -> None:
    """A bundle larger than its head leaves a debt that is earned back before the next turn."""
    shares = _shares()
    shares.dispatched(2.0, [HIGH, LOW], HIGH, on_credit=False)
    shares.dispatched(1.0, [HIGH, LOW], LOW, on_credit=True)

    assert shares.credit_s[LOW] == pytest.approx(0.1 + 0.05 - 1.0)


def test_what_a_class_gets_anyway_counts_in_advance() -> None:
    """Riding along uses up credit, and then up to two seconds of the share."""
    shares = _shares()
    shares.dispatched(2.0, [HIGH, NORMAL, LOW], HIGH, on_credit=False)
    shares.dispatched(1.0, [HIGH], HIGH, [(NORMAL, 0.05), (LOW, 0.5)], on_credit=False)

    assert shares.credit_s[NORMAL] == pytest.approx(0.05)
    assert shares.credit_s[LOW] == pytest.approx(-0.1)


def test_shares_hold_before_the_model_is_known() -> None:
    """With every prediction at 0.0, one bundle in twenty belongs to the class with 5%."""
    shares = _shares()
    turns = [_turn(shares, {LOW: 0.0}, 0.0) for _ in range(400)]

    assert turns.count(LOW) == pytest.approx(20, abs=1)


@given(
    costs=st.lists(st.floats(0.001, 1.0), min_size=1, max_size=10),
    head=st.floats(0.001, 0.5),
    normal=st.floats(0.02, 0.3),
    low=st.floats(0.02, 0.3),
)
def test_every_waiting_class_gets_its_share(costs: list[float], head: float, normal: float, low: float) -> None:
    """Over a long time of saturation each class got its share of server time, to within one bundle and one head."""
    shares = _shares(normal, low)
    served = dict.fromkeys(Priority, 0.0)
    largest = max(costs)
    for i in range(2000):
        cost = costs[i % len(costs)]
        served[_turn(shares, {NORMAL: head, LOW: head}, cost)] += cost
    total = sum(served.values())
    slack = 2 * (head + largest) + 1e-6

    assert served[NORMAL] >= normal * total - slack
    assert served[LOW] >= low * total - slack
    assert served[HIGH] >= (1 - normal - low) * total - 2 * slack


def _turn(shares: Shares, heads: dict[Priority, float], cost: float) -> Priority:
    first = next((p for p in (NORMAL, LOW) if p in heads and shares.covers(p, heads[p])), HIGH)
    shares.dispatched(cost, [HIGH, *heads], first, on_credit=first is not HIGH)
    return first
