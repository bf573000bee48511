"""Random ONNX graphs over rows: chains of operators with random parameters, right and wrong for rows alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]

ROWS = 4
"""Rows while a graph is made: as many as other axes are long, so that axes can be taken for each other."""


class Graph:
    """A graph that grows node by node, with what each value is for `ROWS` rows."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.values: dict[str, Array] = {}
        seeded = np.random.default_rng(random.randrange(2**32))
        for name, shape in (("a", (ROWS, 4, 2)), ("b", (ROWS, 4))):
            self.values[name] = seeded.standard_normal(shape).astype(np.float32)
        self.inputs = dict(self.values)

    def constant(self, array: Array) -> str:
        """A constant's name."""
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def add(self, kind: str, inputs: Sequence[str], outputs: int = 1, **attributes: Any) -> list[str]:
        """A node, if it runs. Names of its outputs, or none."""
        names = [f"v{len(self.nodes)}_{place}" for place in range(outputs)]
        try:
            node = helper.make_node(kind, inputs, names, **attributes)
        except ValueError:  # of a value without axes
            return []
        self.nodes.append(node)
        try:
            session = _session(self.model(names))
            found = session.run(None, self.inputs)
        except Exception:  # a random node need not be right
            self.nodes.pop()
            return []
        self.values.update(zip(names, found, strict=True))
        return names

    def numbers(self, *values: int) -> str:
        """A constant of whole numbers."""
        return self.constant(np.array(values, np.int64))

    def pick(self, kinds: str = "f") -> str:
        """A value of some kind of data, the newest more often."""
        names = [name for name, value in self.values.items() if value.dtype.kind in kinds]
        return names[-1] if self.random.random() < 0.7 else self.random.choice(names)

    def axis(self, name: str) -> int:
        """Any axis of a value, from either end."""
        rank = self.values[name].ndim
        return self.random.randrange(-rank, rank) if rank else 0

    def model(self, outputs: Sequence[str]) -> Any:
        """The model as far as it goes."""
        inputs = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", *value.shape[1:]])
            for name, value in self.inputs.items()
        ]
        made = [helper.make_empty_tensor_value_info(name) for name in outputs]
        for info, name in zip(made, outputs, strict=True):
            if name in self.values:
                element = helper.np_dtype_to_tensor_dtype(self.values[name].dtype)
                info.CopyFrom(helper.make_tensor_value_info(name, element, None))
        graph = helper.make_graph(self.nodes, "g", inputs, made, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def _session(model: Any) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])


def random_graph(random: Random, length: int) -> Any:
    """A model of at most so many random steps, whose last value is its output."""
    graph = Graph(random)
    for _ in range(length):
        random.choice(_STEPS)(graph)
    last = next(reversed(graph.values))
    if last in graph.inputs:
        last = graph.add("Identity", [last])[0]
    return graph.model([last])


def _unary(graph: Graph) -> None:
    graph.add(graph.random.choice(["Relu", "Neg", "Abs", "Tanh", "Floor"]), [graph.pick()])


def _binary(graph: Graph) -> None:
    graph.add(graph.random.choice(["Add", "Mul", "Max", "Sub"]), [graph.pick(), graph.pick()])


def _with_constant(graph: Graph) -> None:
    name = graph.pick()
    shape = [size if graph.random.random() < 0.4 else 1 for size in graph.values[name].shape]
    shape = shape[graph.random.randrange(len(shape) + 1) :]
    if graph.random.random() < 0.2:
        shape = [graph.random.choice([1, 2, 4]), *shape]
    array = np.arange(1, 1 + int(np.prod(shape)), dtype=np.float32).reshape(shape)
    graph.add(graph.random.choice(["Add", "Mul", "Sub"]), [name, graph.constant(array)])


def _transpose(graph: Graph) -> None:
    name = graph.pick("fib")
    order = list(range(graph.values[name].ndim))
    graph.random.shuffle(order)
    graph.add("Transpose", [name], perm=order)


def _factors(graph: Graph, size: int) -> list[int]:
    target: list[int] = []
    while size > 1 and len(target) < 3:
        factor = graph.random.choice([f for f in (1, 2, 4, 8, size) if size % f == 0])
        target.append(factor)
        size //= factor
    return [*target, size] if size > 1 or not target else target


def _reshape(graph: Graph) -> None:
    name = graph.pick("fi")
    target = _factors(graph, graph.values[name].size)
    if graph.random.random() < 0.8:
        target[graph.random.choice([0, 0, graph.random.randrange(len(target))])] = -1
    if graph.random.random() < 0.5 and -1 not in target[:1]:
        target[0] = 0
    graph.add("Reshape", [name, graph.numbers(*target)])


def _reshape_by_shape(graph: Graph) -> None:
    name, other = graph.pick(), graph.pick()
    shape = graph.add("Shape", [other])[0]
    rank = max(graph.values[other].ndim, 1)
    taken = graph.add("Gather", [shape, graph.numbers(graph.random.randrange(rank))])
    if not taken:
        return
    part = taken[0]
    if graph.random.random() < 0.4:
        part = graph.add("Mul", [part, graph.numbers(graph.random.choice([1, 2, 4]))])[0]
    elif graph.random.random() < 0.3:
        part = (graph.add("Div", [part, graph.numbers(graph.random.choice([1, 2, 4]))]) or [part])[0]
    pieces = [part, graph.numbers(-1)]
    if graph.random.random() < 0.5:
        pieces.insert(graph.random.randrange(3), graph.numbers(graph.random.choice([1, 2, 4])))
    if graph.random.random() < 0.3:
        graph.random.shuffle(pieces)
    target = graph.add("Concat", pieces, axis=0)
    if target:
        graph.add(graph.random.choice(["Reshape", "Reshape", "Expand"]), [name, target[0]])


def _expand_like(graph: Graph) -> None:
    shape = graph.add("Shape", [graph.pick()])[0]
    if graph.random.random() < 0.5:
        graph.add("Expand", [graph.pick(), shape])
    elif graph.random.random() < 0.5:
        graph.add("ConstantOfShape", [shape])
    else:
        array = np.ones([graph.random.choice([1, 1, 4]) for _ in range(2)], np.float32)
        graph.add("Expand", [graph.constant(array), shape])


def _reduce(graph: Graph) -> None:
    name = graph.pick()
    kind = graph.random.choice(["ReduceMax", "ReduceSum", "ReduceMean", "ReduceL2"])
    keep = graph.random.randrange(2)
    inputs = [name] if graph.random.random() < 0.1 else [name, graph.numbers(graph.axis(name))]
    graph.add(kind, inputs, keepdims=keep)


def _along(graph: Graph) -> None:
    name = graph.pick()
    kind = graph.random.choice(["Softmax", "LogSoftmax", "ArgMax", "LpNormalization", "Hardmax"])
    graph.add(kind, [name], axis=graph.axis(name))


def _cumulate(graph: Graph) -> None:
    name = graph.pick()
    graph.add("CumSum", [name, graph.constant(np.array(graph.axis(name), np.int64))])


def _gather(graph: Graph) -> None:
    name = graph.pick()
    if graph.random.random() < 0.3:
        table = graph.constant(np.arange(40, dtype=np.float32).reshape(8, 5))
        indices = [value for value, array in graph.values.items() if array.dtype.kind == "i"]
        if indices:
            graph.add("Gather", [table, graph.random.choice(indices)])
        return
    places = graph.random.choice([np.array(0), np.array([0, 1]), np.array([[1, 0], [0, 0]])])
    graph.add("Gather", [name, graph.constant(places.astype(np.int64))], axis=graph.axis(name))


def _slice(graph: Graph) -> None:
    name = graph.pick("fi")
    start, end = graph.random.choice([(0, 2**31 - 1), (0, -1), (1, 4), (0, 2), (0, 4), (-1, -5)])
    step = -1 if start == -1 else graph.random.choice([1, 1, 2])
    graph.add("Slice", [name, *(graph.numbers(number) for number in (start, end, graph.axis(name), step))])


def _concat(graph: Graph) -> None:
    name = graph.pick()
    graph.add("Concat", [name, graph.pick()] if graph.random.random() < 0.5 else [name, name], axis=graph.axis(name))


def _split(graph: Graph) -> None:
    name = graph.pick()
    graph.add("Split", [name], 2, axis=graph.axis(name), num_outputs=2)


def _squeeze(graph: Graph) -> None:
    name = graph.pick()
    if graph.random.random() < 0.5:
        graph.add("Unsqueeze", [name, graph.numbers(graph.axis(name))])
    elif graph.random.random() < 0.2:
        graph.add("Squeeze", [name])
    else:
        graph.add("Squeeze", [name, graph.numbers(graph.axis(name))])


def _matrices(graph: Graph) -> None:
    name = graph.pick()
    shape = graph.values[name].shape
    if graph.random.random() < 0.4:
        graph.add("MatMul", [name, graph.pick()])
        return
    inner = shape[-1] if shape else 1
    weights = np.arange(inner * 3, dtype=np.float32).reshape(inner, 3)
    if graph.random.random() < 0.3:
        weights = np.stack([weights] * graph.random.choice([1, 2, 4]))
    if graph.random.random() < 0.2:
        left = np.ones((3, shape[-2] if len(shape) > 1 else 1), np.float32)
        graph.add("MatMul", [graph.constant(left), name])
        return
    graph.add("MatMul", [name, graph.constant(weights)])


def _gemm(graph: Graph) -> None:
    name = graph.pick()
    turned = graph.random.randrange(2)
    shape = graph.values[name].shape
    if len(shape) == 2:
        inner = shape[0 if turned else 1]
        inputs = [name, graph.constant(np.ones((inner, 4), np.float32))]
        if graph.random.random() < 0.5:
            bias = graph.random.choice([(4,), (1, 4), (4, 1), (4, 4)])
            inputs.append(graph.constant(np.arange(np.prod(bias), dtype=np.float32).reshape(bias)))
        graph.add("Gemm", inputs, transA=turned)


def _einsum(graph: Graph) -> None:
    name, other = graph.pick(), graph.pick()
    letters = ["".join(graph.random.sample("ijk", min(graph.values[one].ndim, 3))) for one in (name, other)]
    result = [letter for letter in sorted({*letters[0], *letters[1]}) if graph.random.random() < 0.7]
    graph.random.shuffle(result)
    graph.add("Einsum", [name, other], equation=f"{letters[0]},{letters[1]}->{''.join(result)}")


def _tile(graph: Graph) -> None:
    name = graph.pick()
    repeats = [graph.random.choice([1, 1, 2]) for _ in graph.values[name].shape]
    graph.add("Tile", [name, graph.numbers(*repeats)])


def _flatten(graph: Graph) -> None:
    name = graph.pick()
    graph.add("Flatten", [name], axis=graph.axis(name))


def _select(graph: Graph) -> None:
    chosen = graph.add("Greater", [graph.pick(), graph.pick()])
    if chosen:
        graph.add("Where", [chosen[0], graph.pick(), graph.pick()])


def _top_k(graph: Graph) -> None:
    name = graph.pick()
    found = graph.add("TopK", [name, graph.numbers(1)], 2, axis=graph.axis(name))
    if found and graph.random.random() < 0.6:
        graph.add("GatherElements", [graph.pick(), found[1]], axis=graph.axis(name))


def _scatter(graph: Graph) -> None:
    name = graph.pick()
    indices = [value for value, array in graph.values.items() if array.dtype.kind == "i" and array.ndim]
    if indices:
        index = graph.random.choice(indices)
        updates = graph.add("Cast", [index], to=TensorProto.FLOAT)
        if updates:
            graph.add("ScatterElements", [name, index, updates[0]], axis=graph.axis(name))


def _count(graph: Graph) -> None:
    name = graph.pick()
    shape = graph.add("Shape", [name])[0]
    index = graph.constant(np.array(graph.random.randrange(max(graph.values[name].ndim, 1)), np.int64))
    size = graph.add("Gather", [shape, index])
    if not size:
        return
    if graph.random.random() < 0.5:
        counted = graph.add(
            "Range", [graph.constant(np.array(0, np.int64)), size[0], graph.constant(np.array(1, np.int64))]
        )
    else:
        counted = size
    number = graph.add("Cast", [counted[0]], to=TensorProto.FLOAT)
    graph.add(graph.random.choice(["Add", "Div"]), [name, number[0]])


def _normalize(graph: Graph) -> None:
    name = graph.pick()
    axis = graph.axis(name)
    shape = graph.values[name].shape[axis:]
    graph.add("LayerNormalization", [name, graph.constant(np.ones(shape, np.float32))], axis=axis)


def _pad(graph: Graph) -> None:
    name = graph.pick()
    rank = graph.values[name].ndim
    pads = [graph.random.choice([0, 0, 0, 1]) for _ in range(2 * rank)]
    graph.add("Pad", [name, graph.numbers(*pads)], mode=graph.random.choice(["constant", "edge"]))


def _branch(graph: Graph) -> None:
    name = graph.pick()
    top = graph.add("ReduceMax", [name], keepdims=0)
    condition = graph.add("Greater", [top[0], graph.constant(np.array(0.5, np.float32))]) if top else []
    if condition:
        branches = {
            branch: helper.make_graph(
                [helper.make_node(kind, [name], [f"{kind}_{len(graph.nodes)}"])],
                kind,
                [],
                [helper.make_empty_tensor_value_info(f"{kind}_{len(graph.nodes)}")],
            )
            for branch, kind in (("then_branch", "Neg"), ("else_branch", "Abs"))
        }
        graph.add("If", condition, **branches)


def _triangle(graph: Graph) -> None:
    graph.add("Trilu", [graph.pick()])


def _one_hot(graph: Graph) -> None:
    name = graph.pick("fi")
    values = graph.constant(np.array([0, 1], np.float32))
    graph.add("OneHot", [name, graph.numbers(3), values], axis=graph.axis(name))


_STEPS: list[Callable[[Graph], None]] = [
    _unary,
    _binary,
    _binary,
    _with_constant,
    _with_constant,
    _transpose,
    _transpose,
    _reshape,
    _reshape,
    _reshape_by_shape,
    _reshape_by_shape,
    _expand_like,
    _reduce,
    _reduce,
    _along,
    _cumulate,
    _gather,
    _gather,
    _slice,
    _concat,
    _split,
    _squeeze,
    _squeeze,
    _matrices,
    _matrices,
    _gemm,
    _einsum,
    _tile,
    _flatten,
    _select,
    _top_k,
    _scatter,
    _count,
    _normalize,
    _pad,
    _branch,
    _triangle,
    _one_hot,
]
