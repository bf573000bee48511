"""Operators that move axes about: Reshape and its kin, and those that make tensors of given sizes."""

from __future__ import annotations

from collections.abc import Sequence

from rowproof.onnx_graph.dimensions import ONE, Dim, product
from rowproof.onnx_graph.operation import Mixes, Operation, Table, Unknown
from rowproof.onnx_graph.values import Kind, Value, constant, is_uniform

FULL = 2**31 - 1
"""The end of a slice that ends where the axis does, as exporters write it."""


def regroup(op: Operation, rows: Value, target: Sequence[Dim | None]) -> Value:
    """Rows read in the order of memory as another shape.

    The elements before the rows' axis must be as many as those before an axis of the target that holds whole rows: then
    each row's elements are a block of that axis.

    Args:
        op: The node.
        rows: What is read.
        target: Sizes; None where one is unknown and free of the number of rows.
    """
    before = product(rows.dims[: rows.axis])
    seen = ONE
    for axis, dim in enumerate(target):
        if dim is None:
            break
        block = op.sizes.block_of(dim) if seen == before else None
        if block is not None:
            return op.result(Value(Kind.ROWS, rows.shape, block=block), target, axis)
        seen = seen.times(dim)
    if all(dim is not None and _literal_but_rows(dim) for dim in (*target, *rows.dims)):
        raise Mixes("does not keep rows together")
    raise Unknown("reshapes to sizes that cannot be followed")


def _reshape(op: Operation) -> Value:
    rows = op.rows()
    wanted = op.elements(1) or []
    copies = not op.integer("allowzero", 0)
    target: list[Dim | None] = []
    for place, dim in enumerate(wanted):
        if dim is None:
            raise Unknown("computes its shape from the number of rows")
        target.append(rows.dims[place] if dim == Dim(0) and copies and place < rows.rank else dim)
    if Dim(-1) in target:
        rest = product(dim for dim in target if dim is not None and dim != Dim(-1))
        size = product(rows.dims).over(rest)
        unknown = target.index(Dim(-1))
        if size is None and not rest.has_batch and all(map(_literal_but_rows, (rest, product(rows.dims)))):
            raise Mixes("does not keep rows together")
        target[unknown] = size
    return regroup(op, rows, [dim if dim is None or dim.is_size else None for dim in target])


def _literal_but_rows(dim: Dim) -> bool:
    return sum(power for _, power in dim.powers) == int(dim.has_batch)


def _flatten(op: Operation) -> Value:
    rows = op.rows()
    axis = op.integer("axis", 1)
    axis = axis + rows.rank if axis < 0 else axis
    return regroup(op, rows, [product(rows.dims[:axis]), product(rows.dims[axis:])])


def _transpose(op: Operation) -> Value:
    rows = op.rows()
    order = op.integers("perm")
    return permuted(op, rows, list(reversed(range(rows.rank))) if order is None else order)


def permuted(op: Operation, value: Value, order: Sequence[int]) -> Value:
    """The axes in another order."""
    if sorted(order) != list(range(value.rank)):
        raise Unknown("has an order of axes that is none")
    dims = [value.dims[axis] for axis in order]
    if value.kind is not Kind.ROWS:
        return constant(tuple(dims))
    return op.sizes.rows(dims, list(order).index(value.axis), value.block)


def _squeeze(op: Operation) -> Value:
    rows = op.rows()
    axes = op.axes(1, rows.rank)
    if axes is None:
        if any(dim.literal is None for dim in rows.dims):
            raise Unknown("removes whichever axes have size 1, the rows' too where there is one row")
        axes = [axis for axis, dim in enumerate(rows.dims) if dim == ONE]
    if rows.axis in axes:
        raise Unknown("removes the rows' axis, which works for one row only")
    kept = [axis for axis in range(rows.rank) if axis not in axes]
    return op.sizes.rows([rows.dims[axis] for axis in kept], kept.index(rows.axis), rows.block)


def _unsqueeze(op: Operation) -> Value:
    rows = op.rows()
    axes = op.integers("axes") if "axes" in op.attributes else op.numbers(1)
    if axes is None:
        raise Unknown("lacks axes")
    return inserted(op, rows, axes, ONE)


def inserted(op: Operation, rows: Value, axes: Sequence[int], size: Dim | None) -> Value:
    """Rows with new axes of a size, at these places of the result."""
    rank = rows.rank + len(axes)
    new = {op.axis_of(axis, rank) for axis in axes}
    if len(new) != len(axes):
        raise Unknown("adds an axis twice")
    old = iter(range(rows.rank))
    order = [None if place in new else next(old) for place in range(rank)]
    return op.result(rows, [size if axis is None else rows.dims[axis] for axis in order], order.index(rows.axis))


def _expand(op: Operation) -> Value:
    value = op.operand(0)
    wanted = op.elements(1) or []
    rank = max(value.rank, len(wanted))
    target = [ONE] * (rank - len(wanted)) + wanted
    if None in target:
        raise Unknown("computes its shape from the number of rows")
    place = next((rank - axis for axis, dim in enumerate(target) if dim is not None and dim.has_batch), None)
    rows = value if value.kind is Kind.ROWS else None
    if rows is not None:
        if place is not None and place != rows.place:
            raise Mixes("meets the rows of one axis with those of another")
        if target[-rows.place] not in {ONE, rows.at(rows.place)}:
            raise Unknown("stretches the rows' axis")
    dims: list[Dim | None] = []
    for axis, dim in enumerate(target):
        old = value.at(rank - axis)
        assert dim is not None
        dims.append(old if dim == ONE else dim if (old == ONE and dim.is_size) or old == dim else None)
    if rows is not None:
        return op.result(rows, dims, rank - rows.place)
    if place is None:
        raise Unknown("has rows, but not in what is expanded")
    block = op.sizes.block_of(target[-place] or ONE)
    if block is None or value.at(place) != ONE:
        raise Unknown("stretches a constant along the rows")
    return op.result(Value(Kind.ROWS, block=block), dims, rank - place)


def _constant_of_shape(op: Operation) -> Value:
    return filled(op, op.elements(0) or [])


def filled(op: Operation, target: Sequence[Dim | None]) -> Value:
    """The same number everywhere in a shape, one of whose sizes is that of the batch."""
    axes = [axis for axis, dim in enumerate(target) if dim is None or dim.has_batch]
    if not axes:
        return constant(tuple(dim for dim in target if dim is not None))
    dim = target[axes[0]]
    block = None if dim is None else op.sizes.block_of(dim)
    if len(axes) != 1 or block is None:
        raise Unknown("computes its shape from the number of rows")
    return op.result(Value(Kind.ROWS, block=block), target, axes[0])


def _tile(op: Operation) -> Value:
    value = op.operand(0)
    repeats = op.elements(1) or []
    if len(repeats) != value.rank:
        raise Unknown("repeats in a way that is not known")
    dims: list[Dim | None] = [
        None if times is None or not times.is_size else old.times(times)
        for old, times in zip(value.dims, repeats, strict=True)
    ]
    counting = [axis for axis, times in enumerate(repeats) if times is None or times.has_batch]
    if value.kind is Kind.ROWS:
        if repeats[value.axis] != ONE:
            raise Mixes("repeats the batch as a whole")
        if counting:
            raise Mixes("repeats as often as there are rows")
        return op.result(value, dims, value.axis)
    times = repeats[counting[0]] if len(counting) == 1 else None
    block = None if times is None else op.sizes.block_of(times)
    if block is None:
        raise Unknown("computes how often it repeats from the number of rows")
    return op.result(Value(Kind.ROWS, block=block.times(value.dims[counting[0]])), dims, counting[0])


def _concat(op: Operation) -> Value:
    values = op.operands()
    first = next(value for value in values if value.kind is Kind.ROWS)
    axis = op.axis(0, first.rank)
    if axis == first.axis:
        raise Mixes("runs along the rows")
    total: Dim | None = Dim(0)
    for value in values:
        if value.kind is Kind.CONST:
            fits = value.rank == first.rank and value.dims[first.axis] == first.dims[first.axis]
            if not fits or not is_uniform(value, first.axis):
                raise Mixes("has a constant of its own for each place in the batch")
        elif (value.rank, value.axis, value.block) != (first.rank, first.axis, first.block):
            raise Unknown("joins rows of different axes or sizes")
        size = value.dims[axis].literal
        total = None if total is None or size is None else Dim(total.coefficient + size)
    dims: list[Dim | None] = list(first.dims)
    dims[axis] = total if len(values) > 1 else first.dims[axis]
    return op.result(first, dims, first.axis)


def _split(op: Operation) -> list[Value]:
    rows = op.rows()
    axis = op.axis(0, rows.rank)
    if axis == rows.axis:
        raise Mixes("runs along the rows")
    parts = op.integers("split")
    wanted: list[Dim | None] | None = [Dim(part) for part in parts] if parts is not None else op.elements(1)
    if wanted is not None and any(size is None or size.has_batch for size in wanted):
        raise Mixes("cuts at the number of rows")
    count = len(op.outputs)
    if wanted is None:
        whole = rows.dims[axis].over(Dim(count))
        wanted = [whole] * count
    results = []
    for output in range(count):
        dims: list[Dim | None] = list(rows.dims)
        size = wanted[output] if output < len(wanted) else None
        dims[axis] = size if size is not None and size.is_size else None
        results.append(op.result(rows, dims, rows.axis, output))
    return results


LAYOUT: Table = {
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Transpose": _transpose,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Expand": _expand,
    "ConstantOfShape": _constant_of_shape,
    "Tile": _tile,
    "Concat": _concat,
    "Split": _split,
}
