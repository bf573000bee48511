"""Operators that treat every element alone, and broadcasting."""

from __future__ import annotations

from collections.abc import Sequence

from rowproof.onnx_graph.dimensions import ONE
from rowproof.onnx_graph.operation import Mixes, Operation, Table, Unknown, table
from rowproof.onnx_graph.values import Kind, Value, constant, is_uniform


def broadcast(op: Operation, values: Sequence[Value]) -> Value:
    """What several tensors become elementwise, where all that have rows have them at the same place from the right.

    A constant may have one element along the rows, or the same element for each of a fixed number of rows.

    Raises:
        Mixes: A row would meet another row, or a constant of its place.
        Unknown: A shape is not known well enough.
    """
    rows = [value for value in values if value.kind is Kind.ROWS]
    rank = max(value.rank for value in values)
    dims = [ONE] * rank
    for value in values:
        for place in range(1, value.rank + 1):
            dims[-place] = op.sizes.wider(dims[-place], value.at(place))
    if not rows:
        return constant(tuple(dims))
    first = rows[0]
    for value in values:
        if value.kind is Kind.ROWS:
            if value.place != first.place:
                raise Mixes("meets the rows of one axis with those of another")
            if value.block != first.block:
                raise Unknown("joins rows of different sizes")
        elif not _same_for_all(op, value, first):
            if value.at(first.place).literal is None:
                raise Unknown("has a constant that may be different for each place in the batch")
            raise Mixes("has a constant of its own for each place in the batch")
    return op.sizes.rows(dims, rank - first.place, first.block)


def _same_for_all(op: Operation, value: Value, rows: Value) -> bool:
    dim = value.at(rows.place)
    if dim == ONE:
        return True
    # Only in a batch of a fixed size can a constant be as long as the batch.
    return dim == op.sizes.batch.times(rows.block) and is_uniform(value, value.rank - rows.place)


def alone(op: Operation) -> Value:
    """A function of each element, with parameters in attributes."""
    return op.same(op.rows())


def together(op: Operation) -> Value:
    """A function of elements at the same place, broadcast."""
    return broadcast(op, op.operands())


def _like(op: Operation) -> Value:
    value = op.operand(0)
    # Where only the second input has rows, their type is all that counts.
    return op.same(value) if value.kind is Kind.ROWS else constant(value.shape)


def _clip(op: Operation) -> Value:
    op.scalars(1, 2)
    return op.same(op.rows())


def _dropout(op: Operation) -> Sequence[Value]:
    rows = op.rows()
    if not is_inference(op):
        raise Unknown("may drop elements by chance")
    return op.same(rows), op.same(rows)


def is_inference(op: Operation) -> bool:
    """Whether a Dropout is known to drop nothing."""
    training = op.input(2)
    if training is None:
        return True
    return training.array is not None and not training.array.any()


def _prelu(op: Operation) -> Value:
    return broadcast(op, [op.rows(), op.operand(1)])


def _quantize(op: Operation) -> Value:
    """QuantizeLinear and DequantizeLinear: per tensor, per axis or per block; scales of rows are of the same rows."""
    rows = op.rows()
    for place in (1, 2):
        if op.input(place) is None:
            continue
        value = op.operand(place)
        if value.kind is Kind.ROWS:
            per_axis = value.rank == 1 and not op.integer("block_size", 0)
            if not per_axis or op.axis(1, rows.rank) != rows.axis or value.block != rows.block:
                raise Unknown(f"takes input {place} from rows, and not as a scale for each of the same rows")
            continue
        op.constants(place)
        if all(dim == ONE for dim in value.dims):
            continue
        if value.rank == 1 and not op.integer("block_size", 0):
            if op.axis(1, rows.rank) == rows.axis:
                raise Mixes("has a scale of its own for each place in the batch")
        elif value.rank == rows.rank and value.dims[rows.axis] == rows.dims[rows.axis]:
            broadcast(op, [rows, value])
        else:
            # Scales by block are as many as the elements along every axis but one, and do not broadcast.
            raise Unknown("has scales for a fixed number of rows")
    return op.same(rows)


def _string_split(_: Operation) -> Value:
    raise Mixes("makes every row as wide as the widest of the batch")


_ALONE = """
    Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Cast Ceil Celu Cos Cosh Elu Erf Exp Floor Gelu HardSigmoid
    HardSwish Identity IsInf IsNaN LeakyRelu Log Mish Neg Not Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh
    Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu RegexFullMatch BitCast
"""

_TOGETHER = """
    Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min
    Mod Mul Or Pow StringConcat Sub Sum SwiGLU Where Xor
"""

ELEMENTWISE: Table = {
    **table(alone, _ALONE),
    **table(together, _TOGETHER),
    **table(_quantize, "QuantizeLinear DequantizeLinear"),
    "CastLike": _like,
    "Clip": _clip,
    "Dropout": _dropout,
    "PRelu": _prelu,
    "StringSplit": _string_split,
}
