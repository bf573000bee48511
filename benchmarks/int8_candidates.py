"""Ways to compute minilm in 8 bits, or fewer, that `benchmarks.int8` compares."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)

from serve_app.backends.onnx.int8.balance import find_balance
from serve_app.backends.onnx.int8.graph import products, tables
from serve_app.backends.onnx.int8.rowwise import quantize_rows
from serve_app.payloads import Tensors

Samples = Sequence[Tensors]
Make = Callable[[Path, Path, Samples], None]
"""Makes a model: the FP32 file, the file to write, samples of one length."""

DEMO = "per-row, balanced by samples"
"""What `models/minilm-int8` is, and `serve-app convert --int8 --samples` makes."""


def _dynamic(source: Path, target: Path, _: Samples) -> None:
    quantize_dynamic(
        source,
        target,
        per_channel=True,
        reduce_range=True,
        weight_type=QuantType.QInt8,
        extra_options={"MatMulConstBOnly": True},
    )


def _static(
    method: CalibrationMethod = CalibrationMethod.MinMax,
    form: QuantFormat = QuantFormat.QDQ,
    activations: QuantType = QuantType.QUInt8,
    *,
    balanced: bool = False,
) -> Make:
    def make(source: Path, target: Path, samples: Samples) -> None:
        if balanced:
            model = onnx.load(source)
            _divide(model, find_balance(model, samples))
            source = target.with_suffix(".balanced")
            onnx.save(model, source)
        quantize_static(
            source,
            target,
            _Reader(samples),
            quant_format=form,
            op_types_to_quantize=["MatMul"],
            per_channel=True,
            reduce_range=activations is QuantType.QUInt8,
            activation_type=activations,
            weight_type=QuantType.QInt8,
            calibrate_method=method,
            extra_options={"MatMulConstBOnly": True},
        )

    return make


def _blocks(bits: int, size: int, accuracy_level: int) -> Make:
    """MatMulNBits: weights in blocks along K, level 4 has activations in 8 bits and level 0 as they are."""

    def make(source: Path, target: Path, _: Samples) -> None:
        model = onnx.load(source)
        middle = 1 << (bits - 1)
        for product in products(model.graph):
            depth, width = product.weights.shape
            blocks = product.weights.T.reshape(width, depth // size, size)
            largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=2, keepdims=True), 2)
            scale = np.abs(largest) / (middle - 1) if bits == 8 else -largest / middle
            scale[scale == 0] = 1
            integers = np.clip(np.rint(blocks / scale) + middle, 0, 2 * middle - 1).astype(np.uint8)
            if bits == 4:
                integers = integers[..., 0::2] | (integers[..., 1::2] << 4)
            output = product.node.output[0]
            names = [f"{output}/weights", f"{output}/scales"]
            for name, value in zip(names, (integers, scale.reshape(-1).astype(np.float32)), strict=True):
                model.graph.initializer.append(numpy_helper.from_array(value, name))
            settings = {"K": depth, "N": width, "bits": bits, "block_size": size, "accuracy_level": accuracy_level}
            product.node.CopyFrom(
                helper.make_node("MatMulNBits", [product.tensor, *names], [output], domain="com.microsoft", **settings)
            )
        model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
        _save(model, target)

    return make


def _weights_only(source: Path, target: Path, _: Samples) -> None:
    """Weights and tables in 8 bits in the file, all computation in FP32."""
    model = onnx.load(source)
    places = [(product.node, 1) for product in products(model.graph)] + [(node, 0) for node in tables(model.graph)]
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    nodes = []
    for node, place in places:
        name = node.input[place]
        scale = (np.abs(values[name]).max(axis=0) / 127).astype(np.float32)
        model.graph.initializer.append(
            numpy_helper.from_array(np.rint(values[name] / scale).astype(np.int8), f"{name}/8")
        )
        model.graph.initializer.append(numpy_helper.from_array(scale, f"{name}/scale"))
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}/8", f"{name}/scale"], [f"{name}/32"], axis=1))
        node.input[place] = f"{name}/32"
    for node in nodes:
        model.graph.node.insert(0, node)
    _save(model, target)


def _per_row(*, balanced: bool) -> Make:
    def make(source: Path, target: Path, samples: Samples) -> None:
        model = onnx.load(source)
        quantize_rows(model, find_balance(model, samples) if balanced else None)
        onnx.save(model, target)

    return make


CANDIDATES: dict[str, Make] = {
    "dynamic, a scale per batch": _dynamic,
    "static QDQ, MinMax": _static(),
    "static QDQ, MinMax, signed": _static(activations=QuantType.QInt8),
    "static QDQ, Percentile": _static(CalibrationMethod.Percentile),
    "static QDQ, MinMax, balanced": _static(balanced=True),
    "static QOperator, MinMax": _static(form=QuantFormat.QOperator),
    "MatMulNBits, 8 bits, blocks of 32": _blocks(8, 32, 4),
    "MatMulNBits, 8 bits, blocks of 128": _blocks(8, 128, 4),
    "MatMulNBits, 4 bits, blocks of 32": _blocks(4, 32, 4),
    "MatMulNBits, 8 bits, FP32 sums": _blocks(8, 128, 0),
    "weights only": _weights_only,
    "per-row": _per_row(balanced=False),
    DEMO: _per_row(balanced=True),
}
"""By name, in the order of the report."""


@contextmanager
def quiet() -> Iterator[None]:
    """Without the quantiser's advice."""
    logger = logging.getLogger()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, samples: Samples) -> None:
        self._left = iter(samples)

    def get_next(self) -> dict[str, Any] | None:
        sample = next(self._left, None)
        return None if sample is None else dict(sample)


def _divide(model: Any, balance: Mapping[str, Any]) -> None:
    """Divide the left factors, and multiply the weights."""
    for number, product in enumerate(products(model.graph)):
        factor = balance[product.tensor]
        names = [f"divisor{number}", f"multiplied{number}", f"divided{number}"]
        weights = (product.weights * factor[:, None]).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(factor, names[0]))
        model.graph.initializer.append(numpy_helper.from_array(weights, names[1]))
        place = [node.output[0] for node in model.graph.node].index(product.node.output[0])
        node = helper.make_node("MatMul", [names[2], names[1]], list(product.node.output), name=f"product{number}")
        model.graph.node[place].CopyFrom(node)
        model.graph.node.insert(place, helper.make_node("Div", [product.tensor, names[0]], [names[2]]))
    _remove_unused(model)


def _remove_unused(model: Any) -> None:
    used = {name for node in model.graph.node for name in node.input}
    kept = [tensor for tensor in model.graph.initializer if tensor.name in used]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)


def _save(model: Any, target: Path) -> None:
    _remove_unused(model)
    onnx.save(model, target)
