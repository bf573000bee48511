"""Models that misbehave on some inputs, built on the spot. All take ``x`` FP32 (rows, width) and give ``y``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

GUILTY: Final = -1.0
"""The first value of a row that makes the model misbehave; others are 0 or more."""

_LOOPS = 60_000


def make(path: Path, kind: str) -> Path:
    """Write a model that answers ``y = x + 1`` to good rows, and return its path. Missing folders are made.

    ============ ==========================================================================
    kind         with a row whose first value is `GUILTY`
    ============ ==========================================================================
    ``raises``   the run fails
    ``nan``      that row of ``y`` is NaN
    ``drops``    that row is missing in ``y``, which is then of the wrong shape
    ``slow``     the run takes hundreds of milliseconds
    ``crashes``  the process dies (SIGFPE): the least integer divided by -1, which nothing catches
    ============ ==========================================================================
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    nodes, constants = _KINDS[kind]()
    graph = helper.make_graph(
        [*_flag(), *nodes],
        kind,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", "width"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", "width"])],
        [numpy_helper.from_array(value, name) for name, value in {**_CONSTANTS, **constants}.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


_CONSTANTS: Mapping[str, npt.NDArray[Any]] = {
    "zero": np.array([0.0], np.float32),
    "one": np.array([1.0], np.float32),
    "start": np.array([0], np.int64),
    "end": np.array([1], np.int64),
    "axis": np.array([1], np.int64),
}


def _flag() -> Sequence[Any]:
    """``guilty`` BOOL (rows, 1), and ``sum`` = x + 1."""
    return [
        helper.make_node("Slice", ["x", "start", "end", "axis"], ["first"]),
        helper.make_node("Less", ["first", "zero"], ["guilty"]),
        helper.make_node("Add", ["x", "one"], ["sum"]),
    ]


def _raises() -> tuple[Sequence[Any], Mapping[str, npt.NDArray[Any]]]:
    # A guilty row becomes index 1 into a table that has only index 0.
    return [
        helper.make_node("Cast", ["guilty"], ["index"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "index"], ["ones"], axis=0),
        helper.make_node("Mul", ["sum", "ones"], ["y"]),
    ], {"table": np.array([1.0], np.float32)}


def _nan() -> tuple[Sequence[Any], Mapping[str, npt.NDArray[Any]]]:
    return [helper.make_node("Where", ["guilty", "not_a_number", "sum"], ["y"])], {
        "not_a_number": np.array([np.nan], np.float32)
    }


def _drops() -> tuple[Sequence[Any], Mapping[str, npt.NDArray[Any]]]:
    return [
        helper.make_node("Not", ["guilty"], ["good"]),
        helper.make_node("Reshape", ["good", "flat"], ["chosen"]),
        helper.make_node("Compress", ["sum", "chosen"], ["y"], axis=0),
    ], {"flat": np.array([-1], np.int64)}


def _slow() -> tuple[Sequence[Any], Mapping[str, npt.NDArray[Any]]]:
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_on"]),
            helper.make_node("Sin", ["before"], ["after"]),
        ],
        "again",
        [
            helper.make_tensor_value_info("number", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("before", TensorProto.FLOAT, [1]),
        ],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("after", TensorProto.FLOAT, [1]),
        ],
    )
    return [
        helper.make_node("Cast", ["guilty"], ["each"], to=TensorProto.INT64),
        helper.make_node("ReduceMax", ["each"], ["any"], keepdims=0),
        helper.make_node("Mul", ["any", "loops"], ["times"]),
        helper.make_node("Loop", ["times", "", "one"], ["spent"], body=body),
        helper.make_node("Mul", ["spent", "zero"], ["nothing"]),
        helper.make_node("Add", ["sum", "nothing"], ["y"]),
    ], {"loops": np.array(_LOOPS, np.int64)}


def _crashes() -> tuple[Sequence[Any], Mapping[str, npt.NDArray[Any]]]:
    return [
        helper.make_node("Where", ["guilty", "least", "whole"], ["dividend"]),
        helper.make_node("Where", ["guilty", "minus_one", "whole"], ["divisor"]),
        helper.make_node("Div", ["dividend", "divisor"], ["quotient"]),
        helper.make_node("Cast", ["quotient"], ["ones"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["sum", "ones"], ["y"]),
    ], {
        "least": np.array([np.iinfo(np.int32).min], np.int32),
        "minus_one": np.array([-1], np.int32),
        "whole": np.array([1], np.int32),
    }


_KINDS: Mapping[str, Callable[[], tuple[Sequence[Any], Mapping[str, npt.NDArray[Any]]]]] = {
    "raises": _raises,
    "nan": _nan,
    "drops": _drops,
    "slow": _slow,
    "crashes": _crashes,
}
KINDS: Final = tuple(_KINDS)
