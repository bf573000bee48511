"""Measures how far an 8-bit model is from its original, and how far neighbours in a batch move its answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from serve_app.payloads import Tensors

_LOUD = 1000.0
"""By what a neighbour's values are multiplied, to be a neighbour that a common scale would follow."""


class Deviation(NamedTuple):
    """How far an output is from the original's.

    Attributes:
        mean_cosine: Mean cosine between the rows' answers; 1 is the same direction.
        least_cosine: The lowest of any row.
        largest: Largest difference of a value.
        magnitude: The original's largest value.
    """

    output: str
    rows: int
    mean_cosine: float
    least_cosine: float
    largest: float
    magnitude: float


def deviations(original: Any, converted: Any, batches: Sequence[Tensors]) -> list[Deviation]:
    """Compare two sessions' floating-point outputs on the same batches."""
    found: dict[str, list[tuple[npt.NDArray[Any], npt.NDArray[Any]]]] = {}
    for batch in batches:
        for end, expected, actual in zip(
            original.get_outputs(), original.run(None, batch), converted.run(None, batch), strict=True
        ):
            if isinstance(expected, np.ndarray) and expected.dtype.kind == "f" and len(expected):
                pair = (_rows(expected), _rows(actual))
                found.setdefault(end.name, []).append(pair)
    return [_deviation(name, pairs) for name, pairs in found.items()]


def dependence(session: Any, batches: Sequence[Tensors]) -> float:
    """The largest difference between a row's answer alone and in a batch, relative to the largest value.

    A row runs alone, in its batch, in the reversed batch, and beside neighbours whose floats are a thousand times as
    large. Batches of one row are doubled.
    """
    largest, magnitude = 0.0, 0.0
    for batch in batches:
        rows = max(2, len(next(iter(batch.values()))))
        whole = {name: np.resize(array, (rows, *array.shape[1:])) for name, array in batch.items()}
        alone = [session.run(None, {name: array[at : at + 1] for name, array in whole.items()}) for at in range(rows)]
        magnitude = max(magnitude, *(_largest(value) for row in alone for value in row))
        for order in (np.arange(rows), np.arange(rows)[::-1]):
            answers = session.run(None, {name: array[order] for name, array in whole.items()})
            for place, at in enumerate(order):
                largest = max(largest, _difference([answer[place : place + 1] for answer in answers], alone[at]))
        for at in (0, rows - 1):
            loud = {name: _loud(array, at) for name, array in whole.items()}
            answers = session.run(None, loud)
            largest = max(largest, _difference([answer[at : at + 1] for answer in answers], alone[at]))
    return largest / magnitude if magnitude else largest


def _loud(array: npt.NDArray[Any], quiet: int) -> npt.NDArray[Any]:
    if array.dtype.kind != "f":
        return array
    made: npt.NDArray[Any] = array * array.dtype.type(_LOUD)
    made[quiet] = array[quiet]
    return made


def _difference(one: Sequence[Any], other: Sequence[Any]) -> float:
    return max((_largest(a - b) for a, b in zip(one, other, strict=True) if a.dtype.kind == "f"), default=0.0)


def _largest(values: Any) -> float:
    """The largest magnitude; values that are not finite in both rows do not count."""
    return float(np.abs(values).max(initial=0.0)) if values.dtype.kind == "f" else 0.0


def _rows(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    return values.reshape(len(values), -1).astype(np.float64)


def _deviation(name: str, pairs: Sequence[tuple[npt.NDArray[Any], npt.NDArray[Any]]]) -> Deviation:
    cosines: list[float] = []
    for expected, actual in pairs:
        lengths = np.linalg.norm(expected, axis=1) * np.linalg.norm(actual, axis=1)
        same = (expected == actual).all(axis=1)
        product = (expected * actual).sum(axis=1)
        cosines.extend(np.where(same, 1.0, product / np.where(lengths > 0, lengths, 1.0)).tolist())
    return Deviation(
        name,
        len(cosines),
        float(np.mean(cosines)),
        min(cosines),
        max(float(np.abs(expected - actual).max(initial=0.0)) for expected, actual in pairs),
        max(float(np.abs(expected).max(initial=0.0)) for expected, _ in pairs),
    )
