"""The steps by which random graphs grow. A step that finds nothing to work on adds nothing."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from onnx import TensorProto

from conformance.random_graphs import (
    LARGEST_AXIS,
    MILD,
    NUMPY_TYPES,
    ONNX_TYPES,
    Dim,
    Graph,
    Kind,
    Shape,
    Step,
    Value,
    negate,
)

_WEIGHTS = np.array([1, -2, 3, 0, 2, -1, 1, 4], np.float32)


def _weights(*shape: int) -> Any:
    return np.resize(_WEIGHTS, shape)


def _axis(graph: Graph, value: Value) -> int:
    return graph.pick(range(value.rank))


def _is_float(value: Value) -> bool:
    return value.kind == "float"


def _has_axes(value: Value) -> bool:
    return value.rank > 0


def _is_mild(value: Value) -> bool:
    return _is_float(value) and _has_axes(value) and value.exact and value.bound <= MILD


def _is_ranked(value: Value) -> bool:
    return _has_axes(value) and value.exact


def _ends_known(value: Value) -> bool:
    return _is_float(value) and value.rank > 1 and isinstance(value.shape[-1], int) and value.shape[-1] > 0


def _sum(sizes: Shape) -> int:
    """How many values add up, at most."""
    return prod(size if isinstance(size, int) else LARGEST_AXIS for size in sizes)


def _without(shape: Shape, axis: int, *, keep: bool) -> Shape:
    return (*shape[:axis], *((1,) if keep else ()), *shape[axis + 1 :])


def _together(one: Shape, other: Shape) -> Shape | None:
    """The shape of two that are broadcast; ``None`` where that is not sure."""
    long, short = (one, other) if len(one) >= len(other) else (other, one)
    padded = (1,) * (len(long) - len(short)) + short
    if any(a != b and 1 not in (a, b) for a, b in zip(long, padded, strict=True)):
        return None
    return tuple(b if a == 1 else a for a, b in zip(long, padded, strict=True))


def _bound(operator: str, one: float, other: float) -> float:
    return one * other if operator == "Mul" else one + other if operator in {"Add", "Sub"} else max(one, other)


# --- each element alone -----------------------------------------------------------------------------------------------


def unary(graph: Graph) -> None:
    """One operator on every element."""
    if value := graph.any(_is_float):
        operator = graph.pick(("Abs", "Relu", "Tanh", "Sigmoid", "Identity"))
        flat = operator in {"Tanh", "Sigmoid"}
        name = graph.node(operator, [value.name])[0]
        graph.add(name, value, bound=1.0 if flat else value.bound, exact=value.exact and not flat)


def with_constant(graph: Graph) -> None:
    """With a constant: one number, or one for each of the last axis."""
    if value := graph.any():
        operator = graph.pick(("Add", "Mul", "Sub", "Max", "Min"))
        last = value.shape[-1] if value.shape else 1
        length = last if isinstance(last, int) and graph.pick((False, True)) else 1
        number = graph.constant(_weights(length), NUMPY_TYPES[value.kind])
        name = graph.node(operator, [value.name, number])[0]
        shape = value.shape or (1,)
        graph.add(name, value, shape=shape, bound=_bound(operator, value.bound, 4.0))


def two(graph: Graph) -> None:
    """Two values that fit, or that are broadcast."""
    one = graph.any()
    if one is None:
        return
    other = graph.any(lambda value: value.kind == one.kind and _together(one.shape, value.shape) is not None)
    if other is not None:
        operator = graph.pick(("Add", "Sub", "Mul", "Max"))
        exact, bound = one.exact and other.exact, _bound(operator, one.bound, other.bound)
        shape = _together(one.shape, other.shape)
        graph.add(graph.node(operator, [one.name, other.name])[0], one, shape=shape, bound=bound, exact=exact)


def threshold(graph: Graph) -> None:
    """One of two values, as a number says."""
    if value := graph.any(_is_ranked):
        limit = graph.constant(graph.pick((0, 50)), NUMPY_TYPES[value.kind])
        above = graph.node("Greater", [value.name, limit])[0]
        other = graph.node("Neg", [value.name])[0] if graph.pick((True, False)) else limit
        graph.add(graph.node("Where", [above, value.name, other])[0], value, bound=max(value.bound, 50.0))


def cast(graph: Graph) -> None:
    """Whole numbers as FP32 and back."""
    if value := graph.any(lambda value: value.exact):
        kind: Kind = "int" if value.kind == "float" else "float"
        graph.add(graph.node("Cast", [value.name], to=ONNX_TYPES[kind])[0], value, kind=kind)


# --- along the last axis ----------------------------------------------------------------------------------------------


def matmul(graph: Graph) -> None:
    """With weights."""
    if value := graph.any(_ends_known):
        last, width = int(value.shape[-1]), graph.pick((2, 3))
        name = graph.node("MatMul", [value.name, graph.constant(_weights(last, width), np.float32)])[0]
        graph.add(name, value, shape=(*value.shape[:-1], width), bound=4 * last * value.bound)


def gemm(graph: Graph) -> None:
    """With weights and a bias."""
    if value := graph.any(lambda value: _ends_known(value) and value.rank == 2):
        last = int(value.shape[-1])
        given = [value.name, graph.constant(_weights(3, last), np.float32), graph.constant(_weights(3), np.float32)]
        name = graph.node("Gemm", given, transB=1)[0]
        graph.add(name, value, shape=(value.shape[0], 3), bound=4 * last * value.bound + 4)


def layer_normalization(graph: Graph) -> None:
    """Over the last axis."""
    if value := graph.any(lambda value: _is_mild(value) and _ends_known(value)):
        last = int(value.shape[-1])
        given = [value.name, graph.constant(np.ones(last), np.float32), graph.constant(np.zeros(last), np.float32)]
        name = graph.node("LayerNormalization", given, axis=-1, epsilon=0.01)[0]
        graph.add(name, value, bound=10.0, exact=False)


def convolution(graph: Graph) -> None:
    """In one dimension."""

    def fits(value: Value) -> bool:
        return _is_float(value) and value.rank == 3 and isinstance(value.shape[1], int) and value.shape[1] > 0

    if value := graph.any(fits):
        channels, size = int(value.shape[1]), graph.pick((1, 3))
        weights = graph.constant(_weights(2, channels, size), np.float32)
        pads = [size // 2, size // 2]
        name = graph.node("Conv", [value.name, weights], kernel_shape=[size], pads=pads)[0]
        shape = (value.shape[0], 2, value.shape[2])
        graph.add(name, value, shape=shape, bound=4 * channels * size * value.bound)


# --- along any axis ---------------------------------------------------------------------------------------------------


def reduction(graph: Graph) -> None:
    """Over one axis, or over all of them."""
    if value := graph.any(_has_axes):
        operator = graph.pick(("ReduceSum", "ReduceMax", "ReduceMin", "ReduceMean"))
        if operator == "ReduceMean" and value.kind == "int":
            operator = "ReduceSum"
        axis, keep = _axis(graph, value), graph.pick((True, False))
        axes = [*range(value.rank)] if graph.pick((False, False, False, True)) else [axis]
        shape: Shape = value.shape
        for one in reversed(axes):
            shape = _without(shape, one, keep=keep)
        if operator == "ReduceSum":
            name = graph.node(operator, [value.name, graph.constant(axes)], keepdims=int(keep))[0]
        else:
            name = graph.node(operator, [value.name], axes=axes, keepdims=int(keep))[0]
        more = _sum(tuple(value.shape[one] for one in axes)) if operator == "ReduceSum" else 1
        exact = value.exact and operator != "ReduceMean"
        graph.add(name, value, shape=shape, bound=value.bound * more, exact=exact)


def softmax(graph: Graph) -> None:
    """Over any axis."""
    if value := graph.any(_is_mild):
        operator = graph.pick(("Softmax", "LogSoftmax"))
        name = graph.node(operator, [value.name], axis=_axis(graph, value))[0]
        graph.add(name, value, bound=1.0 if operator == "Softmax" else 4 * MILD, exact=False)


def cumulative_sum(graph: Graph) -> None:
    """Along any axis, from either end."""
    if value := graph.any(_has_axes):
        axis = _axis(graph, value)
        flags = {"exclusive": graph.pick((0, 1)), "reverse": graph.pick((0, 1))}
        name = graph.node("CumSum", [value.name, graph.constant(axis)], **flags)[0]
        graph.add(name, value, bound=value.bound * _sum((value.shape[axis],)))


def arg_max(graph: Graph) -> None:
    """Where the largest is."""
    if value := graph.any(_is_ranked):
        axis, keep = _axis(graph, value), graph.pick((True, False))
        name = graph.node("ArgMax", [value.name], axis=axis, keepdims=int(keep))[0]
        shape = _without(value.shape, axis, keep=keep)
        graph.add(name, value, kind="int", shape=shape, bound=float(LARGEST_AXIS**2))


def top(graph: Graph) -> None:
    """The largest of an axis."""
    if value := graph.any(_is_ranked):
        axis = _axis(graph, value)
        name = graph.node("TopK", [value.name, graph.constant([1])], 2, axis=axis)[0]
        graph.add(name, value, shape=_without(value.shape, axis, keep=True))


# --- where things are -------------------------------------------------------------------------------------------------


def transpose(graph: Graph) -> None:
    """Axes in another order."""
    if value := graph.any(lambda value: value.rank > 1):
        left, order = [*range(value.rank)], []
        while left:
            order.append(graph.pick(left[::-1]))
            left.remove(order[-1])
        name = graph.node("Transpose", [value.name], perm=order)[0]
        graph.add(name, value, shape=tuple(value.shape[axis] for axis in order))


def reshape(graph: Graph) -> None:
    """Elements in another shape."""
    if value := graph.any(_has_axes):
        wanted = graph.pick(([0, -1], [-1], [-1, 2], [1, -1]))
        sizes: dict[int, Dim] = {0: value.shape[0], -1: graph.unknown()}
        trailing = value.shape[1:]
        if wanted == [0, -1] and all(isinstance(size, int) for size in trailing):
            sizes[-1] = prod(int(size) for size in trailing)
        name = graph.node("Reshape", [value.name, graph.constant(wanted)])[0]
        graph.add(name, value, shape=tuple(sizes.get(size, size) for size in wanted))


def unsqueeze(graph: Graph) -> None:
    """One more axis."""
    if value := graph.any(lambda value: value.rank < 4):
        axis = graph.pick(range(value.rank, -1, -1))
        name = graph.node("Unsqueeze", [value.name, graph.constant([axis])])[0]
        graph.add(name, value, shape=(*value.shape[:axis], 1, *value.shape[axis:]))


def concat(graph: Graph) -> None:
    """Two values of one shape, along any axis."""
    one = graph.any(_has_axes)
    if one is None:
        return
    other = graph.any(lambda value: value.kind == one.kind and value.shape == one.shape)
    if other is not None:
        axis = _axis(graph, one)
        size = one.shape[axis]
        wide: Dim = 2 * size if isinstance(size, int) else graph.unknown()
        shape = (*one.shape[:axis], wide, *one.shape[axis + 1 :])
        exact, bound = one.exact and other.exact, max(one.bound, other.bound)
        graph.add(
            graph.node("Concat", [one.name, other.name], axis=axis)[0], one, shape=shape, bound=bound, exact=exact
        )


def gather(graph: Graph) -> None:
    """The first or the last of an axis, or both."""
    if value := graph.any(_has_axes):
        axis, chosen = _axis(graph, value), graph.pick((0, -1, [0, -1]))
        name = graph.node("Gather", [value.name, graph.constant(chosen)], axis=axis)[0]
        middle = () if isinstance(chosen, int) else (2,)
        graph.add(name, value, shape=(*value.shape[:axis], *middle, *value.shape[axis + 1 :]))


def cut(graph: Graph) -> None:
    """A part of an axis, or all of it backwards."""
    if value := graph.any(_has_axes):
        axis = _axis(graph, value)
        start, end, step = graph.pick(((-1, -1000, -1), (0, 1, 1), (1, 1000, 1), (0, -1, 1)))
        given = [value.name, *(graph.constant([number]) for number in (start, end, axis, step))]
        size, name = value.shape[axis], graph.node("Slice", given)[0]
        if end == 1:
            size = 1
        elif step == 1:
            size = max(size - 1, 0) if isinstance(size, int) else graph.unknown()
        graph.add(name, value, shape=(*value.shape[:axis], size, *value.shape[axis + 1 :]))


def pad(graph: Graph) -> None:
    """One more at the end of an axis."""
    if value := graph.any(lambda value: _has_axes(value) and _is_float(value)):
        axis = _axis(graph, value)
        ends = [0] * 2 * value.rank
        ends[value.rank + axis] = 1
        name = graph.node("Pad", [value.name, graph.constant(ends)])[0]
        graph.add(name, value, shape=(*value.shape[:axis], graph.unknown(), *value.shape[axis + 1 :]))


# --- all rows decide --------------------------------------------------------------------------------------------------


def batch_decides(graph: Graph) -> None:
    """The largest value of all, or of all rows, decides what becomes of every row."""
    if value := graph.any(_is_ranked):
        axes = [0] if graph.pick((True, False)) else [*range(value.rank)]
        largest = graph.node("ReduceMax", [value.name], axes=axes, keepdims=1)[0]
        above = graph.node("Greater", [largest, graph.constant(50, NUMPY_TYPES[value.kind])])[0]
        other = graph.node("Neg", [value.name])[0]
        graph.add(graph.node("Where", [above, other, value.name])[0], value)


def quantization(graph: Graph) -> None:
    """To eight bits and back, by the smallest and the largest of all."""
    if value := graph.any(_is_mild):
        parts = graph.node("DynamicQuantizeLinear", [value.name], 3)
        graph.add(graph.node("DequantizeLinear", parts)[0], value, exact=False)


def row_products(graph: Graph) -> None:
    """Every row with every row."""
    if value := graph.any(lambda value: _is_float(value) and value.rank == 2):
        turned = graph.node("Transpose", [value.name], perm=[1, 0])[0]
        if graph.pick((True, False)):
            name, size, by = graph.node("MatMul", [value.name, turned])[0], value.shape[0], value.shape[1]
        else:
            name, size, by = graph.node("MatMul", [turned, value.name])[0], value.shape[1], value.shape[0]
        graph.add(name, value, shape=(size, size), bound=value.bound**2 * _sum((by,)))


# --- sizes ------------------------------------------------------------------------------------------------------------


def size_as_number(graph: Graph) -> None:
    """Times, or plus, the size of an axis."""
    if value := graph.any(_has_axes):
        size = graph.node("Shape", [value.name])[0]
        one = graph.node("Gather", [size, graph.constant(_axis(graph, value))])[0]
        number = graph.node("Cast", [one], to=ONNX_TYPES[value.kind])[0]
        operator = graph.pick(("Mul", "Add"))
        name = graph.node(operator, [value.name, number])[0]
        graph.add(name, value, bound=_bound(operator, value.bound, 2.0 * LARGEST_AXIS))


def row_numbers(graph: Graph) -> None:
    """Plus the number of the row."""
    if value := graph.any(_has_axes):
        size = graph.node("Shape", [value.name], end=1)[0]
        rows = graph.node("Squeeze", [size])[0]
        numbers = graph.node("Range", [graph.constant(0), rows, graph.constant(1)])[0]
        same = graph.node("Cast", [numbers], to=ONNX_TYPES[value.kind])[0]
        if value.rank > 1:
            same = graph.node("Unsqueeze", [same, graph.constant([*range(1, value.rank)])])[0]
        graph.add(graph.node("Add", [value.name, same])[0], value, bound=value.bound + 2 * LARGEST_AXIS)


def constants_of_shape(graph: Graph) -> None:
    """As many ones as there are elements."""
    if value := graph.any(_has_axes):
        size = graph.node("Shape", [value.name])[0]
        zeros = graph.node("ConstantOfShape", [size])[0]  # FP32
        ones = graph.node("Add", [zeros, graph.constant(1, np.float32)])[0]
        graph.add(ones, value, kind="float", bound=1.0, exact=True)


def ones_for_small(graph: Graph) -> None:
    """Where something is not small: 1, else 0."""
    if value := graph.any(_is_ranked):
        small = graph.node("Less", [value.name, graph.constant(3, NUMPY_TYPES[value.kind])])[0]
        turned = graph.node("Not", [small])[0]
        graph.add(graph.node("Cast", [turned], to=TensorProto.FLOAT)[0], value, kind="float", bound=1.0)


ROW_WISE: tuple[Step, ...] = (
    unary,
    with_constant,
    threshold,
    cast,
    negate,
    ones_for_small,
    two,
    matmul,
    gemm,
    layer_normalization,
    convolution,
)
"""Of inputs whose first axis is rows these compute each row alone, in whatever order they come."""

STEPS: tuple[Step, ...] = (
    *ROW_WISE,
    reduction,
    softmax,
    cumulative_sum,
    arg_max,
    top,
    transpose,
    reshape,
    unsqueeze,
    concat,
    gather,
    cut,
    pad,
    batch_decides,
    quantization,
    row_products,
    size_as_number,
    row_numbers,
    constants_of_shape,
)
