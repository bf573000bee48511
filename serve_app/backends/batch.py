"""Turns entries into batches and batches into answers.

An error belongs to the entry that caused it. A failed run of several entries is repeated entry by entry, so that the
neighbours of a bad entry are answered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from serve_app.backends.backend import Backend, SessionLost
from serve_app.backends.outputs import UnexpectedShape, not_finite
from serve_app.errors import DeadlineExceeded, InferenceFailed, InvalidRequest, ServeAppError
from serve_app.payloads import Execution, Tensors, joined

_logger = logging.getLogger(__name__)

_VIEW_FROM_BYTES = 64 * 1024  # per array: what is copied in the time that it takes to find out where one lies

Outcome: TypeAlias = Tensors | ServeAppError
"""What became of one entry: every output by name, or the error to answer with."""


InTime: TypeAlias = Callable[[int], bool]
"""Whether somebody still waits for an entry, by its position."""


_Ran: TypeAlias = tuple[Sequence[int], Sequence[int], Tensors]
"""Entries that ran together: their positions, their rows, and the outputs of all."""


class BatchRun:
    """The result of a batch.

    Attributes:
        executions: Successful runs of the backend. Failed runs are left out: their duration does not predict that of a
            successful one.
        failed: Whether the model failed on an entry.
        lost: Whether the session has ended.
    """

    __slots__ = ("_errors", "_outcomes", "_ran", "executions", "failed", "lost")

    def __init__(self) -> None:
        self.executions: list[Execution] = []
        self.failed = False
        self.lost = False
        self._ran: list[_Ran] = []
        self._errors: dict[int, ServeAppError] = {}
        self._outcomes: list[Outcome] | None = None

    @property
    def outcomes(self) -> list[Outcome]:
        """One outcome per entry, in the given order. Outputs are consecutive views of the batch's arrays.

        Computed on demand, so that another thread than the one that ran the batch can do it.
        """
        if self._outcomes is None:
            alone = len(self._ran) == 1 and len(self._ran[0][0]) == 1 and not self._errors
            self._outcomes = [self._ran[0][2]] if alone else self._split()
        return self._outcomes

    def add(self, positions: Sequence[int], counts: Sequence[int], outputs: Tensors) -> None:
        """Record the outputs of entries that ran together.

        Raises:
            InferenceFailed: An output does not have exactly their rows. The output of an entry alone may have any
                shape.
        """
        if len(positions) > 1:
            _check_rows(outputs, sum(counts))
        self._ran.append((positions, counts, outputs))

    def fail(self, position: int, error: ServeAppError) -> None:
        """Record an entry's error without its traceback, which would keep this run and the input alive."""
        error.__traceback__ = error.__cause__ = error.__context__ = None
        self._errors[position] = error
        if isinstance(error, InferenceFailed):
            self.failed = True
            self.lost = self.lost or isinstance(error, SessionLost)

    def refuse_non_finite(self) -> None:
        """Fail the entries whose outputs hold NaN or infinity."""
        for positions, counts, outputs in self._ran:
            for at, name in not_finite(outputs, counts):
                self.fail(positions[at], InferenceFailed(f"output {name!r} contains NaN or infinity for this input"))

    def _split(self) -> list[Outcome]:
        found: dict[int, Outcome] = {}
        for positions, counts, outputs in self._ran:
            found.update(zip(positions, split(outputs, counts), strict=True))
        found.update(self._errors)
        return [found[position] for position in range(len(found))]


def rows_of(tensors: Tensors) -> int:
    """The number of rows of an entry, possibly 0.

    Raises:
        InvalidRequest: The tensors differ in their number of rows, or one cannot have rows. Such an entry must never be
            assembled: the rows behind it would go to the wrong clients.
    """
    rows = -1
    for array in tensors.values():
        count = len(array) if array.ndim else -1
        if count < 0 or count != rows >= 0:
            rows = -1
            break
        rows = count
    if rows >= 0:
        return rows
    found = ", ".join(f"{name!r} {list(array.shape)}" for name, array in tensors.items()) or "none"
    raise InvalidRequest(f"all inputs must have the same number of rows (dimension 0); found: {found}")


def most_rows(tensors: Tensors) -> tuple[int, bool]:
    """The most rows of any tensor of an entry, and whether all have as many, so that it can be joined.

    A model may take inputs with different numbers of rows. Such an entry runs alone.

    Raises:
        InvalidRequest: There is no tensor, or one cannot have rows.
    """
    try:
        return rows_of(tensors), True
    except InvalidRequest:
        if not tensors or not all(array.ndim for array in tensors.values()):
            raise
        return max(map(len, tensors.values())), False


def pieces(rows: int, max_rows: int) -> Iterator[slice]:
    """Cut rows into slices of at most ``max_rows``."""
    for start in range(0, rows, max_rows):
        yield slice(start, min(start + max_rows, rows))


def group(entries: Sequence[tuple[int, Tensors]], max_rows: int) -> list[list[int]]:
    """Group entries that run together.

    Entries fit together if their tensors have equal names, dtypes and trailing shapes. Order is kept among them. A
    group is closed when the next entry would exceed ``max_rows``; a larger entry forms a group of its own.

    Args:
        entries: Rows and tensors of each.

    Returns:
        Positions in ``entries``, by first entry of each group.
    """
    groups: list[list[int]] = []
    open_groups: dict[Any, tuple[list[int], int]] = {}
    for position, (rows, tensors) in enumerate(entries):
        key = _kind(tensors)
        members, filled = open_groups.get(key, (None, 0))
        if members is None or filled + rows > max_rows:
            members, filled = [], 0
            groups.append(members)
        members.append(position)
        open_groups[key] = (members, filled + rows)
    return groups


def _kind(tensors: Tensors) -> Any:
    return tuple(sorted((name, array.dtype.str, array.shape[1:]) for name, array in tensors.items()))


def fits(entries: Sequence[Tensors]) -> bool:
    """Whether entries can run together."""
    first = _kind(entries[0])
    return all(_kind(tensors) == first for tensors in entries[1:])


def assemble(entries: Sequence[Tensors]) -> Tensors:
    """Join the rows of entries that fit together.

    A single entry is passed through, and adjacent large rows are viewed in place; the others are copied. A reusable
    buffer would not be cheaper: the allocator hands out memory of earlier batches, whose pages are mapped.
    """
    if len(entries) == 1:
        return entries[0]
    return {name: _rows([tensors[name] for tensors in entries]) for name in entries[0]}


def fit(entries: Sequence[Tensors]) -> Tensors | None:
    """`assemble`, or ``None`` if the entries cannot run together."""
    if len(entries) == 1:
        return entries[0]
    names = entries[0].keys()
    if any(tensors.keys() != names for tensors in entries):
        return None
    try:
        return assemble(entries)
    except (ValueError, TypeError):  # numpy's words for other trailing shapes and for other dtypes
        return None


def _rows(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    if arrays[0].nbytes >= _VIEW_FROM_BYTES and (view := joined(arrays)) is not None:
        return view
    return np.concatenate(arrays, dtype=arrays[0].dtype, casting="no")


def split(outputs: Tensors, row_counts: Sequence[int]) -> list[Tensors]:
    """Split a batch's outputs into views per entry. Outputs of a single entry may have any shape.

    Raises:
        InferenceFailed: An output does not have exactly these rows.
    """
    if len(row_counts) == 1:
        return [outputs]
    _check_rows(outputs, sum(row_counts))
    if len(outputs) == 1:
        ((name, array),) = outputs.items()
        return [{name: part} for part in _parts(array, row_counts)]
    names = list(outputs)
    columns = [_parts(array, row_counts) for array in outputs.values()]
    return [dict(zip(names, parts, strict=True)) for parts in zip(*columns, strict=True)]


def _parts(array: npt.NDArray[Any], row_counts: Sequence[int]) -> list[npt.NDArray[Any]]:
    ends = list(accumulate(row_counts))
    return [array[end - rows : end] for end, rows in zip(ends, row_counts, strict=True)]


def _check_rows(outputs: Tensors, rows: int) -> None:
    for name, array in outputs.items():
        if array.ndim == 0 or len(array) != rows:
            raise UnexpectedShape(f"output {name!r} has shape {list(array.shape)} for {rows} rows of input")


def run_entries(
    backend: Backend,
    entries: Sequence[Tensors],
    max_rows: int,
    buckets: Sequence[int] | None = None,
    clock: Callable[[], float] = perf_counter,
    in_time: InTime | None = None,
    whole: Sequence[int] | None = None,
) -> BatchRun:
    """Run entries in as few runs as possible. Never raises for a failure of an entry or the model.

    Args:
        backend: Loaded.
        entries: Inputs, already checked against the model's signature.
        max_rows: Most rows of a run, at least 1. A larger entry runs in pieces.
        buckets: Cost bucket per entry; ``None`` if the model has none.
        clock: Seconds.
        in_time: Whether an entry may run again alone after its batch failed; ``None``: always.
        whole: Per entry, the rows that it counts for if it runs alone and uncut (its tensors need no rows); 0 for the
            others. ``None``: all entries are joined and cut.
    """
    ran = BatchRun()
    sound: list[tuple[int, Tensors]] = []  # rows, tensors
    places: list[int] = []  # and their positions
    for position, tensors in enumerate(entries):
        if whole is not None and (count := whole[position]):
            bucket = buckets[position] if buckets is not None else 0
            _run_whole(ran, backend, position, tensors, count, bucket, clock)
            continue
        try:
            rows = rows_of(tensors)
        except InvalidRequest as error:
            ran.fail(position, error)
            continue
        if rows:
            sound.append((rows, tensors))
            places.append(position)
        else:
            ran.fail(position, InvalidRequest("the request has 0 rows; this model requires at least 1"))

    def run(positions: Sequence[int], rows: int) -> Tensors:
        bucket = max(buckets[position] for position in positions) if buckets is not None else 0
        batch = assemble([entries[position] for position in positions])
        return _run(backend, batch, rows, max_rows, bucket, ran.executions, clock)

    for members in group(sound, max_rows):
        positions = [places[member] for member in members]
        counts = [sound[member][0] for member in members]
        _together_or_alone(
            ran,
            positions,
            counts,
            partial(run, positions, sum(counts)),
            lambda position, rows: run([position], rows),
            lambda position: backend.run_whole(entries[position]),
            in_time,
        )
    return ran


def _run_whole(
    ran: BatchRun,
    backend: Backend,
    position: int,
    tensors: Tensors,
    rows: int,
    bucket: int,
    clock: Callable[[], float],
) -> None:
    try:
        start = clock()
        outputs = backend.run_whole(tensors)
        ran.executions.append(Execution(rows, bucket, clock() - start))
        ran.add([position], [rows], outputs)
    except Exception as error:  # the seam to foreign code: whatever it raises, the other entries are answered
        answer = _as_answer(error)
        if rows > 1 and any(len(array) != rows for array in tensors.values() if array.ndim):
            found = ", ".join(f"{name!r} {len(array)}" for name, array in tensors.items() if array.ndim)
            answer = InvalidRequest(
                f"inputs have different numbers of rows ({found}), which the model does not accept: {answer}"
            )
        ran.fail(position, answer)


def run_assembled(
    backend: Backend,
    batch: Tensors,
    entries: Sequence[Tensors],
    counts: Sequence[int],
    max_rows: int,
    bucket: int = 0,
    clock: Callable[[], float] = perf_counter,
    in_time: InTime | None = None,
) -> BatchRun:
    """`run_entries` for entries that are already assembled.

    Args:
        batch: The entries' result of `fit`.
        entries: The inputs of each, to run them one by one if the batch fails.
        max_rows: A batch of several entries must not have more.
    """
    ran, rows = BatchRun(), sum(counts)
    if rows <= max_rows:
        together = partial(_timed, backend, batch, rows, bucket, ran.executions, clock)
    else:
        together = partial(_run, backend, batch, rows, max_rows, bucket, ran.executions, clock)
    _together_or_alone(
        ran,
        range(len(counts)),
        counts,
        together,
        lambda position, rows: _run(backend, entries[position], rows, max_rows, bucket, ran.executions, clock),
        lambda position: backend.run_whole(entries[position]),
        in_time,
    )
    return ran


def _together_or_alone(
    ran: BatchRun,
    positions: Sequence[int],
    counts: Sequence[int],
    together: Callable[[], Tensors],
    alone: Callable[[int, int], Tensors],
    whole: Callable[[int], Tensors],
    in_time: InTime | None,
) -> None:
    """Run entries as one batch and, where that fails, each by itself.

    An entry whose outputs have an unexpected shape even alone runs once more uncut, and that is its answer.
    """
    try:
        ran.add(positions, counts, together())
        return
    except Exception as error:  # the seam to foreign code: whatever it raises, the other entries are answered
        if len(positions) == 1 and not isinstance(error, UnexpectedShape):
            ran.fail(positions[0], _as_answer(error))
            return
    for position, rows in zip(positions, counts, strict=True):
        if in_time is not None and not in_time(position):
            ran.fail(position, _too_late())
            continue
        try:
            ran.add([position], [rows], _alone_or_whole(partial(alone, position, rows), partial(whole, position)))
        except Exception as error:  # as above
            ran.fail(position, _as_answer(error))


def _alone_or_whole(alone: Callable[[], Tensors], whole: Callable[[], Tensors]) -> Tensors:
    try:
        return alone()
    except UnexpectedShape:
        return whole()


def _too_late() -> ServeAppError:
    return DeadlineExceeded("the batch of this request failed, and its deadline passed before it could be run again")


def _run(
    backend: Backend,
    batch: Tensors,
    rows: int,
    max_rows: int,
    bucket: int,
    executions: list[Execution],
    clock: Callable[[], float],
) -> Tensors:
    """Run a batch, in pieces if it is too large; each successful piece counts as an execution."""
    if rows <= max_rows:
        return _timed(backend, batch, rows, bucket, executions, clock)
    parts: list[Tensors] = []
    for piece in pieces(rows, max_rows):
        inputs = {name: array[piece] for name, array in batch.items()}
        parts.append(_timed(backend, inputs, piece.stop - piece.start, bucket, executions, clock))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _timed(
    backend: Backend,
    batch: Tensors,
    rows: int,
    bucket: int,
    executions: list[Execution],
    clock: Callable[[], float],
) -> Tensors:
    start = clock()
    outputs = backend.run(batch)
    seconds = clock() - start
    _check_rows(outputs, rows)
    executions.append(Execution(rows, bucket, seconds))
    return outputs


def _as_answer(error: Exception) -> ServeAppError:
    """The error to answer with. An unforeseen one is logged and its text withheld: it may hold anything."""
    if isinstance(error, ServeAppError):
        return error
    _logger.error("an entry failed with an unexpected error", exc_info=error)
    return InferenceFailed("the model failed on this input")
