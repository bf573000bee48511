"""The network, in jax and as an ONNX graph: log-mel features, convolutions over time with shortcuts, attention.

After TC-ResNet: Choi et al., "Temporal Convolution for Real-time Keyword Spotting on Mobile Devices", Interspeech 2019.
Frames of digital silence are set to zero behind every layer and get no attention, and no layer looks at the length of
its input: zeros after a recording therefore cannot change its logits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from training.onnx_graph import GraphBuilder
from training.spoken_digits import features
from training.spoken_digits.voices import WORDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx

    from training.fitting import Parameters

CLASSES = len(WORDS)
_STEM = (features.BANDS, 48, 5)  # channels in, out, kernel
_STEM_STRIDE = 2
_BLOCKS = ((48, 64, 2), (64, 80, 1), (80, 96, 2))  # channels in, out, stride
_KERNEL = 9
_FEATURES = _BLOCKS[-1][1]
_UNHEARD = 1e4  # what a silent frame's attention loses, in units of the logarithm


def initialise(key: jax.Array) -> Parameters:
    """Draw weights (He et al., 2015: variance 2 / fan-in); attention and the dense layer start at zero."""
    keys = iter(jax.random.split(key, 1 + 3 * len(_BLOCKS)))

    def convolution(channels: int, filters: int, kernel: int, gain: float = 2.0) -> dict[str, jax.Array]:
        deviation = (gain / (channels * kernel)) ** 0.5
        weight = deviation * jax.random.normal(next(keys), (filters, channels, kernel))
        return {"weight": weight, "bias": jnp.zeros(filters)}

    return {
        "stem": convolution(*_STEM),
        "blocks": [
            {
                "first": convolution(channels, filters, _KERNEL),
                "second": convolution(filters, filters, _KERNEL, gain=0.5),
                "shortcut": convolution(channels, filters, 1, gain=1.0),
            }
            for channels, filters, _ in _BLOCKS
        ],
        "attention": {"weight": jnp.zeros((1, _FEATURES, 1)), "bias": jnp.zeros(1)},
        "dense": {"weight": jnp.zeros((_FEATURES, CLASSES)), "bias": jnp.zeros(CLASSES)},
    }


def apply(
    parameters: Parameters, levels: jax.Array, active: jax.Array, dropout_key: jax.Array | None = None
) -> jax.Array:
    """Compute logits (rows, 10).

    Args:
        parameters: The weights.
        levels: Features, float32 (rows, BANDS, frames).
        active: 1 for frames with sound, 0 for digital silence, float32 (rows, 1, frames).
        dropout_key: With a key, a fifth of the pooled features is dropped.
    """
    active = active[:, :, ::_STEM_STRIDE]
    hidden = jax.nn.relu(_convolve(parameters["stem"], levels, _STEM_STRIDE)) * active
    for block, (_, _, stride) in zip(parameters["blocks"], _BLOCKS, strict=True):
        active = active[:, :, ::stride]
        inner = jax.nn.relu(_convolve(block["first"], hidden, stride)) * active
        hidden = jax.nn.relu(_convolve(block["second"], inner, 1) + _convolve(block["shortcut"], hidden, stride))
        hidden *= active
    scores = _convolve(parameters["attention"], hidden, 1) + (active - 1.0) * _UNHEARD
    pooled = (hidden * jax.nn.softmax(scores, axis=2)).sum(axis=2)
    if dropout_key is not None:
        pooled = jnp.where(jax.random.bernoulli(dropout_key, 0.8, pooled.shape), pooled * 1.25, 0.0)
    logits: jax.Array = pooled @ parameters["dense"]["weight"] + parameters["dense"]["bias"]
    return logits


def _convolve(layer: Mapping[str, jax.Array], signal: jax.Array, stride: int) -> jax.Array:
    margin = layer["weight"].shape[2] // 2
    result = jax.lax.conv_general_dilated(
        signal, layer["weight"], (stride,), ((margin, margin),), dimension_numbers=("NCH", "OIH", "NCH")
    )
    return result + layer["bias"][:, jnp.newaxis]


def to_onnx(parameters: Parameters, metadata: Mapping[str, str]) -> onnx.ModelProto:
    """Make the graph: ``waveform`` FP32 (rows, samples), 16 kHz, to ``logits`` FP32 (rows, 10)."""
    weights: Any = jax.tree.map(np.asarray, parameters)
    graph = GraphBuilder("spoken_digits")
    hidden, active = _add_features(graph)

    def convolve(layer: Mapping[str, Any], signal: str, stride: int) -> str:
        kernel = layer["weight"].shape[2]
        return graph.node(
            "Conv",
            signal,
            graph.constant(layer["weight"]),
            graph.constant(layer["bias"]),
            kernel_shape=[kernel],
            pads=[kernel // 2] * 2,
            strides=[stride],
        )

    def thin_out(activity: str, stride: int) -> str:
        return graph.node("MaxPool", activity, kernel_shape=[1], strides=[stride]) if stride > 1 else activity

    active = thin_out(active, _STEM_STRIDE)
    hidden = graph.node("Mul", graph.node("Relu", convolve(weights["stem"], hidden, _STEM_STRIDE)), active)
    for block, (_, _, stride) in zip(weights["blocks"], _BLOCKS, strict=True):
        active = thin_out(active, stride)
        inner = graph.node("Mul", graph.node("Relu", convolve(block["first"], hidden, stride)), active)
        total = graph.node("Add", convolve(block["second"], inner, 1), convolve(block["shortcut"], hidden, stride))
        hidden = graph.node("Mul", graph.node("Relu", total), active)
    silence = graph.node("Mul", graph.node("Sub", active, graph.constant(1.0)), graph.constant(_UNHEARD))
    scores = graph.node("Add", convolve(weights["attention"], hidden, 1), silence)
    attended = graph.node("Mul", hidden, graph.node("Softmax", scores, axis=2))
    pooled = graph.node("ReduceSum", attended, graph.constant([2], np.int64), keepdims=0)
    dense = weights["dense"]
    graph.node("Gemm", pooled, graph.constant(dense["weight"]), graph.constant(dense["bias"]), output="logits")
    return graph.model(
        {"waveform": ("rows", "samples")},
        {"logits": ("rows", CLASSES)},
        description="One spoken digit, mono, 16,000 samples per second, zeros at the end where rows are shorter.",
        metadata=metadata,
    )


def _add_features(graph: GraphBuilder) -> tuple[str, str]:
    """Add `features.features`; give the names of levels (rows, BANDS, frames) and activity (rows, 1, frames)."""
    margins = graph.constant([0, features.MARGIN_BEFORE, 0, features.MARGIN_AFTER], np.int64)
    padded = graph.node("Pad", "waveform", margins)
    loudness = graph.node("Abs", padded)
    peak = graph.node("ReduceMax", loudness, axes=[1], keepdims=1)
    scaled = graph.node("Div", padded, graph.node("Max", peak, graph.constant(features.SMALLEST_PEAK)))
    channel = graph.constant([1], np.int64)
    loudest = graph.node(
        "MaxPool",
        graph.node("Unsqueeze", loudness, channel),
        kernel_shape=[features.FRAME],
        strides=[features.HOP],
    )
    active = graph.node("Sign", loudest)
    spectrum = graph.node(
        "Conv",
        graph.node("Unsqueeze", scaled, channel),
        graph.constant(features.fourier_basis()[:, np.newaxis]),
        kernel_shape=[features.FRAME],
        strides=[features.HOP],
    )
    filters = np.tile(features.mel_filters(), (1, 2))[:, :, np.newaxis]  # real and imaginary parts have equal weight
    power = graph.node("Conv", graph.node("Mul", spectrum, spectrum), graph.constant(filters), kernel_shape=[1])
    levels = graph.node("Log", graph.node("Add", power, graph.constant(features.FLOOR)))
    relative = graph.node("Sub", levels, graph.node("ReduceMax", levels, axes=[1, 2], keepdims=1))
    fraction = graph.node("Add", graph.node("Div", relative, graph.constant(features.RANGE)), graph.constant(1.0))
    return graph.node("Mul", graph.node("Relu", fraction), active), active
