"""The ONNX graph of a BERT sentence encoder, straight from its weights.

Devlin et al., "BERT" (2018), post-normalised layers; pooled as Reimers and Gurevych, "Sentence-BERT" (2019), do: the
mean of the last hidden states that the attention mask keeps, scaled to length 1.

Standard operators only. ONNX Runtime fuses GELU with its bias by itself; written with its own fused operators
(EmbedLayerNormalization, Attention, SkipLayerNormalization) the graph was up to a fifth slower on CPU.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from training.onnx_graph import GraphBuilder

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx
    from numpy.typing import NDArray

Weights = dict[str, "NDArray[np.float32]"]

_MASKED = 10_000.0  # subtracted from the scores of masked tokens: exp() of it is 0 in FP32 and it is finite in FP16


def encoder(weights: Weights, config: Mapping[str, Any], metadata: Mapping[str, str]) -> onnx.ModelProto:
    """Make the graph.

    Inputs ``input_ids`` and ``attention_mask``, INT64 (rows, tokens); output ``embedding``, FP32 (rows, hidden size),
    of length 1. All tokens have type 0. A row whose mask is all 0 gives zeros and no NaN.

    Args:
        weights: Tensors named as in Hugging Face's ``BertModel``.
        config: Its ``config.json``.
        metadata: What the ONNX file says about itself.

    Raises:
        ValueError: The configuration is of a model that this graph does not compute.
    """
    expected = {"model_type": "bert", "hidden_act": "gelu", "position_embedding_type": "absolute"}
    for key, value in expected.items():
        if config.get(key, value) != value:
            raise ValueError(f"config.json: {key} is {config[key]!r}, this graph computes {value!r}")
    graph = _Encoder(weights, config)
    mask = graph.builder.node("Cast", "attention_mask", to=1)
    hidden = graph.embed()
    bias = graph.attention_bias(mask)
    for layer in range(config["num_hidden_layers"]):
        hidden = graph.layer(f"encoder.layer.{layer}", hidden, bias)
    graph.pool(hidden, mask)
    return graph.builder.model(
        {"input_ids": ("rows", "tokens"), "attention_mask": ("rows", "tokens")},
        {"embedding": ("rows", config["hidden_size"])},
        description="Sentence embeddings: BERT encoder, mean pooling, L2 normalisation",
        metadata=metadata,
        integers=("input_ids", "attention_mask"),
    )


class _Encoder:
    """The parts of the encoder. Every method adds nodes and returns the name of its result."""

    def __init__(self, weights: Weights, config: Mapping[str, Any]) -> None:
        self.builder = GraphBuilder("sentence_encoder")
        self._weights = weights
        self._epsilon = float(config["layer_norm_eps"])
        heads, hidden = config["num_attention_heads"], config["hidden_size"]
        self._scale = 1.0 / math.sqrt(hidden // heads)
        self._split_shape = self.builder.constant([0, 0, heads, hidden // heads], np.int64)
        self._joined_shape = self.builder.constant([0, 0, hidden], np.int64)
        self._last_axis = self.builder.constant([-1], np.int64)
        self._one = self.builder.constant(1.0)
        self._half = self.builder.constant(0.5)

    def embed(self) -> str:
        """Words plus positions plus the type that every token has, normalised: (rows, tokens, hidden)."""
        node, constant = self.builder.node, self.builder.constant
        words = node("Gather", constant(self._weights["embeddings.word_embeddings.weight"]), "input_ids")
        # Token types are all 0, so their embedding is one vector: it is added to the positions here, once and for all.
        positions = (
            self._weights["embeddings.position_embeddings.weight"]
            + self._weights["embeddings.token_type_embeddings.weight"][0]
        )
        tokens = node("Shape", "input_ids", start=1, end=2)
        first, axis = constant([0], np.int64), constant([0], np.int64)
        here = node("Slice", constant(positions), first, tokens, axis)
        return self._normalise("embeddings", node("Add", words, here))

    def attention_bias(self, mask: str) -> str:
        """What is added to the scores: 0 where the mask is 1, far below every score where it is 0."""
        node, constant = self.builder.node, self.builder.constant
        spread = node("Unsqueeze", mask, constant([1, 2], np.int64))
        return node("Mul", node("Sub", spread, self._one), constant(_MASKED))

    def layer(self, name: str, hidden: str, bias: str) -> str:
        """Self-attention, then two dense layers; each is added to its input and the sum normalised."""
        node = self.builder.node
        attended = self._attend(f"{name}.attention.self", hidden, bias)
        attended = self._dense(f"{name}.attention.output.dense", attended)
        hidden = self._normalise(f"{name}.attention.output", node("Add", attended, hidden))
        inner = self._gelu(self._dense(f"{name}.intermediate.dense", hidden))
        return self._normalise(f"{name}.output", node("Add", self._dense(f"{name}.output.dense", inner), hidden))

    def pool(self, hidden: str, mask: str) -> None:
        """The mean of the unmasked tokens, scaled to length 1.

        The count cancels out in the scaling, so the sum will do.
        """
        node, constant = self.builder.node, self.builder.constant
        axis = constant([1], np.int64)
        total = node("Squeeze", node("MatMul", node("Unsqueeze", mask, axis), hidden), axis)
        length = node("ReduceL2", total, axes=[1], keepdims=1)
        node("Div", total, node("Max", length, constant(1e-9)), output="embedding")

    def _attend(self, name: str, hidden: str, bias: str) -> str:
        node = self.builder.node
        query = self._heads(self._dense(f"{name}.query", hidden, self._scale), [0, 2, 1, 3])
        key = self._heads(self._dense(f"{name}.key", hidden), [0, 2, 3, 1])
        value = self._heads(self._dense(f"{name}.value", hidden), [0, 2, 1, 3])
        scores = node("Add", node("MatMul", query, key), bias)
        mixed = node("MatMul", node("Softmax", scores, axis=-1), value)
        return node("Reshape", node("Transpose", mixed, perm=[0, 2, 1, 3]), self._joined_shape)

    def _heads(self, tensor: str, order: list[int]) -> str:
        return self.builder.node("Transpose", self.builder.node("Reshape", tensor, self._split_shape), perm=order)

    def _dense(self, name: str, tensor: str, scale: float = 1.0) -> str:
        node, constant = self.builder.node, self.builder.constant
        weight = self._weights[f"{name}.weight"].T * np.float32(scale)
        bias = self._weights[f"{name}.bias"] * np.float32(scale)
        return node("Add", node("MatMul", tensor, constant(weight)), constant(bias))

    def _normalise(self, name: str, tensor: str) -> str:
        gain = self.builder.constant(self._weights[f"{name}.LayerNorm.weight"])
        shift = self.builder.constant(self._weights[f"{name}.LayerNorm.bias"])
        return self.builder.node("LayerNormalization", tensor, gain, shift, axis=-1, epsilon=self._epsilon)

    def _gelu(self, tensor: str) -> str:
        """``x / 2 * (1 + erf(x / sqrt 2))``, in the form that ONNX Runtime recognises."""
        node, constant = self.builder.node, self.builder.constant
        error = node("Erf", node("Div", tensor, constant(math.sqrt(2.0))))
        return node("Mul", node("Mul", tensor, node("Add", error, self._one)), self._half)
