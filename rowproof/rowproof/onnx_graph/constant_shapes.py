"""Shapes of constants whose content is not worth knowing, where their operators' own inference sees numbers only."""

from __future__ import annotations

from collections.abc import Callable

from rowproof.onnx_graph.dimensions import ONE, Dim, Shape, product
from rowproof.onnx_graph.operation import Operation, Unknown
from rowproof.onnx_graph.operators_elementwise import ELEMENTWISE, alone, broadcast, together
from rowproof.onnx_graph.operators_layout import permuted
from rowproof.onnx_graph.values import Value, constant


def shaped(op: Operation) -> Value | None:
    """A constant with the shape that a node makes of constants; None where these rules do not know it.

    Raises:
        Obstacle: An input's rank or axes are not known.
    """
    if op.domain:
        return None
    rule = _RULES.get(op.kind)
    if rule is None:
        elementwise = ELEMENTWISE.get(op.kind)
        if elementwise is together:
            return broadcast(op, op.operands())
        return constant(op.operand(0).dims) if elementwise is alone else None
    return constant(tuple(dim if dim.is_size else op.sizes.fresh() for dim in rule(op)))


def _sliced(op: Operation) -> Shape:
    value = op.operand(0)
    if op.version < 10:
        axes = op.integers("axes")
        starts: list[Dim | None] = [Dim(number) for number in op.integers("starts") or ()]
        ends: list[Dim | None] = [Dim(number) for number in op.integers("ends") or ()]
        steps = None
    else:
        axes, starts, ends, steps = op.numbers(3), op.elements(1) or [], op.elements(2) or [], op.elements(4)
    axes = list(range(len(starts))) if axes is None else [op.axis_of(axis, value.rank) for axis in axes]
    dims = list(value.dims)
    for start, end, step, axis in zip(starts, ends, steps or [ONE] * len(starts), axes, strict=True):
        dims[axis] = op.sizes.cut(dims[axis], start, end, step)
    return tuple(dims)


def _unsqueezed(op: Operation) -> Shape:
    value = op.operand(0)
    axes = (op.integers("axes") if "axes" in op.attributes else op.numbers(1)) or []
    rank = value.rank + len(axes)
    new = {op.axis_of(axis, rank) for axis in axes}
    old = iter(value.dims)
    return tuple(ONE if axis in new else next(old) for axis in range(rank))


def _transposed(op: Operation) -> Shape:
    value = op.operand(0)
    order = op.integers("perm")
    return permuted(op, value, list(reversed(range(value.rank))) if order is None else order).dims


def _gathered(op: Operation) -> Shape:
    data, places = op.operand(0), op.operand(1)
    axis = op.axis(0, data.rank)
    return (*data.dims[:axis], *places.dims, *data.dims[axis + 1 :])


def _reshaped(op: Operation) -> Shape:
    value = op.operand(0)
    wanted = [dim if dim is not None else op.sizes.fresh() for dim in op.elements(1) or []]
    if not op.integer("allowzero", 0):
        wanted = [value.dims[axis] if dim == Dim(0) else dim for axis, dim in enumerate(wanted)]
    if Dim(-1) in wanted:
        rest = product(dim for dim in wanted if dim != Dim(-1))
        wanted[wanted.index(Dim(-1))] = product(value.dims).over(rest) or op.sizes.fresh()
    return tuple(wanted)


def _squeezed(op: Operation) -> Shape:
    value = op.operand(0)
    axes = op.axes(1, value.rank)
    if axes is None:
        raise Unknown("removes whichever axes have size 1")
    return tuple(dim for axis, dim in enumerate(value.dims) if axis not in axes)


def _repeated(op: Operation) -> Shape:
    repeats = op.elements(1) or []
    return tuple(
        old.times(times) if times is not None and times.is_size else op.sizes.fresh()
        for old, times in zip(op.operand(0).dims, repeats, strict=True)
    )


def _multiplied(op: Operation) -> Shape:
    one, other = op.operand(0), op.operand(1)
    if one.rank < 2 or other.rank < 2:
        raise Unknown("multiplies vectors")
    outer = broadcast(op, [constant(one.dims[:-2]), constant(other.dims[:-2])])
    return (*outer.dims, one.dims[-2], other.dims[-1])


def _joined(op: Operation) -> Shape:
    values = op.operands()
    first = values[0]
    axis = op.axis(0, first.rank)
    sizes = [value.dims[axis].literal for value in values]
    known = [size for size in sizes if size is not None]
    whole = Dim(sum(known)) if len(known) == len(sizes) else op.sizes.fresh()
    return (*first.dims[:axis], whole, *first.dims[axis + 1 :])


def _expanded(op: Operation) -> Shape:
    value = op.operand(0)
    wanted = [dim if dim is not None and dim.is_size else op.sizes.fresh() for dim in op.elements(1) or []]
    return broadcast(op, [constant(value.dims), constant(tuple(wanted))]).dims


def _filled(op: Operation) -> Shape:
    return tuple(dim or Dim(0) for dim in op.elements(0) or [])


_RULES: dict[str, Callable[[Operation], Shape]] = {
    "Slice": _sliced,
    "Unsqueeze": _unsqueezed,
    "Transpose": _transposed,
    "Gather": _gathered,
    "GatherElements": lambda op: op.operand(1).dims,
    "Range": lambda op: (op.counted() or op.sizes.fresh(),),
    "Expand": _expanded,
    "ConstantOfShape": _filled,
    "Reshape": _reshaped,
    "Squeeze": _squeezed,
    "Tile": _repeated,
    "MatMul": _multiplied,
    "Concat": _joined,
    **dict.fromkeys(
        ("Clip", "CumSum", "LayerNormalization", "LogSoftmax", "Softmax", "Trilu"), lambda op: op.operand(0).dims
    ),
}
