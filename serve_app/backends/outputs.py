"""Checks a model's outputs: declared shapes and, on request, finite numbers."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from serve_app.errors import InferenceFailed
from serve_app.payloads import ModelSignature, Tensors

logger = logging.getLogger(__name__)

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


class UnexpectedShape(InferenceFailed):
    """An output does not have the shape that the rows and the model's file imply."""


def rows_missing(name: str, shape: Sequence[int], rows: int) -> UnexpectedShape:
    """The error for an output whose axis 0 is not the rows."""
    return UnexpectedShape(
        f"output {name!r} of the model has shape {list(shape)} for {rows} rows of input:"
        " its dimension 0 must be the rows"
    )


class DeclaredShapes:
    """Compares outputs with the fixed trailing dimensions of the model's file. Dimension 0 is the rows.

    In a shared run, one request may have changed the shape for all. What a request gets alone is its answer, as without
    shared runs; the log mentions it once per output.

    Args:
        signature: An output without trailing dimensions may have no declared rank, and is not compared.
    """

    def __init__(self, model: str, signature: ModelSignature) -> None:
        self._model = model
        self._told: set[str] = set()
        self._fixed = [
            (spec.name, spec.shape[1:])
            for spec in signature.outputs
            if len(spec.shape) > 1 and any(size >= 0 for size in spec.shape[1:])
        ]

    def check(self, outputs: Tensors) -> Tensors:
        """Return the outputs unchanged.

        Raises:
            UnexpectedShape: An output has another shape; says which.
        """
        for name, declared in self._fixed:
            found = outputs[name].shape[1:]
            if found != declared and not _matches(found, declared):
                raise UnexpectedShape(
                    f"output {name!r} of the model has shape {[-1, *found]}, but it declares {[-1, *declared]}"
                )
        return outputs

    def tell(self, outputs: Tensors) -> Tensors:
        """Return the outputs unchanged, and log those of another shape."""
        for name, declared in self._fixed:
            found = outputs[name].shape[1:]
            if found != declared and name not in self._told and not _matches(found, declared):
                self._told.add(name)
                logger.warning(
                    "model %r: output %r has shape %s, but the model's file declares %s: clients get it as it is",
                    self._model,
                    name,
                    [-1, *found],
                    [-1, *declared],
                )
        return outputs


def not_finite(outputs: Tensors, counts: Sequence[int]) -> list[tuple[int, str]]:
    """Find entries of a batch with NaN or infinity in an output.

    Args:
        outputs: With the rows of all entries in order.

    Returns:
        Position and output name, once per entry.
    """
    found: dict[int, str] = {}
    for name, array in outputs.items():
        if (array.dtype.kind != "f" and array.dtype != _BFLOAT16) or _is_finite(array):
            continue
        if len(counts) == 1:  # it need have no rows
            if not np.isfinite(array).all():
                found.setdefault(0, name)
            continue
        for position, (end, rows) in enumerate(zip(accumulate(counts), counts, strict=True)):
            if not np.isfinite(array[end - rows : end]).all():
                found.setdefault(position, name)
    return sorted(found.items())


def _is_finite(array: npt.NDArray[Any]) -> bool:
    """Whether all values are finite; ``False`` also if unsure, since their sum overflows.

    NaN and infinity survive a sum, which needs no second array and a third of the time of testing each value.
    """
    with np.errstate(all="ignore"):
        return bool(np.isfinite(np.add.reduce(array, axis=None)))


def _matches(found: tuple[int, ...], declared: tuple[int, ...]) -> bool:
    return len(found) == len(declared) and all(
        expected in (-1, size) for size, expected in zip(found, declared, strict=True)
    )
