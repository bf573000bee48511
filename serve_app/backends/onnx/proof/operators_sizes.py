"""Arithmetic of sizes: what graphs compute from shapes to say shapes, in symbols."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from serve_app.backends.onnx.proof.dimensions import ONE, Dim, product
from serve_app.backends.onnx.proof.operation import Operation
from serve_app.backends.onnx.proof.values import Value, sizes

_Elements = Sequence[Dim | None]


def shape_of(op: Operation, value: Value) -> Value | None:
    """What Shape and Size make of a tensor, None where its rank is unknown."""
    if value.shape is None:
        return None
    if op.kind == "Size":
        return sizes([product(value.shape)], scalar=True)
    start, end = op.integer("start", 0), op.integer("end", len(value.shape))
    return sizes(value.shape[start:end])


def computed(op: Operation) -> Value | None:
    """Whole numbers from whole numbers, element by element; None where that is more than these rules know."""
    rule = _RULES.get(op.kind)
    if rule is None or op.domain:
        return None
    parts = [None if value is None else op.sizes.elements_of(value) for value in op.inputs]
    return rule(op, parts)


def _is_scalar(value: Value | None) -> bool:
    return value is not None and value.shape == ()


def _same(op: Operation, parts: Sequence[_Elements | None]) -> Value | None:
    return None if parts[0] is None else sizes(parts[0], scalar=_is_scalar(op.inputs[0]))


def _rounded(op: Operation, parts: Sequence[_Elements | None]) -> Value | None:
    """Sizes are whole; a number that a symbol of unknown sign stands for may have a fraction, and is another then."""
    if parts[0] is None:
        return None
    whole = [dim if dim is None or dim.is_size or dim.literal is not None else _free(op, dim) for dim in parts[0]]
    return sizes(whole, scalar=_is_scalar(op.inputs[0]))


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
        return sizes(results, scalar=all(map(_is_scalar, op.inputs)))

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


def _gather(op: Operation, parts: Sequence[_Elements | None]) -> Value | None:
    data, places = parts[0], op.inputs[1]
    if data is None or places is None or places.array is None or places.array.ndim > 1 or _is_scalar(op.inputs[0]):
        return None
    return sizes([data[int(place)] for place in places.array.reshape(-1)], scalar=places.array.ndim == 0)


def _slice(op: Operation, parts: Sequence[_Elements | None]) -> Value | None:
    data = parts[0]
    if data is None or _is_scalar(op.inputs[0]):
        return None
    if op.version < 10:
        bounds = [*(op.integers("starts") or ()), *(op.integers("ends") or ())]
    else:
        numbers = [op.numbers(place) for place in (1, 2, 4)]
        if any(number is not None and len(number) != 1 for number in numbers):
            return None
        bounds = [number[0] for number in numbers if number is not None]
    start, end, step = [*bounds, 1][:3]
    return sizes(data[start : None if step < 0 and end < -len(data) else end : step])


def _concat(op: Operation, parts: Sequence[_Elements | None]) -> Value | None:
    if any(part is None or _is_scalar(value) for part, value in zip(parts, op.inputs, strict=True)):
        return None
    return sizes([element for part in parts if part is not None for element in part])


def _to_vector(op: Operation, parts: Sequence[_Elements | None]) -> Value | None:
    if parts[0] is None or not _is_scalar(op.inputs[0]):
        return None
    axes = op.integers("axes") if "axes" in op.attributes else op.numbers(1)
    return sizes(parts[0]) if axes in ([0], [-1]) else None


def _to_scalar(_: Operation, parts: Sequence[_Elements | None]) -> Value | None:
    return sizes(parts[0], scalar=True) if parts[0] is not None and len(parts[0]) == 1 else None


def _reshape(op: Operation, parts: Sequence[_Elements | None]) -> Value | None:
    shape = op.input(1)
    if parts[0] is None or shape is None or shape.array is None or shape.array.size > 1:
        return None
    if shape.array.size == 0:
        return _to_scalar(op, parts)
    return sizes(parts[0])


def _product(op: Operation, parts: Sequence[_Elements | None]) -> Value | None:
    if parts[0] is None or any(part is None for part in parts[0]):
        return None
    if "axes" not in op.attributes and op.input(1) is None and op.integer("noop_with_empty_axes", 0):
        return None
    keep = bool(op.integer("keepdims", 1)) and not _is_scalar(op.inputs[0])
    return sizes([product(part for part in parts[0] if part is not None)], scalar=not keep)


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
    return sizes(results, scalar=all(map(_is_scalar, op.inputs)))


_RULES: dict[str, Callable[[Operation, Sequence[_Elements | None]], Value | None]] = {
    "Identity": _same,
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
    "Gather": _gather,
    "Slice": _slice,
    "Concat": _concat,
    "Unsqueeze": _to_vector,
    "Squeeze": _to_scalar,
    "Reshape": _reshape,
    "ReduceProd": _product,
}
