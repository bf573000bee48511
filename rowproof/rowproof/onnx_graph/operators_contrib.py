"""Operators of com.microsoft: what ONNX Runtime's optimisers and quantizers leave in a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rowproof.onnx_graph.dimensions import ONE, Dim
from rowproof.onnx_graph.operation import Mixes, Operation, Rule, Table, Unknown, table
from rowproof.onnx_graph.operators_elementwise import ELEMENTWISE, broadcast, together
from rowproof.onnx_graph.operators_indexing import INDEXING, gathered
from rowproof.onnx_graph.operators_layout import LAYOUT, inserted
from rowproof.onnx_graph.operators_linear import (
    added,
    convolved,
    matrices,
    multiplied,
    quantized_matrices,
    transposed,
)
from rowproof.onnx_graph.operators_recurrent import mask
from rowproof.onnx_graph.operators_reduction import layer_normalized, reduced
from rowproof.onnx_graph.values import Kind, Value

_NEW = 28
"""The opset of ONNX as whose operators those of the same name count."""


def _as_new(rule: Rule) -> Rule:
    def counted(op: Operation) -> Value | Sequence[Value | None]:
        op.version = _NEW
        return rule(op)

    return counted


def _fused_matrices(op: Operation) -> Value:
    if op.integer("transBatchA", 0) or op.integer("transBatchB", 0):
        raise Unknown("moves the axes of its inputs")
    if op.text("activation", "Relu") in {"Softmax", "LogSoftmax", "Hardmax"}:
        raise Unknown("has an activation along an axis")
    left = transposed(op, op.operand(0), bool(op.integer("transA", 0)))
    right = transposed(op, op.operand(1), bool(op.integer("transB", 0)))
    result = multiplied(op, left, right)
    return result if op.input(2) is None else added(op, result, op.operand(2))


def _fused_convolution(op: Operation) -> Value:
    rows = op.rows(0, 0)
    op.constants(1, 2)
    op.like(rows, 3, 0)
    return convolved(op, rows, op.operand(1), channel=rows.rank - 1 if op.kind.startswith("Nhwc") else 1)


def _image(op: Operation) -> Value:
    """Of com.microsoft.nchwc: pictures one by one, a last input of Conv to be added."""
    rows = op.rows(0, 0)
    op.constants(1, 2)
    op.like(rows, 3, 0)
    return op.result(rows, [rows.dims[0], *[None] * (rows.rank - 1)], 0)


def _skip_layer(op: Operation) -> list[Value]:
    summed = broadcast(op, [op.operand(0), op.operand(1)])
    parameters = range(2, len(op.inputs))
    results = layer_normalized(op, summed, summed.rank - 1, parameters)
    return [*results[:3], summed]


def _embed_layer(op: Operation) -> list[Value]:
    rows = op.rows(0, 0)
    if rows.rank != 2:
        raise Unknown("is given identifiers of other than two axes")
    op.like(rows, 1, 0)
    op.constants(2, 3, 4, 5, 6)
    op.like(rows, 7, 0)
    mask(op, rows, 8, 2)
    hidden = op.operand(2).dims[-1]
    every = op.result(rows, [*rows.dims, hidden], 0)
    return [every, op.sizes.rows([rows.dims[0]], 0, rows.block), every]


def _attention_of(
    rows_at: Sequence[int], constants: Sequence[int], bias: int | None
) -> Callable[[Operation], list[Value]]:
    """A kind of attention: rows along the first axis of some inputs and of everything it makes."""

    def rule(op: Operation) -> list[Value]:
        rows = op.rows(0, 0)
        for place in rows_at:
            op.like(rows, place, 0)
        op.constants(*constants)
        if bias is not None:
            mask(op, rows, bias, 4)
        if op.integer("past_present_share_buffer", 0):
            raise Unknown("writes into its inputs")
        known = {0, *rows_at, *constants, bias}
        if any(value is not None and place not in known for place, value in enumerate(op.inputs)):
            raise Unknown("has inputs that are not known")
        if rows.rank not in {3, 5}:
            raise Unknown("is given queries of other than three axes")
        present = 5 if op.kind in {"Attention", "QAttention"} else 4
        if op.makes(1) and present == 5:
            # Keys and values of all rows, one after the other, along the axis before the rows.
            return [
                op.result(rows, [rows.dims[0], None, None], 0),
                op.result(rows, [Dim(2), None, None, None, None], 1, 1),
            ]
        return [
            op.result(rows, [rows.dims[0], *[None] * (2 if output == 0 else 3)], 0, output)
            for output in range(len(op.outputs))
        ]

    return rule


def _attention(op: Operation) -> list[Value]:
    past = op.input(4)
    if past is not None:
        op.like(op.rows(0, 0), 4, 1)
        op.inputs[4] = None
    return _attention_of([3], [1, 2], 5)(op)


def _bits(op: Operation) -> Value:
    """A matrix of few bits, packed: [..., K] times [K, N]."""
    rows = op.rows()
    op.constants_from(1)
    if rows.place == 1:
        raise Mixes("sums over the rows")
    return op.sizes.rows([*rows.dims[:-1], Dim(op.integer("N", 0))], rows.axis, rows.block)


def _gather_bits(op: Operation) -> Value:
    op.constants(0, 2, 3)
    data, indices = op.operand(0), op.rows(1)
    if op.integer("gather_axis", 0) != 0:
        raise Unknown("picks along another axis than the first")
    found = gathered(op, data, indices, 0)
    dims: list[Dim | None] = [*found.dims[:-1], None]
    return op.result(found, dims, found.axis)


def _quantized(*, scales: Sequence[int], rule: Rule, data: Sequence[int]) -> Rule:
    """A rule for the inputs ``data``, beside scales and zero points that are single constants."""

    def checked(op: Operation) -> Value | Sequence[Value | None]:
        op.scalars(*scales)
        op.inputs = [op.input(place) for place in data]
        return rule(op)

    return checked


def _quantized_mean(op: Operation) -> Value:
    rows = op.rows()
    axes = op.axes(None, rows.rank)
    return reduced(op, rows, axes or range(rows.rank), keep=bool(op.integer("keepdims", 1)))


def _quantized_pool(op: Operation) -> Value:
    rows = op.rows(0, 0)
    return op.result(rows, [rows.dims[0], *[None] * (rows.rank - 1)], 0)


def _quantized_softmax(op: Operation) -> Value:
    rows = op.rows()
    old = op.integer("opset", 0) < 13
    axis = op.axis(1 if old else -1, rows.rank)
    if rows.axis >= axis if old else rows.axis == axis:
        raise Mixes("runs along the rows")
    return op.same(rows)


def _quantized_concat(op: Operation) -> Value | Sequence[Value | None]:
    places = range(2, len(op.inputs), 3)
    op.scalars(0, 1, *(place + more for place in places for more in (1, 2)))
    op.inputs = [op.input(place) for place in places]
    return LAYOUT["Concat"](op)


def _quantized_gemm(op: Operation) -> Value:
    op.scalars(1, 2, 7, 8)
    op.constants(4, 5)
    if op.operand(3).kind is Kind.ROWS:
        op.scalars(4, 5)
    left = transposed(op, op.operand(0), bool(op.integer("transA", 0)))
    result = multiplied(op, left, transposed(op, op.operand(3), bool(op.integer("transB", 0))))
    return result if op.input(6) is None else added(op, result, op.operand(6))


def _quantized_convolution(op: Operation) -> Value:
    rows = op.rows(0, 0)
    op.constants_from(1)
    op.scalars(1, 2, 6, 7)
    channel = rows.rank - 1 if op.integer("channels_last", 0) else 1
    return convolved(op, rows, op.operand(3), channel=channel)


def _integers_to_floats(op: Operation) -> Value:
    result = quantized_matrices(op, 0, 1, [2, 4], [3, 5], [])
    return result if op.input(6) is None else added(op, result, op.operand(6))


def _dynamic(_: Operation) -> Value:
    raise Mixes("takes its scale over the whole batch")


def _expand_dims(op: Operation) -> Value:
    axes = op.numbers(1)
    if axes is None:
        raise Unknown("lacks axes")
    return inserted(op, op.rows(), axes, ONE)


def _inverse(op: Operation) -> Value:
    rows = op.rows()
    if rows.place <= 2:
        raise Mixes("runs along the rows")
    return op.same(rows)


CONTRIB: Table = {
    **table(together, "BiasAdd BiasGelu FastGelu ScaledSiLU"),
    **{name: _as_new(ELEMENTWISE[name]) for name in ("Dropout", "QuantizeLinear", "DequantizeLinear")},
    **{name: _as_new(INDEXING[name]) for name in ("Trilu", "GatherND", "Range", "Pad")},
    **table(_as_new(ELEMENTWISE["Gelu"]), "Gelu QuickGelu MurmurHash3"),
    **table(_fused_matrices, "FusedMatMul FusedGemm TransposeMatMul FusedMatMulActivation GemmFastGelu"),
    **table(_fused_convolution, "FusedConv NhwcFusedConv NhwcConv"),
    **table(_skip_layer, "SkipLayerNormalization SkipSimplifiedLayerNormalization"),
    **table(_bits, "MatMulNBits MatMulBnb4"),
    **table(_dynamic, "DynamicQuantizeMatMul DynamicQuantizeLSTM"),
    **table(_quantized(scales=(1, 2, 4, 5, 6, 7), rule=together, data=(0, 3)), "QLinearAdd QLinearMul"),
    **table(_quantized(scales=(1, 2, 3, 4), rule=ELEMENTWISE["Sigmoid"], data=(0,)), "QLinearSigmoid QLinearLeakyRelu"),
    **table(
        _quantized(scales=(1, 2, 3, 4), rule=_quantized_pool, data=(0,)),
        "QLinearAveragePool QLinearGlobalAveragePool",
    ),
    "QLinearWhere": _quantized(scales=(2, 3, 5, 6, 7, 8), rule=together, data=(0, 1, 4)),
    "QLinearReduceMean": _quantized(scales=(1, 2, 3, 4), rule=_quantized_mean, data=(0,)),
    "QLinearSoftmax": _quantized(scales=(1, 2, 3, 4), rule=_quantized_softmax, data=(0,)),
    "QLinearConcat": _quantized_concat,
    "QLinearConv": _quantized_convolution,
    "QGemm": _quantized_gemm,
    "MatMulIntegerToFloat": _integers_to_floats,
    "MatMulInteger16": matrices,
    "Attention": _attention,
    "QAttention": _attention_of([5], [1, 2, 3, 4, 6, 7], None),
    "MultiHeadAttention": _attention_of([1, 2, 4, 6, 7], [3], 5),
    "EmbedLayerNormalization": _embed_layer,
    "GatherBlockQuantized": _gather_bits,
    "ExpandDims": _expand_dims,
    "Inverse": _inverse,
}

NCHWC: Table = table(
    _image, "Conv MaxPool AveragePool GlobalMaxPool GlobalAveragePool ReorderInput ReorderOutput Upsample"
)
