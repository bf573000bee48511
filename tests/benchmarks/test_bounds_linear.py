"""The linear programme is never below what can be reached, and near it where it should be."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples
from numpy.typing import NDArray
from simulation_brute_force import Offered, best_weight

from benchmarks.scheduling.bounds.capacity import capacity_bound
from benchmarks.scheduling.bounds.exact import exact_bound
from benchmarks.scheduling.bounds.greedy import serves_all
from benchmarks.scheduling.bounds.linear import LinearBound, ModelReplicas, linear_bound

Problem = tuple[list[Offered], list[int], list[list[int]], float, float]
"""Requests, replicas and costs per model, slot and window."""
WEIGHTS = (5.0, 1.0)


def by(costs: list[int]) -> Callable[[int], float]:
    """A curve from a list."""
    return lambda rows: float(costs[rows - 1])


def curve(rows: int) -> float:
    """A GPU-like curve: 5 ms fixed, 1 ms per row."""
    return 0.005 + 0.001 * rows


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Requests of up to two models, replicas and costs per model, slot and window."""
    models = draw(st.integers(1, 2))
    request = st.builds(Offered, st.integers(0, 10), st.integers(1, 9), st.integers(0, models - 1), st.integers(0, 1))
    requests = draw(st.lists(request, min_size=1, max_size=6))
    replicas = draw(st.lists(st.integers(1, 2), min_size=models, max_size=models))
    rising = st.lists(st.integers(1, 7), min_size=1, max_size=4).map(sorted)
    costs = draw(st.lists(rising, min_size=models, max_size=models))
    return (
        requests,
        replicas,
        costs,
        draw(st.sampled_from([0.3, 0.5, 1.0, 1.7, 3.0])),
        draw(st.sampled_from([3.0, 99.0])),
    )


def bound_of(
    requests: list[Offered],
    replicas: list[int],
    costs: list[list[int]],
    slot_s: float | None = None,
    window_s: float | None = None,
    device: int = -1,
) -> LinearBound:
    """The bound of integers."""
    arrivals, timeouts, models, classes = (np.array(column) for column in zip(*requests, strict=True))
    served = [ModelReplicas(by(cost), len(cost), count, device) for count, cost in zip(replicas, costs, strict=True)]
    return linear_bound(
        arrivals, arrivals + timeouts, models, classes, np.ones(len(requests)), served, WEIGHTS,
        devices=(1.0,), slot_s=slot_s, window_s=window_s,
    )  # fmt: skip


@settings(max_examples=examples(40, thorough=1200))
@given(problems())
def test_no_schedule_exceeds_it(problem: Problem) -> None:
    """Whatever the slot and the window: rounding and cutting are in the planner's favour."""
    requests, replicas, costs, slot_s, window_s = problem
    bound = bound_of(requests, replicas, costs, slot_s, window_s)
    assert best_weight(requests, replicas, costs, WEIGHTS) <= bound.weighted + 1e-6
    assert best_weight(requests, replicas, costs, (1.0, 1.0)) <= bound.count + 1e-6
    for place, value in enumerate(bound.per_class):
        mine = [request for request in requests if request.group == place]
        assert best_weight(mine, replicas, costs, (1.0, 1.0)) <= value + 1e-6


@settings(max_examples=examples(20, thorough=600))
@given(problems())
def test_a_shared_device_only_takes(problem: Problem) -> None:
    """With one execution at a time, what one replica for all could do is still possible."""
    requests, _, costs, slot_s, window_s = problem
    ones = [1] * len(costs)
    apart = bound_of(requests, ones, costs, slot_s, window_s)
    shared = bound_of(requests, ones, costs, slot_s, window_s, device=0)
    assert shared.weighted <= apart.weighted + 1e-5
    for place in range(len(costs)):
        alone = [request for request in requests if request.model == place]
        assert best_weight(alone, ones, costs, WEIGHTS) <= shared.weighted + 1e-6


def poisson(rate: float, count: int, seed: int = 3) -> NDArray[np.float64]:
    """Arrivals."""
    return np.cumsum(np.random.default_rng(seed).exponential(1.0 / rate, count))


@pytest.mark.parametrize("load", [0.5, 1.0, 2.0])
def test_it_is_near_the_exact_bound_of_one_server(load: float) -> None:
    """Never below, and not a tenth above."""
    arrivals = poisson(load * 32 / curve(32), 1500)
    zeros = np.zeros(len(arrivals))
    exact = exact_bound(arrivals, arrivals + 0.1, curve, 32)
    bound = linear_bound(arrivals, arrivals + 0.1, zeros, zeros, zeros + 1, [ModelReplicas(curve, 32)], (1.0,))
    assert exact <= bound.count <= 1.1 * exact
    assert bound.per_class == (bound.count,)


def test_it_is_below_capacity_and_above_a_plain_schedule() -> None:
    """Three replicas, two classes, overload."""
    arrivals = poisson(2.0 * 3 * 32 / curve(32), 3000)
    classes = np.arange(3000) % 2
    columns = (arrivals, arrivals + 0.1, np.zeros(3000), classes, np.ones(3000), [ModelReplicas(curve, 32, 3)], WEIGHTS)
    bound, capacity = linear_bound(*columns), capacity_bound(*columns)
    thirds = sum(exact_bound(arrivals[place::3], arrivals[place::3] + 0.1, curve, 32) for place in range(3))
    assert thirds <= bound.count <= 1.00001 * capacity.count
    assert bound.weighted <= 1.00001 * capacity.weighted
    assert bound.count < 0.7 * 3000


def test_a_device_of_one_execution_halves_two_models() -> None:
    """Each could be served alone; together only half fits."""
    arrivals = np.repeat(np.arange(200) * 1.0, 2)
    models, zeros = np.arange(400) % 2, np.zeros(400)
    replicas = [ModelReplicas(float, 1, 1, 0), ModelReplicas(float, 1, 1, 0)]
    columns = (arrivals, arrivals + 2.0, models, zeros, zeros + 1)
    assert linear_bound(*columns, replicas, (1.0,), devices=(2.0,)).count == pytest.approx(400)
    assert linear_bound(*columns, replicas, (1.0,), devices=(1.0,)).count == pytest.approx(201, abs=12)


def test_rows_count() -> None:
    """Requests of 4 rows need 4 times the room."""
    zeros = np.zeros(40)
    replicas = [ModelReplicas(float, 4)]
    bound = linear_bound(zeros, zeros + 20.0, zeros, zeros, zeros + 4, replicas, (1.0,))
    assert bound.count == pytest.approx(5.0, rel=0.01)


def test_a_plain_schedule_is_recognised() -> None:
    """Two replicas serve what one does not."""
    costs = np.array([1.0, 1.5])
    arrivals, rows = np.zeros(4), np.ones(4, dtype=np.int64)
    assert serves_all(arrivals, arrivals + 1.5, rows, costs, 2)
    assert not serves_all(arrivals, arrivals + 1.5, rows, costs, 1)
    assert serves_all(arrivals, arrivals + 3.0, rows, costs, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"models": [1]}, "models: request 0 has 1", id="model"),
        pytest.param({"classes": [-1]}, "classes: request 0", id="class"),
        pytest.param({"rows": [0]}, "rows: request 0", id="rows"),
        pytest.param({"rows": [1, 1]}, "one length", id="length"),
        pytest.param({"deadlines": [np.inf]}, "finite", id="deadline"),
        pytest.param({"weights": [-1.0]}, "weights", id="weight"),
        pytest.param({"slot_s": 0.0}, "slot_s", id="slot"),
        pytest.param(
            {"replicas": [ModelReplicas(curve, 4, 1, device=2)]}, "model 0 has 1 replicas on device 2", id="device"
        ),
    ],
)
def test_impossible_columns_are_refused(change: dict[str, object], message: str) -> None:
    """With the fault in the message."""
    columns: dict[str, object] = {
        "arrivals": [0.0], "deadlines": [1.0], "models": [0], "classes": [0], "rows": [1],
        "replicas": [ModelReplicas(curve, 4)], "weights": [1.0],
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        linear_bound(**{**columns, **change})  # type: ignore[arg-type]
