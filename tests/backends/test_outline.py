"""What ONNX Runtime tells of a model without its weights is what it tells of the whole file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from serve_app.backends.onnx.outline import WORTH_BYTES, outline
from serve_app.backends.onnx.signature import declared_by, open_to_inspect
from serve_app.errors import ConfigError
from serve_app.payloads import TensorSpec

SIDE = 1024
"""Of the square of weights: 4 MiB in FP32."""


def save(file: Path, weights: TensorProto, nodes: Sequence[Any] = (), output: Sequence[Any] = ("rows", SIDE)) -> Path:
    """Write a model that multiplies by weights, then goes through nodes from ``product`` to ``y``."""
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "weights"], ["product"]),
            *(nodes or [helper.make_node("Identity", ["product"], ["y"])]),
        ],
        "weighty",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", SIDE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, output)],
        [weights, numpy_helper.from_array(np.array([-1, 2, SIDE // 2]), "shape")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), file)
    return file


def squares() -> Any:
    """Weights that are no zeros."""
    return np.random.default_rng(1).normal(size=(SIDE, SIDE)).astype(np.float32)


def is_outlined(file: Path) -> bool:
    """Whether a model is opened without its weights."""
    with outline(file) as found:
        return found is not None


def test_the_outline_is_small_and_tells_the_same(tmp_path: Path) -> None:
    """Shapes that small constants say are inferred, as from the whole file."""
    nodes = [helper.make_node("Reshape", ["product", "shape"], ["y"])]
    file = save(tmp_path / "model.onnx", numpy_helper.from_array(squares(), "weights"), nodes, ("rows", "two", "half"))

    with outline(file) as found:
        assert found is not None
        assert len(found[0]) < 1000
        assert [each.stat().st_size for each in found[1].iterdir()] == [4 * SIDE * SIDE]
    assert not found[1].exists()
    declared = declared_by(open_to_inspect(file, model="weighty"), model="weighty")
    assert declared.inputs == (TensorSpec("x", "FP32", (-1, SIDE)),)
    assert declared.outputs == (TensorSpec("y", "FP32", (-1, 2, SIDE // 2)),)


def test_weights_that_are_not_all_there_are_a_fault(tmp_path: Path) -> None:
    """As ONNX Runtime says of the whole file: zeros stand for whole weights only."""
    weights = numpy_helper.from_array(squares(), "weights")
    weights.raw_data = weights.raw_data[:-4]
    file = save(tmp_path / "model.onnx", weights)

    assert not is_outlined(file)
    with pytest.raises(ConfigError, match="cannot be loaded"):
        open_to_inspect(file, model="weighty")


def test_a_file_that_is_cut_short_is_a_fault(tmp_path: Path) -> None:
    """Wherever the end is."""
    file = save(tmp_path / "model.onnx", numpy_helper.from_array(squares(), "weights"))
    file.write_bytes(file.read_bytes()[: WORTH_BYTES + 1])

    assert not is_outlined(file)
    with pytest.raises(ConfigError, match="cannot be loaded"):
        open_to_inspect(file, model="weighty")


def test_weights_that_are_written_otherwise_are_read(tmp_path: Path) -> None:
    """As numbers instead of bytes: what they take is not told by their length."""
    weights = helper.make_tensor("weights", TensorProto.FLOAT, (SIDE, SIDE), squares().ravel())
    file = save(tmp_path / "model.onnx", weights)

    assert not is_outlined(file)
    assert declared_by(open_to_inspect(file, model="weighty"), model="weighty").outputs[0].shape == (-1, SIDE)


def test_weights_in_a_file_beside_are_left_there(tmp_path: Path) -> None:
    """Nothing would be gained, and what is missing is to be told."""
    file = save(tmp_path / "model.onnx", numpy_helper.from_array(squares(), "weights"))
    model = onnx.load(file)
    onnx.save(model, file, save_as_external_data=True, location="weights.bin")

    assert not is_outlined(file)


def test_a_small_model_is_opened_as_it_is(tmp_path: Path) -> None:
    """It has no large weights."""
    assert not is_outlined(save(tmp_path / "model.onnx", numpy_helper.from_array(squares()[:, :1], "weights"), (), ()))


def test_what_cannot_run_is_told_of_the_whole_file(tmp_path: Path) -> None:
    """An operator that does not exist, beside large weights."""
    nodes = [helper.make_node("NoSuch", ["product"], ["y"])]
    file = save(tmp_path / "model.onnx", numpy_helper.from_array(squares(), "weights"), nodes)

    assert is_outlined(file)
    with pytest.raises(ConfigError, match=r"model.onnx cannot be loaded: .*NoSuch"):
        open_to_inspect(file, model="weighty")
