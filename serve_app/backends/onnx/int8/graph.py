"""Finds the parts of an ONNX graph that can be computed in 8 bits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import numpy_helper

FEWEST_WEIGHTS = 1024
"""Smaller weights stay as they are: scaling their inputs would cost more than it saves."""

ADDED = "int8/"
"""What the names of added nodes and tensors begin with."""

QUANTIZED = frozenset(
    {
        "ConvInteger",
        "DequantizeLinear",
        "DynamicQuantizeLinear",
        "DynamicQuantizeLSTM",
        "DynamicQuantizeMatMul",
        "MatMulInteger",
        "MatMulIntegerToFloat",
        "MatMulNBits",
        "QAttention",
        "QGemm",
        "QLinearConv",
        "QLinearMatMul",
        "QuantizeLinear",
    }
)
"""Operators of models that are quantised already."""

_STANDARD = frozenset({"", "ai.onnx"})


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product with constant weights.

    Attributes:
        node: A MatMul, or a Gemm whose left factor is not transposed.
        tensor: Name of the left factor, (..., K).
        weights: The right factor as multiplied, float32 (K, N).
        bias: Name of the addend, or "".
        bias_factor: Factor of the addend.
    """

    node: Any
    tensor: str
    weights: npt.NDArray[np.float32]
    bias: str
    bias_factor: float


def constants(graph: Any) -> dict[str, Any]:
    """The constant tensors of a graph, without subgraphs, as `onnx.TensorProto` by name."""
    replaceable = {end.name for end in graph.input}
    found = {tensor.name: tensor for tensor in graph.initializer if tensor.name not in replaceable}
    for node in graph.node:
        if node.op_type == "Constant" and node.domain in _STANDARD:
            found |= {name: each.t for name in node.output for each in node.attribute if each.name == "value"}
    return found


def products(graph: Any) -> list[Product]:
    """The matrix products that can be computed in 8 bits, in graph order."""
    known = constants(graph)
    return [found for node in graph.node if (found := _product(node, known)) is not None]


def tables(graph: Any) -> list[Any]:
    """The Gather nodes that look up whole rows of a constant table, e.g. word embeddings."""
    known = constants(graph)
    return [
        node
        for node in graph.node
        if node.op_type == "Gather"
        and node.domain in _STANDARD
        and attributes(node).get("axis", 0) == 0
        and _matrix(known.get(node.input[0])) is not None
    ]


def convolutions(graph: Any) -> list[Any]:
    """The Conv nodes with constant weights."""
    known = constants(graph)
    return [
        node
        for node in graph.node
        if node.op_type == "Conv" and node.domain in _STANDARD and _is_large(known.get(node.input[1]))
    ]


def left_over(graph: Any) -> Counter[str]:
    """Parts in the original's precision, in words, with their number."""
    known = constants(graph)
    left: Counter[str] = Counter()
    for node in all_nodes(graph):
        if node.op_type in {"MatMul", "Gemm"} and not any(name in known for name in node.input[:2]):
            left[f"{node.op_type} of two computed tensors"] += 1
        elif node.op_type in {"MatMul", "Gemm"} and not any(_is_large(known.get(name)) for name in node.input[:2]):
            left[f"{node.op_type} of fewer than {FEWEST_WEIGHTS:,} weights"] += 1
        elif node.op_type not in QUANTIZED and any(_are_weights(known.get(name)) for name in node.input):
            left[node.op_type] += 1
    return left


def all_nodes(graph: Any) -> Iterator[Any]:
    """The nodes of a graph and its subgraphs."""
    for node in graph.node:
        yield node
        for each in node.attribute:
            for inner in (each.g, *each.graphs) if each.HasField("g") or each.graphs else ():
                yield from all_nodes(inner)


def attributes(node: Any) -> dict[str, Any]:
    """The numbers among a node's attributes, by name."""
    return {each.name: each.f if each.type == 1 else each.i for each in node.attribute if each.type in {1, 2}}


def _product(node: Any, known: dict[str, Any]) -> Product | None:
    if node.op_type not in {"MatMul", "Gemm"} or node.domain not in _STANDARD or node.input[0] in known:
        return None
    weights = _matrix(known.get(node.input[1]))
    if weights is None:
        return None
    if node.op_type == "MatMul":
        return Product(node, node.input[0], weights, "", 1.0)
    settings = attributes(node)
    if settings.get("transA", 0):
        return None
    weights = (weights.T if settings.get("transB", 0) else weights) * np.float32(settings.get("alpha", 1.0))
    bias = node.input[2] if len(node.input) > 2 else ""
    return Product(node, node.input[0], weights, bias, float(settings.get("beta", 1.0)))


def _matrix(tensor: Any) -> npt.NDArray[np.float32] | None:
    """The values of a constant matrix worth quantizing."""
    if not _is_large(tensor) or len(tensor.dims) != 2:
        return None
    values = np.asarray(numpy_helper.to_array(tensor), np.float32)
    return values if np.isfinite(values).all() else None


def _are_weights(tensor: Any) -> bool:
    """Whether a constant counts as weights: no vector, and not added by quantization."""
    return _is_large(tensor) and len(tensor.dims) > 1 and not tensor.name.startswith(ADDED)


def _is_large(tensor: Any) -> bool:
    return tensor is not None and tensor.data_type == 1 and int(np.prod(tensor.dims)) >= FEWEST_WEIGHTS
