"""The gate of a replica of several instances: when one is free, and what is left for the others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduling_builders import HIGH, make_entry, make_gate

from serve_app.scheduling.gate import Gate
from serve_app.scheduling.instances import Instance, Instances


def at_two(entries: int = 0, *, runs: int = 0, **settings: int) -> Gate:
    """A gate of two instances where so many entries wait: batches of one row of 6 ms run since the first moment."""
    gate = make_gate(instances=2, **settings)  # type: ignore[arg-type]
    for instance in range(runs):
        gate.add(make_entry(), 0.0)
        assert gate.next(0.0, instance).rows == 1
    for _ in range(entries):
        gate.add(make_entry(), 0.0)
    return gate


def test_what_waits_is_divided_among_those_that_are_free() -> None:
    """And goes to one where only that is free."""
    gate = at_two(7)
    assert [gate.next(0.0, 0).rows, gate.next(0.0, 1).rows, len(gate)] == [4, 3, 0]
    gate = at_two(7, runs=1)
    assert gate.next(0.0, 1).rows == 7


def test_an_entry_of_many_rows_is_not_divided() -> None:
    """It has a batch of its own where it is more than its part."""
    gate = at_two(2)
    gate.add(large := make_entry(deadline=1.0, rows=8), 0.0)
    assert gate.next(0.0, 0).entries == [large]
    assert gate.next(0.0, 1).rows == 2


def test_when_the_next_one_is_free() -> None:
    """At once while one runs nothing; of what waits there, one takes as long as the last."""
    assert at_two(runs=1).outlook_s(0.001) == pytest.approx((0.0, 0.005))
    gate = at_two(runs=1)
    gate.add(make_entry(), 0.002)
    gate.next(0.002, 1)
    assert gate.outlook_s(0.003) == pytest.approx((0.003, 0.005))
    gate.ended(0)
    assert gate.outlook_s(0.003) == pytest.approx((0.0, 0.005))
    gate.add(make_entry(), 0.003)
    assert gate.runs_s(0.003) == pytest.approx(0.005)
    gate.ended(1)
    assert gate.runs_s(0.003) == 0.0


def test_all_work_on_what_waits() -> None:
    """Two runs of which 5 ms are left each, and four rows of 9 ms."""
    assert at_two(4, runs=2).backlog_s(0.001) == pytest.approx((0.005 * 2 + 0.009) / 2)


def test_each_has_its_own_pause() -> None:
    """From the end of its run to its next one, however long another runs: class `high` waits so much longer."""
    gate = at_two(8, runs=2, max_rows=1)
    for turn in range(1, 4):
        for instance in range(2):
            gate.observe(1, 0, 0.006, "", instance)
            gate.ended(instance)
            gate.next(turn * 0.007 + 0.0001 * instance, instance)
    assert 0.0005 <= gate._pause.seconds <= 0.0012


def test_class_high_waits_for_the_first_that_is_free() -> None:
    """It tolerates any batch while one is, and otherwise what the first that is free leaves of its slack."""
    gate = at_two(runs=1)
    gate.add(free := make_entry(HIGH, 0.01), 0.001)
    gate.next(0.001, 1)
    gate.add(waits := make_entry(HIGH, 0.02), 0.003)
    tolerable_s = gate._tolerable_s
    assert free not in tolerable_s
    assert tolerable_s[waits] == pytest.approx((0.02 - 0.003 - 0.006) / 0.5)


@given(st.lists(st.floats(0.0, 9.0), min_size=1, max_size=5), st.floats(0.0, 9.0), st.floats(0.0, 9.0))
def test_outlooks_are_in_order(predicted_s: list[float], now: float, waiting_s: float) -> None:
    """One is free before all is done, and more that waits takes longer."""
    instances = Instances([Instance() for _ in predicted_s])
    for instance, seconds in enumerate(predicted_s):
        instances[instance].run_s = instances[instance].runs_until = seconds
    first_s, _ = instances.first_free(now)
    assert first_s == max(0.0, min(predicted_s) - now)
    assert 0.0 <= first_s <= instances.backlog_s(now, 0.0) <= instances.backlog_s(now, waiting_s)
    assert (instances.free(now) > 0) == (first_s == 0.0)
    if len(predicted_s) == 1:
        assert instances.backlog_s(now, waiting_s) == first_s + waiting_s
        assert instances.runs_s(now) == (first_s or predicted_s[0])
