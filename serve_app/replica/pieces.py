"""Requests of many rows of different lengths, cut into pieces of one length each.

A request is padded to its longest row, so as one rectangle 16 texts cost as much as 16 of the longest. Each piece is
scheduled by itself: it shares batches with whatever is as long, and what is more urgent goes between two of them. The
outputs of all pieces are put together again, in the order of the rows.
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
        rows: Their positions in the request.
        tensors: The rows, as long as the longest of them.
        bucket: Their cost bucket.
        after_s: What the pieces behind it are predicted to take, one by one or together, whichever is less.
    """

    rows: Sequence[int]
    tensors: Tensors
    bucket: int
    after_s: float = 0.0


def padded_lengths(processor: Processor, executions: Iterable[Execution], device: str) -> tuple[int, ...]:
    """Choose the lengths that rows are padded to, ascending.

    On a CPU a new length costs nothing: rows that can be cut apart are padded to the longest of their batch and no
    further, others to all buckets. On a GPU the first run of each shape is slow, so only lengths that the warm-up ran
    are taken.

    Args:
        processor: The model's.
        executions: Those of the warm-up.
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
        tensors: Of the request.
        lengths: What rows are padded to, ascending.
        latency: Predicts what they cost.
        max_rows: Most rows of a piece.
        pads: Whether a row may be padded at all; otherwise all rows of a piece have the same length.
        one_row_each: Whether each row is a piece: where rows of one run change each other's answers.
        lock: Is held while the latency is asked.

    Returns:
        No pieces where the rows cannot be cut apart, or all would be in one.
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
    """Make the outputs of a request of those of its pieces. Outputs that have not its rows are none of them: left out.

    Where pieces have outputs of different sizes, as the vectors of tokens are, each is filled up with zeros behind.

    Raises:
        InferenceFailed: No output has the rows of its piece, or one has another number of dimensions than in others.
    """
    count = sum(len(piece.rows) for piece in pieces)
    parts = {name: [output[name] for output in outputs] for name in outputs[0]}
    faults = {name: fault for name, each in parts.items() if (fault := _fault(name, pieces, each))}
    if len(faults) == len(parts):
        raise InferenceFailed(next(iter(faults.values()), "the model has no outputs"))
    return {name: _joined(count, pieces, each) for name, each in parts.items() if name not in faults}


def _fault(name: str, pieces: Sequence[Piece], parts: Sequence[npt.NDArray[Any]]) -> str:
    """Why the outputs of pieces are not those of a request's rows; empty where they are."""
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
