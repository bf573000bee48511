"""Cost buckets: the padded lengths of variable axes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from serve_app.errors import InvalidRequest
from serve_app.payloads import Tensors

_PER_DOUBLING = 8
"""Lengths from one power of two to the next: the longest padding is an eighth of what is there."""


def size_classes(first: int, longest: int) -> tuple[int, ...]:
    """Ascending lengths in eight steps per doubling: 8, 16, 24 ... 64, 72 ... 128, 144 (jemalloc's size classes).

    Args:
        first: The shortest length, and the step up to eight times itself.
    """
    lengths = list(range(first, min(_PER_DOUBLING * first, longest), first))
    step, length = first, _PER_DOUBLING * first
    while length < longest:
        lengths.append(length)
        if length >= 2 * _PER_DOUBLING * step:
            step *= 2
        length += step
    return (*lengths, longest)


def bucket_for(length: int, buckets: tuple[int, ...]) -> int:
    """The smallest bucket that holds ``length``, else the largest. Buckets ascend."""
    return buckets[min(bisect_left(buckets, length), len(buckets) - 1)]


def bucket_of(tensors: Tensors, names: Iterable[str], buckets: tuple[int, ...], unit: str) -> int:
    """The bucket of the longest of these tensors, each (rows, length).

    Args:
        tensors: From a processor, or from a client that prepares tensors itself.
        names: Tensors with a variable axis 1.
        buckets: Ascending.
        unit: Unit of axis 1, for messages.

    Raises:
        InvalidRequest: A tensor is missing, has not two axes, or exceeds the largest bucket.
    """
    longest = 0
    for name in names:
        tensor = tensors.get(name)
        if tensor is None or tensor.ndim != 2:
            found = "is missing" if tensor is None else f"has shape {list(tensor.shape)}"
            raise InvalidRequest(f"input {name!r} {found}; expected [rows, {unit}]")
        length = tensor.shape[1]
        if length > buckets[-1]:
            raise InvalidRequest(f"input {name!r} has {length} {unit}; this model takes at most {buckets[-1]}")
        longest = max(longest, length)
    return bucket_for(longest, buckets)


def widen(tensor: npt.NDArray[Any], length: int, value: int) -> npt.NDArray[Any]:
    """Fill (rows, n) up to (rows, ``length``) with trailing ``value``; unchanged if it has that length.

    Like `numpy.pad`, at a tenth of its cost for short rows.

    Raises:
        ValueError: It is longer than that.
    """
    rows, present = tensor.shape
    if present == length:
        return tensor
    if present > length:
        raise ValueError(f"{present} do not fit into {length}")
    wide = np.empty((rows, length), tensor.dtype)
    wide[:, :present] = tensor
    wide[:, present:] = value
    return wide
