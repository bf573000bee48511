"""Files of weights beside an ONNX file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_models
import pytest
from onnx import TensorProto, external_data_helper, helper, numpy_helper

from serve_app.backends.onnx.external_data import external_data
from serve_app.errors import ConfigError


def outside(name: str, location: str) -> TensorProto:
    """A tensor whose values are in another file."""
    tensor = numpy_helper.from_array(np.zeros(4, np.float32), name)
    external_data_helper.set_external_data(tensor, location)
    return tensor


def test_weights_are_found_wherever_tensors_are(tmp_path: Path) -> None:
    """Among the graph's constants, in a node's, and in a branch below a node."""
    branch = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["b"])],
        "branch",
        [],
        [helper.make_tensor_value_info("b", TensorProto.FLOAT, [4])],
        [outside("w", "sub/branch.bin")],
    )
    graph = helper.make_graph(
        [
            helper.make_node("Constant", [], ["c"], value=outside("c", "node.bin")),
            helper.make_node("If", ["x"], ["y"], then_branch=branch, else_branch=branch),
        ],
        "test",
        [helper.make_tensor_value_info("x", TensorProto.BOOL, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])],
        [outside("a", "graph.bin"), outside("b", "graph.bin")],
    )
    file = tmp_path / "model.onnx"
    file.write_bytes(helper.make_model(graph).SerializeToString())
    assert external_data(file) == ("graph.bin", "node.bin", "sub/branch.bin")


def test_what_onnx_itself_writes_is_found(tmp_path: Path) -> None:
    """By its own way of saving."""
    model = onnx.load(onnx_models.make(tmp_path / "all.onnx", "image_logits"))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.onnx_data", size_threshold=0)
    assert external_data(tmp_path / "m.onnx") == ("m.onnx_data",)


@pytest.mark.parametrize("kind", onnx_models.KINDS)
def test_a_model_in_one_file_has_none(tmp_path: Path, kind: onnx_models.Kind) -> None:
    """Nor has an empty file."""
    assert external_data(onnx_models.make(tmp_path / "model.onnx", kind)) == ()
    (tmp_path / "empty.onnx").touch()
    assert external_data(tmp_path / "empty.onnx") == ()


@pytest.mark.parametrize("location", ["../weights.bin", "/etc/passwd"])
def test_weights_elsewhere_are_refused(tmp_path: Path, location: str) -> None:
    """A model must not have this server read, or write, what lies outside its folder."""
    graph = helper.make_graph([], "test", [], [], [outside("a", location)])
    file = tmp_path / "model.onnx"
    file.write_bytes(helper.make_model(graph).SerializeToString())
    with pytest.raises(ConfigError, match="outside its folder"):
        external_data(file)


@pytest.mark.parametrize("content", [b"<html>", b"\x3a\xff\xff\xff\x7f", b"\xff" * 40, b"\x08"])
def test_what_is_no_model_is_named(tmp_path: Path, content: bytes) -> None:
    """Whatever it is instead."""
    file = tmp_path / "model.onnx"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        external_data(file)
    assert caught.value.problems == (f"{file} is not an ONNX file",)
