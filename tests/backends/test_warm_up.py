"""Warm-up: what is run, in which order, and what is left out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_models
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_backend import SimulatedBackend

from serve_app.backends.backend import SessionLost
from serve_app.backends.onnx.backend import OnnxBackend, OnnxSettings
from serve_app.backends.warm_up import (
    WarmUpProgress,
    shapes,
    spaced_buckets,
    tensor_inputs,
    try_warm_up,
    warm_up,
)
from serve_app.domain.row_sizes import row_buckets
from serve_app.errors import InferenceFailed
from serve_app.payloads import Execution, ModelSignature, Tensors, TensorSpec
from serve_app.processors.buckets import size_classes

MakeModel = Callable[[onnx_models.Kind], Path]

FIRST = 2.0
"""How many times as long the first run of a shape takes."""


@pytest.mark.parametrize(
    ("max_rows", "expected"), [(1, (1,)), (2, (1, 2)), (8, (1, 2, 4, 8)), (12, (1, 2, 4, 8, 12)), (3, (1, 2, 3))]
)
def test_rows_double_up_to_the_maximum(max_rows: int, expected: tuple[int, ...]) -> None:
    """The maximum is among them whatever it is."""
    assert expected == row_buckets(max_rows)


def test_single_rows_come_first() -> None:
    """Those of the ends, then those between them, then twice as many rows of every bucket, and so on."""
    assert shapes(4, [64, 16, 32]) == [
        (1, 16),
        (1, 64),
        (1, 32),
        *((rows, at) for rows in (2, 4) for at in (16, 32, 64)),
    ]


def test_of_many_buckets_few_are_measured() -> None:
    """Each at least twice the one before, and the last; all where they are few."""
    assert spaced_buckets(size_classes(8, 500)) == (8, 16, 32, 64, 128, 256, 500)
    assert spaced_buckets([48, 16, 24, 16]) == (16, 24, 48)
    assert spaced_buckets(range(1, 10)) == (1, 2, 4, 8, 9)


@given(st.sets(st.integers(0, 10_000)))
def test_measured_buckets_reach_from_end_to_end(buckets: set[int]) -> None:
    """They ascend, are among those given, and start and end as these do."""
    spaced = spaced_buckets(list(buckets))
    ordered = sorted(buckets) or [0]
    assert (spaced[0], spaced[-1]) == (ordered[0], ordered[-1])
    assert sorted(set(spaced) & set(ordered)) == list(spaced)
    assert len(spaced) <= 16


@pytest.mark.parametrize("buckets", [(), (0,)])
def test_without_buckets_there_are_only_rows(buckets: tuple[int, ...]) -> None:
    """A model without cost buckets has the bucket 0."""
    assert shapes(4, buckets) == [(1, 0), (2, 0), (4, 0)]


def test_every_shape_is_measured_warm() -> None:
    """The cold run of a shape is not counted."""
    backend = SimulatedBackend(lambda rows, bucket, now: rows * bucket / 1000, FIRST, 100.0)
    progress: list[WarmUpProgress] = []

    executions = warm_up(
        backend,
        tensor_inputs(backend.signature),
        max_rows=2,
        buckets=(8, 16),
        repeats=2,
        clock=backend.clock,
        on_progress=progress.append,
    )

    assert [(execution.rows, execution.bucket) for execution in executions] == [(1, 8), (1, 16), (2, 8), (2, 16)]
    assert pytest.approx([0.008, 0.016, 0.016, 0.032]) == [execution.seconds for execution in executions]
    assert len(backend.runs) == 12
    assert [(step.done, step.total) for step in progress] == [(1, 4), (2, 4), (3, 4), (4, 4)]


@pytest.mark.parametrize("per_row_s", [0.1, 0.0], ids=["twice the rows save nothing", "they save"])
def test_memory_is_asked_for_what_runs_and_for_nothing_else(per_row_s: float) -> None:
    """What is left out to save time has taken no memory; what has no room is not measured."""
    backend = SimulatedBackend(lambda rows, bucket, now: per_row_s * rows or 0.01, FIRST, 100.0)
    asked: list[int] = []

    def fits(rows: int, bucket: int) -> bool:
        asked.append(rows)
        return rows <= 8

    executions = warm_up(
        backend, tensor_inputs(backend.signature), max_rows=64, repeats=1, budget_s=1e6, fits=fits, clock=backend.clock
    )
    measured = [execution.rows for execution in executions]
    assert measured == ([1, 2, 4, 8] if per_row_s == 0.0 else [1, 2, 4])
    assert [rows for rows in asked if rows <= 8] == measured[1:]


def test_the_duration_is_that_of_the_quickest_repeat() -> None:
    """What disturbs a run only makes it longer; the first one, which is cold, does not count."""
    durations = iter([9.0, 1.0, 5.0, 2.0])
    backend = SimulatedBackend(lambda rows, bucket, now: next(durations), FIRST, 100.0)

    executions = warm_up(
        backend, tensor_inputs(backend.signature), max_rows=1, repeats=3, budget_s=60, clock=backend.clock
    )

    assert [Execution(1, 0, 1.0)] == executions


def test_what_does_not_fit_into_the_budget_is_skipped() -> None:
    """Shapes that are expected to take too long are not begun; smaller ones still are."""
    backend = SimulatedBackend(lambda rows, bucket, now: rows * 1.0, FIRST, 100.0)
    backend.device = "cuda"  # where no shape is left out for what it saves
    progress: list[WarmUpProgress] = []

    executions = warm_up(
        backend,
        tensor_inputs(backend.signature),
        max_rows=64,
        repeats=1,
        budget_s=20,
        clock=backend.clock,
        on_progress=progress.append,
    )

    # 1 row takes 3 s, cold and warm; 2 rows 6 s; 4 rows are expected to take 8 of the remaining 11 s, and take 12.
    assert [execution.rows for execution in executions] == [1, 2, 4]
    assert [(step.rows, step.seconds) for step in progress if step.seconds is None] == [
        (8, None),
        (16, None),
        (32, None),
        (64, None),
    ]
    assert backend.now - 100.0 == 21.0


def test_the_smallest_shape_is_measured_on_any_budget() -> None:
    """The latency model needs at least one point."""
    backend = SimulatedBackend(lambda rows, bucket, now: 50.0, FIRST, 100.0)

    executions = warm_up(backend, tensor_inputs(backend.signature), max_rows=8, budget_s=1, clock=backend.clock)

    assert [Execution(1, 0, 50.0)] == executions
    assert len(backend.runs) == 2


def test_a_larger_shape_bounds_what_a_smaller_one_may_take() -> None:
    """Where length costs next to nothing, a short budget still covers all: in proportion, 48 would take 6 of 5 s."""
    backend = SimulatedBackend(lambda rows, bucket, now: 1.0, FIRST, 100.0)

    executions = warm_up(
        backend,
        tensor_inputs(backend.signature),
        max_rows=1,
        buckets=(16, 48, 64),
        repeats=1,
        budget_s=11,
        clock=backend.clock,
    )

    assert [execution.bucket for execution in executions] == [16, 64, 48]


@pytest.mark.parametrize(
    ("device", "cost", "measured"),
    [
        ("cpu", lambda rows: 0.1 * rows, [1, 2, 4]),
        ("cpu", lambda rows: 0.1 + 0.1 * rows, [1, 2, 4, 8, 16, 32, 64]),
        ("cpu", lambda rows: 0.1 + rows, [1, 2, 4, 8]),
        ("cpu", lambda rows: 0.1 * -(-rows // 4), [1, 2, 4, 8, 16]),
        ("cuda", lambda rows: 0.1 * rows, [1, 2, 4, 8, 16, 32, 64]),
    ],
    ids=["proportional", "affine", "little is fixed", "in steps of four", "GPU"],
)
def test_more_rows_than_save_time_are_not_measured(
    device: str, cost: Callable[[int], float], measured: list[int]
) -> None:
    """On a CPU, once neither of two doublings has saved a twentieth per row: no batch has so many."""
    backend = SimulatedBackend(lambda rows, bucket, now: cost(rows), FIRST, 100.0)
    backend.device = device

    executions = warm_up(
        backend, tensor_inputs(backend.signature), max_rows=64, repeats=1, budget_s=1e6, clock=backend.clock
    )

    assert [execution.rows for execution in executions] == measured


@pytest.mark.parametrize("kind", onnx_models.KINDS)
def test_real_models_warm_up_on_generic_inputs(make_model: MakeModel, kind: onnx_models.Kind) -> None:
    """Any signature gives inputs that its model takes."""
    backend = OnnxBackend(OnnxSettings("m", make_model(kind), device="cpu"))
    backend.load()

    executions = warm_up(backend, tensor_inputs(backend.signature), max_rows=4, buckets=(8, 16), repeats=1)

    assert {(rows, bucket) for rows in (1, 2, 4) for bucket in (8, 16)} == {
        (execution.rows, execution.bucket) for execution in executions
    }
    assert all(execution.seconds > 0 for execution in executions)
    backend.close()


def test_a_model_that_fails_is_reported_with_the_shape() -> None:
    """The operator learns at which size it happened."""

    class Small(SimulatedBackend):
        def run(self, inputs: Tensors) -> Tensors:
            if len(inputs["x"]) > 2:
                raise InferenceFailed("out of memory")
            return super().run(inputs)

        run_whole = run

    backend = Small(lambda rows, bucket, now: 0.001, FIRST, 100.0)

    with pytest.raises(InferenceFailed) as caught:
        warm_up(backend, tensor_inputs(backend.signature), max_rows=8, buckets=(16,), clock=backend.clock)

    assert str(caught.value) == "warm-up with 4 rows of size 16: out of memory"


@pytest.mark.parametrize(
    ("last", "said"),
    [(0, "killed"), (1, "warm-up with 1 rows: killed"), (10, "warm-up with 4 rows: killed")],
    ids=["at the first input", "at the first shape", "at a larger shape"],
)
def test_a_session_that_ends_is_no_model_that_fails(last: int, said: str) -> None:
    """Whenever it ends: nothing can be served, which is told at once, and at which shape."""

    class Ending(SimulatedBackend):
        def run(self, inputs: Tensors) -> Tensors:
            if len(self.runs) == last:
                raise SessionLost("killed")
            return super().run(inputs)

        run_whole = run

    backend = Ending(lambda rows, bucket, now: 0.001, FIRST, 100.0)
    candidates = [tensor_inputs(backend.signature)] * 2

    with pytest.raises(SessionLost) as caught:
        try_warm_up(backend, candidates, max_rows=4, clock=backend.clock)

    assert str(caught.value) == said
    assert len(backend.runs) == last


def test_sizes_can_be_given_by_name() -> None:
    """Free dimensions take the given size, else the bucket's, else the free size."""
    signature = ModelSignature(
        (
            TensorSpec("pixels", "FP32", (-1, 3, -1, -1)),
            TensorSpec("ids", "INT64", (-1, -1)),
            TensorSpec("words", "BYTES", (-1, 2)),
        ),
        (),
    )
    make = tensor_inputs(signature, {"pixels": (3, 64, 48)}, free_size=7)

    bucketed, free = make(2, 16), make(1, 0)

    assert [array.shape for array in bucketed.values()] == [(2, 3, 64, 48), (2, 16), (2, 2)]
    assert [array.shape for array in free.values()] == [(1, 3, 64, 48), (1, 7), (1, 2)]
    assert [np.dtype(np.float32), np.dtype(np.int64), np.dtype(np.object_)] == [
        array.dtype for array in bucketed.values()
    ]
    assert free["words"].tolist() == [["", ""]]
