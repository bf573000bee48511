"""What a model's file and the configuration say of its rows, before anything runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_models
import pytest
from onnx import TensorProto, helper, numpy_helper

from serve_app.backends.description import Description, describe_build
from serve_app.backends.layout import NO_ROWS, ROWS_FIRST, Layout
from serve_app.backends.onnx.kind import ONNX
from serve_app.domain.settings import JoinSettings
from serve_app.errors import ConfigError
from serve_app.payloads import TensorSpec

FLOAT = TensorProto.FLOAT
ADD, RUNNING_SUM = [helper.make_node("Add", ["x", "one"], ["y"])], [helper.make_node("CumSum", ["x", "axis"], ["y"])]
CONSTANTS: Mapping[str, Any] = {"one": np.array(1, np.float32)}


def running_sum(axis: int) -> Mapping[str, Any]:
    """The constants of `RUNNING_SUM`."""
    return {"axis": np.array(axis, np.int64)}


def one(shape: Sequence[int | str] | None, output: Sequence[int | str] | None = None) -> Any:
    """The ends of a model ``x`` -> ``y``, FP32 of these shapes."""
    return [("x", FLOAT, shape)], [("y", FLOAT, shape if output is None else output)]


@pytest.fixture
def describe(tmp_path: Path) -> Any:
    """Writes a model and describes it."""

    def described(
        ends: Any,
        nodes: Any = ADD,
        constants: Mapping[str, Any] = CONSTANTS,
        *,
        exact: Description | None = None,
        **settings: Any,
    ) -> Description:
        used = {name: value for name, value in constants.items() if any(name in node.input for node in nodes)}
        inputs, outputs = ends
        file = onnx_models.write(tmp_path / "model.onnx", nodes, inputs, outputs, used)
        return describe_build(ONNX, file, model="m", settings=JoinSettings(**settings), exact=exact)

    return described


def shapes(found: Description) -> Any:
    """Of all inputs and outputs, with the axis of their rows."""
    return [(spec.name, spec.shape, spec.axis) for spec in (*found.signature.inputs, *found.signature.outputs)]


def problem(caught: pytest.ExceptionInfo[ConfigError]) -> str:
    """The one line that an operator reads."""
    (line,) = caught.value.problems
    return line


def test_rows_that_do_not_depend_on_each_other_are_proven(describe: Any) -> None:
    """By the graph: the experiment comes when the model is loaded."""
    found = describe(one(["n", 4]))
    assert ("proven", True, None, ROWS_FIRST) == (
        found.joinable.verdict,
        found.joinable.rows,
        found.fixed_rows,
        found.layout,
    )
    assert [("x", (-1, 4), 0), ("y", (-1, 4), 0)] == shapes(found)


def test_rows_that_depend_on_each_other_are_no_rows(describe: Any) -> None:
    """The tensors are served with the shapes of the file."""
    found = describe(one(["time", 4]), RUNNING_SUM, running_sum(0))
    assert ("dependent", False, NO_ROWS) == (found.joinable.verdict, found.joinable.rows, found.layout)
    assert [("x", (-1, 4), 0), ("y", (-1, 4), 0)] == shapes(found)


def test_batching_none_says_that_there_are_no_rows(describe: Any) -> None:
    """Whatever the graph says."""
    found = describe(one(["n", 4]), join=False)
    assert ("off", False, NO_ROWS) == (found.joinable.verdict, found.joinable.rows, found.layout)
    assert "the configuration says batching: none" == found.joinable.reason


@pytest.mark.parametrize("axes", [1, {"x": 1, "y": 1}])
def test_rows_may_be_on_another_axis(describe: Any, axes: Any) -> None:
    """Of all tensors or by name: inside they are in front, and clients see the shape of the file."""
    found = describe(one(["time", "n", 4]), RUNNING_SUM, running_sum(0), axes=axes)
    assert ("proven", {"x": 1, "y": 1}) == (found.joinable.verdict, found.layout.axes)
    assert [("x", (-1, -1, 4), 1), ("y", (-1, -1, 4), 1)] == shapes(found)


def test_an_axis_counts_for_the_tensors_that_are_named(describe: Any) -> None:
    """The others have their rows in front."""
    transposed = [helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0])]
    found = describe(one([4, "n"], ["n", 4]), transposed, axes={"x": 1})
    assert ("proven", Layout(axes={"x": 1})) == (found.joinable.verdict, found.layout)
    assert [("x", (-1, 4), 1), ("y", (-1, 4), 0)] == shapes(found)
    assert (4, -1) == found.signature.inputs[0].public_shape


def test_sizes_that_have_to_agree_are_those_of_the_tensors_as_they_are_served(describe: Any) -> None:
    """With their rows in front: axis 0 of the file is axis 1 then."""
    nodes = [
        helper.make_node("Shape", ["x"], ["length"], start=0, end=1),
        helper.make_node("Concat", ["many", "length"], ["shape"], axis=0),
        helper.make_node("Transpose", ["z"], ["rows"]),
        helper.make_node("Reshape", ["rows", "shape"], ["same"]),
        helper.make_node("Transpose", ["same"], ["y"]),
    ]
    ends = [("x", FLOAT, ["t", "n"]), ("z", FLOAT, ["t", "n"])], [("y", FLOAT, ["t", "n"])]
    found = describe(ends, nodes, {"many": np.array([-1], np.int64)}, axes=1).joinable
    assert ("proven", ((("x", 1), ("z", 1)),)) == (found.verdict, found.equal_sizes)


def test_an_axis_along_which_rows_meet_is_found_out(describe: Any) -> None:
    """To name it is no proof."""
    found = describe(one(["time", "n"]), RUNNING_SUM, running_sum(1), axes=1)
    assert ("dependent", False) == (found.joinable.verdict, found.joinable.rows)


@pytest.mark.parametrize(
    ("axes", "told"),
    [
        (2, "batching.axis: 2 of 'x': it has 2 dimensions, counted from 0"),
        ({"y": 5}, "batching.axis: 5 of 'y': it has 2 dimensions, counted from 0"),
        ({"z": 0}, "batching.axis: names 'z', which is no input or output; there is 'x', 'y'"),
    ],
)
def test_an_axis_that_there_is_not_is_refused(describe: Any, axes: Any, told: str) -> None:
    """At the start, with what there is."""
    ends = one(["n", 4])
    with pytest.raises(ConfigError) as caught:
        describe(ends, axes=axes)
    lines = caught.value.problems
    assert f"model 'm': {told}" == lines[0]


def test_without_proof_rows_are_shared_where_the_configuration_allows_it(describe: Any) -> None:
    """And the reason says against what."""
    found = describe(one(["time", 4]), RUNNING_SUM, running_sum(0), unverified=True)
    assert ("unverified", True, True) == (found.joinable.verdict, found.joinable.rows, found.joinable.joins)
    assert found.joinable.reason.startswith("the configuration allows it, though ")
    assert "proven" == describe(one(["n", 4]), unverified=True).joinable.verdict


def test_what_has_no_rows_cannot_share_them(describe: Any) -> None:
    """`unverified: allow` for a scalar is a mistake, which is told."""
    with pytest.raises(ConfigError) as caught:
        describe(one([]), unverified=True)
    assert problem(caught).startswith("model 'm': batching.unverified: allow needs rows to join, but input 'x' has no")


def test_a_dimension_that_is_fixed_to_many_is_no_number_of_rows(describe: Any) -> None:
    """Unless the configuration says so: then the file's is that of every run."""
    found = describe(one([16, 4]))
    assert ("whole", False, None, [("x", (16, 4), 0), ("y", (16, 4), 0)]) == (
        found.joinable.verdict,
        found.joinable.rows,
        found.fixed_rows,
        shapes(found),
    )
    assert "if it is rows, say batching.axis: 0" in found.joinable.reason
    said = describe(one([16, 4]), axes=0)
    assert ("proven", True, 16, [("x", (-1, 4), 0), ("y", (-1, 4), 0)]) == (
        said.joinable.verdict,
        said.joinable.rows,
        said.fixed_rows,
        shapes(said),
    )


def test_a_file_of_one_row_needs_no_proof(describe: Any) -> None:
    """Its rows are run one by one; but where an output does not have that row, there is none."""
    found = describe(one([1, 4]), RUNNING_SUM, running_sum(0))
    assert ("exact", True, 1) == (found.joinable.verdict, found.joinable.rows, found.fixed_rows)
    summed = [helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)]
    assert not describe(one([1, 4], []), summed).joinable.rows


@pytest.mark.parametrize("shape", [[], None], ids=["scalar", "unranked"])
def test_what_has_no_dimension_is_served_as_it_is(describe: Any, shape: Any) -> None:
    """A scalar is `[]`. Of an input of unknown rank nobody knows, and any is taken."""
    found = describe(one(shape))
    specs = [TensorSpec(name, "FP32", () if shape == [] else (-1,), ranked=shape == []) for name in ("x", "y")]
    assert ("whole", False, specs) == (
        found.joinable.verdict,
        found.joinable.rows,
        [*found.signature.inputs, *found.signature.outputs],
    )
    assert "input 'x' has no declared dimension 0" in found.joinable.reason


def test_a_model_without_inputs_is_served(describe: Any) -> None:
    """It has nothing that could be rows."""
    constant = numpy_helper.from_array(np.ones((2, 3), np.float32))
    nodes = [helper.make_node("Constant", [], ["y"], value=constant)]
    found = describe(([], [("y", FLOAT, [2, 3])]), nodes)
    assert ("whole", False, [("y", (2, 3), 0)]) == (found.joinable.verdict, found.joinable.rows, shapes(found))
    assert "it takes no input" in found.joinable.reason


def test_first_dimensions_that_differ_are_no_rows(describe: Any) -> None:
    """Fixed to 4 and to 6: each is served exactly so."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    found = describe(([("x", FLOAT, [4, 6]), ("w", FLOAT, [6, 2])], [("y", FLOAT, [4, 2])]), nodes)
    assert ("whole", False) == (found.joinable.verdict, found.joinable.rows)
    assert [("x", (4, 6), 0), ("w", (6, 2), 0), ("y", (4, 2), 0)] == shapes(found)
    assert "'x' 4, 'w' 6" in found.joinable.reason


def test_a_variant_that_joins_nothing_has_the_signature_of_the_exact_model(describe: Any) -> None:
    """Clients see one model: the same tensors with rows, and requests for this build are run one by one."""
    exact = describe(one(["n", 4]))
    variant = describe(one(["n", 4]), RUNNING_SUM, running_sum(0), exact=exact)
    assert (exact.signature, exact.layout) == (variant.signature, variant.layout)
    assert ("dependent", True, False) == (
        variant.joinable.verdict,
        variant.joinable.rows,
        variant.joinable.joins,
    )


def test_a_variant_takes_what_an_exact_model_without_rows_takes(describe: Any) -> None:
    """Nobody moves the rows of a request for it to the front, so its backend must not move them back."""
    exact = describe(one(["time", "n"]), RUNNING_SUM, running_sum(1), axes=1)
    variant = describe(one(["time", "n"]), axes=1, exact=exact)
    assert ("whole", False, NO_ROWS, exact.signature) == (
        variant.joinable.verdict,
        variant.joinable.rows,
        variant.layout,
        variant.signature,
    )


@pytest.mark.parametrize("axis", [0, 1], ids=["no rows", "rows"])
@pytest.mark.parametrize("value", [np.array(1, np.float32), np.ones((1, 4), np.float32)], ids=["scalar", "[1, 4]"])
def test_optional_inputs_have_the_shape_of_the_file(describe: Any, axis: int, value: Any) -> None:
    """With rows or without: a request that has one is run as it came."""
    nodes = [helper.make_node("CumSum", ["x", "axis"], ["sums"]), helper.make_node("Add", ["sums", "bias"], ["y"])]
    inputs = [("x", FLOAT, ["n", 4]), ("bias", FLOAT, list(value.shape))]
    found = describe((inputs, [("y", FLOAT, ["n", 4])]), nodes, {"bias": value, **running_sum(axis)})
    assert (axis == 1, ("x",), (TensorSpec("bias", "FP32", value.shape),)) == (
        found.joinable.rows,
        tuple(spec.name for spec in found.signature.inputs),
        found.signature.optional,
    )
