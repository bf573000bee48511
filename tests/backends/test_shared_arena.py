"""Sessions of many models in one process: what runs take is kept once, and weights as long as their session."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from serve_app.backends.onnx.backend import OnnxBackend, OnnxSettings
from serve_app.replica.process_memory import own_memory

MODELS = 8
WIDTH = 2**20
ROWS = 4
RUN_BYTES = 4 * ROWS * WIDTH


def write_wide(path: Path) -> Path:
    """A model that gives ``y = x + 1``, and takes 4 MiB for each row meanwhile."""
    graph = helper.make_graph(
        [
            helper.make_node("Expand", ["x", "shape"], ["wide"]),
            helper.make_node("Add", ["wide", "one"], ["more"]),
            helper.make_node("ReduceMax", ["more"], ["y"], axes=[1], keepdims=1),
        ],
        "wide",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 1])],
        [
            numpy_helper.from_array(np.array([1, WIDTH], np.int64), "shape"),
            numpy_helper.from_array(np.ones(1, np.float32), "one"),
        ],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def test_what_runs_take_is_kept_once(tmp_path: Path) -> None:
    """A session's own arena would keep it for every one of them."""
    file = write_wide(tmp_path / "model.onnx")
    backends = [OnnxBackend(OnnxSettings(f"m{number}", file, among_others=True)) for number in range(MODELS)]
    for backend in backends:
        backend.load()
    before = own_memory()
    for number, backend in enumerate(backends):
        inputs = np.full((ROWS, 1), number, np.float32)
        assert backend.run({"x": inputs})["y"].tolist() == [[number + 1]] * ROWS
    assert own_memory() - before < MODELS / 2 * RUN_BYTES
    for backend in backends:
        backend.close()
