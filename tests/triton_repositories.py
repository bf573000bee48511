"""Triton model repositories with tiny models, for tests."""

from __future__ import annotations

from pathlib import Path

import onnx_models

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
