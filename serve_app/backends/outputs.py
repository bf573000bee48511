"""What a model's outputs should be: of the declared shape and, where that is asked for, numbers."""

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
    """An output of a run is not of the shape that the rows and the model's file let expect."""


def rows_missing(name: str, shape: Sequence[int], rows: int) -> UnexpectedShape:
    """The error of an output whose axis 0 is not the rows."""
    return UnexpectedShape(
        f"output {name!r} of the model has shape {list(shape)} for {rows} rows of input:"
        " its dimension 0 must be the rows"
    )


class DeclaredShapes:
    """Compares outputs with the trailing dimensions that the model's file fixes. Dimension 0 is the rows'.

    In a run that requests share, one of them may have changed the shape for all. What a request gets by itself is its
    answer, as it is where nobody shares runs; the log tells it once for each output.

    Args:
        model: The model's name, for the log.
        signature: The model's. An output without trailing dimensions may be of undeclared rank, and is not compared.
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
        """The outputs themselves.

        Raises:
            UnexpectedShape: One is of another shape; says which.
        """
        for name, declared in self._fixed:
            found = outputs[name].shape[1:]
            if found != declared and not _matches(found, declared):
                raise UnexpectedShape(
                    f"output {name!r} of the model has shape {[-1, *found]}, but it declares {[-1, *declared]}"
                )
        return outputs

    def tell(self, outputs: Tensors) -> Tensors:
        """The outputs themselves, once it is told which of them are of another shape."""
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
    """Which entries of a batch have NaN or infinity in an output.

    Args:
        outputs: By name, with the rows of all entries one behind the other.
        counts: The rows of each entry.

    Returns:
        The entry's position and the output's name, once per entry.
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
    """Whether all values are finite; ``False`` also where that is merely unsure, since their sum is too large.

    NaN and infinity survive a sum, which needs no second array and takes a third of the time of asking every value.
    """
    with np.errstate(all="ignore"):
        return bool(np.isfinite(np.add.reduce(array, axis=None)))


def _matches(found: tuple[int, ...], declared: tuple[int, ...]) -> bool:
    return len(found) == len(declared) and all(
        expected in (-1, size) for size, expected in zip(found, declared, strict=True)
    )
