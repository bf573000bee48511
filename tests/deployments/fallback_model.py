"""A model whose exact build is too slow for some requests, and whose fallback is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

SIZE = 2048
EXACT, LIGHT = 1000, 1


def chain(path: Path, products: int) -> None:
    """A model of so many products with the same large matrix; it answers how many."""
    weight = np.random.default_rng(7).standard_normal((SIZE, SIZE)).astype(np.float32) / np.float32(np.sqrt(SIZE))
    steps = [helper.make_node("MatMul", [f"h{at}" if at else "x", "w"], [f"h{at + 1}"]) for at in range(products)]
    nodes = [
        *steps,
        helper.make_node("ReduceMean", [f"h{products}"], ["mean"], axes=[1], keepdims=1),
        helper.make_node("Mul", ["mean", "zero"], ["nothing"]),
        helper.make_node("Add", ["nothing", "products"], ["y"]),
    ]
    constants = {"w": weight, "zero": np.zeros(1, np.float32), "products": np.full(1, products, np.float32)}
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", SIZE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 1])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    path.parent.mkdir(parents=True)
    path.write_bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10).SerializeToString()
    )


def bring(folder: Path) -> dict[str, Any]:
    """Write the builds' files and return the model's configuration. Its name is ``chain``."""
    chain(folder / "exact" / "1" / "model.onnx", EXACT)
    chain(folder / "light" / "1" / "model.onnx", LIGHT)
    return {
        "name": "chain",
        "path": str(folder / "exact"),
        "batching": {"max_rows": 1, "slo_ms": 5000},
        "variants": [{"name": "light", "path": str(folder / "light")}],
        "fallbacks": ["light"],
    }
