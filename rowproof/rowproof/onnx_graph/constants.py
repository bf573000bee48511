"""Small constants computed from small constants: how exporters write down pads, axes and shapes."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from rowproof.onnx_graph.operation import Operation
from rowproof.onnx_graph.values import SMALL, Value, constant_array

_Array = npt.NDArray[Any]

_TYPES: dict[int, Any] = {1: np.float32, 6: np.int32, 7: np.int64, 9: np.bool_, 10: np.float16, 11: np.float64}
"""By `onnx.TensorProto.DataType`."""


def folded(op: Operation) -> Value | None:
    """The constant that a node makes of known constants, or None where that is not worth knowing."""
    rule = FOLDS.get(op.kind)
    if rule is None or op.domain or len(op.outputs) != 1:
        return None
    arrays: list[_Array] = []
    for value in op.inputs:
        if value is None or value.array is None:
            return None
        arrays.append(value.array)
    with np.errstate(all="ignore"):
        result = rule(op, *arrays)
    return None if result is None or result.size > SMALL else constant_array(np.asarray(result))


def _identity(_: Operation, data: _Array) -> _Array:
    return data


def _where(_: Operation, which: _Array, one: _Array, other: _Array) -> _Array:
    return np.where(which, one, other)


def _quotient(_: Operation, one: _Array, other: _Array) -> _Array | None:
    if one.dtype.kind == "f":
        return np.asarray(one / other)
    if not np.all(other):
        return None
    return np.asarray(np.abs(one) // np.abs(other) * np.sign(one) * np.sign(other))


def _remainder(op: Operation, one: _Array, other: _Array) -> _Array | None:
    whole = one.dtype.kind in "iu" and np.all(other) and not op.integer("fmod", 0)
    return np.asarray(np.mod(one, other)) if whole else None


def _reshaped(op: Operation, data: _Array, shape: _Array) -> _Array:
    copies = not op.integer("allowzero", 0)
    target = [data.shape[place] if number == 0 and copies else int(number) for place, number in enumerate(shape)]
    return data.reshape(target)


def _filled(op: Operation, shape: _Array) -> _Array | None:
    if prod(int(number) for number in shape) > SMALL:
        return None
    if "value" not in op.attributes:
        return np.zeros(shape, np.float32)
    from onnx import numpy_helper  # noqa: PLC0415  (as in skeleton.py)

    return np.full(shape, numpy_helper.to_array(op.attributes["value"].t).reshape(-1)[0])


def _sliced(op: Operation, data: _Array, *bounds: _Array) -> _Array | None:
    if op.version < 10:
        listed = [op.integers(name) for name in ("starts", "ends", "axes")]
        bounds = tuple(np.array(one) for one in listed if one is not None)
    starts, ends, *more = bounds
    axes = more[0] if more else np.arange(len(starts))
    steps = more[1] if len(more) > 1 else np.ones(len(starts), np.int64)
    cut = [slice(None)] * data.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        stop: int | None = int(end)
        if step < 0 and end < -data.shape[axis]:
            stop = None
        cut[int(axis)] = slice(int(start), stop, int(step))
    return data[tuple(cut)]


def _axes(op: Operation, more: tuple[_Array, ...]) -> tuple[int, ...] | None:
    found = op.integers("axes")
    if found is None and more:
        found = [int(axis) for axis in more[0]]
    return None if found is None else tuple(found)


def _unsqueezed(op: Operation, data: _Array, *more: _Array) -> _Array | None:
    axes = _axes(op, more)
    return None if axes is None else np.expand_dims(data, axes)


def _expanded(_: Operation, data: _Array, shape: _Array) -> _Array | None:
    whole = np.broadcast_shapes(data.shape, tuple(int(number) for number in shape))
    return np.broadcast_to(data, whole) if prod(whole) <= SMALL else None


def _counted(_: Operation, start: _Array, limit: _Array, delta: _Array) -> _Array | None:
    if not delta.reshape(-1)[0] or abs((limit - start) / delta).reshape(-1)[0] > SMALL:
        return None
    return np.arange(start.reshape(-1)[0], limit.reshape(-1)[0], delta.reshape(-1)[0])


def _cast(op: Operation, data: _Array) -> _Array | None:
    wanted = _TYPES.get(op.integer("to", 0))
    return None if wanted is None or data.dtype.kind not in "biuf" else data.astype(wanted)


def _reduce(function: Callable[..., Any]) -> Callable[..., _Array]:
    def rule(op: Operation, data: _Array, *more: _Array) -> _Array:
        axes = _axes(op, more)
        if not axes:
            if op.integer("noop_with_empty_axes", 0):
                return data
            axes = tuple(range(data.ndim))
        return np.asarray(function(data, axis=axes, keepdims=bool(op.integer("keepdims", 1)))).astype(data.dtype)

    return rule


FOLDS: dict[str, Callable[..., _Array | None]] = {
    "Identity": _identity,
    "Cast": _cast,
    "Add": lambda _, one, other: one + other,
    "Sub": lambda _, one, other: one - other,
    "Mul": lambda _, one, other: one * other,
    "Div": _quotient,
    "Mod": _remainder,
    "Neg": lambda _, data: -data,
    "Abs": lambda _, data: abs(data),
    "Floor": lambda _, data: np.floor(data),
    "Ceil": lambda _, data: np.ceil(data),
    "Sqrt": lambda _, data: np.sqrt(data) if data.dtype.kind == "f" else None,
    "Not": lambda _, data: ~data,
    "And": lambda _, one, other: one & other,
    "Or": lambda _, one, other: one | other,
    "Equal": lambda _, one, other: one == other,
    "Less": lambda _, one, other: one < other,
    "Greater": lambda _, one, other: one > other,
    "LessOrEqual": lambda _, one, other: one <= other,
    "GreaterOrEqual": lambda _, one, other: one >= other,
    "Where": _where,
    "Max": lambda _, *data: np.max(np.stack(np.broadcast_arrays(*data)), axis=0),
    "Min": lambda _, *data: np.min(np.stack(np.broadcast_arrays(*data)), axis=0),
    "Concat": lambda op, *data: np.concatenate(data, axis=op.integer("axis", 0)),
    "Gather": lambda op, data, places: data.take(places, axis=op.integer("axis", 0)),
    "Slice": _sliced,
    "Reshape": _reshaped,
    "Transpose": lambda op, data: data.transpose(op.integers("perm")),
    "Unsqueeze": _unsqueezed,
    "Squeeze": lambda op, data, *more: np.squeeze(data, _axes(op, more)),
    "Expand": _expanded,
    "ConstantOfShape": _filled,
    "Range": _counted,
    "ReduceProd": _reduce(np.prod),
    "ReduceSum": _reduce(np.sum),
    "ReduceMax": _reduce(np.max),
    "ReduceMin": _reduce(np.min),
}
