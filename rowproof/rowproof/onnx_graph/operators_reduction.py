"""Operators that run along axes: reductions, Softmax and its kin, normalizations, sorting."""

from __future__ import annotations

from collections.abc import Sequence

from rowproof.onnx_graph.dimensions import ONE, Dim
from rowproof.onnx_graph.operation import Mixes, Operation, Table, Unknown, table
from rowproof.onnx_graph.operators_elementwise import broadcast
from rowproof.onnx_graph.values import Value

_ALONG = "runs along the rows"


def reduced(op: Operation, rows: Value, axes: Sequence[int], *, keep: bool) -> Value:
    """One element for all along some axes."""
    if rows.axis in axes:
        raise Mixes(_ALONG)
    if keep:
        dims = [ONE if axis in axes else dim for axis, dim in enumerate(rows.dims)]
        return op.sizes.rows(dims, rows.axis, rows.block)
    kept = [axis for axis in range(rows.rank) if axis not in axes]
    return op.sizes.rows([rows.dims[axis] for axis in kept], kept.index(rows.axis), rows.block)


def _reduce(op: Operation) -> Value:
    rows = op.rows()
    axes = op.axes(1, rows.rank)
    if not axes:
        if op.integer("noop_with_empty_axes", 0):
            return op.same(rows)
        axes = list(range(rows.rank))
    return reduced(op, rows, axes, keep=bool(op.integer("keepdims", 1)))


def _arg_reduce(op: Operation) -> Value:
    rows = op.rows()
    return reduced(op, rows, [op.axis(0, rows.rank)], keep=bool(op.integer("keepdims", 1)))


def across(op: Operation, default: int = -1) -> Value:
    """A function along one axis that keeps the shape."""
    rows = op.rows()
    if op.axis(default, rows.rank) == rows.axis:
        raise Mixes(_ALONG)
    return op.same(rows)


def _softmax(op: Operation) -> Value:
    rows = op.rows()
    if op.version >= 13:
        return across(op)
    # Until opset 13 the tensor counts as a matrix, and each of its lines is one.
    if rows.axis >= op.axis(1, rows.rank):
        raise Mixes(_ALONG)
    return op.same(rows)


def _cumulate(op: Operation) -> Value:
    rows = op.rows()
    axis = op.numbers(1)
    if axis is None or op.axis_of(axis[0], rows.rank) == rows.axis:
        raise Mixes(_ALONG)
    return op.same(rows)


def _top_k(op: Operation) -> Sequence[Value]:
    rows = op.rows()
    axis = op.axis(-1, rows.rank)
    if axis == rows.axis:
        raise Mixes(_ALONG)
    dims: list[Dim | None] = list(rows.dims)
    if op.version < 10:
        dims[axis] = Dim(op.integer("k", 1))
    else:
        count = op.elements(1)
        if not count or count[0] is None or count[0].has_batch:
            raise Mixes("keeps as many as there are rows")
        dims[axis] = count[0]
    return [op.result(rows, dims, rows.axis, output) for output in range(len(op.outputs))]


def layer_normalized(op: Operation, rows: Value, axis: int, parameters: Sequence[int]) -> list[Value]:
    """Normalized over the axes from one on, scaled by constants; then mean and deviation of each."""
    if axis <= rows.axis:
        raise Mixes(_ALONG)
    values = [op.operand(place) for place in parameters if op.input(place) is not None]
    whole = broadcast(op, [rows, *values])
    if whole.axis != rows.axis:
        raise Unknown("has parameters of more axes than its input")
    statistics = reduced(op, rows, range(axis, rows.rank), keep=True)
    return [op.same(rows), *([statistics] * (len(op.outputs) - 1))]


def _layer_normalization(op: Operation) -> list[Value]:
    rows = op.rows()
    return layer_normalized(op, rows, op.axis(-1, rows.rank), range(1, len(op.inputs)))


def _batch_normalization(op: Operation) -> Value:
    rows = op.rows()
    op.constants_from(1)
    training = op.version >= 14 and op.integer("training_mode", 0)
    if training or sum(map(bool, op.outputs)) > 1:
        raise Mixes("normalizes by the batch")
    if rows.axis == 1:
        raise Mixes("has parameters of its own for each place in the batch")
    if rows.axis != 0 and not op.integer("spatial", 1):
        raise Unknown("normalizes every place alone")
    return op.same(rows)


def _instance_normalization(op: Operation) -> Value:
    rows = op.rows(0, 0)
    op.constants_from(1)
    if rows.rank < 2:
        raise Unknown("has too few axes")
    return op.same(rows)


def _lrn(op: Operation) -> Value:
    rows = op.rows()
    if rows.axis == 1:
        raise Mixes(_ALONG)
    return op.same(rows)


def _mean_variance(op: Operation) -> Value:
    rows = op.rows()
    axes = op.integers("axes")
    if axes is None:
        axes = [0, 2, 3]
    if rows.axis in [op.axis_of(axis, rows.rank) for axis in axes if axis < rows.rank]:
        raise Mixes("takes mean and variance over the whole batch" if rows.axis == 0 else _ALONG)
    return op.same(rows)


def _global_pool(op: Operation) -> Value:
    rows = op.rows()
    if rows.axis > 1:
        raise Mixes(_ALONG)
    return op.sizes.rows([dim if axis < 2 else ONE for axis, dim in enumerate(rows.dims)], rows.axis, rows.block)


def _pool(op: Operation) -> list[Value | None]:
    rows = op.rows()
    if rows.axis > 1:
        raise Unknown("slides along the rows")
    dims: list[Dim | None] = [dim if axis < 2 else None for axis, dim in enumerate(rows.dims)]
    # Indices, MaxPool's second output, count from the first element of the whole batch.
    return [op.result(rows, dims, rows.axis)]


def _loss(op: Operation) -> list[Value]:
    rows = op.rows(0, 0)
    if op.text("reduction", "mean") != "none":
        raise Mixes("takes one loss over the whole batch")
    op.like(rows, 1, 0)
    op.constants_from(2)
    dims = [rows.dims[0], *rows.dims[2:]]
    return [op.sizes.rows(dims, 0, rows.block), op.same(rows)]


def _dynamic_scale(_: Operation) -> Value:
    raise Mixes("takes its scale over the whole batch")


def _one_answer_for_all(_: Operation) -> Value:
    raise Mixes("gives as many results as all rows together have")


def _compress(op: Operation) -> Value:
    rows = op.rows()
    op.constants(1)
    if "axis" not in op.attributes or op.axis(0, rows.rank) == rows.axis:
        raise Mixes("picks along the rows")
    dims: list[Dim | None] = list(rows.dims)
    dims[op.axis(0, rows.rank)] = None
    return op.result(rows, dims, rows.axis)


def _unique(op: Operation) -> Value:
    op.rows()
    raise Mixes("compares all rows")


def _determinant(op: Operation) -> Value:
    rows = op.rows()
    if rows.place <= 2:
        raise Mixes(_ALONG)
    return op.sizes.rows(rows.dims[:-2], rows.axis, rows.block)


def _fourier(op: Operation) -> Value:
    rows = op.rows()
    op.constants_from(1)
    axis = op.numbers(2) or [-2] if op.version >= 20 else [op.integer("axis", 1)]
    if rows.axis in {op.axis_of(axis[0], rows.rank), rows.rank - 1}:
        raise Mixes(_ALONG)
    return op.result(rows, [dim if place == rows.axis else None for place, dim in enumerate(rows.dims)], rows.axis)


def _short_time_fourier(op: Operation) -> Value:
    rows = op.rows(0, 0)
    op.constants_from(1)
    return op.result(rows, [rows.dims[0], None, None, None], 0)


REDUCTION: Table = {
    **table(
        _reduce,
        """
        ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
        ReduceSumSquare
        """,
    ),
    **table(_arg_reduce, "ArgMax ArgMin"),
    **table(_softmax, "Softmax LogSoftmax Hardmax"),
    **table(_cumulate, "CumSum CumProd"),
    **table(_layer_normalization, "LayerNormalization RMSNormalization SimplifiedLayerNormalization"),
    **table(_instance_normalization, "InstanceNormalization GroupNormalization"),
    **table(_global_pool, "GlobalAveragePool GlobalMaxPool GlobalLpPool"),
    **table(_pool, "AveragePool MaxPool LpPool"),
    **table(_loss, "NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss"),
    **table(_one_answer_for_all, "NonZero NonMaxSuppression"),
    "LpNormalization": across,
    "TopK": _top_k,
    "BatchNormalization": _batch_normalization,
    "LRN": _lrn,
    "MeanVarianceNormalization": _mean_variance,
    "DynamicQuantizeLinear": _dynamic_scale,
    "Compress": _compress,
    "Unique": _unique,
    "Det": _determinant,
    "DFT": _fourier,
    "STFT": _short_time_fourier,
}
