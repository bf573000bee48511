"""Balances 8-bit precision between activations and weights, from samples of the inputs.

Xiao et al., "SmoothQuant" (2023), with alpha = 0.5: divides a channel with large activations by a factor, and
multiplies its weights by it. Factors are rounded to a quarter of a doubling, so that the last bits of a measurement,
which differ between CPUs, do not matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from onnx import helper

from serve_app.backends.onnx.int8.graph import products

_MOST_DOUBLINGS = 8  # of a factor, either way
_STEPS = 4  # of a doubling


def find_balance(model: Any, batches: Iterable[Mapping[str, Any]]) -> dict[str, npt.NDArray[np.float32]]:
    """Measure the channels of every matrix product that will run in 8 bits.

    Args:
        model: An `onnx.ModelProto`; not changed.
        batches: Inputs as a session takes them.

    Returns:
        Divisors of the K channels of a product's left factor, by its name; float32 (K,).
    """
    found = products(model.graph)
    names = list(dict.fromkeys(product.tensor for product in found))
    taken = {end.name for end in model.graph.input}
    probe = type(model).FromString(model.SerializeToString())
    outputs = {end.name for end in model.graph.output}
    probe.graph.output.extend(
        helper.make_tensor_value_info(name, 1, None) for name in names if name not in outputs | taken
    )
    session = make_session(probe.SerializeToString())
    largest: dict[str, npt.NDArray[np.float32]] = {}
    computed = [name for name in names if name not in taken]
    for batch in batches:
        values = dict(zip(computed, session.run(computed, dict(batch)), strict=True)) if computed else {}
        for name in names:
            value = batch[name] if name in taken else values[name]
            seen = np.abs(value).reshape(-1, value.shape[-1]).max(axis=0, initial=0)
            largest[name] = np.maximum(largest.get(name, np.float32(0)), seen)
    return {
        name: _factors(seen, np.max([np.abs(p.weights).max(axis=1) for p in found if p.tensor == name], axis=0))
        for name, seen in largest.items()
        if np.isfinite(seen).all()
    }


def make_session(model: Any) -> Any:
    """A quiet session on one CPU thread, of a model's file or bytes."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _factors(activations: npt.NDArray[np.float32], weights: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The square root of activations over weights, rounded; 1 where either is 0."""
    used = (activations > 0) & (weights > 0)
    if not used.any():
        return np.ones_like(weights)
    doublings = np.zeros(weights.shape)
    doublings[used] = (np.log2(activations[used]) - np.log2(weights[used])) / 2
    doublings[used] -= np.median(doublings[used])
    return np.exp2(np.rint(np.clip(doublings, -_MOST_DOUBLINGS, _MOST_DOUBLINGS) * _STEPS) / _STEPS).astype(np.float32)
