"""Shapes of constants whose content is not worth knowing, where their operators' own inference sees numbers only."""

from __future__ import annotations

from collections.abc import Callable

from serve_app.backends.onnx.proof.dimensions import ONE, Dim, Shape
from serve_app.backends.onnx.proof.operation import Operation
from serve_app.backends.onnx.proof.operators_elementwise import ELEMENTWISE, alone, broadcast, together
from serve_app.backends.onnx.proof.operators_layout import permuted
from serve_app.backends.onnx.proof.values import Value, constant


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
    axes = op.integers("axes") if op.version < 10 else op.numbers(3)
    starts = op.integers("starts") if op.version < 10 else op.elements(1)
    cut = range(len(starts or ())) if axes is None else [op.axis_of(axis, value.rank) for axis in axes]
    return tuple(op.sizes.fresh() if axis in cut else dim for axis, dim in enumerate(value.dims))


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
    "Expand": _expanded,
    "ConstantOfShape": _filled,
}
