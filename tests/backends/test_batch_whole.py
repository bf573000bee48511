"""Entries that are run as they came, beside those that are joined and cut."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_models
import pytest
from joining_backends import Made, loaded, refusing
from onnx import TensorProto, helper

from serve_app.backends.batch import most_rows, run_entries
from serve_app.backends.layout import Layout
from serve_app.backends.onnx.backend import OnnxBackend, OnnxSettings
from serve_app.errors import InferenceFailed, InvalidRequest, ServeAppError
from serve_app.payloads import Tensors


def rows(*shapes: Sequence[int]) -> Tensors:
    """Ones of these shapes, as ``x0``, ``x1`` and so on."""
    return {f"x{index}": np.ones(shape, np.float32) for index, shape in enumerate(shapes)}


def total(inputs: Tensors) -> Tensors:
    """The sum of all inputs."""
    return {"y": np.asarray(sum(inputs.values()))}


@pytest.mark.parametrize(
    ("shapes", "found"),
    [
        ([(3, 2), (3,)], (3, True)),
        ([(1,), (1,)], (1, True)),
        ([(0,)], (0, True)),
        ([(1,), (3,), (1,), (3,)], (3, False)),
        ([(1,), (0,)], (1, False)),
        ([(2,), (3,)], (3, False)),
    ],
    ids=str,
)
def test_the_most_rows_count(shapes: Any, found: tuple[int, bool]) -> None:
    """An entry of different rows shares no run."""
    assert found == most_rows(rows(*shapes))


@pytest.mark.parametrize("shapes", [[()], [(), (1,)], [(), (3,)], []], ids=str)
def test_what_has_no_rows_is_refused(shapes: Any) -> None:
    """Scalars and nothing."""
    with pytest.raises(InvalidRequest, match="same number of rows"):
        most_rows(rows(*shapes))


def test_whole_entries_are_run_by_themselves_and_uncut() -> None:
    """Between others that share a run: every answer is its own entry's, and counts for the rows that it was given."""
    backend = Made(total)
    entries = [rows((2, 1)), rows((9, 1), (1, 1)), rows((1, 1)), rows((5, 1))]
    ran = run_entries(backend, entries, 4, [3, 5, 4, 3], whole=[0, 9, 0, 5])
    assert [(2, 1), (9, 1), (1, 1), (5, 1)] == [_shape(outcome) for outcome in ran.outcomes]
    assert [1.0, 2.0, 1.0, 1.0] == [_first(outcome) for outcome in ran.outcomes]
    assert ([9, 5, 3], [(9, 5), (5, 3), (3, 4)]) == (
        backend.runs,
        [(execution.rows, execution.bucket) for execution in ran.executions],
    )


def _shape(outcome: Any) -> Any:
    return outcome["y"].shape


def _first(outcome: Any) -> float:
    return float(outcome["y"].ravel()[0])


def test_a_whole_entry_that_fails_fails_alone() -> None:
    """Uneven rows are told, since they may be why; a failure of a model without rows is its own."""
    backend = Made(refusing(lambda inputs: len(inputs) > 1))
    entries: list[Tensors] = [
        {"x": np.ones((1, 1))},
        {"x": np.ones((3, 1)), "z": np.ones((1, 1))},
        {"x": np.ones(3), "z": np.ones(3)},
    ]
    first, uneven, failed = run_entries(backend, entries, 8, whole=[0, 3, 1]).outcomes
    assert [dict, InvalidRequest, InferenceFailed] == [type(each) for each in (first, uneven, failed)]
    assert isinstance(uneven, ServeAppError)
    assert uneven.message.startswith(
        "inputs have different numbers of rows ('x' 3, 'z' 1), which the model does not accept: the model failed"
    )


def test_an_entry_without_rows_is_told_where_rows_are_joined() -> None:
    """Its neighbours are answered."""
    empty, answered = run_entries(Made(total), [rows((0, 1)), rows((1, 1))], 8).outcomes
    assert (InvalidRequest, (1, 1)) == (type(empty), _shape(answered))


def written(folder: Path, nodes: Any, shape: Any, output: Any, layout: Layout | None = None, **constants: Any) -> Any:
    """A model ``x`` -> ``y``, FP32, loaded."""
    ends = ([("x", TensorProto.FLOAT, shape)], [("y", TensorProto.FLOAT, output)])
    file = onnx_models.write(folder / "model.onnx", nodes, ends[0], ends[1], constants)
    if layout is None:
        return loaded(file)
    backend = OnnxBackend(OnnxSettings("m", file, device="cpu", layout=layout))
    backend.load()
    return backend


def test_outputs_of_an_unexpected_shape_are_the_answer_of_an_entry_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two requests share a run, the output is not as declared, each is run as it came, and the log tells it once."""
    nodes = [helper.make_node("Compress", ["x", "kept"], ["y"], axis=1)]
    backend = written(tmp_path, nodes, ["n", 2], ["n", 2], kept=np.array([True, False]))
    entries = [{"x": np.full((count, 2), count, np.float32)} for count in (1, 3)]
    with caplog.at_level(logging.WARNING):
        ran = [run_entries(backend, entries, 8) for _ in range(2)]
    assert [[((1, 1), 1.0), ((3, 1), 3.0)]] * 2 == [
        [(_shape(each), _first(each)) for each in one.outcomes] for one in ran
    ]
    told = "output 'y' has shape [-1, 1], but the model's file declares [-1, 2]: clients get it as it is"
    assert [True] == [record.getMessage().endswith(told) for record in caplog.records]


def test_an_output_of_as_many_rows_as_the_data_says_is_answered(tmp_path: Path) -> None:
    """Where the file promises one row, as exporters write it who tried one picture: several boxes, or none."""
    nodes = [
        helper.make_node("NonZero", ["x"], ["places"]),
        helper.make_node("Transpose", ["places"], ["rows"]),
        helper.make_node("Cast", ["rows"], ["y"], to=TensorProto.FLOAT),
    ]
    backend = written(tmp_path, nodes, [1, 4], [1, 2])
    sent: list[Any] = [[[1, 1, 0, 1]], [[0, 0, 0, 0]], [[0, 0, 1, 0]]]
    ran = run_entries(backend, [{"x": np.array(x, np.float32)} for x in sent], 8)

    answers: Any = [outcome["y"].tolist() for outcome in ran.outcomes if not isinstance(outcome, ServeAppError)]
    assert answers == [[[0, 0], [0, 1], [0, 3]], [], [[0, 2]]]


def test_a_model_without_rows_is_run_as_it_is(tmp_path: Path) -> None:
    """Whatever the shapes: nothing is compared with rows, and `run` takes one request."""
    nodes = [helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)]
    backend = written(tmp_path, nodes, ["n", 2], [], Layout(rows=False))
    inputs = {"x": np.ones((5, 2), np.float32)}
    assert [((), 10.0)] * 2 == [(_shape(run(inputs)), _first(run(inputs))) for run in (backend.run, backend.run_whole)]


@pytest.mark.parametrize("whole", [True, False])
def test_rows_on_another_axis_are_in_front_outside_the_model(tmp_path: Path, whole: bool) -> None:
    """They go where the model has them and come back, contiguous, joined or by themselves."""
    nodes = [helper.make_node("CumSum", ["x", "axis"], ["y"])]
    layout = Layout(axes={"x": 1, "y": 1})
    backend = written(tmp_path, nodes, ["time", "n", 2], ["time", "n", 2], layout, axis=np.array(0, np.int64))
    sent = [np.random.default_rng(count).normal(size=(count, 5, 2)).astype(np.float32) for count in (2, 3)]
    ran = run_entries(backend, [{"x": x} for x in sent], 8, whole=[len(x) for x in sent] if whole else None)
    expected: Any = [np.cumsum(x, axis=1, dtype=np.float32).tolist() for x in sent]
    outputs: Any = [outcome["y"] for outcome in ran.outcomes if not isinstance(outcome, ServeAppError)]
    assert expected == [output.tolist() for output in outputs]
    assert [2 if whole else 1] == [len(ran.executions)]


def test_an_axis_of_one_tensor_only(tmp_path: Path) -> None:
    """The output has its rows in front already."""
    nodes = [helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0])]
    backend = written(tmp_path, nodes, [4, "n"], ["n", 4], Layout(axes={"x": 1}))
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert x.tolist() == backend.run({"x": x})["y"].tolist() == backend.run_whole({"x": x})["y"].tolist()
