"""Graphs that look as if they treated rows one by one, and do not: none of them may be proven."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from rowproof.onnx_graph.proof import prove_rows_of

_NODE = helper.make_node


def _model(
    nodes: Sequence[Any], shape: Sequence[int | str], functions: Sequence[Any] = (), **constants: Any
) -> onnx.ModelProto:
    """A model that takes ``x`` of this shape and gives ``y`` of the same rank, both FP32."""
    graph = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * len(shape))],
        [numpy_helper.from_array(np.array(value), name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=list(functions))


def _cast_like() -> onnx.ModelProto:
    """``y = x + (rows > 50)``."""
    nodes = [
        _NODE("Shape", ["x"], ["rows"], start=0, end=1),
        _NODE("CastLike", ["rows", "x"], ["number"]),
        _NODE("Greater", ["number", "most"], ["over"]),
        _NODE("CastLike", ["over", "x"], ["one"]),
        _NODE("Add", ["x", "one"], ["y"]),
    ]
    return _model(nodes, ["n", 4], most=np.array([50], np.float32))


def _split() -> onnx.ModelProto:
    """The sum of the first column, or of as many as there are fifties of rows."""
    nodes = [
        _NODE("Shape", ["x"], ["rows"], start=0, end=1),
        _NODE("Div", ["rows", "many"], ["more"]),
        _NODE("Add", ["more", "one"], ["first"]),
        _NODE("Sub", ["width", "first"], ["rest"]),
        _NODE("Concat", ["first", "rest"], ["parts"], axis=0),
        _NODE("Split", ["x", "parts"], ["left", "right"], axis=1),
        _NODE("ReduceSum", ["left", "one"], ["y"]),
    ]
    return _model(nodes, ["n", 64], many=[50], one=[1], width=[64])


def _reshape() -> onnx.ModelProto:
    """``[rows, length]`` cut by the number of rows, but for lengths under 100: there 0 copies the axis."""
    nodes = [
        _NODE("Shape", ["x"], ["rows"], start=0, end=1),
        _NODE("Shape", ["x"], ["length"], start=2, end=3),
        _NODE("Div", ["length", "many"], ["long"]),
        _NODE("Mul", ["long", "rows"], ["size"]),
        _NODE("Concat", ["rows", "size", "rest"], ["shape"], axis=0),
        _NODE("Reshape", ["x", "shape"], ["cut"]),
        _NODE("ReduceSum", ["cut", "last"], ["sums"]),
        _NODE("Slice", ["sums", "zero", "one", "one"], ["y"]),
    ]
    return _model(nodes, ["n", 1, "length"], many=[100], rest=[-1], last=[2], zero=[0], one=[1])


def _branch(name: str) -> Any:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)]
    axis = numpy_helper.from_array(np.array(0), "axis")
    return helper.make_graph([_NODE("CumSum", ["x", "axis"], [name])], name, [], ends, [axis])


def _hiding() -> onnx.ModelProto:
    """``axis`` is 1, and 0 where the rows are added up."""
    nodes = [
        _NODE("If", ["which"], ["sums"], then_branch=_branch("one"), else_branch=_branch("other")),
        _NODE("CumSum", ["sums", "axis"], ["y"]),
    ]
    return _model(nodes, ["n", 4], axis=1, which=True)


def _namesake(domain: str, name: str, opset: int, body: str) -> onnx.ModelProto:
    """A function of the model that is called as an operator is: ONNX Runtime runs the operator."""
    inner = [_NODE("Constant", [], ["axis"], value_int=0), _NODE("CumSum", ["a", "axis"], ["b"])]
    if body != "CumSum":
        inner = [_NODE(body, ["a"], ["b"])]
    function = helper.make_function(domain, name, ["a"], ["b"], inner, [helper.make_opsetid("", opset)])
    attributes = {"axis": 0} if name == "Hardmax" else {}
    return _model([_NODE(name, ["x"], ["y"], domain=domain, **attributes)], ["n", 4], [function])


@pytest.mark.parametrize(
    ("model", "word"),
    [
        pytest.param(_cast_like(), "CastLike", id="the number of rows as FP32"),
        pytest.param(_split(), "Split", id="parts as large as there are rows"),
        pytest.param(_reshape(), "Reshape", id="a size that is rows times 0 or 1"),
        pytest.param(_hiding(), "axis", id="a name inside a branch that hides one outside"),
        pytest.param(_namesake("", "Hardmax", 18, "Relu"), "Hardmax", id="a function like an operator"),
        pytest.param(_namesake("com.microsoft", "FastGelu", 18, "Relu"), "FastGelu", id="like one of ONNX Runtime"),
        pytest.param(_namesake("com.microsoft", "FastGelu", 13, "CumSum"), "FastGelu", id="of another opset"),
    ],
)
def test_no_such_graph_is_proven(model: onnx.ModelProto, word: str) -> None:
    """The first batch that is larger or longer than those that are tried at the start would be wrong."""
    proof = prove_rows_of(model)
    assert (False, True) == (proof.independent, word in proof.reason), proof


def test_what_only_looks_like_these_is_proven() -> None:
    """Parts of fixed sizes, a cast like rows, and branches with names of their own change nothing."""
    nodes = [
        _NODE("CastLike", ["whole", "x"], ["like"]),
        _NODE("Split", ["x", "parts"], ["left", "right"], axis=1),
        _NODE("Concat", ["right", "left"], ["turned"], axis=1),
        _NODE("Add", ["turned", "like"], ["y"]),
    ]
    assert prove_rows_of(_model(nodes, ["n", 4], parts=[1, 3], whole=[1, 2, 3, 4])).independent
