"""Row sizes by default: how they are chosen by measured costs, and how many a replica loads."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np
import onnx_models
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples
from onnx import TensorProto, helper
from simulated_backend import SimulatedBackend

from serve_app.backends.backend import Backend
from serve_app.backends.samples import Samples
from serve_app.composition.backend import load_builds
from serve_app.composition.model import find_files, read_builds
from serve_app.composition.row_sizes import choose_row_sizes, fill_up, prepares_each_shape
from serve_app.config.model import ModelConfig
from serve_app.domain.row_sizes import FILLING, row_sizes
from serve_app.payloads import Execution, Tensors
from serve_app.replica.warm_up import ReplicaWarmUp, warm_up_replica

ONE: Tensors = {"x": np.ones((1, 1), np.float32)}


def affine(fixed: float, per_row: float) -> Callable[[int], float]:
    """The cost of a run: so much, and so much for each row."""
    return lambda rows: fixed + per_row * rows


RESNET50_ON_H200 = affine(0.756, 0.195)
FREE = affine(1.0, 0.0)
IN_PROPORTION = affine(0.0, 1.0)


@pytest.mark.parametrize(
    ("cost", "largest", "most", "expected"),
    [
        (RESNET50_ON_H200, 32, 16, (1, 2, 3, 5, 7, 9, 12, 15, 18, 22, 27, 32)),
        (RESNET50_ON_H200, 64, 16, (1, 2, 4, 6, 8, 10, 13, 16, 20, 24, 29, 34, 40, 47, 55, 64)),
        (RESNET50_ON_H200, 32, 4, (3, 8, 17, 32)),
        (FREE, 64, 16, (64,)),
        (IN_PROPORTION, 8, 16, (1, 2, 3, 4, 5, 6, 8)),
        (IN_PROPORTION, 8, 1, (8,)),
        (FREE, 1, 16, (1,)),
    ],
)
def test_sizes_of_a_curve(cost: Callable[[int], float], largest: int, most: int, expected: tuple[int, ...]) -> None:
    """Many where a row costs much beside what a run costs, and one where it costs nothing."""
    assert expected == row_sizes([cost], largest, most)


curves = st.lists(st.floats(0.0, 10.0), min_size=1, max_size=12).map(
    lambda steps: [float(each) for each in 0.1 + np.cumsum(steps)]
)


def filled(sizes: tuple[int, ...], rows: int) -> int:
    """The size that so many rows are filled up to."""
    return next(size for size in sizes if size >= rows)


def measured(curve: list[float], rows: int) -> float:
    """The cost of a run by a list that begins with that of one row."""
    return curve[rows - 1]


@given(st.lists(curves, min_size=1, max_size=3), st.integers(1, 12))
@settings(max_examples=examples(200))
def test_filling_costs_at_most_the_bound_with_the_fewest_sizes(points: list[list[float]], most: int) -> None:
    """By every curve, for every number of rows; no smaller set would do. A low limit of sizes is kept in any case."""
    largest = min(map(len, points))
    costs = [partial(measured, curve) for curve in points]

    def within(sizes: tuple[int, ...]) -> bool:
        numbers = range(1, largest + 1)
        return all(cost(filled(sizes, rows)) <= FILLING * cost(rows) for cost in costs for rows in numbers)

    sizes = row_sizes(costs, largest, largest)
    assert within(sizes)
    assert sizes[-1] == largest
    smaller = combinations(range(1, largest), max(0, len(sizes) - 2))
    assert len(sizes) == 1 or not any(within((*others, largest)) for others in smaller)
    few = row_sizes(costs, largest, most)
    assert (len(few) <= most, few[-1]) == (True, largest)
    assert few == sizes or len(sizes) > most


def test_runs_that_are_slow_after_another_shape_are_noticed() -> None:
    """As those of a convolution of CUDA are, and those of the CPU are not. The first runs count for nothing."""

    class Preparing(SimulatedBackend):
        """A run after one of another shape takes ten times as long."""

        def run(self, inputs: Tensors) -> Tensors:
            """Let the clock move on."""
            changed = bool(self.runs) and self.runs[-1][0] != len(inputs["x"])
            outputs = super().run(inputs)
            self.now += 0.009 * changed
            return outputs

    kinds: tuple[type[SimulatedBackend], ...] = (SimulatedBackend, Preparing)
    found = [kind(lambda _rows, _bucket, _now: 0.001, first=50.0) for kind in kinds]
    assert [prepares_each_shape(each, ONE, each.clock) for each in found] == [False, True]


class Loaded:
    """A model that adds the rows of its run, and fails on more than ``most`` of them; loaded as a replica does it."""

    def __init__(self, folder: Path, most: int) -> None:
        (folder / "m" / "1").mkdir(parents=True)
        onnx_models.write(
            folder / "m" / "1" / "model.onnx",
            [
                helper.make_node("Shape", ["x"], ["rows"], start=0, end=1),
                helper.make_node("Gather", ["table", "rows"], ["added"], axis=0),
                helper.make_node("Add", ["x", "added"], ["y"]),
            ],
            [("x", TensorProto.FLOAT, ["n", 1])],
            [("y", TensorProto.FLOAT, ["n", 1])],
            {"table": np.arange(most + 1, dtype=np.float32)},
        )
        batching = {"unverified": "allow"}
        self.model = ModelConfig.model_validate({"name": "m", "path": str(folder / "m"), "batching": batching})
        self.locations = find_files(self.model)
        self.builds = read_builds(self.model, self.locations)
        self.backends: dict[str, Backend] = {}
        self.load(self.model)

    def load(self, model: ModelConfig) -> None:
        """Load its builds with another configuration."""
        load_builds(model, self.locations, self.builds, self.backends, print, gpu_available=False)

    def warm(self) -> ReplicaWarmUp:
        """Warm it up."""
        samples = Samples(self.backends[""].signature, [], {})
        return warm_up_replica("m", self.backends, None, samples, max_rows=32, budget_s=10.0)

    def rows_of_run(self, rows: int) -> float:
        """The rows that a batch of so many ran with."""
        return float(self.backends[""].run({"x": np.zeros((rows, 1), np.float32)})["y"][0, 0])


@pytest.fixture
def loaded(tmp_path: Path) -> Callable[[int], Loaded]:
    """Loads the model that fails on more than so many rows."""
    return partial(Loaded, tmp_path)


MEASURED = ReplicaWarmUp([Execution(rows, 0, RESNET50_ON_H200(rows)) for rows in (1, 2, 4, 8, 16, 32)], {"": ONE}, None)


def test_a_replica_loads_the_sizes_of_its_costs(loaded: Callable[[int], Loaded]) -> None:
    """Batches are filled up to them, each has run once, and the replica is warmed up again."""
    replica = loaded(32)
    model, warm_up = fill_up(replica.model, replica.backends, MEASURED, replica.load, replica.warm)

    assert model.resources.row_sizes == (1, 2, 3, 5, 7, 9, 12, 15, 18, 22, 27, 32)
    assert [replica.rows_of_run(rows) for rows in (1, 7, 19, 32)] == [1, 7, 22, 32]
    assert warm_up.reason is None
    assert [each.rows for each in warm_up.executions] == [1, 2, 4, 8, 16, 32]


@pytest.mark.parametrize(("most", "sizes"), [(20, (1, 2, 4, 6, 8, 10, 13, 16)), (4, (2, 4))])
def test_what_does_not_fit_is_halved(loaded: Callable[[int], Loaded], most: int, sizes: tuple[int, ...]) -> None:
    """Half as many sizes, up to half as many rows; larger batches run in pieces."""
    replica = loaded(most)
    model, warm_up = fill_up(replica.model, replica.backends, MEASURED, replica.load, replica.warm)

    assert model.resources.row_sizes == sizes
    assert warm_up.reason is None
    assert replica.rows_of_run(32) == sizes[-1]


def test_where_nothing_fits_batches_are_not_filled_up(
    loaded: Callable[[int], Loaded], caplog: pytest.LogCaptureFixture
) -> None:
    """The log says what to do."""
    replica = loaded(2)
    with caplog.at_level(logging.WARNING):
        assert fill_up(replica.model, replica.backends, MEASURED, replica.load, replica.warm) == (
            replica.model,
            MEASURED,
        )
    assert replica.rows_of_run(1) == 1
    assert "raise resources.gpu_memory, or lower batching.max_rows" in caplog.text


@pytest.mark.parametrize("most", [32, 1])
def test_a_model_that_runs_any_rows_alike_has_no_sizes(loaded: Callable[[int], Loaded], most: int) -> None:
    """Nor has one that cannot be measured."""
    replica = loaded(most)
    unchanged = choose_row_sizes(replica.model, replica.backends, MEASURED, replica.load, replica.warm)
    assert unchanged == (replica.model, MEASURED)
