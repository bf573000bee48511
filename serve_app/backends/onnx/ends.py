"""Reads both ends of a graph: the function that produces each output, and inputs that nothing reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from rowproof.onnx_graph.skeleton import read_skeleton
from serve_app.backends.graph_ends import Made, applied_function
from serve_app.payloads import GraphEnds

_FUNCTIONS: Final = {
    "Softmax": "softmax",
    "Sigmoid": "sigmoid",
    "HardSigmoid": "sigmoid",
    # Classifiers of ai.onnx.ml give probabilities, votes or distances: none is a logit.
    "TreeEnsembleClassifier": "classifier",
    "LinearClassifier": "classifier",
    "SVMClassifier": "classifier",
    "Normalizer": "classifier",
}
_KEEPING: Final = frozenset(
    {"Identity", "Cast", "CastLike", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Dropout", "Clip"}
    | {"Gather", "Slice", "Split"}
    | {"QuantizeLinear", "DequantizeLinear"}
)
"""Operators that keep their first input's values, or round them."""


def read_ends(model_file: Path) -> GraphEnds:
    """Read the graph without its large weights.

    Raises:
        ValueError: The file is no ONNX model.
    """
    graph = read_skeleton(model_file).graph
    made = {name: Made(node.op_type, tuple(node.input)) for node in graph.node for name in node.output}
    # Exporters may write a softmax out: exponentials, divided by their sum.
    made |= {name: Made("Softmax", ()) for name, node in made.items() if _is_softmax(made, node)}
    outputs = [value.name for value in graph.output]
    found = {name: applied_function(made, name, _FUNCTIONS, _KEEPING, "Concat") for name in outputs}
    read = {*outputs, *_names_read(graph)}
    weights = {tensor.name for tensor in graph.initializer}
    unused = tuple(value.name for value in graph.input if value.name not in read | weights)
    return GraphEnds({name: function for name, function in found.items() if function}, unused)


def _is_softmax(made: dict[str, Made], node: Made) -> bool:
    if node.operator != "Div":
        return False
    above, below = (made.get(name, Made("", ())) for name in node.inputs)
    return above.operator == "Exp" and below.operator == "ReduceSum" and below.inputs[:1] == node.inputs[:1]


def _names_read(graph: Any) -> Iterator[str]:
    """Names that nodes read, including nodes of subgraphs."""
    for node in graph.node:
        yield from node.input
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _names_read(inner)
