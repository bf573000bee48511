"""Cuts requests of many rows of different lengths into pieces of equal length.

A request is padded to its longest row, so that as one rectangle 16 texts cost as much as 16 of the longest. Each piece
is scheduled separately: it shares batches with pieces of its length, and more urgent work goes between. The outputs of
all pieces are joined again in row order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from serve_app.backends.warm_up import spaced_buckets
from serve_app.errors import InferenceFailed
from serve_app.payloads import Execution, Tensors
from serve_app.processors.buckets import bucket_for
from serve_app.processors.processor import Processor
from serve_app.scheduling.batching.latency import LatencyModel


class Piece(NamedTuple):
    """Rows of a request.

    Attributes:
        rows: Positions in the request.
        tensors: The rows, padded to the longest of them.
        bucket: Their cost bucket.
        after_s: Predicted time of the following pieces, one by one or together, whichever is less.
    """

    rows: Sequence[int]
    tensors: Tensors
    bucket: int
    after_s: float = 0.0


def padded_lengths(processor: Processor, executions: Iterable[Execution], device: str) -> tuple[int, ...]:
    """Choose the padded lengths, ascending.

    On a CPU a new length costs nothing: separable rows are padded only to the longest of their batch, others to all
    buckets. On a GPU the first run of each shape is slow, so only lengths of the warm-up are used.

    Args:
        executions: Of the warm-up.
        device: ``cpu`` or ``cuda``.
    """
    buckets = processor.buckets
    if device == "cpu":
        cuts = len(buckets) > 1 and len(processor.lengths(processor.example(1, buckets[0]))) > 0
        return tuple(range(1, buckets[-1] + 1)) if cuts else buckets
    measured = spaced_buckets(buckets)
    ran = {each.bucket for each in executions} or set(measured)
    return tuple(bucket for bucket in measured if bucket in ran or bucket == measured[-1])


def cut(
    processor: Processor,
    tensors: Tensors,
    lengths: Sequence[int],
    latency: LatencyModel,
    max_rows: int,
    *,
    pads: bool,
    one_row_each: bool,
    lock: AbstractContextManager[Any],
) -> list[Piece]:
    """Cut a request into pieces, the longest first.

    A piece has as many rows as save time by running together (`LatencyModel.enough`).

    Args:
        processor: Made the tensors.
        lengths: Padded lengths, ascending.
        latency: Predicts costs.
        max_rows: Most rows of a piece.
        pads: Whether rows may be padded; otherwise all rows of a piece have the same length.
        one_row_each: Whether each row is a piece, because rows of a run change each other's answers.
        lock: Held while ``latency`` is used.

    Returns:
        Empty if the rows cannot be separated, or would form one piece.
    """
    each = processor.lengths(tensors)
    if len(each) < 2:
        return []
    padded = [bucket_for(length, tuple(lengths)) for length in each]
    sizes = padded if pads else each
    order = sorted(range(len(each)), key=sizes.__getitem__, reverse=True)
    parts: list[list[int]] = []
    with lock:
        for _, members in groupby(order, key=sizes.__getitem__):
            same = list(members)
            most = 1 if one_row_each else latency.enough(padded[same[0]], max_rows)
            parts += (same[start : start + most] for start in range(0, len(same), most))
        behind, after_s = 0, [0.0]
        for rows in reversed(parts[1:]):
            bucket = padded[rows[0]]
            behind += len(rows)
            seconds = after_s[-1] + latency.typical(len(rows), bucket)
            if pads and not one_row_each:  # they share runs where that is less, padded to the longest of them
                full, rest = divmod(behind, max_rows)
                together_s = full * latency.typical(max_rows, bucket)
                seconds = min(seconds, together_s + (latency.typical(rest, bucket) if rest else 0.0))
            after_s.append(seconds)
    if len(parts) < 2:
        return []
    return [
        Piece(rows, processor.cut(tensors, rows, sizes[rows[0]]), padded[rows[0]], seconds)
        for rows, seconds in zip(parts, reversed(after_s), strict=True)
    ]


def put_together(pieces: Sequence[Piece], outputs: Sequence[Tensors]) -> Tensors:
    """Join the outputs of a request's pieces. Omits outputs without the pieces' rows.

    If sizes differ, e.g. of token vectors, pieces are zero-padded at the end.

    Raises:
        InferenceFailed: No output has its piece's rows, or numbers of dimensions differ.
    """
    count = sum(len(piece.rows) for piece in pieces)
    parts = {name: [output[name] for output in outputs] for name in outputs[0]}
    faults = {name: fault for name, each in parts.items() if (fault := _fault(name, pieces, each))}
    if len(faults) == len(parts):
        raise InferenceFailed(next(iter(faults.values()), "the model has no outputs"))
    return {name: _joined(count, pieces, each) for name, each in parts.items() if name not in faults}


def _fault(name: str, pieces: Sequence[Piece], parts: Sequence[npt.NDArray[Any]]) -> str:
    """Why outputs of pieces are not of the request's rows; empty if they are."""
    if len({part.ndim for part in parts}) > 1:
        return f"output {name!r} has different numbers of dimensions for different rows"
    for piece, part in zip(pieces, parts, strict=True):
        if not part.ndim or len(part) != len(piece.rows):
            return f"output {name!r} has shape {list(part.shape)} for {len(piece.rows)} rows of input"
    return ""


def _joined(count: int, pieces: Sequence[Piece], parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    sizes = tuple(map(max, zip(*(part.shape[1:] for part in parts), strict=True)))
    even = all(part.shape[1:] == sizes for part in parts)
    whole = (np.empty if even else np.zeros)((count, *sizes), parts[0].dtype)
    for piece, part in zip(pieces, parts, strict=True):
        place: tuple[Any, ...] = (list(piece.rows), *map(slice, part.shape[1:]))
        whole[place] = part
    return whole
