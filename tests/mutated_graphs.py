"""Graphs as exporters of transformers write them, and random changes of them: most of the changed ones mix rows."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import onnx.parser
from onnx import numpy_helper
from row_experiments import Case

_HEAD = '<ir_version: 9, opset_import: ["" : 18]> g (int64[n,t] ids, int64[n,t] mask) => (float y)'

_CONSTANTS = """
    int64 zero = {0}, int64 one = {1}, int64[1] first = {0}, int64[1] second = {1}, int64[1] last = {-1},
    int64[1] many = {-1}, int64[3] behind = {1, 2, 3}, int64[3] before = {0, 1, 2}, int64[1] three = {3},
    int64[1] four = {4}, float nothing = {0}, float low = {-10000},
    float[10,4] table = {0.1, -0.7, 1.3, 0.4, 0.9, -1.1, 0.2, 0.6, -0.3, 0.8, 0.5, -0.9, 1.2, -0.4, 0.7, 0.3,
        -0.6, 1.1, -0.2, 0.5, 0.4, -1.3, 0.8, 0.9, -0.8, 0.2, 1.4, -0.5, 0.6, -0.1, 0.3, 1.0,
        -1.2, 0.7, -0.4, 0.1, 0.5, 0.9, -0.6, 1.1},
    float[4,4] w = {0.3, -0.5, 0.8, 0.1, 0.7, 0.2, -0.4, 0.9, -0.6, 0.4, 0.5, -0.2, 0.1, 0.8, -0.3, 0.6},
    float[4,3] v = {0.2, -0.9, 0.5, 0.7, 0.3, -0.1, -0.4, 0.6, 0.8, 0.1, -0.7, 0.9}
"""

_COUNTED = """
    allowed = Cast<to = 9>(mask) shape = Shape<start = 0, end = 1>(ids) rows = Squeeze(shape)
    width = Shape<start = 1, end = 2>(mask) length = Squeeze(width)
    row = Range(zero, rows, one) column = Range(zero, length, one)
    tokens = Gather(table, ids)
"""

_ATTENTION = """
    asked = MatMul(tokens, w) turned = Transpose<perm = [0, 2, 1]>(tokens) weights = MatMul(asked, turned)
    seen = Squeeze(picked, second) bias = Where(seen, nothing, low) biased = Add(weights, bias)
    part = Softmax<axis = -1>(biased) y = MatMul(part, tokens)
"""

_LAST = """
    logits = MatMul(tokens, v) placed = Mul(mask, column) found = ArgMax<axis = -1, keepdims = 0>(placed)
"""

GRAPHS: dict[str, str] = {
    "mask by coordinates": f"""{_COUNTED}
        row4 = Unsqueeze(row, behind) column4 = Unsqueeze(column, before) both = Max(row4, column4) size = Shape(both)
        rows4 = Expand(row4, size) columns4 = Expand(column4, size) rows5 = Unsqueeze(rows4, last)
        columns5 = Unsqueeze(columns4, last) points = Concat<axis = -1>(rows5, columns5)
        picked = GatherND(allowed, points) {_ATTENTION}""",
    "mask in the order of memory": f"""{_COUNTED}
        row4 = Unsqueeze(row, behind) column4 = Unsqueeze(column, before) flat = Reshape(allowed, many)
        start = Mul(row4, length) places = Add(start, column4) picked = Gather(flat, places) {_ATTENTION}""",
    "last token by coordinates": f"""{_COUNTED} {_LAST}
        row2 = Unsqueeze(row, second) found2 = Unsqueeze(found, second) points = Concat<axis = 1>(row2, found2)
        y = GatherND(logits, points)""",
    "last token in the order of memory": f"""{_COUNTED} {_LAST}
        shape2 = Concat<axis = 0>(many, three) flat = Reshape(logits, shape2) start = Mul(row, length)
        places = Add(start, found) y = Gather(flat, places)""",
    "a mark at the last token": f"""{_COUNTED} {_LAST}
        size = Shape(mask) zeros = ConstantOfShape(size) row2 = Unsqueeze(row, second) found2 = Unsqueeze(found, second)
        points = Concat<axis = 1>(row2, found2) single = Cast<to = 1>(one) ones = Expand(single, shape)
        marked = ScatterND(zeros, points, ones) until = CumSum(marked, one) wide = Unsqueeze(until, last)
        kept = Mul(logits, wide) y = ReduceSum<keepdims = 0>(kept, second)""",
    "rows cut by the length of the mask": f"""{_COUNTED}
        size = Concat<axis = 0>(many, width, four) again = Reshape(tokens, size) ahead = Unsqueeze(column, last)
        wide = Unsqueeze(mask, last) real = Cast<to = 1>(wide) kept = Mul(again, real) whole = MatMul(kept, w)
        y = ReduceMax<keepdims = 0>(whole, second)""",
}
"""Bodies of graphs of which every row is independent."""

_ALIKE = (
    ("Add", "Sub", "Mul", "Max", "Min"),
    ("ReduceSum", "ReduceMax", "ReduceMean", "ReduceMin"),
    ("Softmax", "LogSoftmax", "Hardmax"),
    ("Squeeze", "Unsqueeze"),
    ("GatherND", "Gather", "GatherElements"),
    ("Expand", "Reshape", "Tile"),
    ("ArgMax", "ArgMin"),
)
"""Operators that stand for each other."""


def graph(name: str) -> Any:
    """One of `GRAPHS`, as `onnx.ModelProto`."""
    return onnx.parser.parse_model(f"{_HEAD} <{_CONSTANTS}> {{ {GRAPHS[name]} }}")


def case(name: str, model: Any) -> Case:
    """A model with rows for an experiment: ids and masks of five tokens."""
    ids = np.arange(20, dtype=np.int64).reshape(4, 5) % 10
    return Case(name, model, {"ids": ids, "mask": (ids > 2).astype(np.int64)})


def mutated(random: Random) -> Case:
    """One of the graphs with one to three changes. It need not run."""
    name = random.choice(sorted(GRAPHS))
    model = graph(name)
    for _ in range(random.randrange(1, 4)):
        random.choice(_CHANGES)(random, model.graph)
    return case(name, model)


def _another_number(random: Random, made: Any) -> None:
    """A whole number of a constant."""
    whole = [tensor for tensor in made.initializer if tensor.data_type == onnx.TensorProto.INT64]
    tensor = random.choice(whole)
    array = numpy_helper.to_array(tensor).copy()
    place = random.randrange(array.size)
    array.reshape(-1)[place] = random.choice(
        [-2, -1, 0, 1, 2, 3, 4, 5, array.reshape(-1)[place] + random.choice([-1, 1])]
    )
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _another_attribute(random: Random, made: Any) -> None:
    """An axis, an order of axes, or whether they are kept."""
    found = [(node, attribute) for node in made.node for attribute in node.attribute if attribute.name != "to"]
    if not found:
        return
    _, attribute = random.choice(found)
    if attribute.ints:
        order = list(attribute.ints)
        random.shuffle(order)
        attribute.ints[:] = order
    elif attribute.name == "keepdims":
        attribute.i = 1 - attribute.i
    else:
        attribute.i = random.choice([-2, -1, 0, 1, 2])


def _another_input(random: Random, made: Any) -> None:
    """Any value that is there before a node, or two inputs of it exchanged."""
    at = random.randrange(len(made.node))
    node = made.node[at]
    if len(node.input) > 1 and random.random() < 0.3:
        node.input[0], node.input[1] = node.input[1], node.input[0]
        return
    known = ["ids", "mask", *(name for earlier in made.node[:at] for name in earlier.output)]
    node.input[random.randrange(len(node.input))] = random.choice(known)


def _another_operator(random: Random, made: Any) -> None:
    """One of the same kind."""
    nodes = [(node, kinds) for node in made.node for kinds in _ALIKE if node.op_type in kinds]
    node, kinds = random.choice(nodes)
    node.op_type = random.choice(kinds)


def _left_out(random: Random, made: Any) -> None:
    """A node that passes its first input on."""
    node = random.choice([node for node in made.node if node.op_type != "Range"])
    node.op_type = "Identity"
    del node.input[1:]
    del node.attribute[:]


_CHANGES: tuple[Callable[[Random, Any], None], ...] = (
    _another_number,
    _another_attribute,
    _another_input,
    _another_operator,
    _left_out,
)
