"""The classification extension: an output's highest values as text, with indices and labels.

Triton's format: per row the ``k`` highest values, highest first, each as ``<value>:<index>[:<label>]``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from serve_app.errors import InvalidRequest
from serve_app.payloads import Tensors, TensorSpec

_NO_ORDER = frozenset({"BOOL", "BYTES"})


def check_classification(spec: TensorSpec, count: int, where: str) -> None:
    """Check that an output can be requested as classes.

    Args:
        count: Requested classes; 0 is always valid.
        where: The parameter's place in the request, for the message.

    Raises:
        InvalidRequest: The count is negative, or the output's datatype has no order.
    """
    if count < 0:
        raise InvalidRequest(f"{where}: expected the number of classes, 1 or more")
    if count and spec.datatype in _NO_ORDER:
        raise InvalidRequest(f"{where}: output {spec.name!r} is {spec.datatype}, which has no highest values")


def classify(
    tensors: Tensors, counts: Mapping[str, int], labels: Mapping[str, Sequence[str]], *, rows: bool = True
) -> Tensors:
    """Replace outputs by their classes.

    Args:
        tensors: The model's outputs.
        counts: Number of classes by output.
        labels: Labels by output and index; may be empty.
        rows: Whether dimension 0 is rows; otherwise an output is one row, and its classes have no rows.
    """
    classes = {
        name: top_classes(tensors[name], count, labels[name])
        if rows
        else top_classes(tensors[name].reshape(1, -1), count, labels[name])[0]
        for name, count in counts.items()
    }
    return {**tensors, **classes}


def top_classes(array: npt.NDArray[Any], count: int, labels: Sequence[str] = ()) -> npt.NDArray[np.object_]:
    """The highest values of each row.

    Args:
        array: Numbers, (rows, ...). Indices count through all dimensions but the first.
        count: At least 1; bounded by the values of a row.
        labels: By index; a missing or empty one is omitted.

    Returns:
        UTF-8 texts, (rows, min(count, values of a row)), descending. Equal values keep their order; NaN comes last.
    """
    rows = array.reshape(len(array), -1)
    if rows.dtype.kind not in "iu":
        rows = rows.astype(np.float64)
        order = np.argsort(-rows, axis=1, kind="stable")[:, :count]
    else:  # the smallest integer has no opposite: sorted upwards from the end, and read from the end
        order = rows.shape[1] - 1 - np.argsort(rows[:, ::-1], axis=1, kind="stable")[:, ::-1][:, :count]
    form = "%d:%d" if rows.dtype.kind in "iu" else "%f:%d"
    texts = np.empty(order.shape, np.object_)
    for row, places in enumerate(order.tolist()):
        for column, place in enumerate(places):
            text = form % (rows[row, place], place)
            name = labels[place] if place < len(labels) else ""
            texts[row, column] = (f"{text}:{name}" if name else text).encode()
    return texts
