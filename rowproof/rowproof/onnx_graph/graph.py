"""The walk over a graph: each node's outputs from its inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from rowproof.onnx_graph.constant_shapes import shaped
from rowproof.onnx_graph.constants import folded
from rowproof.onnx_graph.control import Scope, controlled
from rowproof.onnx_graph.dimensions import Dim
from rowproof.onnx_graph.operation import Obstacle, Operation, Sizes
from rowproof.onnx_graph.operators import RANDOM, is_function, is_known, rule_of
from rowproof.onnx_graph.operators_elementwise import is_inference
from rowproof.onnx_graph.operators_row_index import indexed, shape_of_elements
from rowproof.onnx_graph.operators_sizes import computed, shape_of
from rowproof.onnx_graph.spans import span_of
from rowproof.onnx_graph.values import SMALL, Kind, Value, constant, constant_array, mixed, worst

Inferred = Mapping[str, tuple[int | None, ...]]


class Walk:
    """What is known of the values of one model's graph and of the graphs inside it."""

    def __init__(self, sizes: Sizes, opsets: Mapping[str, int]) -> None:
        self.sizes = sizes
        self._opsets = opsets
        self.obstacle: Value | None = None
        """The first that was met. ONNX Runtime may also run what no output needs, and that may fail by the batch."""

    def outputs(self, graph: Any, scope: Scope) -> list[Value]:
        """Values of a graph's outputs.

        Args:
            graph: An `onnx.GraphProto` whose shapes have been inferred.
            scope: Its inputs, and what it sees of the graph around it.
        """
        scope = dict(scope)
        hidden = next((name for name in _made(graph) if name in scope), None)
        if hidden is not None:
            # ONNX forbids it, ONNX Runtime takes it, and which of both a node means is for nobody to guess.
            why = mixed(f"'{hidden}' is the name of two values, one in a graph inside the other's")
            self.obstacle = self.obstacle or why
            return [why] * len(graph.output)
        for tensor in graph.initializer:
            scope[tensor.name] = _initial(tensor)
        for tensor in graph.sparse_initializer:
            scope[tensor.values.name] = constant(tuple(map(Dim, tensor.dims)))
        inferred = _inferred(graph)
        for node in graph.node:
            self._visit(node, scope, inferred)
        missing = mixed("an output is made by no node")
        return [scope.get(output.name, missing) for output in graph.output]

    def _visit(self, node: Any, scope: Scope, inferred: Inferred) -> None:
        inputs = [
            scope.get(name, mixed(f"'{name}' is made by no node before it is used")) if name else None
            for name in node.input
        ]
        domain = "" if node.domain == "ai.onnx" else node.domain
        op = Operation(node, self._opsets.get(domain, 1), inputs, self.sizes, inferred)
        try:
            results = self._results(op, node, scope)
        except Obstacle as obstacle:
            results = self._spoiled(op, mixed(f"{label(op)} {obstacle}", dependent=obstacle.dependent))
        except Exception as error:  # a strange graph is one that nothing is proven of
            results = self._spoiled(op, mixed(f"{label(op)} cannot be followed ({type(error).__name__}: {error})"))
        if results and (first := results[0]) is not None and first.kind in {Kind.CONST, Kind.ROWS}:
            span = _attempt(span_of, op)
            results = [replace(first, span=span) if span is not None else first, *results[1:]]
        for place, name in enumerate(op.outputs):
            value = results[place] if place < len(results) else None
            if name:
                scope[name] = (
                    mixed(f"{label(op)} counts over the whole batch", dependent=True) if value is None else value
                )

    def _spoiled(self, op: Operation, why: Value) -> list[Value]:
        self.obstacle = self.obstacle or why
        return [why] * len(op.outputs)

    def _results(self, op: Operation, node: Any, scope: Scope) -> Sequence[Value | None]:
        count = len(op.outputs)
        if draws(node) or (op.kind == "Dropout" and not is_inference(op)):
            return [mixed(f"{label(op)} draws random numbers", dependent=True, random=True)] * count
        if op.domain == "" and op.kind in {"If", "Loop", "Scan"}:
            return controlled(self, op, scope)
        spoiled = worst(value for value in op.inputs if value is not None)
        if spoiled is not None:
            if op.domain == "" and op.kind in {"Shape", "Size"} and (shape := shape_of(op, spoiled)) is not None:
                return [shape]
            return [replace(spoiled, shape=_attempt(shape_of_elements, op))] * count
        kinds = {value.kind for value in op.inputs if value is not None}
        # Graphs inside a node see what is around it, whatever its inputs are.
        inner = bool(_graphs(node))
        if not inner and kinds & {Kind.ROW_INDEX, Kind.INDEX_TUPLES} and op.kind not in {"Shape", "Size"}:
            picked = indexed(op)
            if picked is not None:
                return [picked]
        simple = None if inner else self._without_rows(op, kinds)
        if simple is not None:
            return simple
        rule = rule_of(op.domain, op.kind) if is_known(op.domain, op.kind, op.version) else None
        if rule is None or inner:
            name = f"{op.domain}.{op.kind}" if op.domain else op.kind
            return self._spoiled(op, mixed(f"operator {name} is not known to treat rows one by one"))
        found = rule(op)
        return [found] if isinstance(found, Value) else list(found)

    def _without_rows(self, op: Operation, kinds: set[Kind]) -> list[Value] | None:
        """What does not depend on what the inputs hold: constants, shapes and what is computed from them."""
        own = op.domain == ""
        if own and op.kind in {"Shape", "Size"}:
            value = op.inputs[0]
            found = None if value is None else shape_of(op, value)
            if found is None and value is not None and value.kind is Kind.CONST:
                return [op.constant(0)]
            return None if found is None else [found]
        if own and op.kind == "Constant":
            return [_literal(op)]
        if kinds & {Kind.ROWS, Kind.ROW_INDEX, Kind.INDEX_TUPLES} or not is_function(op.domain, op.kind):
            return None
        if kinds <= {Kind.CONST}:
            known = _attempt(folded, op)
            if known is not None:
                return [known]
        if len(op.outputs) == 1:
            found = _attempt(computed, op)
            if found is not None:
                return [found]
        if Kind.SIZES in kinds:
            return None
        inferred = [op.constant(output) for output in range(len(op.outputs))]
        if inferred[0].shape is None or any(dim.literal is None for dim in inferred[0].shape):
            return [_attempt(shaped, op) or inferred[0], *inferred[1:]]
        return inferred


_Found = TypeVar("_Found")


def _attempt(rule: Callable[[Operation], _Found | None], op: Operation) -> _Found | None:
    try:
        found = rule(op)
    except Exception:  # it stays a constant of which less is known
        return None
    return found


def label(op: Operation) -> str:
    """How messages name a node: the operator, and its name or that of what it makes."""
    return f"{op.kind} '{op.name or next(filter(None, op.outputs), '')}'"


def draws(node: Any) -> bool:
    """Whether a node, or one in a graph inside it, draws random numbers."""
    if node.domain in {"", "ai.onnx"} and node.op_type in RANDOM:
        return True
    return any(draws(inner) for graph in _graphs(node) for inner in graph.node)


def _graphs(node: Any) -> list[Any]:
    graphs = []
    for attribute in node.attribute:
        if attribute.HasField("g"):
            graphs.append(attribute.g)
        graphs.extend(attribute.graphs)
    return graphs


def _made(graph: Any) -> Iterator[str]:
    """Names of the values that a graph makes itself."""
    for tensor in graph.initializer:
        yield tensor.name
    for tensor in graph.sparse_initializer:
        yield tensor.values.name
    for node in graph.node:
        yield from filter(None, node.output)


def _inferred(graph: Any) -> Inferred:
    """The shapes that inference found, by name; None for a size that is no number."""
    shapes: dict[str, tuple[int | None, ...]] = {}
    for info in (*graph.value_info, *graph.output):
        kind = info.type.tensor_type
        if info.type.HasField("tensor_type") and kind.HasField("shape"):
            shapes[info.name] = tuple(
                dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None for dim in kind.shape.dim
            )
    return shapes


def _initial(tensor: Any) -> Value:
    shape = tuple(Dim(int(size)) for size in tensor.dims)
    count = 1
    for size in tensor.dims:
        count *= int(size)
    if count <= SMALL and tensor.data_location == 0:
        from onnx import numpy_helper  # noqa: PLC0415  (as in skeleton.py)

        try:
            return constant_array(numpy_helper.to_array(tensor))
        except Exception:  # its shape is enough
            return constant(shape)
    return constant(shape)


def _literal(op: Operation) -> Value:
    attributes = op.attributes
    if "value" in attributes:
        return _initial(attributes["value"].t)
    if "value_int" in attributes:
        return constant_array(np.array(op.integer("value_int", 0), np.int64))
    if "value_ints" in attributes:
        return constant_array(np.array(op.integers("value_ints"), np.int64))
    if "value_float" in attributes:
        return constant_array(np.array(attributes["value_float"].f, np.float32))
    if "value_floats" in attributes:
        return constant_array(np.array(attributes["value_floats"].floats, np.float32))
    return op.constant(0)
