"""Operators of ai.onnx.ml: trees, linear models and what prepares features. ONNX Runtime reads a vector as one row."""

from __future__ import annotations

from rowproof.onnx_graph.dimensions import ONE, Dim
from rowproof.onnx_graph.operation import PICKS_BY_PLACE, Mixes, Operation, Table, Unknown, table
from rowproof.onnx_graph.operators_elementwise import alone
from rowproof.onnx_graph.operators_layout import inserted
from rowproof.onnx_graph.values import Kind, Value


def _table_of(op: Operation, place: int = 0) -> Value:
    """Rows of a matrix: what these operators read line by line."""
    rows = op.rows(place, 0)
    if rows.rank != 2:
        raise Unknown(f"reads {rows.rank} axes in a way that is not known")
    return rows


def _regressor(op: Operation) -> Value:
    rows = _table_of(op)
    return op.result(rows, [rows.dims[0], None], 0)


def _linear_regressor(op: Operation) -> Value:
    rows = _table_of(op)
    return op.result(rows, [rows.dims[0], Dim(op.integer("targets", 1))], 0)


def _classifier(op: Operation) -> list[Value]:
    rows = _table_of(op)
    return [op.result(rows, [rows.dims[0]], 0, 0), op.result(rows, [rows.dims[0], None], 0, 1)]


def _line_by_line(op: Operation) -> Value:
    return op.same(_table_of(op))


def _one_hot(op: Operation) -> Value:
    rows = op.rows()
    return inserted(op, rows, [rows.rank], None)


def _features(op: Operation) -> Value:
    rows = _table_of(op)
    for place in range(1, len(op.inputs)):
        op.like(rows, place, 0)
        _table_of(op, place)
    return op.result(rows, [rows.dims[0], None], 0)


def words(op: Operation) -> Value:
    """TfIdfVectorizer."""
    rows = _table_of(op)
    return op.result(rows, [rows.dims[0], None], 0)


def _extract(op: Operation) -> Value:
    data = op.operand(0)
    if data.kind is Kind.CONST and data.rank == 1:  # labels by number: those of all rows are one line
        places = op.rows(1, 0)
        if places.rank > 1 and any(dim != ONE for dim in places.dims[1:]):
            raise Unknown("picks several labels for each row")
        return op.result(places, [ONE, places.dims[0]], 1)
    rows = op.rows()
    op.constants(1)
    if rows.place == 1 or rows.rank < 2:
        raise Mixes(PICKS_BY_PLACE)
    return op.result(rows, [*rows.dims[:-1], None], rows.axis)


ML: Table = {
    **table(alone, "Binarizer CategoryMapper LabelEncoder"),
    **table(_regressor, "TreeEnsembleRegressor TreeEnsemble SVMRegressor"),
    **table(_classifier, "TreeEnsembleClassifier LinearClassifier SVMClassifier"),
    **table(_line_by_line, "Imputer Normalizer Scaler"),
    "LinearRegressor": _linear_regressor,
    "OneHotEncoder": _one_hot,
    "FeatureVectorizer": _features,
    "ArrayFeatureExtractor": _extract,
}

__all__ = ["ML", "words"]
