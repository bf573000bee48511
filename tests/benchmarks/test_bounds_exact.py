"""The dynamic programme finds what trying everything finds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples
from numpy.typing import NDArray
from simulation_brute_force import Offered, best_weight

from benchmarks.scheduling.bounds.exact import PlannedBatch, exact_bound, exact_schedule


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[int], list[int], list[int]]:
    """Arrivals, deadlines in the same order, and execution times per batch size."""
    arrivals = sorted(draw(st.lists(st.integers(0, 12), min_size=1, max_size=6)))
    if draw(st.booleans()):
        timeout = draw(st.integers(1, 9))
        deadlines = [arrival + timeout for arrival in arrivals]
    else:
        timeouts = draw(st.lists(st.integers(1, 9), min_size=len(arrivals), max_size=len(arrivals)))
        late = [arrival + timeout for arrival, timeout in zip(arrivals, timeouts, strict=True)]
        deadlines = [max(late[: place + 1]) for place in range(len(late))]
    costs = draw(st.lists(st.integers(1, 8), min_size=1, max_size=4).map(sorted))
    return arrivals, deadlines, costs


@settings(max_examples=examples(120, thorough=4000))
@given(problems())
def test_it_equals_the_best_of_all_schedules(problem: tuple[list[int], list[int], list[int]]) -> None:
    """Whatever the arrivals, deadlines and costs."""
    arrivals, deadlines, costs = problem
    offered = [Offered(arrival, due - arrival) for arrival, due in zip(arrivals, deadlines, strict=True)]
    expected = best_weight(offered, [1], [costs], [1.0])
    assert expected == exact_bound(arrivals, deadlines, lambda rows: costs[rows - 1], len(costs))


def is_possible(
    arrivals: NDArray[np.float64], deadlines: NDArray[np.float64], max_rows: int, schedule: list[PlannedBatch]
) -> bool:
    """Whether batches follow each other, start after their requests came and end in time."""
    free, after = -np.inf, 0
    for batch in schedule:
        last = batch.first + batch.size - 1
        if not (batch.first >= after and 1 <= batch.size <= max_rows):
            return False
        if batch.start_s < free or batch.start_s < arrivals[last]:
            return False
        if batch.end_s != batch.start_s + curve(batch.size) or batch.end_s > deadlines[batch.first] + 1e-9:
            return False
        free, after = batch.end_s, last + 1
    return True


def curve(rows: int) -> float:
    """A GPU-like curve: 5 ms fixed, 1 ms per row."""
    return 0.005 + 0.001 * rows


@pytest.mark.parametrize("load", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("timeout_s", [0.02, 0.05, 0.2])
def test_its_schedule_is_possible_and_attains_it(load: float, timeout_s: float) -> None:
    """Over many blocks of the table, with pruning at work."""
    rng = np.random.default_rng(7)
    arrivals = np.cumsum(rng.exponential(curve(32) / 32 / load, 6000))
    schedule = exact_schedule(arrivals, arrivals + timeout_s, curve, 32)
    assert is_possible(arrivals, arrivals + timeout_s, 32, schedule)
    assert exact_bound(arrivals, arrivals + timeout_s, curve, 32) == sum(batch.size for batch in schedule)


def test_everything_is_served_at_light_load() -> None:
    """One request at a time, each with time to spare."""
    arrivals = np.arange(1000) * 0.01
    assert exact_bound(arrivals, arrivals + 0.0061, curve, 8) == 1000
    assert exact_bound(arrivals, arrivals + 0.0059, curve, 8) == 0


def test_an_execution_that_ends_at_the_deadline_is_in_time() -> None:
    """Also when sums of floats differ in their last place."""
    assert exact_bound([0.1], [0.1 + 0.2], lambda rows: 0.2, 1) == 1
    assert exact_bound([0.1], [0.3], lambda rows: 0.2, 1) == 1


def test_a_smaller_batch_may_be_padded_to_a_cheaper_size() -> None:
    """A curve with a bump at 3 rows."""
    costs = {1: 1.0, 2: 2.0, 3: 9.0, 4: 3.0}
    assert exact_bound([0.0, 0.0, 0.0], [3.0, 3.0, 3.0], costs.__getitem__, 4) == 3


def test_no_requests_are_no_problem() -> None:
    """And none are in time."""
    assert exact_bound([], [], curve, 4) == 0
    assert exact_schedule([], [], curve, 4) == []


@pytest.mark.parametrize(
    ("arrivals", "deadlines", "max_rows", "cost", "message"),
    [
        pytest.param([0.0, 1.0], [1.0], 4, 1.0, "one length", id="lengths"),
        pytest.param([1.0, 0.0], [2.0, 3.0], 4, 1.0, "arrivals must ascend: request 1", id="arrivals"),
        pytest.param([0.0, 1.0], [3.0, 2.0], 4, 1.0, "deadlines must ascend: request 1", id="deadlines"),
        pytest.param([0.0], [np.nan], 4, 1.0, "finite", id="nan"),
        pytest.param([0.0], [1.0], 0, 1.0, "max_rows", id="rows"),
        pytest.param([0.0], [1.0], 4, 0.0, "latency", id="latency"),
    ],
)
def test_what_it_cannot_solve_is_refused(
    arrivals: list[float], deadlines: list[float], max_rows: int, cost: float, message: str
) -> None:
    """With the fault in the message."""
    with pytest.raises(ValueError, match=message):
        exact_bound(arrivals, deadlines, lambda rows: cost, max_rows)
