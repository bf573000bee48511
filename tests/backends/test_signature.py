"""Signatures of ONNX models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx_models
import pytest
from onnx import TensorProto, helper

from serve_app.backends.onnx.backend import OnnxBackend, OnnxSettings
from serve_app.backends.onnx.signature import read_signature
from serve_app.errors import ConfigError
from serve_app.payloads import DTYPES, ModelSignature, TensorSpec

MakeModel = Callable[[onnx_models.Kind], Path]


def _identity(path: Path, datatype: int, shape: onnx_models.Shape | None) -> Path:
    return onnx_models.write(
        path, [helper.make_node("Identity", ["x"], ["y"])], [("x", datatype, shape)], [("y", datatype, shape)]
    )


@pytest.mark.parametrize("kind", onnx_models.KINDS)
def test_it_is_what_a_loaded_backend_says(make_model: MakeModel, kind: onnx_models.Kind) -> None:
    """The router learns from the file what the replica learns from its session."""
    path = make_model(kind)
    backend = OnnxBackend(OnnxSettings("m", path, device="cpu"))
    backend.load()

    assert backend.signature == read_signature(path, model="m")


def test_free_dimensions_are_minus_one(make_model: MakeModel) -> None:
    """Symbolic dimensions vary, numbers do not."""
    assert ModelSignature(
        (TensorSpec("pixels", "FP32", (-1, 3, 32, 32)),), (TensorSpec("logits", "FP32", (-1, 4)),)
    ) == read_signature(make_model("image_logits"), model="m")


def test_undeclared_dimensions_are_minus_one(tmp_path: Path) -> None:
    """A dimension without name or number varies as well."""
    path = _identity(tmp_path / "model.onnx", TensorProto.FLOAT, [None, None, 2])

    assert (TensorSpec("x", "FP32", (-1, -1, 2)),) == read_signature(path, model="m").inputs


@pytest.mark.parametrize("datatype", sorted(DTYPES))
def test_every_datatype_of_the_protocol_is_read(tmp_path: Path, datatype: str) -> None:
    """ONNX's names and the protocol's are different words for the same types."""
    code = TensorProto.STRING if datatype == "BYTES" else helper.np_dtype_to_tensor_dtype(DTYPES[datatype])

    signature = read_signature(_identity(tmp_path / "model.onnx", code, ["n"]), model="m")

    assert [datatype, datatype] == [spec.datatype for spec in signature.inputs + signature.outputs]


def test_types_outside_the_protocol_are_refused_by_name(tmp_path: Path) -> None:
    """Every tensor at fault is listed, not just the first."""
    names = ("y", "z")
    graph = helper.make_graph(
        [helper.make_node("SequenceConstruct", ["x"], [name]) for name in names],
        "test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor_sequence_value_info(name, TensorProto.FLOAT, ["n"]) for name in names],
    )
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)

    with pytest.raises(ConfigError) as caught:
        read_signature(path, model="m")

    assert caught.value.problems == tuple(
        f"model 'm': output {name!r} is of type seq(tensor(float)), which cannot be served" for name in names
    )


def test_an_input_without_rows_is_refused(tmp_path: Path) -> None:
    """A scalar input cannot be batched."""
    with pytest.raises(ConfigError) as caught:
        read_signature(_identity(tmp_path / "model.onnx", TensorProto.FLOAT, []), model="m")

    assert caught.value.problems == (
        "model 'm': input 'x' has no declared dimension 0: every input must have one, which is its rows",
    )


@pytest.mark.parametrize(
    ("first", "second", "found"), [("n", 4, "'a' any, 'b' 4"), (2, 4, "'a' 2, 'b' 4"), (1, "n", "'a' 1, 'b' any")]
)
def test_inputs_that_disagree_on_rows_are_refused(tmp_path: Path, first: Any, second: Any, found: str) -> None:
    """Dimension 0 means the same in every input, or requests cannot be joined."""
    path = onnx_models.write(
        tmp_path / "model.onnx",
        [helper.make_node("ReduceSum", ["a"], ["c"]), helper.make_node("Add", ["c", "b"], ["y"])],
        [("a", TensorProto.FLOAT, [first, 1]), ("b", TensorProto.FLOAT, [second, 1])],
        [("y", TensorProto.FLOAT, [None, 1])],
    )

    with pytest.raises(ConfigError) as caught:
        read_signature(path, model="m")

    assert (
        f"model 'm': dimension 0 of every input must be the same number of rows, found {found}",
    ) == caught.value.problems


def test_a_model_without_inputs_is_refused(tmp_path: Path) -> None:
    """There would be nothing to count rows by."""
    path = onnx_models.write(
        tmp_path / "model.onnx",
        [helper.make_node("Constant", [], ["y"], value_floats=[1.0])],
        [],
        [("y", TensorProto.FLOAT, [1])],
    )

    with pytest.raises(ConfigError) as caught:
        read_signature(path, model="m")

    assert caught.value.problems == ("model 'm': it takes no input, so requests have no rows",)
