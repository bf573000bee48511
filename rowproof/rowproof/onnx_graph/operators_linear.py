"""Products of matrices, Einsum and convolutions, in floats and in quantized numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rowproof.onnx_graph.dimensions import ONE, Dim
from rowproof.onnx_graph.operation import Mixes, Operation, Table, Unknown, table
from rowproof.onnx_graph.operators_elementwise import broadcast
from rowproof.onnx_graph.operators_layout import permuted
from rowproof.onnx_graph.values import Kind, Value, constant


def multiplied(op: Operation, left: Value, right: Value) -> Value:
    """The matrix product with the broadcasting of numpy's ``matmul``."""
    if not left.rank or not right.rank:
        raise Unknown("multiplies single numbers")
    line, column = left.rank == 1, right.rank == 1
    if left.kind is Kind.ROWS and left.place == 1:
        raise Mixes("sums over the rows")
    if right.kind is Kind.ROWS and (right.place == 2 or column):
        raise Mixes("sums over the rows")
    if line:
        left = constant((ONE, *left.dims))
    if column:
        right = constant((*right.dims, ONE))
    # Of both sides what does not belong to the product itself is broadcast; rows of the product are lines or columns.
    ends = (left.dims[-2], right.dims[-1])
    lines = left.kind is Kind.ROWS and left.place == 2
    columns = right.kind is Kind.ROWS and right.place == 1
    if lines or columns:
        if left.kind is right.kind:
            raise Mixes("multiplies rows by rows, all by all")
        own, other = (left, right) if lines else (right, left)
        dims = [*broadcast(op, [constant(own.dims[:-2]), constant(other.dims[:-2])]).dims, *ends]
        axis, block = len(dims) - (2 if lines else 1), own.block
    else:
        outer = broadcast(op, [_outer(left), _outer(right)])
        dims, axis, block = [*outer.dims, *ends], outer.axis, outer.block
    # A vector counted as a matrix loses the axis that it was given.
    if line:
        del dims[-2]
        axis -= axis == len(dims)
    if column:
        del dims[-1]
    return op.sizes.rows(dims, axis, block)


def _outer(value: Value) -> Value:
    return replace(value, shape=value.dims[:-2], array=None, elements=None)


def matrices(op: Operation, first: int = 0, second: int = 1) -> Value:
    """The product of two inputs."""
    return multiplied(op, op.operand(first), op.operand(second))


def _gemm(op: Operation) -> Value:
    result = multiplied(
        op,
        transposed(op, op.operand(0), bool(op.integer("transA", 0))),
        transposed(op, op.operand(1), bool(op.integer("transB", 0))),
    )
    return result if op.input(2) is None else added(op, result, op.operand(2))


def transposed(op: Operation, value: Value, swap: bool) -> Value:
    """The last two axes swapped, if wanted."""
    if not swap or value.rank < 2:
        return value
    order = list(range(value.rank))
    order[-2:] = reversed(order[-2:])
    return permuted(op, value, order)


def added(op: Operation, result: Value, *others: Value) -> Value:
    """Something added to a result without making it of more axes."""
    whole = broadcast(op, [result, *others])
    if whole.rank != result.rank:
        raise Unknown("adds something of more axes")
    return whole


def quantized_matrices(
    op: Operation, left: int, right: int, of_left: Sequence[int], of_right: Sequence[int], of_result: Sequence[int]
) -> Value:
    """The product of two inputs whose scales and zero points are other inputs.

    Those of the side that has rows must be single numbers, those of the other may be one for each column or line.
    """
    sides = ((left, of_left), (right, of_right))
    for place, parameters in sides:
        value = op.operand(place)
        op.constants(*parameters)
        if value.kind is Kind.ROWS:
            op.scalars(*parameters)
    op.scalars(*of_result)
    return matrices(op, left, right)


def _matrices_of_integers(op: Operation) -> Value:
    return quantized_matrices(op, 0, 1, [2], [3], [])


def _quantized_matrices(op: Operation) -> Value:
    return quantized_matrices(op, 0, 3, [1, 2], [4, 5], [6, 7])


def _convolution(op: Operation) -> Value:
    op.constants_from(1)
    return convolved(op, op.rows(), op.operand(1))


def _convolution_of_integers(op: Operation) -> Value:
    op.scalars(2)
    return _convolution(op)


def _quantized_convolution(op: Operation) -> Value:
    op.constants_from(1)
    op.scalars(1, 2, 6, 7)
    return convolved(op, op.rows(), op.operand(3))


def convolved(op: Operation, rows: Value, weights: Value, *, channel: int = 1) -> Value:
    """Rows convolved with weights, one by one."""
    if rows.axis != 0:
        raise Mixes("adds up or slides along the rows")
    dims: list[Dim | None] = [None] * rows.rank
    dims[0] = rows.dims[0]
    if not op.kind.startswith("ConvTranspose"):
        dims[channel] = weights.dims[0]
        if channel == 1:
            dims[2:] = _slid(op, rows.dims[2:], weights.dims[2:])
    return op.result(rows, dims, 0)


def _slid(op: Operation, sizes: Sequence[Dim], kernel: Sequence[Dim]) -> list[Dim | None]:
    """Sizes behind a convolution: those that it keeps; None for others."""
    count = len(sizes)
    pads, strides = op.integers("pads") or [0] * 2 * count, op.integers("strides") or [1] * count
    dilations = op.integers("dilations") or [1] * count
    if op.text("auto_pad", "NOTSET") != "NOTSET" or len(kernel) != count or len(pads) != 2 * count:
        return [None] * count
    kept: list[Dim | None] = []
    for axis, (size, width) in enumerate(zip(sizes, kernel, strict=True)):
        added = pads[axis] + pads[count + axis]
        same = width.literal is not None and strides[axis] == 1 and added == dilations[axis] * (width.literal - 1)
        kept.append(size if same else None)
    return kept


def _deformed(op: Operation) -> Value:
    rows = op.rows(0, 0)
    op.constants(1, 3)
    op.like(rows, 2, 0)
    op.like(rows, 4, 0)
    return convolved(op, rows, op.operand(1))


def _columns_to_image(op: Operation) -> Value:
    rows = op.rows(0, 0)
    op.constants_from(1)
    shape = op.input(1)
    rank = shape.dims[0].literal if shape is not None and shape.shape else None
    if rank is None:
        raise Unknown("makes an image of unknown rank")
    return op.result(rows, [rows.dims[0], *[None] * (rank + 1)], 0)


def _einsum(op: Operation) -> Value:
    values = op.operands()
    equation = op.text("equation", "").replace(" ", "").replace("...", ".")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(values):
        raise Unknown("has an equation of other inputs")
    dots = max(
        (value.rank - len(term) + 1 for value, term in zip(values, terms, strict=True) if "." in term), default=0
    )
    if not arrow:
        letters = sorted(letter for letter in set(left) - {",", "."} if left.count(letter) == 1)
        right = ("." if "." in left else "") + "".join(letters)
    labels = [_spread(term, value.rank, dots) for term, value in zip(terms, values, strict=True)]
    result = _spread(right, len(right) - 1 + dots if "." in right else len(right), dots)
    rows = [(value, label) for value, label in zip(values, labels, strict=True) if value.kind is Kind.ROWS]
    first, names = rows[0]
    own = names[first.axis]
    dims: dict[str, Dim] = {}
    for value, label in zip(values, labels, strict=True):
        if len(label) != value.rank:
            raise Unknown("has an equation of other axes")
        for name, dim in zip(label, value.dims, strict=True):
            dims[name] = dim if dims.get(name, ONE) == ONE else dims[name]
        if value.kind is Kind.CONST:
            if any(name == own and dim != ONE for name, dim in zip(label, value.dims, strict=True)):
                raise Mixes("has a constant of its own for each place in the batch")
        elif label.count(own) != 1 or label[value.axis] != own:
            raise Mixes("multiplies rows by rows, all by all")
        elif value.block != first.block:
            raise Unknown("joins rows of different sizes")
    if own not in result:
        raise Mixes("sums over the rows")
    return op.sizes.rows([dims[name] for name in result], result.index(own), first.block)


def _spread(term: str, rank: int, dots: int) -> list[str]:
    """The label of each axis; those of an ellipsis are numbers, counted from its right."""
    if "." not in term:
        return list(term)
    before, _, after = term.partition(".")
    count = rank - len(before) - len(after)
    return [*before, *(str(dots - count + place) for place in range(count)), *after]


LINEAR: Table = {
    **table(_convolution, "Conv ConvTranspose"),
    "MatMul": matrices,
    "Gemm": _gemm,
    "MatMulInteger": _matrices_of_integers,
    "QLinearMatMul": _quantized_matrices,
    "ConvInteger": _convolution_of_integers,
    "QLinearConv": _quantized_convolution,
    "DeformConv": _deformed,
    "Col2Im": _columns_to_image,
    "Einsum": _einsum,
}
