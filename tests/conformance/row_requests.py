"""Requests made of a model's own data: other values, other numbers of rows. ONNX Runtime alone says what is right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import ml_dtypes
import numpy as np

from conformance.alone import Alone, Array, Tensors, difference

ROWS = (1, 2, 3, 5, 4, 7)
_TIMES = 6
"""How often a model is run to see whether it always answers the same."""
_LARGEST = 100.0
"""What values are multiplied with at most."""
_ANSWER_BYTES = 256 * 1024
"""Larger answers are left out: they would take time, and say nothing more."""
_REQUEST_BYTES = 4 * 1024**2
"""Likewise larger requests, of which few would fit into the server's limits at once."""
_FLOATS = frozenset({np.dtype(kind) for kind in (np.float16, np.float32, np.float64, ml_dtypes.bfloat16)})


class Request(NamedTuple):
    """One request.

    Attributes:
        inputs: By name.
        expected: What ONNX Runtime alone answers; ``None`` where it cannot run this.
    """

    inputs: Tensors
    expected: Tensors | None


def answer(alone: Alone, inputs: Tensors) -> Tensors | None:
    """What ONNX Runtime alone answers; ``None`` where it cannot."""
    try:
        return alone.run(inputs)
    except Exception:  # of ONNX Runtime, whose exceptions share no base but Exception
        return None


def is_deterministic(alone: Alone, inputs: Tensors) -> bool:
    """Whether it runs at all, and answers the same several times: what draws random numbers may repeat one once."""
    first, *more = (answer(alone, inputs) for _ in range(_TIMES))
    return first is not None and all(other is not None and difference(first, other) is None for other in more)


def requests_of(
    alone: Alone, own: Sequence[Tensors], rng: np.random.Generator, *, number: int, refused: int
) -> list[Request]:
    """Different requests to one model, its own data first.

    Args:
        alone: The model.
        own: Data that came with it.
        rng: Chooses.
        number: How many that ONNX Runtime alone can run.
        refused: At most so many that it cannot, since their first dimensions are others.
    """
    made: list[Request] = []
    left = {True: number, False: refused}
    for inputs in (*own, *_candidates(own[0], rng)):
        if _nbytes(inputs) > _REQUEST_BYTES:
            continue
        expected = answer(alone, inputs)
        runs = expected is not None
        if not left[runs] or (expected is not None and _nbytes(expected) > _ANSWER_BYTES):
            continue
        made.append(Request(inputs, expected))
        left[runs] -= 1
        if not left[True]:
            break
    return made


def _candidates(own: Tensors, rng: np.random.Generator) -> Iterator[Tensors]:
    yield _with_rows(own, {}, rng)
    for rows in ROWS:
        yield _with_rows(own, dict.fromkeys(own, rows), rng)
        yield _with_rows(own, {}, rng)
        if len(own) > 1:  # the first dimensions of the others may not be rows
            yield _with_rows(own, {next(iter(own)): rows}, rng)


def _with_rows(own: Tensors, rows: Mapping[str, int], rng: np.random.Generator) -> Tensors:
    factor = _LARGEST ** rng.random()
    made: Tensors = {}
    for number, (name, array) in enumerate(own.items()):
        taken = _take(array, rows.get(name, len(array)), rng) if array.ndim else array
        # A flat float input that is not the first often says how large the output is to be.
        made[name] = _scale(taken, factor) if number == 0 or taken.ndim > 1 else taken
    return made


def _take(array: Array, rows: int, rng: np.random.Generator) -> Array:
    if not len(array):
        return array
    return np.ascontiguousarray(array[(np.arange(rows) + rng.integers(len(array))) % len(array)])


def _scale(array: Array, factor: float) -> Array:
    if array.dtype not in _FLOATS:
        return array
    with np.errstate(all="ignore"):
        return np.asarray(array * np.asarray(factor, array.dtype), array.dtype)


def _nbytes(tensors: Tensors) -> int:
    return sum(array.nbytes for array in tensors.values())
