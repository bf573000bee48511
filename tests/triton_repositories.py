"""Triton model repositories with tiny models, for tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_models
from onnx import TensorProto, helper

SUM_DIFF = """\
backend: "onnxruntime"
max_batch_size: 8
input [
  { name: "INPUT0" data_type: TYPE_INT32 dims: [ 16 ] },
  { name: "INPUT1" data_type: TYPE_INT32 dims: [ 16 ] }
]
output [
  { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 16 ] },
  { name: "OUTPUT1" data_type: TYPE_INT32 dims: [ 16 ] }
]
"""
"""A complete configuration of `sum_diff`; what is added stands in line 11."""


def add_model(
    repository: Path, name: str, text: str | None = None, kind: onnx_models.Kind = "sum_diff", version: int = 1
) -> Path:
    """Write a model and its `config.pbtxt`, if there is to be one, and return its folder."""
    folder = repository / name
    onnx_models.make(folder / str(version) / "model.onnx", kind)
    if text is not None:
        (folder / "config.pbtxt").write_text(text, "utf-8")
    return folder


PREPARE = """\
platform: "onnxruntime_onnx"
max_batch_size: 8
input { name: "RAW" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "SCALED" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "TOTAL" data_type: TYPE_FP32 dims: [ 1 ] }
"""
SCORE = """\
platform: "onnxruntime_onnx"
max_batch_size: 8
input { name: "X" data_type: TYPE_FP32 dims: [ 4 ] }
input { name: "SUM" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "LOGITS" data_type: TYPE_FP32 dims: [ 3 ] label_filename: "labels.txt" }
"""
CHAIN_TENSORS = """\
platform: "ensemble"
max_batch_size: 4
input { name: "IMAGE" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "CLASS" data_type: TYPE_FP32 dims: [ 3 ] }
output { name: "QUARTER" data_type: TYPE_FP32 dims: [ 4 ] }
"""
CHAIN_STEPS = """\
ensemble_scheduling { step [
  {
    model_name: "score" model_version: -1
    input_map { key: "X" value: "scaled" } input_map { key: "SUM" value: "total" }
    output_map { key: "LOGITS" value: "CLASS" }
  },
  {
    model_name: "prepare" model_version: -1
    input_map { key: "RAW" value: "IMAGE" }
    output_map { key: "SCALED" value: "scaled" } output_map { key: "TOTAL" value: "total" }
  },
  {
    model_name: "prepare" model_version: 1
    input_map { key: "RAW" value: "scaled" }
    output_map { key: "SCALED" value: "QUARTER" }
  }
] }
"""
"""The steps of `add_chain`'s ensemble. They begin in line 6, and none stands behind what it needs."""


def add_chain(repository: Path, text: str = CHAIN_TENSORS + CHAIN_STEPS, version: int = 1) -> Path:
    """Write models ``prepare`` and ``score``, and ``chain``, an ensemble of them; return the folder of that.

    One tensor is consumed by two steps, and one model runs in two. Of small multiples of 1/8 no result is rounded.
    """
    for name, config in (("prepare", PREPARE), ("score", SCORE)):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config, "utf-8")
    floats = TensorProto.FLOAT
    onnx_models.write(
        repository / "prepare" / "1" / "model.onnx",
        [
            helper.make_node("Mul", ["RAW", "half"], ["SCALED"]),
            helper.make_node("ReduceSum", ["RAW", "axes"], ["TOTAL"], keepdims=1),
        ],
        [("RAW", floats, ["rows", 4])],
        [("SCALED", floats, ["rows", 4]), ("TOTAL", floats, ["rows", 1])],
        {"half": np.array([0.5], np.float32), "axes": np.array([1])},
    )
    onnx_models.write(
        repository / "score" / "1" / "model.onnx",
        [helper.make_node("MatMul", ["X", "weights"], ["xw"]), helper.make_node("Add", ["xw", "SUM"], ["LOGITS"])],
        [("X", floats, ["rows", 4]), ("SUM", floats, ["rows", 1])],
        [("LOGITS", floats, ["rows", 3])],
        {"weights": np.arange(-5, 7, dtype=np.float32).reshape(4, 3)},
    )
    (repository / "score" / "labels.txt").write_text("red\ngreen\nblue\n")
    return add_ensemble(repository, "chain", text, version)


def add_ensemble(repository: Path, name: str, text: str, version: int = 1) -> Path:
    """Write the `config.pbtxt` of an ensemble and its empty folder of a version; return its folder."""
    folder = repository / name
    (folder / str(version)).mkdir(parents=True)
    (folder / "config.pbtxt").write_text(text, "utf-8")
    return folder
