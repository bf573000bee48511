"""Operators that pick, place and cut by position."""

from __future__ import annotations

from collections.abc import Sequence

from rowproof.onnx_graph.dimensions import ONE, Dim
from rowproof.onnx_graph.operation import BY_PLACE, PICKS_BY_PLACE, Mixes, Operation, Table, Unknown
from rowproof.onnx_graph.operators_layout import FULL, inserted
from rowproof.onnx_graph.values import Kind, Span, Value


def gathered(op: Operation, data: Value, indices: Value, axis: int) -> Value:
    """Slices of ``data`` along an axis, wherever ``indices`` says."""
    dims = [*data.dims[:axis], *indices.dims, *data.dims[axis + 1 :]]
    if data.kind is Kind.CONST:
        return op.sizes.rows(dims, axis + indices.axis, indices.block)
    if indices.kind is Kind.ROWS:
        raise Mixes("picks by rows from rows, all from all")
    if data.axis == axis:
        raise Mixes(PICKS_BY_PLACE)
    return op.sizes.rows(dims, data.axis + (indices.rank - 1 if data.axis > axis else 0), data.block)


def _gather(op: Operation) -> Value:
    data = op.operand(0)
    return gathered(op, data, op.operand(1), op.axis(0, data.rank))


def _gather_elements(op: Operation) -> Value:
    data, indices = op.operand(0), op.operand(1)
    axis = op.axis(0, data.rank)
    if indices.kind is not Kind.ROWS:
        raise Mixes(PICKS_BY_PLACE) if data.axis == axis else Unknown("picks a fixed number of rows")
    if data.kind is Kind.CONST:
        if indices.axis != axis:
            raise Mixes("has a constant of its own for each place in the batch")
    elif (data.axis, data.block) != (indices.axis, indices.block) or data.axis == axis:
        raise Mixes(PICKS_BY_PLACE)
    return op.same(indices)


def _gather_nd(op: Operation) -> Value:
    data, indices = op.operand(0), op.operand(1)
    batch = op.integer("batch_dims", 0)
    depth = indices.dims[-1].literal if indices.rank else None
    if depth is None or not 0 <= batch < indices.rank or batch + depth > data.rank:
        raise Unknown("picks in a way that is not known")
    dims = [*indices.dims[:-1], *data.dims[batch + depth :]]
    if data.kind is Kind.CONST:
        if indices.axis < batch or indices.axis == indices.rank - 1:
            raise Mixes("has a constant of its own for each place in the batch")
        return op.sizes.rows(dims, indices.axis, indices.block)
    if data.axis < batch:
        op.like(data, 1, data.axis)
        return op.sizes.rows(dims, data.axis, data.block)
    if indices.kind is Kind.ROWS or data.axis < batch + depth:
        raise Mixes(PICKS_BY_PLACE)
    return op.sizes.rows(dims, indices.rank - 1 + data.axis - batch - depth, data.block)


def _scatter_elements(op: Operation) -> Value:
    data = op.rows()
    if op.axis(0, data.rank) == data.axis:
        raise Mixes("writes to places in the batch")
    op.like(data, 1, data.axis)
    op.like(data, 2, data.axis)
    return op.same(data)


def _scatter_nd(op: Operation) -> Value:
    data, indices = op.rows(), op.operand(1)
    op.constants(1)
    depth = indices.dims[-1].literal if indices.rank else None
    if depth is None or depth > data.rank:
        raise Unknown("writes in a way that is not known")
    if data.axis < depth:
        raise Unknown("writes to places in the batch")
    op.like(data, 2, indices.rank - 1 + data.axis - depth)
    return op.same(data)


def _slice(op: Operation) -> Value:
    rows = op.rows()
    starts: list[Dim | None]
    ends: list[Dim | None]
    if op.version < 10:
        starts = [Dim(number) for number in op.integers("starts") or ()]
        ends = [Dim(number) for number in op.integers("ends") or ()]
        axes, steps = op.integers("axes"), None
    else:
        starts, ends = op.elements(1) or [], op.elements(2) or []
        axes, steps = op.numbers(3), op.elements(4)
    axes = list(range(len(starts))) if axes is None else [op.axis_of(axis, rows.rank) for axis in axes]
    steps = steps if steps is not None else [ONE] * len(starts)
    dims: list[Dim | None] = list(rows.dims)
    for start, end, step, axis in zip(starts, ends, steps, axes, strict=True):
        if axis == rows.axis:
            _see_whole(rows, start, end, step)
        elif any(bound is None or bound.has_batch for bound in (start, end, step)):
            # Where the number of rows is the end of another axis, it may cut that one.
            raise Mixes("cuts at the number of rows")
        elif (start, step) != (Dim(0), ONE) or end is None or (end.literal or 0) < FULL:
            dims[axis] = op.sizes.cut(rows.dims[axis], start, end, step)
    return op.result(rows, dims, rows.axis)


def _see_whole(rows: Value, start: Dim | None, end: Dim | None, step: Dim | None) -> None:
    if step == ONE and start == Dim(0) and (end == rows.dims[rows.axis] or (end and (end.literal or 0) >= FULL)):
        return
    if any(bound is None or bound.literal is None for bound in (start, end, step)):
        raise Unknown("cuts at a place that may be in the batch")
    raise Mixes(PICKS_BY_PLACE)


def _pad(op: Operation) -> Value:
    rows = op.rows()
    if op.version < 11:
        pads: list[Dim | None] = [Dim(number) for number in op.integers("pads") or ()]
        axes = None
    else:
        pads = op.elements(1) or []
        axes = op.numbers(3)
        op.scalars(2)
    axes = list(range(rows.rank)) if axes is None else [op.axis_of(axis, rows.rank) for axis in axes]
    if len(pads) != 2 * len(axes):
        raise Unknown("pads in a way that is not known")
    dims: list[Dim | None] = list(rows.dims)
    for axis, before, after in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        if axis == rows.axis:
            if (before, after) != (Dim(0), Dim(0)):
                told = all(pad is not None and pad.literal is not None for pad in (before, after))
                raise Mixes("adds to the rows") if told else Unknown("may add to the rows")
        elif any(pad is None or pad.has_batch for pad in (before, after)):
            raise Mixes("pads by the number of rows")
        elif (before, after) != (Dim(0), Dim(0)):
            numbers = [None if pad is None else pad.literal for pad in (before, after, rows.dims[axis])]
            known = [number for number in numbers if number is not None]
            dims[axis] = Dim(sum(known)) if len(known) == 3 else None
    return op.result(rows, dims, rows.axis)


def _one_hot(op: Operation) -> Value:
    rows = op.rows()
    op.constants_from(1)
    depth = op.input(1)
    size = None if depth is None or depth.array is None else Dim(int(depth.array.reshape(-1)[0]))
    return inserted(op, rows, [op.integer("axis", -1)], size)


def _reverse(op: Operation) -> Value:
    rows = op.rows()
    batch, time = op.axis(1, rows.rank, "batch_axis"), op.axis(0, rows.rank, "time_axis")
    if time == rows.axis:
        raise Mixes("runs along the rows")
    if batch == rows.axis:
        op.like(rows, 1, 0)
    else:
        op.constants(1)
    return op.same(rows)


def _resize(op: Operation) -> Value:
    rows = op.rows()
    listed = op.integers("axes")
    axes = list(range(rows.rank)) if listed is None else [op.axis_of(axis, rows.rank) for axis in listed]
    if rows.axis in axes:
        if op.text("keep_aspect_ratio_policy", "stretch") != "stretch":
            raise Unknown("keeps the ratio of the axes")
        place = axes.index(rows.axis)
        shifted = op.text("coordinate_transformation_mode", "half_pixel") in {
            "tf_half_pixel_for_nn",
            "tf_crop_and_resize",
        }
        if shifted or not _keeps(op, place, rows.dims[rows.axis]):
            raise Unknown("may resize along the rows")
    else:
        op.constants_from(1)
    kept = [dim if axis not in axes or axis == rows.axis else None for axis, dim in enumerate(rows.dims)]
    return op.result(rows, kept, rows.axis)


def _keeps(op: Operation, place: int, size: Dim) -> bool:
    """Whether an axis keeps its size, and whether nothing else takes part in the number of rows."""
    scales: Sequence[float] | None = None
    if op.kind == "Upsample" and op.version < 9:
        scales = list(op.attributes["scales"].floats)
    else:
        value = op.input(2 if op.kind == "Resize" and op.version >= 11 else 1)
        op.constants(1, 2)
        if value is not None and value.shape != (Dim(0),):
            scales = None if value.array is None else value.array.tolist()
            if scales is None:
                return False
    if scales is not None:
        return scales[place] == 1
    elements = op.elements(3) or []
    others = [element for axis, element in enumerate(elements) if axis != place]
    return elements[place] == size and not any(element is None or element.has_batch for element in others)


def _depth_and_space(op: Operation) -> Value:
    rows = op.rows(0, 0)
    return op.result(rows, [rows.dims[0], None, None, None], 0)


def _triangle(op: Operation) -> Value:
    rows = op.rows()
    op.constants(1)
    if rows.place <= 2:
        raise Mixes("cuts rows by their places in the batch")
    return op.same(rows)


def _center_crop_pad(op: Operation) -> Value:
    rows = op.rows()
    axes = op.axes(None, rows.rank)
    axes = list(range(rows.rank)) if axes is None else axes
    wanted = op.elements(1) or []
    if rows.axis in axes or any(element is None or element.has_batch for element in wanted):
        raise Unknown("may cut along the rows")
    dims: list[Dim | None] = list(rows.dims)
    for axis, element in zip(axes, wanted, strict=True):
        dims[axis] = element
    return op.result(rows, dims, rows.axis)


def _range(op: Operation) -> Value:
    if any(value is not None and value.kind is Kind.ROWS for value in op.inputs):
        raise Unknown("counts to a number that comes from rows")
    limit = op.counted()
    block = None if limit is None else op.sizes.block_of(limit)
    if limit is None or block is None:
        raise Mixes("counts the rows")
    span = None if block == ONE else Span(ONE, block)
    return Value(Kind.ROW_INDEX, (limit,), axis=0, block=block, stride=block, span=span)


def _eye(op: Operation) -> Value:
    op.rows()
    raise Mixes(BY_PLACE)


INDEXING: Table = {
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "ScatterElements": _scatter_elements,
    "Scatter": _scatter_elements,
    "ScatterND": _scatter_nd,
    "Slice": _slice,
    "Pad": _pad,
    "OneHot": _one_hot,
    "ReverseSequence": _reverse,
    "Resize": _resize,
    "Upsample": _resize,
    "DepthToSpace": _depth_and_space,
    "SpaceToDepth": _depth_and_space,
    "Trilu": _triangle,
    "CenterCropPad": _center_crop_pad,
    "Range": _range,
    "EyeLike": _eye,
}
