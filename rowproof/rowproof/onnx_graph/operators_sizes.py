"""Arithmetic of sizes: what graphs compute from shapes to say shapes, in symbols."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rowproof.onnx_graph.constants import FOLDS
from rowproof.onnx_graph.dimensions import ONE, Dim, product
from rowproof.onnx_graph.operation import Operation
from rowproof.onnx_graph.values import Value, sizes

_Elements = Sequence[Dim | None]


def shape_of(op: Operation, value: Value) -> Value | None:
    """What Shape and Size make of a tensor, None where its rank is unknown."""
    if value.shape is None:
        return None
    if op.kind == "Size":
        return sizes([product(value.shape)], ())
    start, end = op.integer("start", 0), op.integer("end", len(value.shape))
    return sizes(value.shape[start:end])


def computed(op: Operation) -> Value | None:
    """Whole numbers from whole numbers, element by element; None where that is more than these rules know."""
    if op.domain:
        return None
    if op.kind in _MOVING:
        return _moved(op)
    rule = _RULES.get(op.kind)
    if rule is None:
        return None
    parts = [None if value is None else op.sizes.elements_of(value) for value in op.inputs]
    return rule(op, parts)


def _is_scalar(value: Value | None) -> bool:
    return value is not None and value.shape == ()


def _moved(op: Operation) -> Value | None:
    """Numbers in other places: the operator is applied to their positions."""
    value, *others = op.inputs
    elements = None if value is None else value.elements
    if value is None or elements is None or any(other is not None and other.array is None for other in others):
        return None
    places = np.arange(len(elements)).reshape([dim.coefficient for dim in value.dims])
    found = FOLDS[op.kind](op, places, *[other.array for other in others if other is not None])
    return None if found is None else sizes([elements[place] for place in found.reshape(-1)], found.shape)


def _rounded(op: Operation, parts: Sequence[_Elements | None]) -> Value | None:
    """Sizes are whole; a number that a symbol of unknown sign stands for may have a fraction, and is another then."""
    if parts[0] is None:
        return None
    whole = [dim if dim is None or dim.is_size or dim.literal is not None else _free(op, dim) for dim in parts[0]]
    return sizes(whole, () if _is_scalar(op.inputs[0]) else None)


def _cast(op: Operation, parts: Sequence[_Elements | None]) -> Value | None:
    # Floats of 32 bits hold whole numbers up to 16 million. A size beyond is a shape that fits nothing: an error.
    return _rounded(op, parts) if op.integer("to", 0) in {1, 6, 7, 11} else None


def _pairwise(function: Callable[[Operation, Dim, Dim], Dim | None]) -> Callable[..., Value | None]:
    def rule(op: Operation, parts: Sequence[_Elements | None]) -> Value | None:
        if len(parts) != 2 or parts[0] is None or parts[1] is None:
            return None
        one, other = list(parts[0]), list(parts[1])
        count = max(len(one), len(other))
        if min(len(one), len(other)) not in {1, count}:
            return None
        results = [
            None if left is None or right is None else function(op, left, right)
            for left, right in zip(
                one * (count if len(one) == 1 else 1), other * (count if len(other) == 1 else 1), strict=True
            )
        ]
        return sizes(results, () if all(map(_is_scalar, op.inputs)) else None)

    return rule


def _free(op: Operation, *dims: Dim) -> Dim | None:
    return None if any(dim.has_batch for dim in dims) else op.sizes.number()


def _times(_: Operation, one: Dim, other: Dim) -> Dim | None:
    return one.times(other)


def _over(op: Operation, one: Dim, other: Dim) -> Dim | None:
    quotient = one.over(other)
    return _free(op, one, other) if quotient is None else quotient


def _plus(op: Operation, one: Dim, other: Dim) -> Dim | None:
    if Dim(0) in {one, other}:
        return other if one == Dim(0) else one
    return _free(op, one, other)


def _minus(op: Operation, one: Dim, other: Dim) -> Dim | None:
    if one == other:
        return Dim(0)
    return one if other == Dim(0) else _free(op, one, other)


def _concat(op: Operation, parts: Sequence[_Elements | None]) -> Value | None:
    if any(part is None or _is_scalar(value) for part, value in zip(parts, op.inputs, strict=True)):
        return None
    return sizes([element for part in parts if part is not None for element in part])


def _product(op: Operation, parts: Sequence[_Elements | None]) -> Value | None:
    if parts[0] is None or any(part is None for part in parts[0]):
        return None
    if "axes" not in op.attributes and op.input(1) is None and op.integer("noop_with_empty_axes", 0):
        return None
    keep = bool(op.integer("keepdims", 1)) and not _is_scalar(op.inputs[0])
    return sizes([product(part for part in parts[0] if part is not None)], None if keep else ())


def _equal(op: Operation, one: Dim, other: Dim) -> Dim | None:
    if one == other:
        return ONE
    # A size is never -1, which is what exporters compare it with.
    for size, number in ((one, other), (other, one)):
        if number.literal is not None and number.literal < 0 and size.is_size:
            return Dim(0)
    if one.literal is not None and other.literal is not None:
        return Dim(0)
    return _free(op, one, other)


def _where(op: Operation, parts: Sequence[_Elements | None]) -> Value | None:
    if any(part is None for part in parts):
        return None
    lists = [list(part) for part in parts if part is not None]
    count = max(map(len, lists))
    if any(len(part) not in {1, count} for part in lists):
        return None
    results: list[Dim | None] = []
    for which, one, other in zip(*(part * (count if len(part) == 1 else 1) for part in lists), strict=True):
        if which is not None and which.literal is not None:
            results.append(one if which.literal else other)
        elif one == other:
            results.append(one)
        elif which is None or one is None or other is None:
            results.append(None)
        else:
            results.append(_free(op, which, one, other))
    return sizes(results, () if all(map(_is_scalar, op.inputs)) else None)


_RULES: dict[str, Callable[[Operation, Sequence[_Elements | None]], Value | None]] = {
    "Floor": _rounded,
    "Ceil": _rounded,
    "Round": _rounded,
    "Cast": _cast,
    "Mul": _pairwise(_times),
    "Div": _pairwise(_over),
    "Add": _pairwise(_plus),
    "Sub": _pairwise(_minus),
    "Equal": _pairwise(_equal),
    "Where": _where,
    "Concat": _concat,
    "ReduceProd": _product,
}

_MOVING = frozenset({"Gather", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})
