"""Cuts batches to the numbers of rows that a model takes, and fills them up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from serve_app.backends.batch import pieces
from serve_app.payloads import Tensors


def run_filled(
    inputs: Tensors, most: int, size_for: Callable[[int], int], run: Callable[[Tensors, int], Tensors]
) -> Tensors:
    """Run in pieces, each filled up with copies of its last row: zeros might not be a valid input.

    Args:
        most: Most rows of a piece.
        size_for: The number of rows to fill a piece of this many up to.
        run: Runs a filled piece of this many rows.
    """
    rows = len(next(iter(inputs.values())))
    parts = []
    for piece in pieces(max(rows, 1), most):
        size = size_for(piece.stop - piece.start)
        parts.append(run({name: _filled(array[piece], size) for name, array in inputs.items()}, size))
    if len(parts) == 1:
        return {name: array[:rows] for name, array in parts[0].items()}
    return {name: np.concatenate([part[name] for part in parts])[:rows] for name in parts[0]}


def _filled(piece: npt.NDArray[Any], rows: int) -> npt.NDArray[Any]:
    missing = rows - len(piece)
    if missing == 0:
        return piece
    return np.concatenate([piece, np.repeat(piece[-1:], missing, axis=0)])
