"""Quantizes convolutions to 8 bits, with constant scales from samples of the inputs."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType, quantize_static

from serve_app.backends.onnx.int8.graph import convolutions


def quantize_convolutions(model: Any, batches: Sequence[Mapping[str, Any]], folder: Path) -> tuple[Any, int]:
    """Quantize the convolutions with constant weights.

    Constant scales keep an answer independent of the batch. Scales per sample at run time would need no samples, but
    ONNX Runtime's ConvInteger is five times slower than FP32.

    Args:
        model: An `onnx.ModelProto` of opset 13 or later; not changed.
        batches: Inputs of the model; the extreme values seen bound the 8-bit range.
        folder: For intermediate files.

    Returns:
        The changed model, and the number of changed convolutions.
    """
    nodes = convolutions(model.graph)
    if not nodes:
        return model, 0
    named = type(model).FromString(model.SerializeToString())
    for number, node in enumerate(named.graph.node):  # nodes are chosen by name, and may have none
        node.name = f"{node.op_type}/{number}"
    source, target = folder / "named.onnx", folder / "static.onnx"
    onnx.save(named, source)
    try:
        with _quiet():
            quantize_static(
                source,
                target,
                _Reader(batches),
                quant_format=QuantFormat.QDQ,
                op_types_to_quantize=["Conv"],
                nodes_to_quantize=[node.name for node in convolutions(named.graph)],
                per_channel=True,
                reduce_range=True,  # see `rowwise`: 16-bit sums without VNNI
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                calibrate_method=CalibrationMethod.MinMax,
            )
        return onnx.load(target), len(nodes)
    finally:
        source.unlink(missing_ok=True)
        target.unlink(missing_ok=True)


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, batches: Sequence[Mapping[str, Any]]) -> None:
        self._left = iter(batches)

    def get_next(self) -> dict[str, Any] | None:
        batch = next(self._left, None)
        return None if batch is None else dict(batch)


@contextmanager
def _quiet() -> Iterator[None]:
    logger = logging.getLogger()
    level = logger.level
    logger.setLevel(logging.ERROR)  # it advises a pre-processing step
    try:
        yield
    finally:
        logger.setLevel(level)
