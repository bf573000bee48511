"""RNN, GRU and LSTM, and the operators of attention: rows along the first or the second axis of everything."""

from __future__ import annotations

from collections.abc import Sequence

from rowproof.onnx_graph.dimensions import Dim
from rowproof.onnx_graph.operation import Mixes, Operation, Table, Unknown, table
from rowproof.onnx_graph.operators_elementwise import broadcast
from rowproof.onnx_graph.values import Kind, Value, is_uniform


def _recurrent(op: Operation) -> list[Value]:
    first = bool(op.integer("layout", 0))
    batch = 0 if first else 1
    rows = op.rows()
    if rows.rank != 3 or rows.axis != batch:
        raise Mixes("runs along the rows") if rows.axis == 1 - batch else Unknown("is given rows as features")
    op.constants(1, 2, 3, 7)
    op.like(rows, 4, 0)
    for place in (5, 6):
        if op.input(place) is None:
            continue
        state = op.operand(place)
        # Only in a batch of a fixed size can a constant be as long as the batch.
        fits = state.kind is Kind.CONST and state.rank == 3 and state.dims[batch] == rows.dims[batch]
        if not fits or not is_uniform(state, batch):
            op.like(rows, place, batch)
    directions = Dim(2 if op.text("direction", "forward") == "bidirectional" else 1)
    steps, size, hidden = rows.dims[1 - batch], rows.dims[batch], op.operand(2).dims[-1]
    if first:
        every, last, at = (size, steps, directions, hidden), (size, directions, hidden), 0
    else:
        every, last, at = (steps, directions, size, hidden), (directions, size, hidden), 2
    results = [op.result(rows, every, at)]
    return results + [op.result(rows, last, batch, output) for output in range(1, len(op.outputs))]


def first_axis(
    op: Operation, rows_at: Sequence[int], constants: Sequence[int], ranks: Sequence[int | None]
) -> list[Value]:
    """What takes and gives one entry of the first axis for each row.

    Args:
        op: The node.
        rows_at: Inputs that have rows along their first axis, or are left out.
        constants: Inputs that are constant, or left out.
        ranks: Of the outputs; None for one that is the first input's.
    """
    rows = op.rows(rows_at[0], 0)
    for place in rows_at[1:]:
        op.like(rows, place, 0)
    op.constants(*constants)
    if len(op.inputs) > len(rows_at) + len(constants):
        raise Unknown("has inputs that are not known")
    results = []
    for output, rank in zip(range(len(op.outputs)), ranks, strict=False):
        size = rows.rank if rank is None else rank
        results.append(op.result(rows, [rows.dims[0], *[None] * (size - 1)], 0, output))
    return results


def mask(op: Operation, rows: Value, place: int, rank: int) -> None:
    """See that an optional input broadcasts to a shape of some rank whose first axis is the rows'."""
    value = op.input(place)
    if value is None:
        return
    value = op.operand(place)
    whole = Value(Kind.ROWS, (rows.dims[0], *[op.sizes.fresh() for _ in range(rank - 1)]), axis=0, block=rows.block)
    if broadcast(op, [whole, value]).rank != rank:
        raise Unknown(f"has more axes in input {place} than it should")


def _attention(op: Operation) -> list[Value]:
    rows = op.rows(0, 0)
    for place in (1, 2, 4, 5, 6):
        op.like(rows, place, 0)
    mask(op, rows, 3, 4)
    four = [rows.dims[0], None, None, None]
    own = op.result(rows, [rows.dims[0], *[None] * (rows.rank - 1)], 0)
    return [own, *(op.result(rows, four, 0, output) for output in range(1, len(op.outputs)))]


def _rotary(op: Operation) -> Value:
    rows = op.rows(0, 0)
    if op.input(3) is None:
        # One cache for each row.
        op.like(rows, 1, 0)
        op.like(rows, 2, 0)
    else:
        op.constants(1, 2)
        op.like(rows, 3, 0)
    return op.same(rows)


def _tensor_scatter(op: Operation) -> Value:
    rows = op.rows(0, 0)
    if op.axis(-2, rows.rank) == 0:
        raise Mixes("runs along the rows")
    op.like(rows, 1, 0)
    op.like(rows, 2, 0)
    return op.same(rows)


def _linear_attention(op: Operation) -> list[Value]:
    return first_axis(op, range(len(op.inputs)), [], [None, 4])


def _convolution_with_state(op: Operation) -> list[Value]:
    return first_axis(op, [0, 3], [1, 2], [3, 3])


def _affine_grid(op: Operation) -> Value:
    rows = op.rows(0, 0)
    wanted = op.elements(1) or []
    if not wanted or wanted[0] != rows.dims[0] or any(size is None or size.has_batch for size in wanted[1:]):
        raise Unknown("makes a grid of sizes that are not the rows'")
    return op.result(rows, [rows.dims[0], *wanted[2:], Dim(len(wanted) - 2)], 0)


def _grid_sample(op: Operation) -> Value:
    rows = op.rows(0, 0)
    grid = op.operand(1)
    op.like(rows, 1, 0)
    return op.result(rows, [rows.dims[0], rows.dims[1], *grid.dims[1:-1]], 0)


def _regions(_: Operation) -> Value:
    raise Unknown("takes regions from any row that its inputs name")


RECURRENT: Table = {
    **table(_recurrent, "RNN GRU LSTM"),
    **table(_regions, "RoiAlign MaxRoiPool"),
    "Attention": _attention,
    "RotaryEmbedding": _rotary,
    "TensorScatter": _tensor_scatter,
    "CausalConvWithState": _convolution_with_state,
    "LinearAttention": _linear_attention,
    "AffineGrid": _affine_grid,
    "GridSample": _grid_sample,
}
