"""Inputs for the experiment: rows that differ from each other like those of requests, of a chosen size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

from serve_app.backends.backend import Backend, SessionLost
from serve_app.errors import ServeAppError
from serve_app.payloads import Tensors

Draw: TypeAlias = Callable[[int, int, float], Tensors]
"""Makes (rows, seed, scale): so many rows, the same for the same seed, whose own floats are scaled by that."""

_INTEGERS: Final = (1000, 10, 2)
"""Integers of our own are below these, the first that the model takes: ids have an undeclared range."""


class Varied:
    """Varies an example of a model's inputs; values are made up if none are configured.

    Args:
        example: Makes rows, of a number and a seed, that the model runs.
        kept: Inputs that keep the example's values, since those are configured.
    """

    def __init__(self, example: Callable[[int, int], Tensors], kept: Sequence[str] = ()) -> None:
        self._example = example
        self._kept = frozenset(kept)
        self._below: Mapping[str, int] = {}

    def learn(self, backend: Backend) -> None:
        """Find the largest usable integers, input by input, with the other inputs as in the example.

        Raises:
            ServeAppError: The model does not even run the example.
        """
        example = self._example(2, 0)
        backend.run_whole(example)
        below = {}
        for name, array in example.items():
            if name not in self._kept and array.dtype.kind in "iu":
                below[name] = next((most for most in _INTEGERS if _runs(backend, example, name, most)), 0)
        self._below = below

    def like(self, example: Callable[[int, int], Tensors], kept: Sequence[str]) -> Varied:
        """Apply the same variations to other examples of the model."""
        other = Varied(example, (*self._kept, *kept))
        other._below = self._below
        return other

    def __call__(self, rows: int, seed: int, scale: float) -> Tensors:
        """Draw rows; implements `Draw`."""
        rng = np.random.default_rng(seed)
        return {
            name: array if name in self._kept else self._varied(rng, name, array, scale)
            for name, array in self._example(rows, seed).items()
        }

    def _varied(self, rng: np.random.Generator, name: str, array: npt.NDArray[Any], scale: float) -> npt.NDArray[Any]:
        if array.dtype.kind == "f" or array.dtype == ml_dtypes.bfloat16:
            with np.errstate(over="ignore"):
                return np.asarray(rng.standard_normal(array.shape) * scale).astype(array.dtype)
        below = self._below.get(name, 0)
        if array.dtype.kind in "iu" and below:
            return np.asarray(rng.integers(0, below, array.shape)).astype(array.dtype)
        return array


def _runs(backend: Backend, example: Tensors, name: str, below: int) -> bool:
    array = example[name]
    largest = min(below - 1, np.iinfo(array.dtype).max)
    try:
        backend.run_whole({**example, name: np.full_like(array, largest)})
    except SessionLost:
        raise
    except ServeAppError:
        return False
    return True
