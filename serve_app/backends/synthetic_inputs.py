"""Made-up values for inputs without configured samples, and the shapes that they fill."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from serve_app.payloads import DTYPES, TensorSpec

_RAMP_LENGTH: Final = 128
"""A ramp begins again after as many elements: INT8 holds no more."""


class SyntheticInput(NamedTuple):
    """The element value of a tensor.

    Attributes:
        number: For all elements but texts; ``None``: a ramp 0, 1, 2 ... along the last axis.
        text: For all texts; ``None``: the same ramp as decimal digits.
    """

    number: int | None
    text: str | None

    def of(self, datatype: str) -> int | str | None:
        """The value for a datatype."""
        return self.text if datatype == "BYTES" else self.number


SYNTHETIC_INPUTS: Final = (
    SyntheticInput(1, ""),
    SyntheticInput(0, "0"),
    SyntheticInput(1, "1"),
    SyntheticInput(None, None),
)
"""The likeliest first. Ones are a valid token and a mask that hides nothing; zeros are an index into any table."""


def has_rows(spec: TensorSpec, *, rows: bool = True) -> bool:
    """Whether dimension 0 of an input is the rows of a batch; never with ``rows=False``."""
    return rows and bool(spec.shape) and spec.shape[0] < 0


def shape_of(
    spec: TensorSpec, rows: int, given: Sequence[int] | None = None, free_size: int = 1, *, batched: bool = True
) -> tuple[int, ...]:
    """The shape of an input.

    Args:
        spec: Rank 0 or a fixed dimension 0 means no rows.
        given: Its shape without rows; ``None``: the model's.
        free_size: Size of a variable dimension.
        batched: Whether a variable dimension 0 is rows; else it has ``free_size``, too.
    """
    leads = has_rows(spec, rows=batched)
    inner = spec.shape[1:] if leads else spec.shape
    sizes = tuple(free_size if size < 0 else size for size in inner) if given is None else tuple(given)
    return (rows, *sizes) if leads else sizes


def filled(spec: TensorSpec, shape: tuple[int, ...], filling: SyntheticInput) -> npt.NDArray[Any]:
    """A tensor of an input's dtype and this shape."""
    dtype, value = DTYPES[spec.datatype], filling.of(spec.datatype)
    if value is not None:
        return np.full(shape, value, dtype=dtype)
    ramp = np.arange(shape[-1] if shape else 1) % _RAMP_LENGTH
    array = np.empty(shape, dtype=dtype)
    if dtype.kind == "O":
        ramp = np.array([str(number) for number in ramp.tolist()], dtype=np.object_)
    elif dtype.kind == "b":
        ramp = ramp % 2
    array[...] = ramp.astype(dtype) if shape else ramp.astype(dtype)[0]
    return array
