"""A model whose mask lets a little of the padding through: texts must not be padded to the length of others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import onnx_models
import pytest
from local_server import LocalServer, make_tokenizer
from onnx import TensorProto, helper

from conformance.serving import server_args

_NODE = helper.make_node


def _leaking(path: Path, *, late: bool) -> None:
    """A mean of tokens by Softmax, masked with -5 only; or one masked well to which long inputs add 1."""
    path.parent.mkdir(parents=True)
    mask = [
        _NODE("Gather", ["table", "input_ids"], ["tokens"]),
        _NODE("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        _NODE("Sub", ["mask", "one"], ["padding"]),
        _NODE("Mul", ["padding", "much"], ["bias"]),
        _NODE("Softmax", ["bias"], ["part"], axis=1),
        _NODE("Unsqueeze", ["part", "last"], ["parts"]),
        _NODE("Mul", ["tokens", "parts"], ["weighed"]),
        _NODE("ReduceSum", ["weighed", "middle"], ["mean"], keepdims=0),
        _NODE("Shape", ["input_ids"], ["length"], start=1, end=2),
        _NODE("Div", ["length", "many"], ["times"]),
        _NODE("Cast", ["times"], ["more"], to=TensorProto.FLOAT),
        _NODE("Add", ["mean", "more"], ["embedding"]),
    ]
    constants: dict[str, Any] = {
        "table": onnx_models.token_table(),
        "one": np.array(1, np.float32),
        "much": np.array(10_000 if late else 5, np.float32),
        "many": np.array([100 if late else 10_000], np.int64),
        "last": np.array([2], np.int64),
        "middle": np.array([1], np.int64),
    }
    ins = [(name, TensorProto.INT64, ["rows", "length"]) for name in ("input_ids", "attention_mask")]
    onnx_models.write(path, mask, ins, [("embedding", TensorProto.FLOAT, ["rows", 8])], constants)


@pytest.mark.parametrize("late", [False, True], ids=["a weak mask", "only for long texts"])
def test_what_padding_changes_is_found_out_at_the_start(late: bool, tmp_path: Path) -> None:
    """Whether the padding shows at once, or only in the largest size."""
    _leaking(tmp_path / "m" / "1" / "model.onnx", late=late)
    make_tokenizer(tmp_path / "m" / "tokenizer.json")
    model = {
        "name": "m",
        "task": "feature-extraction",
        "path": str(tmp_path / "m"),
        "processor": {"max_length": 128, "normalize": False},
    }
    with LocalServer(server_args([model])) as server, urlopen(f"{server.url}/v2/models/m") as page:
        told = json.load(page)["parameters"]["joinable_reason"]
    assert "only requests of one size share runs" in told
