"""Cost buckets: the lengths that variable axes are padded to."""

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
    """Lengths in eight steps per doubling, ascending: 8, 16, 24 ... 64, 72 ... 128, 144 (size classes of jemalloc).

    Args:
        first: The step up to eight times itself, and the shortest length.
        longest: The last length.
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
    """The smallest bucket that holds ``length``; the largest of all if none does. Buckets ascend."""
    return buckets[min(bisect_left(buckets, length), len(buckets) - 1)]


def bucket_of(tensors: Tensors, names: Iterable[str], buckets: tuple[int, ...], unit: str) -> int:
    """The bucket of the longest of these tensors, each (rows, length).

    Args:
        tensors: Made by a processor, or by a client that prepares its tensors itself.
        names: Of the tensors whose axis 1 may vary.
        buckets: Ascending.
        unit: What axis 1 counts, for messages.

    Raises:
        InvalidRequest: One is missing, has not two axes, or is longer than the largest bucket.
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
    """Fill (rows, n) up to (rows, ``length``) with ``value`` behind. Itself where it has that length already.

    What `numpy.pad` does in general, at a tenth of its cost for short rows.

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
