"""Small ONNX models that misbehave by their input, for tests and for chaos: ``python -m benchmarks.faulty_models DIR``.

All take ``x`` FP32[-1, 1], one value per row, and give ``y``. For an ordinary value, 1 to 1,000, each of them gives
``y = 2 x``; see `KINDS` for the value that makes it misbehave, and how.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import numpy as np
import onnx
import typer
from onnx import TensorProto, helper, numpy_helper

BAD = -1.0
"""The value that makes a row misbehave."""

_STEPS_PER_UNIT = 1_000_000.0


def _raises() -> list[Any]:
    # A negative value becomes index 1 into a table that has only index 0.
    return [
        helper.make_node("Less", ["x", "zero"], ["bad"]),
        helper.make_node("Cast", ["bad"], ["index"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "index"], ["factor"], axis=0),
        helper.make_node("Mul", ["x", "factor"], ["y"]),
    ]


def _gives_nan() -> list[Any]:
    # The logarithm of a negative value is not a number; of others it is taken times zero.
    return [
        helper.make_node("Log", ["x"], ["logarithm"]),
        helper.make_node("Mul", ["logarithm", "zero"], ["nothing"]),
        helper.make_node("Mul", ["x", "two"], ["doubled"]),
        helper.make_node("Add", ["doubled", "nothing"], ["y"]),
    ]


def _drops_rows() -> list[Any]:
    # Rows with negative values are left out.
    return [
        helper.make_node("GreaterOrEqual", ["x", "zero"], ["kept2"]),
        helper.make_node("Squeeze", ["kept2", "last_axis"], ["kept"]),
        helper.make_node("Compress", ["x", "kept"], ["left"], axis=0),
        helper.make_node("Mul", ["left", "two"], ["y"]),
    ]


def _wrong_shape() -> list[Any]:
    # With a negative value anywhere in the batch, every row gets two values, where one is declared.
    return [
        helper.make_node("ReduceMin", ["x"], ["least"], keepdims=0),
        helper.make_node("Less", ["least", "nought"], ["bad"]),
        helper.make_node("Cast", ["bad"], ["more"], to=TensorProto.INT64),
        helper.make_node("Add", ["more", "one"], ["times"]),
        helper.make_node("Unsqueeze", ["times", "first_axis"], ["columns"]),
        helper.make_node("Concat", ["one1", "columns"], ["repeats"], axis=0),
        helper.make_node("Tile", ["x", "repeats"], ["tiled"]),
        helper.make_node("Mul", ["tiled", "two"], ["y"]),
    ]


def _slow() -> list[Any]:
    # -1 stands for a million turns of a loop, -2 for two million: most of a second each.
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go_on"], ["going_on"]),
            helper.make_node("Sin", ["value"], ["next_value"]),
        ],
        "turn",
        [
            helper.make_tensor_value_info("turn", TensorProto.INT64, []),
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("value", TensorProto.FLOAT, []),
        ],
        [
            helper.make_tensor_value_info("going_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next_value", TensorProto.FLOAT, []),
        ],
    )
    return [
        helper.make_node("ReduceMin", ["x"], ["least"], keepdims=0),
        helper.make_node("Neg", ["least"], ["most"]),
        helper.make_node("Relu", ["most"], ["units"]),
        helper.make_node("Mul", ["units", "steps"], ["turns"]),
        helper.make_node("Cast", ["turns"], ["trips"], to=TensorProto.INT64),
        helper.make_node("Loop", ["trips", "yes", "units"], ["spun"], body=body),
        helper.make_node("Mul", ["spun", "zero"], ["nothing"]),
        helper.make_node("Mul", ["x", "two"], ["doubled"]),
        helper.make_node("Add", ["doubled", "nothing"], ["y"]),
    ]


def _kills() -> list[Any]:
    # ONNX Runtime refuses to divide integers by zero, but not the least of them by -1: that is a signal, and the end.
    return [
        helper.make_node("Less", ["x", "zero"], ["bad"]),
        helper.make_node("Cast", ["bad"], ["one_if_bad"], to=TensorProto.INT32),
        helper.make_node("Mul", ["one_if_bad", "two_int"], ["two_if_bad"]),
        helper.make_node("Sub", ["one_int", "two_if_bad"], ["divisor"]),
        helper.make_node("Div", ["least_int", "divisor"], ["quotient"]),
        helper.make_node("Cast", ["quotient"], ["large"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["large", "zero"], ["nothing"]),
        helper.make_node("Mul", ["x", "two"], ["doubled"]),
        helper.make_node("Add", ["doubled", "nothing"], ["y"]),
    ]


def _grows() -> list[Any]:
    # A hundred million zeros, of which the largest is added: ONNX Runtime keeps the memory for later runs.
    return [
        helper.make_node("ReduceMin", ["x"], ["least"], keepdims=0),
        helper.make_node("Less", ["least", "nought"], ["bad"]),
        helper.make_node("Cast", ["bad"], ["how_often"], to=TensorProto.INT64),
        helper.make_node("Mul", ["how_often", "many"], ["filling"]),
        helper.make_node("Add", ["filling", "one"], ["elements"]),
        helper.make_node("Unsqueeze", ["elements", "first_axis"], ["size"]),
        helper.make_node("ConstantOfShape", ["size"], ["filled"]),
        helper.make_node("ReduceMax", ["filled"], ["nothing"], keepdims=0),
        helper.make_node("Mul", ["x", "two"], ["doubled"]),
        helper.make_node("Add", ["doubled", "nothing"], ["y"]),
    ]


KINDS = MappingProxyType(
    {
        "raises": _raises,
        "gives_nan": _gives_nan,
        "drops_rows": _drops_rows,
        "wrong_shape": _wrong_shape,
        "slow": _slow,
        "kills": _kills,
        "grows": _grows,
    }
)
"""What each does where a value is `BAD`.

=============== ==================================================================================================
``raises``      the run fails
``gives_nan``   that row's ``y`` is NaN
``drops_rows``  ``y`` has a row fewer
``wrong_shape`` ``y`` is FP32[-1, 2] where FP32[-1, 1] is declared, for all rows of the batch
``slow``        the run takes most of a second, and as many times longer for -10, -100 ...; -0.01 is short
``kills``       the process ends with a signal (SIGFPE)
``grows``       the process holds 400 MB from then on
=============== ==================================================================================================
"""


def make(path: Path, kind: str) -> Path:
    """Write a model of one of the `KINDS` to ``path``, with the folders that are missing, and return it."""
    nodes: Callable[[], list[Any]] = KINDS[kind]
    path.parent.mkdir(parents=True, exist_ok=True)
    constants = {
        "zero": np.array([0], np.float32),
        "nought": np.array(0, np.float32),
        "two": np.array([2], np.float32),
        "one_int": np.array([1], np.int32),
        "two_int": np.array([2], np.int32),
        "least_int": np.array([np.iinfo(np.int32).min], np.int32),
        "table": np.array([2], np.float32),
        "one": np.array(1, np.int64),
        "one1": np.array([1], np.int64),
        "many": np.array(100_000_000, np.int64),
        "steps": np.array(_STEPS_PER_UNIT, np.float32),
        "yes": np.array(True),
        "first_axis": np.array([0], np.int64),
        "last_axis": np.array([1], np.int64),
    }
    made = nodes()
    used = {name for node in made for name in node.input}
    graph = helper.make_graph(
        made,
        kind,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 1])],
        [numpy_helper.from_array(value, name) for name, value in constants.items() if name in used],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def main(folder: Annotated[Path, typer.Argument(help="Where to write the models.")]) -> None:
    """Write every kind to ``<folder>/<kind>/1/model.onnx``."""
    for kind in KINDS:
        print(make(folder / kind / "1" / "model.onnx", kind))


if __name__ == "__main__":
    typer.run(main)
