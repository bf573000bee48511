"""Ranges of whole numbers: what shows that a place computed from two numbers is within its row."""

from __future__ import annotations

from collections.abc import Callable

from rowproof.onnx_graph.dimensions import ONE, Dim
from rowproof.onnx_graph.operation import Operation
from rowproof.onnx_graph.values import Kind, Span, Value

_KEEPS = frozenset(
    {"Identity", "Unsqueeze", "Squeeze", "Reshape", "Flatten", "Transpose", "Expand", "Slice", "Tile", "Cast"}
)
"""Operators whose elements are some of those of their first input."""


def span_of(op: Operation) -> Span | None:
    """The range of what an operator makes, where that is known."""
    rule = _RULES.get(op.kind) if op.domain == "" else None
    return None if rule is None else rule(op)


def span_of_value(value: Value | None) -> Span | None:
    """The range of a value's elements, where that is known."""
    if value is None or value.kind not in {Kind.CONST, Kind.ROWS}:
        return None
    if value.span is not None:
        return value.span
    array = value.array
    if array is None or array.size == 0 or array.dtype.kind not in "iu" or array.min() < 0:
        return None
    return Span(ONE, Dim(int(array.max()) + 1))


def sum_of(one: Span | None, other: Span | None) -> Span | None:
    """The range of sums, where the numbers of one are less than the step of the other."""
    for wide, narrow in ((one, other), (other, one)):
        if wide is not None and narrow is not None and fits(narrow.below, wide.step):
            return Span(narrow.step, wide.below)
    return None


def fits(below: Dim, limit: Dim) -> bool:
    """Whether numbers less than one size are less than another one: it is that, or a part of it."""
    if below.literal is not None and limit.literal is not None:
        return below.literal <= limit.literal
    return below in {limit, ONE}


def _kept(op: Operation) -> Span | None:
    if op.kind == "Cast" and op.integer("to", 0) not in {6, 7}:
        return None
    return span_of_value(op.inputs[0])


def _counted(op: Operation) -> Span | None:
    limit = op.counted()
    return None if limit is None or limit.has_batch else Span(ONE, limit)


def _found(op: Operation) -> Span | None:
    value = op.operand(0)
    return Span(ONE, value.dims[op.axis(0, value.rank)])


def _product(op: Operation) -> Span | None:
    for one, other in (op.inputs, reversed(op.inputs)):
        span = span_of_value(one)
        numbers = None if other is None or other.kind is not Kind.CONST else op.sizes.elements_of(other)
        if span is not None and numbers and len(numbers) == 1 and numbers[0] is not None and numbers[0].is_size:
            return Span(span.step.times(numbers[0]), span.below.times(numbers[0]))
    return None


def _sum(op: Operation) -> Span | None:
    return sum_of(*map(span_of_value, op.inputs))


_RULES: dict[str, Callable[[Operation], Span | None]] = {
    **dict.fromkeys(_KEEPS, _kept),
    "Range": _counted,
    "ArgMax": _found,
    "ArgMin": _found,
    "Mul": _product,
    "Add": _sum,
}
