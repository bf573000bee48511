"""Fairness over sizes: what costs most is not always the first to be given up."""

from __future__ import annotations

from itertools import count

import pytest
from scheduling_builders import NORMAL, make_entry

from serve_app.domain.priority import Priority
from serve_app.scheduling.gate import Gate
from serve_app.scheduling.queueing.sizes import SizeFairness, size_of
from serve_app.scheduling.settings import ModelScheduling

ROWS = 8
PROFILE = [(rows, bucket, 0.010 + 0.001 * rows * bucket, "") for rows in (1, 2, 4, ROWS) for bucket in (1, 8)]


def _attainment(size_fairness: float, small: int, large: int) -> tuple[float, float]:
    """In time of each size, where so many of both come while a small one's deadline passes."""
    gate = Gate(
        ModelScheduling("m", ROWS, 0.2, policy="eager", size_fairness=size_fairness), dict.fromkeys(Priority, 0.0)
    )
    gate.seed(PROFILE)
    ran, offered = {1: 0, 8: 0}, {1: 0, 8: 0}
    now = free_at = 0.0
    for turn in count():
        now = 0.05 * turn
        if now > 20.0:
            break
        for bucket, entries in ((1, small), (8, large)):
            for number in range(entries):
                gate.add(make_entry(deadline=now + 0.2 + 1e-4 * number, bucket=bucket), now)
                offered[bucket] += 1
        while free_at < now + 0.05:
            start = max(free_at, now)
            batch = gate.next(start)
            for entry in batch.entries:
                assert start + batch.predicted_s <= entry.deadline
                ran[entry.bucket] += 1
            if not batch.entries:
                break
            gate.ended()
            free_at = start + batch.predicted_s
    return ran[1] / offered[1], ran[8] / offered[8]


def test_in_overload_a_size_keeps_its_part_of_the_mean() -> None:
    """Every 50 ms come requests for 85 ms."""
    most, large = _attainment(0.0, 30, 5)
    assert large < 0.1 * most
    small, large = _attainment(0.5, 30, 5)
    assert small < most
    mean = (30 * small + 5 * large) / 35
    assert 0.49 * mean <= large <= 0.6 * mean


@pytest.mark.parametrize(("others", "runs"), [(1, 8), (ROWS, 1)])
def test_a_short_size_goes_first_where_that_is_free(others: int, runs: int) -> None:
    """A large one takes 18 ms, a small one 11 ms, and eight of them 18 ms: 56, 91 and 444 per second."""
    gate = Gate(ModelScheduling("m", ROWS, 0.2, policy="eager"), dict.fromkeys(Priority, 0.0))
    gate.seed(PROFILE)
    for _ in range(3):
        gate.add(make_entry(deadline=0.001, bucket=8), 0.0)
    assert len(gate.next(0.0).dropped) == 3
    for _ in range(others):
        gate.add(make_entry(deadline=0.1, bucket=1), 0.0)
    gate.add(make_entry(deadline=0.2, bucket=8), 0.0)

    assert (gate.next(0.0).bucket, len(gate)) == (runs, 1)


def test_without_overload_it_changes_nothing() -> None:
    """All are in time."""
    assert _attainment(0.5, 3, 1) == (1.0, 1.0)


def test_sizes_are_powers_of_two_of_cost_buckets_and_of_rows() -> None:
    """Both are rounded up."""
    sizes = [size_of(make_entry(rows=rows, bucket=64)) for rows in (1, 2, 3, 4, 5, 8, 9)]
    assert [(6, power) for power in (0, 1, 2, 2, 3, 3, 4)] == sizes
    sizes = [size_of(make_entry(bucket=bucket)) for bucket in (0, 1, 2, 40, 64, 72, 128)]
    assert [(power, 0) for power in (0, 0, 1, 6, 6, 7, 7)] == sizes


def test_a_size_is_short_when_it_lacks_an_answer() -> None:
    """Half of the mean, counted in answers; one that is served is not short any more."""
    sizes = SizeFairness(0.5)
    large, small = make_entry(bucket=8), make_entry(bucket=1)
    for _ in range(3):
        sizes.ended(large, ran=False)
    assert sizes.short() == [size_of(large)]
    sizes.ended(small, ran=True)
    sizes.ended(large, ran=True)
    assert sizes.short() == []


def test_without_a_guarantee_sizes_below_a_half_are_short() -> None:
    """`size_fairness: 0`: they go first where that is free."""
    guaranteed, free = SizeFairness(0.5), SizeFairness(0.0)
    for sizes in (guaranteed, free):
        for _ in range(3):
            sizes.ended(make_entry(bucket=8), ran=False)
    assert guaranteed.short() == free.short() != []


def test_what_is_remembered_is_bounded() -> None:
    """However many sizes there are, those that are short are not forgotten for it."""
    sizes = SizeFairness(0.5)
    short = make_entry(NORMAL, bucket=10**6)
    for _ in range(4):
        sizes.ended(short, ran=False)
    for power in range(200):
        sizes.ended(make_entry(bucket=1 << power % 20, rows=1 << power // 20), ran=True)
    assert sizes.short() == [size_of(short)]
