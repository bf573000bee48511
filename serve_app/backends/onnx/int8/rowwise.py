"""Computes matrix products in 8 bits, with one scale for each row of activations.

ONNX Runtime's dynamic quantization gives a whole tensor one scale, so that a row's answer depends on its neighbours in
the batch. Here a scale covers one row of the product, i.e. one token of one text, and is computed at run time: no
calibration, no influence of neighbours. Integer sums are exact, so the kernel's order of summation does not matter
either. Row-wise scales: Yao et al., "ZeroQuant" (2022), "token-wise quantization".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import helper, numpy_helper

from serve_app.backends.onnx.int8.graph import ADDED, Product, all_nodes, constants, products, tables

OLDEST_OPSET = 13
"""The first whose QuantizeLinear takes a scale per row."""

_MOST = 64
"""Weights lie between -64 and 64: the sum of two products with an unsigned activation, 2 * 255 * 64, then fits into the
16 bits in which x86 CPUs without VNNI add. With all 8 bits it would overflow there, silently."""

_ZERO = 128  # activations are signed, and the kernels of x86 want unsigned ones
_TINY = 1e-30  # a row of zeros is divided by something


def quantize_rows(model: Any, balance: Mapping[str, npt.NDArray[np.float32]] | None = None) -> Counter[str]:
    """Convert a model's matrix products and embedding tables to 8 bits, in place.

    Weights get one scale per column, tables one per row, and activations one per row at run time.

    Args:
        model: An `onnx.ModelProto` of opset 13 or later.
        balance: From `find_balance`.

    Returns:
        The number of changed nodes by operator.
    """
    return _Rewriter(model, balance or {}).rewrite()


def quantize_columns(weights: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """Quantize (K, N) weights to -64...64: int8 (K, N) and a scale per column, float32 (N,)."""
    scale = (np.abs(weights).max(axis=0) / np.float32(_MOST)).astype(np.float32)
    scale[scale == 0] = 1
    return np.rint(weights / scale).astype(np.int8), scale


class _Rewriter:
    def __init__(self, model: Any, balance: Mapping[str, npt.NDArray[np.float32]]) -> None:
        self._model = model
        self._balance = balance
        self._opset = next(each.version for each in model.opset_import if each.domain in {"", "ai.onnx"})
        self._nodes: list[Any] = []
        self._added: dict[str, Any] = {}
        self._scaled: set[str] = set()  # left factors that are quantised already: several products may share one
        self._looked_up: set[str] = set()

    def rewrite(self) -> Counter[str]:
        graph = self._model.graph
        known = constants(graph)
        found = {product.node.output[0]: product for product in products(graph)}
        lookups = {node.output[0] for node in tables(graph)}
        changed: Counter[str] = Counter()
        for node in graph.node:
            name = node.output[0] if node.output else ""
            if name in found:
                self._multiply(found[name])
            elif name in lookups:
                self._look_up(node, np.asarray(numpy_helper.to_array(known[node.input[0]]), np.float32))
            else:
                self._nodes.append(node)
                continue
            changed[node.op_type] += 1
        if changed:
            kept = [type(node).FromString(node.SerializeToString()) for node in self._nodes]
            del graph.node[:]
            graph.node.extend(kept)
            graph.initializer.extend(self._added.values())
            self._remove_unused()
            if found and all(each.domain != "com.microsoft" for each in self._model.opset_import):
                self._model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
        return changed

    def _multiply(self, product: Product) -> None:
        """Multiply integers, then the sums by the column's and the row's scales."""
        tensor, output = product.tensor, product.node.output[0]
        plain = product.node.op_type == "Gemm"  # which takes matrices only
        self._scale_rows(tensor, product.weights.shape[0], plain=plain)
        divided_by = self._balance.get(tensor)
        weights = product.weights if divided_by is None else product.weights * divided_by[:, None]
        integers, scale = quantize_columns(weights)
        right, column = (
            self._constant(f"product/{output}/weights", integers),
            self._constant(f"product/{output}/columns", scale),
        )
        one, zero = self._constant("one", np.float32(1)), self._constant("zero", np.uint8(_ZERO))
        sums = [f"int8/left/{tensor}/integers", right, one, column, zero]
        rows = [f"int8/product/{output}/sums", f"int8/left/{tensor}/scale_of_row"]
        self._node("MatMulIntegerToFloat", sums, f"int8/product/{output}/sums", domain="com.microsoft")
        if plain and product.bias:
            self._node("Mul", rows, f"int8/product/{output}/product")
            bias = product.bias
            if product.bias_factor != 1.0:
                factor = self._constant(f"product/{output}/beta", np.float32(product.bias_factor))
                bias = self._node("Mul", [bias, factor], f"int8/product/{output}/bias")
            self._node("Add", [f"int8/product/{output}/product", bias], output)
        elif plain:
            self._node("Mul", rows, output)
        else:
            width = self._constant(f"width{integers.shape[1]}", np.array([integers.shape[1]], np.int64))
            self._node("Mul", rows, f"int8/product/{output}/product")
            self._node("Concat", [f"int8/left/{tensor}/outer", width], f"int8/product/{output}/shape", axis=0)
            self._node("Reshape", [f"int8/product/{output}/product", f"int8/product/{output}/shape"], output)

    def _scale_rows(self, tensor: str, depth: int, *, plain: bool) -> None:
        """Quantize (..., K) as (rows, K), with the row's largest magnitude as 127, once per tensor."""
        if tensor in self._scaled:
            return
        self._scaled.add(tensor)
        name = f"int8/left/{tensor}"
        values = tensor
        if not plain:
            first, last = (self._constant(f"at{at}", np.array([at], np.int64)) for at in (0, -1))
            self._node("Shape", [tensor], f"{name}/shape")
            self._node("Slice", [f"{name}/shape", first, last], f"{name}/outer")
        if tensor in self._balance:
            inverse = self._constant(f"left/{tensor}/balance", (1 / self._balance[tensor]).astype(np.float32))
            values = self._node("Mul", [values, inverse], f"{name}/balanced")
        if not plain:
            flat = self._constant(f"flat{depth}", np.array([-1, depth], np.int64))
            values = self._node("Reshape", [values, flat], f"{name}/rows")
        self._reduce("ReduceMax", values, f"{name}/highest")
        self._reduce("ReduceMin", values, f"{name}/lowest")
        self._node("Neg", [f"{name}/lowest"], f"{name}/depth")
        tiny, inverse = self._constant("tiny", np.float32(_TINY)), self._constant("inverse", np.float32(1 / 127))
        self._node("Max", [f"{name}/highest", f"{name}/depth", tiny], f"{name}/largest")
        self._node("Mul", [f"{name}/largest", inverse], f"{name}/scale_of_row")
        end = self._constant("at-1", np.array([-1], np.int64))
        zero = self._constant("zero", np.uint8(_ZERO))
        self._node("Reshape", [f"{name}/scale_of_row", end], f"{name}/scale")
        self._node("Shape", [f"{name}/scale"], f"{name}/count")
        self._node("Expand", [zero, f"{name}/count"], f"{name}/zeros")
        self._node("QuantizeLinear", [values, f"{name}/scale", f"{name}/zeros"], f"{name}/integers", axis=0)

    def _reduce(self, operator: str, values: str, output: str) -> None:
        """The maximum or minimum of each row, (rows, 1)."""
        if self._opset < 18:
            self._node(operator, [values], output, axes=[1], keepdims=1)
        else:
            self._node(operator, [values, self._constant("at1", np.array([1], np.int64))], output, keepdims=1)

    def _look_up(self, node: Any, table: npt.NDArray[np.float32]) -> None:
        """Look up integers and their row's scale, and multiply."""
        source, indices, output = node.input[0], node.input[1], node.output[0]
        if source not in self._looked_up:
            self._looked_up.add(source)
            scale = (np.abs(table).max(axis=1, keepdims=True) / np.float32(127)).astype(np.float32)
            scale[scale == 0] = 1
            self._constant(f"table/{source}/integers_of_table", np.rint(table / scale).astype(np.int8))
            self._constant(f"table/{source}/scales", scale)
        self._node("Gather", [f"int8/table/{source}/integers_of_table", indices], f"int8/table/{output}/integers")
        self._node("Gather", [f"int8/table/{source}/scales", indices], f"int8/table/{output}/scale")
        self._node("Cast", [f"int8/table/{output}/integers"], f"int8/table/{output}/values", to=1)
        self._node("Mul", [f"int8/table/{output}/values", f"int8/table/{output}/scale"], output)

    def _node(self, operator: str, inputs: list[str], output: str, **settings: Any) -> str:
        name = output if output.startswith(ADDED) else f"{ADDED}{output}"
        self._nodes.append(helper.make_node(operator, inputs, [output], name=name, **settings))
        return output

    def _constant(self, name: str, value: Any) -> str:
        name = f"int8/{name}"
        if name not in self._added:
            self._added[name] = numpy_helper.from_array(np.asarray(value), name)
        return name

    def _remove_unused(self) -> None:
        graph = self._model.graph
        used = {name for node in all_nodes(graph) for name in node.input}
        used |= {end.name for end in (*graph.input, *graph.output)}
        kept = [tensor for tensor in graph.initializer if tensor.name in used]
        del graph.initializer[:]
        graph.initializer.extend(kept)
        nodes = [node for node in graph.node if node.op_type != "Constant" or node.output[0] in used]
        if len(nodes) < len(graph.node):
            copies = [type(node).FromString(node.SerializeToString()) for node in nodes]
            del graph.node[:]
            graph.node.extend(copies)
