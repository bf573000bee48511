"""Operators of ai.onnx.ml and of ONNX Runtime's own domain, proven and then run."""

# ruff: noqa: E501  (graphs in text are easier to read on one line)

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest
from onnx import helper, numpy_helper
from row_experiments import Case, experiment

from rowproof.onnx_graph.proof import prove_rows_of

RANDOM = np.random.default_rng(7)


def floats(*shape: int) -> Any:
    """Small random numbers."""
    return RANDOM.standard_normal(shape).astype(np.float32)


def numbers(dtype: type, high: int, *shape: int) -> Any:
    """Random whole numbers from 0."""
    return RANDOM.integers(0, high, shape).astype(dtype)


BYTE = np.uint8(128)
SCALE = np.float32(0.05)
TREE = """nodes_treeids = [0,0,0], nodes_nodeids = [0,1,2], nodes_featureids = [1,0,0], nodes_values = [0.1,0.0,0.0],
    nodes_modes = ["BRANCH_LEQ","LEAF","LEAF"], nodes_truenodeids = [1,0,0], nodes_falsenodeids = [2,0,0]"""

GRAPHS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "BiasGelu": (
        "(float[n,3,4] x) => (float y) { y = com.microsoft.BiasGelu(x, b) }",
        {"x": floats(3, 3, 4)},
        {"b": floats(4)},
    ),
    "FastGelu": (
        "(float[n,3,4] x) => (float y) { y = com.microsoft.FastGelu(x, b) }",
        {"x": floats(3, 3, 4)},
        {"b": floats(4)},
    ),
    "QuickGelu": ("(float[n,4] x) => (float y) { y = com.microsoft.QuickGelu(x) }", {"x": floats(3, 4)}, {}),
    "FusedMatMul": (
        "(float[n,2,4] x, float[n,2,4] z) => (float y) { y = com.microsoft.FusedMatMul<transB = 1, alpha = 0.5>(x, z) }",
        {"x": floats(3, 2, 4), "z": floats(3, 2, 4)},
        {},
    ),
    "FusedGemm": (
        '(float[n,4] x) => (float y) { y = com.microsoft.FusedGemm<activation = "Relu">(x, w, b) }',
        {"x": floats(3, 4)},
        {"w": floats(4, 5), "b": floats(5)},
    ),
    "FusedConv": (
        '(float[n,2,6,6] x) => (float y) { y = com.microsoft.FusedConv<activation = "Relu">(x, w, b) }',
        {"x": floats(3, 2, 6, 6)},
        {"w": floats(4, 2, 3, 3), "b": floats(4)},
    ),
    "SkipLayerNormalization": (
        "(float[n,3,4] x, float[n,3,4] z) => (float y) { y = com.microsoft.SkipLayerNormalization(x, z, g, b, c) }",
        {"x": floats(3, 3, 4), "z": floats(3, 3, 4)},
        {"g": floats(4), "b": floats(4), "c": floats(4)},
    ),
    "SkipLayerNormalization of a constant": (
        "(float[n,3,4] x) => (float y) { y = com.microsoft.SkipLayerNormalization(x, z, g) }",
        {"x": floats(3, 3, 4)},
        {"z": floats(1, 3, 4), "g": floats(4)},
    ),
    "SkipSimplifiedLayerNormalization": (
        "(float[n,3,4] x, float[n,3,4] z) => (float y, float s) { y, m, v, s = com.microsoft.SkipSimplifiedLayerNormalization(x, z, g) }",
        {"x": floats(3, 3, 4), "z": floats(3, 3, 4)},
        {"g": floats(4)},
    ),
    "EmbedLayerNormalization": (
        "(int32[n,3] x, int32[n,3] z, int32[n,3] m) => (float y, int32 i) { y, i = com.microsoft.EmbedLayerNormalization(x, z, w, p, s, g, b, m) }",
        {
            "x": numbers(np.int32, 5, 3, 3),
            "z": numbers(np.int32, 2, 3, 3),
            "m": np.array([[1, 1, 1], [1, 1, 0], [1, 0, 0]], np.int32),
        },
        {"w": floats(5, 4), "p": floats(3, 4), "s": floats(2, 4), "g": floats(4), "b": floats(4)},
    ),
    "Attention": (
        "(float[n,3,4] x, int32[n,3] m) => (float y) { y = com.microsoft.Attention<num_heads = 2>(x, w, b, m) }",
        {"x": floats(3, 3, 4), "m": np.array([[1, 1, 1], [1, 1, 0], [1, 0, 0]], np.int32)},
        {"w": floats(4, 12), "b": floats(12)},
    ),
    "Attention with lengths": (
        "(float[n,3,4] x, int32[n] m) => (float y) { y = com.microsoft.Attention<num_heads = 2>(x, w, b, m) }",
        {"x": floats(3, 3, 4), "m": np.array([3, 1, 2], np.int32)},
        {"w": floats(4, 12), "b": floats(12)},
    ),
    "Attention with state": (
        "(float[n,3,4] x) => (float y) { y, p = com.microsoft.Attention<num_heads = 2, unidirectional = 1>(x, w, b) }",
        {"x": floats(3, 3, 4)},
        {"w": floats(4, 12), "b": floats(12)},
    ),
    "MultiHeadAttention": (
        "(float[n,3,4] x, float[n,5,4] k, float[n,5,4] v) => (float y) { y = com.microsoft.MultiHeadAttention<num_heads = 2>(x, k, v, b, , a) }",
        {"x": floats(3, 3, 4), "k": floats(3, 5, 4), "v": floats(3, 5, 4)},
        {"b": floats(12), "a": floats(1, 2, 3, 5)},
    ),
    "QLinearAdd": (
        "(uint8[n,4] x, uint8[n,4] z) => (uint8 y) { y = com.microsoft.QLinearAdd(x, s, o, z, s, o, s, o) }",
        {"x": numbers(np.uint8, 255, 3, 4), "z": numbers(np.uint8, 255, 3, 4)},
        {"s": SCALE, "o": BYTE},
    ),
    "QLinearSigmoid": (
        "(uint8[n,4] x) => (uint8 y) { y = com.microsoft.QLinearSigmoid(x, s, o, s, o) }",
        {"x": numbers(np.uint8, 255, 3, 4)},
        {"s": SCALE, "o": BYTE},
    ),
    "QLinearSoftmax": (
        "(uint8[n,4] x) => (uint8 y) { y = com.microsoft.QLinearSoftmax<axis = -1, opset = 13>(x, s, o, s, o) }",
        {"x": numbers(np.uint8, 255, 3, 4)},
        {"s": SCALE, "o": BYTE},
    ),
    "QLinearConcat": (
        "(uint8[n,4] x, uint8[n,2] z) => (uint8 y) { y = com.microsoft.QLinearConcat<axis = 1>(s, o, x, s, o, z, s, o) }",
        {"x": numbers(np.uint8, 255, 3, 4), "z": numbers(np.uint8, 255, 3, 2)},
        {"s": SCALE, "o": BYTE},
    ),
    "QLinearGlobalAveragePool": (
        "(uint8[n,2,4,4] x) => (uint8 y) { y = com.microsoft.QLinearGlobalAveragePool(x, s, o, s, o) }",
        {"x": numbers(np.uint8, 255, 3, 2, 4, 4)},
        {"s": SCALE, "o": BYTE},
    ),
    "QGemm": (
        "(uint8[n,4] x) => (float y) { y = com.microsoft.QGemm(x, s, o, w, s, o) }",
        {"x": numbers(np.uint8, 255, 3, 4)},
        {"s": SCALE, "o": BYTE, "w": numbers(np.uint8, 255, 4, 5)},
    ),
    "MatMulIntegerToFloat": (
        "(uint8[n,4] x) => (float y) { y = com.microsoft.MatMulIntegerToFloat(x, w, s, t, o, o, b) }",
        {"x": numbers(np.uint8, 255, 3, 4)},
        {"s": SCALE, "t": np.abs(floats(5)), "o": BYTE, "w": numbers(np.uint8, 255, 4, 5), "b": floats(5)},
    ),
    "MatMulNBits": (
        "(float[n,32] x) => (float y) { y = com.microsoft.MatMulNBits<K = 32, N = 4, bits = 4, block_size = 32, accuracy_level = 4>(x, w, s) }",
        {"x": floats(3, 32)},
        {"w": numbers(np.uint8, 255, 4, 1, 16), "s": np.abs(floats(4))},
    ),
    "Inverse": ("(float[n,2,2] x) => (float y) { y = com.microsoft.Inverse(x) }", {"x": floats(3, 2, 2)}, {}),
    "TreeEnsembleRegressor": (
        f"(float[n,2] x) => (float y) {{ y = ai.onnx.ml.TreeEnsembleRegressor<n_targets = 1, {TREE}, target_treeids = [0,0], target_nodeids = [1,2], target_ids = [0,0], target_weights = [1.0,2.0]>(x) }}",
        {"x": floats(4, 2)},
        {},
    ),
    "TreeEnsembleClassifier": (
        f"(float[n,2] x) => (int64 l, float y) {{ l, y = ai.onnx.ml.TreeEnsembleClassifier<classlabels_int64s = [0,1], {TREE}, class_treeids = [0,0], class_nodeids = [1,2], class_ids = [0,1], class_weights = [1.0,2.0]>(x) }}",
        {"x": floats(4, 2)},
        {},
    ),
    "LinearClassifier": (
        "(float[n,2] x) => (int64 l, float y) { l, y = ai.onnx.ml.LinearClassifier<coefficients = [1.0,2.0,-1.0,0.5], intercepts = [0.1,0.2], classlabels_ints = [0,1]>(x) }",
        {"x": floats(4, 2)},
        {},
    ),
    "LinearRegressor": (
        "(float[n,2] x) => (float y) { y = ai.onnx.ml.LinearRegressor<coefficients = [1.0,2.0], intercepts = [0.1]>(x) }",
        {"x": floats(4, 2)},
        {},
    ),
    "SVMRegressor": (
        '(float[n,2] x) => (float y) { y = ai.onnx.ml.SVMRegressor<kernel_type = "RBF", kernel_params = [0.5,0.0,3.0], n_supports = 2, support_vectors = [1.0,2.0,3.0,4.0], coefficients = [1.0,-1.0], rho = [0.1]>(x) }',
        {"x": floats(4, 2)},
        {},
    ),
    "Scaler": (
        "(float[n,2] x) => (float y) { y = ai.onnx.ml.Scaler<offset = [1.0,2.0], scale = [2.0,3.0]>(x) }",
        {"x": floats(4, 2)},
        {},
    ),
    "Normalizer": (
        '(float[n,3] x) => (float y) { y = ai.onnx.ml.Normalizer<norm = "L2">(x) }',
        {"x": floats(4, 3)},
        {},
    ),
    "Imputer": (
        "(float[n,2] x) => (float y) { y = ai.onnx.ml.Imputer<imputed_value_floats = [1.0,2.0], replaced_value_float = 0.0>(x) }",
        {"x": floats(4, 2)},
        {},
    ),
    "Binarizer": (
        "(float[n,2] x) => (float y) { y = ai.onnx.ml.Binarizer<threshold = 0.1>(x) }",
        {"x": floats(4, 2)},
        {},
    ),
    "OneHotEncoder": (
        "(int64[n,2] x) => (float y) { y = ai.onnx.ml.OneHotEncoder<cats_int64s = [0,1,2], zeros = 1>(x) }",
        {"x": numbers(np.int64, 3, 4, 2)},
        {},
    ),
    "LabelEncoder": (
        "(int64[n,2] x) => (float y) { y = ai.onnx.ml.LabelEncoder<keys_int64s = [0,1], values_floats = [0.5,1.5]>(x) }",
        {"x": numbers(np.int64, 3, 4, 2)},
        {},
    ),
    "FeatureVectorizer": (
        "(float[n,2] x, float[n,3] z) => (float y) { y = ai.onnx.ml.FeatureVectorizer<inputdimensions = [2,3]>(x, z) }",
        {"x": floats(4, 2), "z": floats(4, 3)},
        {},
    ),
    "ArrayFeatureExtractor": (
        "(float[n,3] x) => (float y) { y = ai.onnx.ml.ArrayFeatureExtractor(x, i) }",
        {"x": floats(4, 3)},
        {"i": np.array([2, 0])},
    ),
}


@pytest.mark.parametrize(("text", "samples", "constants"), GRAPHS.values(), ids=GRAPHS.keys())
def test_what_is_proven_holds(text: str, samples: dict[str, Any], constants: dict[str, Any]) -> None:
    """The rule of each operator proves it, and ONNX Runtime gives a row the same alone and in company."""
    header = '<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1, "ai.onnx.ml" : 3]> g '
    model = onnx.parser.parse_model(header + text)
    for name, value in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    for info in model.graph.output:
        info.CopyFrom(helper.make_tensor_value_info(info.name, info.type.tensor_type.elem_type, None))
    proof = prove_rows_of(model)
    assert proof.independent, proof.reason
    finding = experiment(Case("", model, samples), seed=3, rounds=6)
    assert finding is not None, "does not run"
    assert finding.difference == ""
