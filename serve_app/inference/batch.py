"""From entries to batches and back: which entries run together, and whose answer is whose.

An error belongs to the entry that caused it. A run of several entries that fails is repeated entry by entry, so that
the neighbours of a bad one are answered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from serve_app.errors import InferenceFailed, InvalidRequest, ServeAppError
from serve_app.inference.backend import Backend
from serve_app.payloads import Execution, Tensors

_logger = logging.getLogger(__name__)

Outcome: TypeAlias = Tensors | ServeAppError
"""What became of one entry: every output by name, or the error to answer with."""


class BatchRun(NamedTuple):
    """What became of a batch.

    Attributes:
        outcomes: One per entry, in the order given. Outputs are views of the batch's arrays.
        executions: The runs of the backend that succeeded. Failed ones are left out: how long a model takes to fail
            says nothing about how long it takes.
    """

    outcomes: list[Outcome]
    executions: list[Execution]


def rows_of(tensors: Tensors) -> int:
    """The number of rows of an entry.

    Raises:
        InvalidRequest: There is no row, or the tensors differ in their number of rows. Such an entry must never be
            assembled: the rows behind it would go to the wrong clients.
    """
    counts = {array.shape[0] if array.ndim else 0 for array in tensors.values()}
    if len(counts) != 1 or 0 in counts:
        found = ", ".join(f"{name!r} {list(array.shape)}" for name, array in tensors.items()) or "none"
        raise InvalidRequest(
            f"all inputs must have the same number of rows (dimension 0), and at least one; found: {found}"
        )
    return counts.pop()


def pieces(rows: int, max_rows: int) -> Iterator[slice]:
    """Cut rows into slices of at most ``max_rows``."""
    for start in range(0, rows, max_rows):
        yield slice(start, min(start + max_rows, rows))


def group(entries: Sequence[tuple[int, Tensors]], max_rows: int) -> list[list[int]]:
    """Decide which entries run together.

    Entries fit together when their tensors have equal names, dtypes and trailing shapes. Among those, order is kept
    and a group is closed when the next entry would take it over ``max_rows``; a larger entry is a group of its own.

    Args:
        entries: Rows and tensors of each.
        max_rows: Most rows of a run.

    Returns:
        Groups of positions in ``entries``, in the order of their first entry.
    """
    groups: list[list[int]] = []
    open_groups: dict[Any, tuple[list[int], int]] = {}
    for position, (rows, tensors) in enumerate(entries):
        key = tuple(sorted((name, array.dtype.str, array.shape[1:]) for name, array in tensors.items()))
        members, filled = open_groups.get(key, (None, 0))
        if members is None or filled + rows > max_rows:
            members, filled = [], 0
            groups.append(members)
        members.append(position)
        open_groups[key] = (members, filled + rows)
    return groups


def assemble(entries: Sequence[Tensors]) -> Tensors:
    """Join the rows of entries that fit together. A single entry is passed through without a copy."""
    if len(entries) == 1:
        return entries[0]
    return {name: np.concatenate([tensors[name] for tensors in entries]) for name in entries[0]}


def split(outputs: Tensors, row_counts: Sequence[int]) -> list[Tensors]:
    """Cut a batch's outputs into those of its entries, as views.

    Raises:
        InferenceFailed: An output does not have exactly these rows.
    """
    total = sum(row_counts)
    for name, array in outputs.items():
        if array.ndim == 0 or len(array) != total:
            raise InferenceFailed(f"output {name!r} has shape {list(array.shape)} for {total} rows of input")
    if len(row_counts) == 1:
        return [outputs]
    parts: list[Tensors] = []
    start = 0
    for rows in row_counts:
        parts.append({name: array[start : start + rows] for name, array in outputs.items()})
        start += rows
    return parts


def run_entries(
    backend: Backend,
    entries: Sequence[Tensors],
    max_rows: int,
    buckets: Sequence[int] | None = None,
    clock: Callable[[], float] = perf_counter,
) -> BatchRun:
    """Run entries in as few runs as they fit into. Never raises for what an entry or the model does.

    Args:
        backend: Loaded.
        entries: The inputs of each, already checked against the model's signature.
        max_rows: Most rows of a run, at least 1. A larger entry is run in pieces.
        buckets: The cost bucket of each entry; ``None`` where the model has none.
        clock: For the runs' durations, seconds.
    """
    outcomes: dict[int, Outcome] = {}
    executions: list[Execution] = []
    sound: list[tuple[int, int, Tensors]] = []  # position, rows, tensors
    for position, tensors in enumerate(entries):
        try:
            sound.append((position, rows_of(tensors), tensors))
        except InvalidRequest as error:
            outcomes[position] = error

    def attempt(members: Sequence[int]) -> list[Tensors]:
        """Run these entries as one batch, in pieces if it is a single entry that is too large."""
        batch = assemble([sound[member][2] for member in members])
        counts = [sound[member][1] for member in members]
        bucket = max(buckets[sound[member][0]] for member in members) if buckets is not None else 0
        rows = sum(counts)
        parts: list[Tensors] = []
        for piece in [slice(0, rows)] if rows <= max_rows else pieces(rows, max_rows):
            size = piece.stop - piece.start
            inputs = batch if size == rows else {name: array[piece] for name, array in batch.items()}
            start = clock()
            outputs = backend.run(inputs)
            seconds = clock() - start
            parts.extend(split(outputs, [size]))
            executions.append(Execution(size, bucket, seconds))
        if len(parts) > 1:
            parts = [{name: np.concatenate([part[name] for part in parts]) for name in parts[0]}]
        return split(parts[0], counts)

    for members in group([(rows, tensors) for _, rows, tensors in sound], max_rows):
        try:
            results: Sequence[Outcome] = attempt(members)
        except Exception as error:  # the seam to foreign code: whatever it raises, the other entries are answered
            results = [_outcome(attempt, member) for member in members] if len(members) > 1 else [_as_answer(error)]
        for member, result in zip(members, results, strict=True):
            outcomes[sound[member][0]] = result
    return BatchRun([outcomes[position] for position in range(len(entries))], executions)


def _outcome(attempt: Callable[[Sequence[int]], list[Tensors]], member: int) -> Outcome:
    """Run one entry alone."""
    try:
        return attempt([member])[0]
    except Exception as error:  # as in `run_entries`
        return _as_answer(error)


def _as_answer(error: Exception) -> ServeAppError:
    """The error to answer with. One that nobody foresaw is logged, and its text, which may hold anything, kept back."""
    if isinstance(error, ServeAppError):
        return error
    _logger.error("an entry failed with an unexpected error", exc_info=error)
    answer = InferenceFailed("the model failed on this input")
    answer.__cause__ = error
    return answer
