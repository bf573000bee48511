"""Row indices: exporters number the rows, and pick from each row by its own number.

Advanced indexing in PyTorch, ``mask[arange(rows)[:, None], columns]``, is written with the number of each row. Row i
picked by the number i is row i itself: the result depends on no place. Two forms are known: coordinates, of which one
is the row's number (``GatherND``), and places in the order of memory, ``i * width + column`` (``Gather`` from a tensor
whose first axes were made one). In the latter the column must be known to be within the row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rowproof.onnx_graph.dimensions import ONE, Dim, Shape
from rowproof.onnx_graph.operation import BY_PLACE, PICKS_BY_PLACE, Mixes, Operation, Rule
from rowproof.onnx_graph.operators_elementwise import ELEMENTWISE, alone, broadcast, together
from rowproof.onnx_graph.operators_indexing import INDEXING
from rowproof.onnx_graph.operators_layout import LAYOUT
from rowproof.onnx_graph.spans import fits, span_of_value, sum_of
from rowproof.onnx_graph.values import Kind, Span, Value, constant, mixed

_INDEXED = (Kind.ROW_INDEX, Kind.INDEX_TUPLES)

_MOVING: dict[str, Rule] = {
    **{kind: LAYOUT[kind] for kind in ("Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Expand")},
    **{kind: ELEMENTWISE[kind] for kind in ("Identity", "Cast")},
    "Slice": INDEXING["Slice"],
}
"""Operators that move elements, and leave those of a row among the row's."""


def indexed(op: Operation) -> Value | None:
    """What an operator makes of places; ``None`` where it uses them as any numbers.

    Raises:
        Obstacle: Rows are told by their places.
    """
    if op.domain:
        return None
    rule = _RULES.get(op.kind)
    found = None if rule is None else rule(op)
    return _shape_only(op) if found is None else found


def _shape_only(op: Operation) -> Value | None:
    """Numbers that depend on places, of which nothing but the shape may be used."""
    shape = shape_of_elements(op)
    if shape is None:
        return None
    return mixed(f"{op.kind} '{op.name or op.outputs[0]}' {BY_PLACE}", dependent=True, shape=shape)


def shape_of_elements(op: Operation) -> Shape | None:
    """The shape of what an operator makes of single elements, whatever they are; None of other operators."""
    if ELEMENTWISE.get(op.kind) not in {alone, together}:
        return None
    values = [value for value in op.inputs if value is not None]
    if any(value.shape is None for value in values):
        return None
    for place in range(1, max(value.rank for value in values) + 1):
        met = {value.at(place) for value in values} - {ONE}
        if len(met) > 1 and any(dim.has_batch for dim in met):
            raise Mixes("meets the rows of one axis with another axis")  # and fails, but for some numbers of rows
    return broadcast(op, [constant(value.shape) for value in values]).shape


def _as_rows(value: Value) -> Value:
    """The same elements, taken for numbers of each row."""
    if value.kind not in _INDEXED:
        return value
    return Value(Kind.ROWS, value.shape, axis=value.axis, block=value.block)


def _moved(op: Operation) -> Value | None:
    first, *others = op.inputs
    if first is None or first.kind is not Kind.ROW_INDEX or any(each and each.kind in _INDEXED for each in others):
        return None
    op.inputs[0] = _as_rows(first)
    try:
        moved = _MOVING[op.kind](op)
    finally:
        op.inputs[0] = first
    if not isinstance(moved, Value) or (op.kind == "Cast" and op.integer("to", 0) not in {1, 6, 7, 11}):
        return None
    return replace(first, shape=moved.shape, axis=moved.axis, block=moved.block)


def _tuples(op: Operation) -> Value | None:
    values = [value for value in op.inputs if value is not None]
    own = [number for number, value in enumerate(values) if value.kind is Kind.ROW_INDEX]
    axis = op.axis(0, values[own[0]].rank) if own else -1
    usable = all(value.shape is not None and value.at(1) == ONE for value in values)
    if len(own) != 1 or not usable or any(value.kind is Kind.INDEX_TUPLES for value in values):
        return None
    place = values[own[0]]
    if axis != place.rank - 1 or axis == place.axis or (place.stride, place.block, place.span) != (ONE, ONE, None):
        return None
    joined = broadcast(op, [_as_rows(value) for value in values])
    dims = (*joined.dims[:-1], Dim(len(values)))
    if any(value.dims[:-1] != joined.dims[:-1] for value in values):
        return None
    return Value(Kind.INDEX_TUPLES, dims, axis=place.axis, row_coordinate=own[0])


def _multiplied(op: Operation) -> Value | None:
    place, other = _pair(op)
    numbers = None if other is None else op.sizes.elements_of(other)
    if place is None or other is None or numbers is None or len(numbers) != 1 or other.kind is not Kind.CONST:
        return None
    (times,) = numbers
    if times is None or not times.is_size or times.has_batch:
        return None
    shape = broadcast(op, [_as_rows(place), other])
    span = place.span and Span(place.span.step.times(times), place.span.below.times(times))
    return replace(place, shape=shape.shape, axis=shape.axis, stride=place.stride.times(times), span=span)


def _added(op: Operation) -> Value | None:
    place, other = _pair(op)
    if place is None or other is None or other.kind not in {Kind.CONST, Kind.ROWS}:
        return None
    span = sum_of(place.span, span_of_value(other)) if place.span else span_of_value(other)
    if span is None or not fits(span.below, place.stride):
        return None
    both = broadcast(op, [_as_rows(place), other])
    return replace(place, shape=both.shape, axis=both.axis, span=span)


def _pair(op: Operation) -> tuple[Value | None, Value | None]:
    """The places among two inputs, and the other one."""
    one, other = op.inputs
    if one is None or other is None or (one.kind is Kind.ROW_INDEX) == (other.kind is Kind.ROW_INDEX):
        return None, None
    return (one, other) if one.kind is Kind.ROW_INDEX else (other, one)


def _gathered(op: Operation) -> Value | None:
    data, places = op.inputs
    if data is None or places is None or places.kind is not Kind.ROW_INDEX or data.kind is not Kind.ROWS:
        return None
    axis = op.axis(0, data.rank)
    within = places.stride == data.block and (places.span is None or fits(places.span.below, places.stride))
    if axis != data.axis or not within:
        raise Mixes(PICKS_BY_PLACE)
    dims = [*data.dims[:axis], *places.dims, *data.dims[axis + 1 :]]
    return op.sizes.rows(dims, axis + places.axis, places.block)


def _gathered_at_tuples(op: Operation) -> Value | None:
    data, points = op.inputs
    if data is None or points is None or points.kind is not Kind.INDEX_TUPLES or data.kind is not Kind.ROWS:
        return None
    depth = points.dims[-1].literal or 0
    if op.integer("batch_dims", 0) or data.axis != points.row_coordinate or data.block != ONE or depth > data.rank:
        raise Mixes(PICKS_BY_PLACE)
    return op.sizes.rows([*points.dims[:-1], *data.dims[depth:]], points.axis, ONE)


def _scattered_to_tuples(op: Operation) -> Value | None:
    data, points, updates = op.inputs
    if data is None or points is None or points.kind is not Kind.INDEX_TUPLES or data.kind is not Kind.ROWS:
        return None
    depth = points.dims[-1].literal or 0
    if data.axis != points.row_coordinate or data.block != ONE or depth > data.rank or updates is None:
        return None
    if updates.kind is Kind.ROWS:
        op.like(data, 2, points.axis)
    else:  # the same for each row
        op.constants(2)
        broadcast(op, [Value(Kind.ROWS, (*points.dims[:-1], *data.dims[depth:]), axis=points.axis), updates])
    return op.same(data)


_RULES: dict[str, Callable[[Operation], Value | None]] = {
    **dict.fromkeys(_MOVING, _moved),
    "Concat": _tuples,
    "Mul": _multiplied,
    "Add": _added,
    "Gather": _gathered,
    "GatherND": _gathered_at_tuples,
    "ScatterND": _scattered_to_tuples,
}
