"""Members of pools: models that add a number of their own, and hold memory that shows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ELEMENTS = 2**18
"""Of a member's weights: 1 MiB."""


def write_member(path: Path, number: float) -> Path:
    """A model of 1 MiB that gives ``y = x + number``, of input ``x`` with 2 columns."""
    weights = np.zeros((2, ELEMENTS // 2), np.float32)
    weights[:, 0] = number
    graph = helper.make_graph(
        [
            helper.make_node("Slice", ["weights", "starts", "ends", "axes"], ["column"]),
            helper.make_node("Transpose", ["column"], ["numbers"], perm=[1, 0]),
            helper.make_node("Add", ["x", "numbers"], ["y"]),
        ],
        "member",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 2])],
        [
            numpy_helper.from_array(weights, "weights"),
            numpy_helper.from_array(np.array([0], np.int64), "starts"),
            numpy_helper.from_array(np.array([1], np.int64), "ends"),
            numpy_helper.from_array(np.array([1], np.int64), "axes"),
        ],
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path)
    return path


def pool_args(folder: Path, members: int, **pool: Any) -> dict[str, Any]:
    """Arguments of a server with one pool, whose members ``m0``, ``m1`` ... add their numbers.

    Args:
        folder: Where they are written.
        members: How many.
        pool: Settings of the pool; by default there is memory for three.
    """
    for number in range(members):
        write_member(folder / f"m{number}" / "1" / "model.onnx", number)
    return {
        "models": [
            {"name": f"m{number}", "path": str(folder / f"m{number}"), "pool": "small"} for number in range(members)
        ],
        "pools": [{"name": "small", "memory": "7MiB", **pool}],
        "classes": {"normal": {"timeout_ms": 30_000}},
    }


def infer_body(value: float) -> Mapping[str, Any]:
    """A V2 request of one row."""
    return {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [value, value]}]}
