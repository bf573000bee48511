"""The runtime is compared with the model as its file has it, and what makes its answers wrong is left out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_models
import onnxruntime
import pytest
from onnx import TensorProto, helper

from serve_app.backends.backend import CheckedBackend
from serve_app.backends.onnx.backend import OnnxBackend, OnnxSettings
from serve_app.payloads import Tensors

_NODE = helper.make_node
_WRONG_POOLING = tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 32)


def _loaded(path: Path) -> OnnxBackend:
    backend = OnnxBackend(OnnxSettings("m", path, device="cpu", intra_op_threads=1))
    backend.load()
    return backend


def test_an_optimizer_that_makes_answers_wrong_is_left_out(tmp_path: Path) -> None:
    """ONNX Runtime before 1.32 pads a pooling with less than any number, where the graph says zero."""
    backend = _loaded(onnx_models.zero_padded_pooling(tmp_path / "model.onnx"))
    assert isinstance(backend, CheckedBackend)
    x = -np.abs(np.random.default_rng(0).standard_normal((2, 2, 8, 8))).astype(np.float32)
    found = backend.check([{"x": x}])
    assert found is not None
    assert (("Pad_Fusion",) if _WRONG_POOLING else ()) == found.disabled_optimizers
    assert ("changes output 'y'" in found.note and "disabled: Pad_Fusion" in found.note) is _WRONG_POOLING
    assert np.array_equal(onnx_models.zero_padded_pooled(x), backend.run({"x": x})["y"])
    other = _loaded(onnx_models.zero_padded_pooling(tmp_path / "other.onnx"))
    other.disable(("Pad_Fusion",))
    assert np.array_equal(onnx_models.zero_padded_pooled(x), other.run({"x": x})["y"])


@pytest.mark.parametrize("rows", [None, 3], ids=["any rows", "three rows"])
def test_a_runtime_that_agrees_is_left_as_it_is(rows: int | None, tmp_path: Path) -> None:
    """What remains is rounding."""
    weights = np.random.default_rng(0).standard_normal((16, 4)).astype(np.float32)
    nodes = [_NODE("MatMul", ["x", "w"], ["m"]), _NODE("Softmax", ["m"], ["y"], axis=1)]
    path = tmp_path / "model.onnx"
    ins, outs = [("x", TensorProto.FLOAT, (rows, 16))], [("y", TensorProto.FLOAT, (rows, 4))]
    backend = _loaded(onnx_models.write(path, nodes, ins, outs, {"w": weights}))
    found = backend.check([{"x": np.ones((2, 16), np.float32)}])
    assert found is not None
    assert ((), "", True) == (found.disabled_optimizers, found.note, found.rounding < 1e-5)


def test_labels_that_flip_by_rounding_blame_nothing(tmp_path: Path) -> None:
    """Nor does what is drawn by chance: only floats are compared, and twice."""
    weights = np.random.default_rng(0).standard_normal((64, 512)).astype(np.float32) * 1e-3 + 1
    nodes = [_NODE("MatMul", ["x", "w"], ["m"]), _NODE("ArgMax", ["m"], ["y"], axis=1)]
    ins, outs = [("x", TensorProto.FLOAT, ("rows", 64))], [("y", TensorProto.INT64, ("rows", 1))]
    labels = _loaded(onnx_models.write(tmp_path / "labels.onnx", nodes, ins, outs, {"w": weights}))
    nodes = [_NODE("RandomNormalLike", ["x"], ["r"]), _NODE("Add", ["x", "r"], ["y"])]
    outs = [("y", TensorProto.FLOAT, ("rows", 64))]
    chance = _loaded(onnx_models.write(tmp_path / "chance.onnx", nodes, ins, outs))
    for backend, note in ((labels, False), (chance, True)):
        backend.run({"x": np.ones((2, 64), np.float32)})
        found = backend.check([{"x": np.ones((64, 64), np.float32)}])
        assert found is not None
        assert ((), 0.0, note) == (found.disabled_optimizers, found.rounding, "differ from run to run" in found.note)


def test_texts_are_run_too(tmp_path: Path) -> None:
    """They only have to run: nothing is rounded in them."""
    nodes = [_NODE("Identity", ["x"], ["y"])]
    ins, outs = [("x", TensorProto.STRING, ("rows", 1))], [("y", TensorProto.STRING, ("rows", 1))]
    backend = _loaded(onnx_models.write(tmp_path / "model.onnx", nodes, ins, outs))
    inputs: Tensors = {"x": np.array([[b"one"], ["two"]], object)}
    found = backend.check([inputs])
    assert found is not None
    assert ((), 0.0) == (found.disabled_optimizers, found.rounding)
