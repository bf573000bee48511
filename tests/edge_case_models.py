"""Models that do not take any input: ids in a range, texts that are numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_models
from onnx import TensorProto, helper

TABLE_ROWS = 8
LOWEST_ID = 1000


def ids(path: Path) -> Path:
    """Write ``ids`` INT64[-1,-1] -> ``y`` FP32[-1,-1] = |id - 1000|, for ids from 993 to 1007 only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return onnx_models.write(
        path,
        [
            helper.make_node("Sub", ["ids", "lowest"], ["index"]),
            # A negative index would count from the end of the table.
            helper.make_node("Abs", ["index"], ["distance"]),
            helper.make_node("Gather", ["table", "distance"], ["y"], axis=0),
        ],
        [("ids", TensorProto.INT64, ["rows", "length"])],
        [("y", TensorProto.FLOAT, ["rows", "length"])],
        {"lowest": np.array([LOWEST_ID], np.int64), "table": np.arange(TABLE_ROWS, dtype=np.float32)},
    )


def numbers(path: Path) -> Path:
    """Write ``text`` BYTES[-1,4] -> ``y`` INT32[-1,4]: the numbers that the texts spell, as Triton's simple_string."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return onnx_models.write(
        path,
        [helper.make_node("Cast", ["text"], ["y"], to=TensorProto.INT32)],
        [("text", TensorProto.STRING, ["rows", 4])],
        [("y", TensorProto.INT32, ["rows", 4])],
    )
