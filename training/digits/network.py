"""The network: four convolutions and one dense layer, in jax for training and as an ONNX graph for serving."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from training.digits.rendering import SIZE
from training.onnx_graph import GraphBuilder

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx

    from training.fitting import Parameters

CLASSES = 10
_LAYERS = ((1, 32, 5, 2), (32, 32, 3, 1), (32, 48, 3, 2), (48, 64, 3, 1))  # channels in, out, kernel, stride
_FEATURES = 64 * 7 * 7


def initialise(key: jax.Array) -> Parameters:
    """Draw weights (He et al., 2015: variance 2 / fan-in); the dense layer starts at zero."""
    convolutions = []
    for subkey, (channels, filters, kernel, _) in zip(jax.random.split(key, len(_LAYERS)), _LAYERS, strict=True):
        deviation = (2.0 / (channels * kernel * kernel)) ** 0.5
        weight = deviation * jax.random.normal(subkey, (filters, channels, kernel, kernel))
        convolutions.append({"weight": weight, "bias": jnp.zeros(filters)})
    dense = {"weight": jnp.zeros((_FEATURES, CLASSES)), "bias": jnp.zeros(CLASSES)}
    return {"convolutions": convolutions, "dense": dense}


def apply(parameters: Parameters, images: jax.Array, dropout_key: jax.Array | None = None) -> jax.Array:
    """Compute logits (rows, 10) of images (rows, 1, 28, 28); with a key, a third of the features is dropped."""
    hidden = images
    for layer, (_, _, kernel, stride) in zip(parameters["convolutions"], _LAYERS, strict=True):
        margin = kernel // 2
        hidden = jax.lax.conv_general_dilated(
            hidden,
            layer["weight"],
            (stride, stride),
            ((margin, margin), (margin, margin)),
            dimension_numbers=("NCHW", "OIHW", "NCHW"),
        )
        hidden = jax.nn.relu(hidden + layer["bias"][:, jnp.newaxis, jnp.newaxis])
    features = hidden.reshape(hidden.shape[0], -1)
    if dropout_key is not None:
        kept = jax.random.bernoulli(dropout_key, 2 / 3, features.shape)
        features = jnp.where(kept, features * 1.5, 0.0)
    logits: jax.Array = features @ parameters["dense"]["weight"] + parameters["dense"]["bias"]
    return logits


def to_onnx(parameters: Parameters, metadata: Mapping[str, str]) -> onnx.ModelProto:
    """Make the graph: ``image`` FP32 (rows, 1, 28, 28) to ``logits`` FP32 (rows, 10)."""
    weights: Any = jax.tree.map(np.asarray, parameters)
    graph = GraphBuilder("digits")
    hidden = "image"
    for layer, (_, _, kernel, stride) in zip(weights["convolutions"], _LAYERS, strict=True):
        hidden = graph.node(
            "Conv",
            hidden,
            graph.constant(layer["weight"]),
            graph.constant(layer["bias"]),
            kernel_shape=[kernel, kernel],
            pads=[kernel // 2] * 4,
            strides=[stride, stride],
        )
        hidden = graph.node("Relu", hidden)
    features = graph.node("Flatten", hidden, axis=1)
    dense = weights["dense"]
    graph.node("Gemm", features, graph.constant(dense["weight"]), graph.constant(dense["bias"]), output="logits")
    return graph.model(
        {"image": ("rows", 1, SIZE, SIZE)},
        {"logits": ("rows", CLASSES)},
        description="One handwritten digit, grey, 28 x 28 pixels, scaled to -1..1.",
        metadata=metadata,
    )
