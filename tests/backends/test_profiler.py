"""Measuring a model: which shapes run, how often, in which order, and what is made of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_models
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples
from simulated_backend import SimulatedBackend

from serve_app.backends.onnx.backend import OnnxBackend, OnnxSettings
from serve_app.backends.profiler import (
    MAX_RUNS,
    MIN_RUNS,
    ProfileProgress,
    Shape,
    resident_bytes,
    sweep,
    sweep_rows,
    waited_s,
)
from serve_app.backends.warm_up import tensor_inputs
from serve_app.errors import InferenceFailed
from serve_app.payloads import Tensors

MakeModel = Callable[[onnx_models.Kind], Path]

FIRST = 10.0
"""How many times as long the first run of a shape takes."""


@pytest.mark.parametrize(
    ("max_rows", "expected"),
    [(1, (1,)), (2, (1, 2)), (4, (1, 2, 3, 4)), (12, (1, 2, 3, 4, 6, 8, 12)), (20, (1, 2, 3, 4, 6, 8, 12, 16, 20))],
)
def test_rows_are_powers_of_two_and_half_way_between(max_rows: int, expected: tuple[int, ...]) -> None:
    """The maximum is among them whatever it is, and nothing lies above it."""
    assert sweep_rows(max_rows) == expected


def test_every_shape_is_measured_warm_for_its_time() -> None:
    """The slow first run of a shape is not counted, and each gets the same time."""
    backend = SimulatedBackend(lambda rows, bucket, now: rows * bucket / 1024, FIRST)

    found = sweep(
        {"": backend}, tensor_inputs(backend.signature), rows=(4, 1), buckets=(16, 8), seconds=1, clock=backend.clock
    )

    assert [measurement.shape for measurement in found] == [
        Shape("", 1, 8), Shape("", 4, 8), Shape("", 1, 16), Shape("", 4, 16),
    ]  # fmt: skip
    assert [len(measurement.seconds) for measurement in found] == [128, 32, 64, 16]
    assert [set(measurement.seconds) for measurement in found] == [{1 / 128}, {1 / 32}, {1 / 64}, {1 / 16}]


def test_shapes_take_turns_in_opposite_orders() -> None:
    """First once each from the least work to the most, then round by round, there and back."""
    backend = SimulatedBackend(lambda rows, bucket, now: 0.125, FIRST)

    sweep({"": backend}, tensor_inputs(backend.signature), rows=(1, 2, 3), seconds=1, rounds=4, clock=backend.clock)

    # Where the same shape ends one round and begins the next, its two turns are one here.
    assert [rows for rows, _ in backend.turns()] == [1, 2, 3, 1, 2, 3, 2, 1, 2, 3, 2, 1]


def test_what_drifts_hits_every_shape_alike() -> None:
    """On a machine that becomes three times as slow meanwhile, means are in the proportion of the shapes' costs."""
    backend = SimulatedBackend(lambda rows, bucket, now: rows / 1000 * (1 + now / 2), FIRST)

    one, four = sweep({"": backend}, tensor_inputs(backend.signature), rows=(1, 4), seconds=2, clock=backend.clock)

    means = [sum(found.seconds) / len(found.seconds) for found in (one, four)]
    assert max(one.seconds) > 2 * min(one.seconds)
    assert means[1] / means[0] == pytest.approx(4, rel=0.05)


@settings(max_examples=examples(50))
@given(cost=st.floats(1e-3, 10.0), seconds=st.floats(0.01, 2.0))
@example(cost=1e-6, seconds=1.0)
def test_runs_are_bounded_from_both_sides(cost: float, seconds: float) -> None:
    """A slow model is run often enough to say something, a quick one no longer than its time."""
    backend = SimulatedBackend(lambda rows, bucket, now: cost, FIRST)

    (found,) = sweep({"": backend}, tensor_inputs(backend.signature), rows=(1,), seconds=seconds, clock=backend.clock)

    assert MIN_RUNS <= len(found.seconds) <= MAX_RUNS
    assert sum(found.seconds) <= max(seconds + cost, MIN_RUNS * cost) * (1 + 1e-9)


def test_variants_are_measured_with_the_model() -> None:
    """All sessions take part in the same rounds."""
    exact, light = (
        SimulatedBackend(lambda rows, bucket, now: 0.25, FIRST),
        SimulatedBackend(lambda rows, bucket, now: 0.125, FIRST),
    )
    clock = lambda: exact.now + light.now  # noqa: E731 - one time for both

    found = sweep(
        {"": exact, "light": light}, tensor_inputs(exact.signature), rows=(1, 2), seconds=2, rounds=2, clock=clock
    )

    assert [(one.shape.variant, one.shape.rows, one.seconds[0]) for one in found] == [
        ("", 1, 0.25), ("", 2, 0.25), ("light", 1, 0.125), ("light", 2, 0.125),
    ]  # fmt: skip


def test_progress_ends_where_it_said() -> None:
    """What is expected in all is what has been measured in the end."""
    backend = SimulatedBackend(lambda rows, bucket, now: rows / 64, FIRST)
    steps: list[ProfileProgress] = []

    sweep(
        {"": backend},
        tensor_inputs(backend.signature),
        rows=(1, 2),
        seconds=1,
        clock=backend.clock,
        on_progress=steps.append,
    )

    assert [step.measured_s for step in steps] == sorted(step.measured_s for step in steps)
    assert (steps[0].measured_s, steps[-1].measured_s, steps[-1].expected_s) == (0, 2, 2)


def test_a_model_that_fails_is_reported_with_the_shape() -> None:
    """The operator learns at which size it happened."""

    class Small(SimulatedBackend):
        def run(self, inputs: Tensors) -> Tensors:
            if len(inputs["x"]) > 2:
                raise InferenceFailed("out of memory")
            return super().run(inputs)

        run_whole = run

    small = Small(lambda rows, bucket, now: 0.01, FIRST)

    with pytest.raises(InferenceFailed) as caught:
        sweep({"int8": small}, tensor_inputs(small.signature), rows=(1, 4), buckets=(16,), clock=small.clock)

    assert str(caught.value) == "profile with 4 rows of size 16, variant int8: out of memory"


def test_a_real_session_is_measured_with_its_memory(make_model: MakeModel) -> None:
    """Times are positive, and the process holds at least what a Python with ONNX Runtime does."""
    backend = OnnxBackend(OnnxSettings("m", make_model("seq_mean"), device="cpu"))
    backend.load()

    found = sweep({"": backend}, tensor_inputs(backend.signature), rows=(1, 4), buckets=(8, 16), seconds=0.01)

    assert len(found) == 4
    for measurement in found:
        assert min(measurement.seconds) > 0
        assert measurement.peak_rss_bytes is not None
        assert measurement.peak_rss_bytes > 10 * 1024**2
        assert measurement.gpu_bytes is None
    assert (resident_bytes() or 0) > 10 * 1024**2
    backend.close()


def test_the_wait_for_a_core_is_counted() -> None:
    """It only ever grows, and a process is told of its own alone."""
    first, second = waited_s(), waited_s()
    assert first is not None
    assert second is not None
    assert 0 <= first <= second


def test_the_peak_is_that_of_the_run(tmp_path: Path) -> None:
    """A batch that needs much memory shows it; what was needed and freed before does not."""
    from onnx import TensorProto, helper

    path = tmp_path / "model.onnx"
    onnx_models.write(
        path,
        [
            helper.make_node("Expand", ["x", "shape"], ["wide"]),
            helper.make_node("ReduceSum", ["wide", "axis"], ["y"], keepdims=1),
        ],
        [("x", TensorProto.FLOAT, ["rows", 1])],
        [("y", TensorProto.FLOAT, ["rows", 1])],
        {"shape": np.array([1, 1_000_000], "int64"), "axis": np.array([1], "int64")},
    )
    backend = OnnxBackend(OnnxSettings("m", path, device="cpu"))
    backend.load()

    few, many = sweep({"": backend}, tensor_inputs(backend.signature), rows=(1, 64), seconds=0.01)

    assert few.peak_rss_bytes is not None
    assert many.peak_rss_bytes is not None
    assert many.peak_rss_bytes - few.peak_rss_bytes > 200 * 10**6  # 64 rows of 4 MB, less what was there already
    backend.close()
