"""The rules of all operators, by domain and name."""

from __future__ import annotations

from rowproof.onnx_graph.operation import Rule, Table
from rowproof.onnx_graph.operators_contrib import CONTRIB, NCHWC
from rowproof.onnx_graph.operators_elementwise import ELEMENTWISE
from rowproof.onnx_graph.operators_indexing import INDEXING
from rowproof.onnx_graph.operators_layout import LAYOUT
from rowproof.onnx_graph.operators_linear import LINEAR
from rowproof.onnx_graph.operators_ml import ML, words
from rowproof.onnx_graph.operators_recurrent import RECURRENT
from rowproof.onnx_graph.operators_reduction import REDUCTION

OLDEST = 6
"""The first opset that ONNX Runtime runs anything of. Until 7 some operators had other rules: those are refused."""

NEWEST = 28
"""The last opset of ONNX that these rules have been read against."""

RANDOM = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
"""Operators of ONNX's own domain that draw random numbers. A seed fixes only the first run: the next one goes on."""

_TABLES: dict[str, Table] = {
    "": {
        **ELEMENTWISE,
        **LAYOUT,
        **REDUCTION,
        **INDEXING,
        **LINEAR,
        **RECURRENT,
        "TfIdfVectorizer": words,
    },
    "ai.onnx.ml": ML,
    "com.microsoft": CONTRIB,
    "com.microsoft.nchwc": NCHWC,
}


_SINCE_7 = frozenset(
    {
        *(
            "Add",
            "And",
            "AveragePool",
            "BatchNormalization",
            "Div",
            "Dropout",
            "Equal",
            "Gemm",
            "Greater",
            "Less",
            "Mul",
        ),
        *("Or", "PRelu", "Pow", "Sub", "Upsample", "Xor"),
    }
)


def is_known(domain: str, kind: str, version: int) -> bool:
    """Whether an operator of this opset is the one that its rule is for."""
    return domain != "" or version >= 7 or kind not in _SINCE_7


def rule_of(domain: str, kind: str) -> Rule | None:
    """How an operator treats rows, None where nobody has said."""
    return _TABLES.get(domain, {}).get(kind)


def is_function(domain: str, kind: str) -> bool:
    """Whether an operator gives the same for the same inputs, whether or not there is a rule for its rows."""
    if domain == "":
        return kind not in RANDOM
    return domain == "ai.onnx.ml" or rule_of(domain, kind) is not None
