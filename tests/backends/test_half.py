"""Models in FP16."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_models
import pytest
from onnx import TensorProto, helper

from serve_app.backends.onnx.backend import OnnxBackend, OnnxSettings
from serve_app.backends.onnx.half import convert_to_fp16
from serve_app.backends.onnx.signature import NO_ROWS, read_signature
from serve_app.errors import ConfigError


@pytest.mark.parametrize("kind", ["convolution", "image_logits", "waveform_logits"])
def test_it_takes_and_gives_what_it_did(
    make_model: Callable[[onnx_models.Kind], Path], tmp_path: Path, kind: onnx_models.Kind
) -> None:
    """Only what is between is in FP16: answers differ in the third digit."""
    source, target = make_model(kind), tmp_path / "model.onnx"
    convert_to_fp16(source, target, model="m")

    signature = read_signature(source, model="m")
    assert signature == read_signature(target, model="m")
    values = {
        spec.name: np.random.default_rng(0).random((2, *(32 if n < 0 else n for n in spec.shape[1:])), np.float32)
        for spec in signature.inputs
        if spec.datatype == "FP32"
    }
    values |= {spec.name: np.full((2,), 32, np.int64) for spec in signature.inputs if spec.datatype == "INT64"}
    answers = []
    for path in (source, target):
        backend = OnnxBackend(OnnxSettings("m", path, device="cpu"))
        backend.load()
        answers.append(backend.run(values))
    for name, expected in answers[0].items():
        np.testing.assert_allclose(answers[1][name], expected, rtol=0.01, atol=0.01)


def test_weights_take_half_the_room(tmp_path: Path) -> None:
    """They are most of a file."""
    source = onnx_models.write(
        tmp_path / "source.onnx",
        [helper.make_node("MatMul", ["x", "weights"], ["y"])],
        [("x", TensorProto.FLOAT, ["n", 64])],
        [("y", TensorProto.FLOAT, ["n", 64])],
        {"weights": np.random.default_rng(0).random((64, 64), np.float32)},
    )
    target = tmp_path / "target.onnx"

    convert_to_fp16(source, target, model="m")

    assert target.stat().st_size < 0.6 * source.stat().st_size


def test_a_model_that_has_no_fp16_kernels_is_refused(tmp_path: Path) -> None:
    """Quantised ones, for example. Nothing is left behind."""
    source = onnx_models.write(
        tmp_path / "source.onnx",
        [helper.make_node("DequantizeLinear", ["x", "scale"], ["y"])],
        [("x", TensorProto.UINT8, ["n", 4])],
        [("y", TensorProto.FLOAT, ["n", 4])],
        {"scale": np.array(0.5, np.float32)},
    )
    target = tmp_path / "target.onnx"

    with pytest.raises(ConfigError, match=r"^model 'm': does not work in FP16: "):
        convert_to_fp16(source, target, model="m")

    assert not target.exists()


def test_a_model_without_rows_can_be_converted(tmp_path: Path) -> None:
    """Scalars and fixed dimensions have no rows, and their shapes stay as they are."""
    source, target = tmp_path / "source.onnx", tmp_path / "model.onnx"
    onnx_models.write(
        source,
        [helper.make_node("Mul", ["x", "s"], ["y"])],
        [("x", TensorProto.FLOAT, [4, 2]), ("s", TensorProto.FLOAT, [])],
        [("y", TensorProto.FLOAT, [4, 2])],
    )
    convert_to_fp16(source, target, model="m")
    shapes = [spec.shape for spec in read_signature(target, model="m", layout=NO_ROWS).inputs]
    assert [(4, 2), ()] == shapes
