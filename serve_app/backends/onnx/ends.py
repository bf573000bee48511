"""What the two ends of a graph do: which function makes an output last, and which inputs nothing reads."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Final

from serve_app.backends.graph_ends import Made, applied_function
from serve_app.backends.onnx.wire_format import fields
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
_PASS: Final = frozenset(
    {"Identity", "Cast", "CastLike", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Dropout", "Clip"}
    | {"QuantizeLinear", "DequantizeLinear", "ZipMap"}
)
"""Operators that keep their first input's values, or round them."""


def read_ends(model_file: Path) -> GraphEnds:
    """Read the graph's nodes, and none of its weights.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is no protobuf message.
    """
    with model_file.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole:
        view = memoryview(whole)
        try:
            return _read(view)
        finally:
            view.release()


def _read(whole: memoryview) -> GraphEnds:
    made: dict[str, Made] = {}
    used: set[str] = set()
    inputs: list[str] = []
    outputs: list[str] = []
    nested = False
    for field, _, graph, graph_end in fields(whole, 0, len(whole)):
        if field != 7 or graph is None:
            continue
        for inner, _, start, end in fields(whole, graph, graph_end):
            if start is None:
                continue
            if inner == 1:
                node, names, has_graph = _node(whole, start, end)
                made.update(dict.fromkeys(names, node))
                used.update(node.inputs)
                nested = nested or has_graph
            elif inner in {11, 12}:
                (inputs if inner == 11 else outputs).append(_name(whole, start, end))
    softmax = {name: Made("Softmax", node.inputs) for name, node in made.items() if _is_softmax(made, node)}
    made.update(softmax)
    found = {name: applied_function(made, name, _FUNCTIONS, _PASS, "Concat") for name in outputs}
    applied = {name: function for name, function in found.items() if function}
    # A graph inside a node reads names of the outer one too: then nobody can say from here.
    unused = () if nested else tuple(name for name in inputs if name not in used and name not in outputs)
    return GraphEnds(applied, unused)


def _is_softmax(made: dict[str, Made], node: Made) -> bool:
    """Whether a division is that of exponentials by their sum."""
    if node.operator != "Div":
        return False
    above, below = (made.get(name) for name in node.inputs[:2])
    return (
        above is not None
        and below is not None
        and above.operator == "Exp"
        and below.operator == "ReduceSum"
        and below.inputs[:1] == node.inputs[:1]
    )


def _node(whole: memoryview, start: int, end: int) -> tuple[Made, list[str], bool]:
    """A node, the names that it makes, and whether there is a graph inside it."""
    inputs: list[str] = []
    outputs: list[str] = []
    operator, has_graph = "", False
    for field, _, content, last in fields(whole, start, end):
        if content is None:
            continue
        if field in {1, 2}:
            (inputs if field == 1 else outputs).append(_text(whole, content, last))
        elif field == 4:
            operator = _text(whole, content, last)
        elif field == 5:
            has_graph = has_graph or any(inner in {6, 11} for inner, *_ in fields(whole, content, last))
    return Made(operator, tuple(inputs)), outputs, has_graph


def _name(whole: memoryview, start: int, end: int) -> str:
    return next((_text(whole, content, last) for field, _, content, last in fields(whole, start, end)
                 if field == 1 and content is not None), "")  # fmt: skip


def _text(whole: memoryview, start: int, end: int) -> str:
    return bytes(whole[start:end]).decode("utf-8", "replace")
