"""Models of every kind of shape: with rows in front, on another axis or none at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_models
from onnx import TensorProto, helper, numpy_helper

FLOAT, TEXT = int(TensorProto.FLOAT), int(TensorProto.STRING)
_ENDS = Sequence[tuple[str, int, onnx_models.Shape | None]]


def _add(inputs: _ENDS, output: onnx_models.Shape | None, **constants: Any) -> Any:
    """Make y = a + b, where a constant may be one of them."""
    names = [name for name, _, _ in inputs]
    both = [*names, *(name for name in constants if name not in names)]
    return [helper.make_node("Add", both, ["y"])], inputs, [("y", FLOAT, output)], constants


def _running_sum(shape: onnx_models.Shape, axis: int = 0) -> Any:
    nodes = [helper.make_node("CumSum", ["x", "axis"], ["y"])]
    return nodes, [("x", FLOAT, shape)], [("y", FLOAT, shape)], {"axis": np.array(axis, np.int64)}


def _every() -> Mapping[str, tuple[Any, dict[str, Any]]]:
    """By name: nodes, inputs, outputs and constants, and the model's batching."""
    one, bias = np.array(1, np.float32), np.full((1, 4), 10, np.float32)
    constant = numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(2, 3))
    multiplied = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    turned = [helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0])]
    counted = [helper.make_node("Shape", ["x"], ["y"])]
    return {
        "scalar": (_add([("x", FLOAT, [])], [], one=one), {}),
        "nothing": (([helper.make_node("Constant", [], ["y"], value=constant)], [], [("y", FLOAT, [2, 3])], {}), {}),
        "rows": (_add([("x", FLOAT, ["n", "width"])], ["n", "width"], one=one), {}),
        "optional": (_add([("x", FLOAT, ["n", 4]), ("bias", FLOAT, [1, 4])], ["n", 4], bias=bias), {}),
        "two": (_add([("a", FLOAT, ["n", 2]), ("b", FLOAT, ["n", 2])], ["n", 2]), {}),
        "matrices": ((multiplied, [("x", FLOAT, [4, 6]), ("w", FLOAT, [6, 2])], [("y", FLOAT, [4, 2])], {}), {}),
        "text": ((counted, [("x", TEXT, ["n"])], [("y", int(TensorProto.INT64), [1])], {}), {}),
        "time": (_running_sum(["time", "n", 4]), {"axis": 1}),
        "columns": ((turned, [("x", FLOAT, [2, "n"])], [("y", FLOAT, ["n", 2])], {}), {"axis": {"x": 1}}),
        "unranked": (_add([("x", FLOAT, None)], None, one=one), {}),
        "sums": (_running_sum([4]), {}),
        "varying": (_running_sum(["time", 2]), {}),
        "unproven": (_running_sum(["time", 2]), {"unverified": "allow"}),
        "kept": (_running_sum(["time", 2]), {"unverified": "allow"}),
    }


def every_shape(folder: Path) -> dict[str, Any]:
    """A configuration of all of them.

    Args:
        folder: Where they are written.
    """
    models = []
    for name, ((nodes, inputs, outputs, constants), batching) in _every().items():
        file = folder / name / "1" / "model.onnx"
        file.parent.mkdir(parents=True)
        onnx_models.write(file, nodes, inputs, outputs, constants)
        made = {"name": name, "path": str(folder / name), **({"batching": batching} if batching else {})}
        models.append(made | ({"cache": {}} if name == "kept" else {}))
    return {"models": models, "router": {"limits": {"max_ongoing_requests": 8192}}}
