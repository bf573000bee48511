"""Bundles and their results as bytes, for the link between a router and a replica.

A frame is a prefix (``<IIQ``: bytes of the header, number of buffers, bytes of the whole frame), the sizes of the
buffers (``<Q`` each), the header, and the buffers, each at a multiple of 64 bytes from the frame's start.

The header is a pickle; both sides are processes of one user on one node, which the link makes sure of. Pickling is
slow for many small arrays, so those of all entries travel as one array per tensor where they have the same dtype and
trailing shape, which is the rule. Arrays that lie in the router's arena do not travel at all: the header says where.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Sequence
from itertools import repeat, starmap
from time import monotonic
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec.structs import astuple

from serve_app.payloads import (
    Bundle,
    BundleResult,
    EntryResult,
    Execution,
    Failure,
    Origin,
    Success,
    Tensors,
    Ties,
    WireEntry,
    joined,
)
from serve_app.transport.arena import Arena, ArenaReader

Part: TypeAlias = bytes | memoryview
"""A piece of a frame."""

Buffer: TypeAlias = list[Part]
"""A buffer of a frame, in pieces."""

PREFIX: Final = struct.Struct("<IIQ")
_ALIGNMENT: Final = 64
_PADDING: Final = bytes(_ALIGNMENT)
_TENSORS, _PICKLED, RECALL, PART, TAKEN = 0, 1, 2, 3, 4
_COPYING_IS_DEAR: Final = 16 * 1024
"""Bytes per entry above which it pays to look whether they lie in one piece already."""

SHARE_ABOVE: Final = 32 * 1024
"""Arrays larger than this go into the router's arena, smaller ones into the frame."""

Column: TypeAlias = tuple[str, str, tuple[int, ...] | None, list[Any]]
"""One tensor of every entry: name, dtype, and either the trailing shape and each entry's rows (the data is one buffer),
or ``None`` and each entry's (shape, offset in the arena or -1 for a buffer of its own)."""


def encode_bundle(
    call: int, bundle: Bundle, arena: Arena | None, clock: Callable[[], float] = monotonic
) -> tuple[list[Part], list[Any]]:
    """Make the frame of a bundle.

    Args:
        call: Id of the call; the answer carries it.
        bundle: What to send.
        arena: Where the replica can read too; ``None`` if there is none.
        clock: Of this node, the same for all of its processes, seconds.

    Returns:
        The parts of the frame, and what must be kept until the answer is there: the arrays that did not travel.
    """
    sent_at = clock()
    payloads, facts, origins = [], [], []
    for entry in bundle.entries:
        # The class as a plain number, and origins as plain tuples: both take a quarter of the time.
        fields = astuple(entry)
        facts.append((int(entry.priority), *fields[1:4], *fields[6:]))
        payloads.append(entry.payload)
        origins.append(entry.origin and astuple(entry.origin))
    told = origins if any(origins) else None  # nothing where nothing is known
    addressed = (bundle.sender, bundle.revision, bundle.model)
    packed = _pack(payloads, arena)
    if packed is None:
        return _pickled((call, _PICKLED, sent_at, addressed, facts, payloads, told)), []
    columns, buffers, kept = packed
    header = pickle.dumps((call, _TENSORS, sent_at, addressed, facts, columns, told), 5)
    return _frame(header, buffers), kept


def decode_bundle(
    frame: Frame, arena: ArenaReader | None, ties: Ties | None = None, clock: Callable[[], float] = monotonic
) -> Bundle:
    """Read the frame of a bundle. Its tensors are views of the frame and of the arena.

    Budgets are what is left of them now: a frame waits while either side's event loop is at something else. What has
    expired has 0.

    Args:
        frame: As it has arrived.
        arena: The router's, as the replica sees it; ``None`` if it shares none.
        ties: The router's table of ties, which the bundle carries from here on.
        clock: As in `encode_bundle`.

    Raises:
        ValueError: It makes no sense; the two sides are not of one version.
    """
    _, kind, sent_at, (sender, revision, model), facts, payloads, told = frame.header
    passed_s = max(0.0, clock() - sent_at)
    if kind != _PICKLED:
        payloads = _unpack(payloads, frame.buffers, len(facts), arena)
    entries: list[WireEntry] = []
    for at, (priority, budget_s, rows, variant, *more) in enumerate(facts):
        origin = None if told is None or told[at] is None else Origin(*told[at])
        left_s = max(0.0, budget_s - passed_s)
        entries.append(WireEntry(priority, left_s, rows, variant, payloads[at], origin, *more))
    return Bundle(entries, sender, set(), ties, revision, model)


def encode_result(call: int, result: BundleResult) -> list[Part]:
    """Make the frame of a bundle's result."""
    values, failures = [], []
    for index, answer in enumerate(result.results):
        if isinstance(answer, Success):
            values.append(answer.value)
        else:
            failures.append((index, tuple(answer)))
    facts = (failures, list(map(tuple, result.executions)), *astuple(result)[2:])
    packed = _pack(values, None)
    if packed is None:
        return _pickled((call, _PICKLED, len(result.results), values, *facts))
    columns, buffers, _ = packed
    return _frame(pickle.dumps((call, _TENSORS, len(result.results), columns, *facts), 5), buffers)


def decode_result(frame: Frame) -> BundleResult:
    """Read the frame of a result. Its tensors are views of the frame.

    Raises:
        ValueError: As in `decode_bundle`.
    """
    _, kind, count, values, failures, executions, *more = frame.header
    if kind != _PICKLED:
        values = _unpack(values, frame.buffers, count - len(failures), None)
    results: list[EntryResult] = list(map(Success, values))
    for index, failure in failures:  # in order: each finds its place among those that are there already
        results.insert(index, Failure(*failure))
    return BundleResult(results, list(starmap(Execution, executions)), *more)


def encode_recall(call: int, positions: Sequence[int]) -> list[Part]:
    """Make the frame that asks for entries of a call's bundle back, as far as they wait."""
    return _frame(pickle.dumps((call, RECALL, tuple(positions)), 5), [])


def recalled(frame: Frame) -> Sequence[int]:
    """The positions that a frame of the kind `RECALL` names."""
    positions: Sequence[int] = frame.header[2]
    return positions


def encode_part(call: int, position: int, number: int, waited_s: float, outputs: Tensors) -> list[Part]:
    """Make the frame of a part of an answer; see `serve_app.payloads.PartSink`."""
    packed = _pack([outputs], None)
    if packed is None:
        return _pickled((call, PART, position, number, waited_s, None, outputs))
    columns, buffers, _ = packed
    return _frame(pickle.dumps((call, PART, position, number, waited_s, columns), 5), buffers)


def decode_part(frame: Frame) -> tuple[int, int, float, Tensors]:
    """Read a frame of the kind `PART`, for `serve_app.payloads.PartSink`. Its tensors are views of the frame.

    Raises:
        ValueError: As in `decode_bundle`.
    """
    _, _, position, number, waited_s, columns, *pickled = frame.header
    if columns is None:
        outputs: Tensors = pickled[0]
        return position, number, waited_s, outputs
    return position, number, waited_s, _unpack(columns, frame.buffers, 1, None)[0]


def encode_taken(call: int, position: int, count: int) -> list[Part]:
    """Make the frame that says that so many more parts of the answer to the entry at a position have been read."""
    return _frame(pickle.dumps((call, TAKEN, position, count), 5), [])


def taken(frame: Frame) -> tuple[int, int]:
    """The position and the number of parts that a frame of the kind `TAKEN` tells."""
    position, count = frame.header[2:]
    return position, count


def encode_failure(call: int, failure: Failure) -> list[Part]:
    """Make the frame that says a bundle failed as a whole."""
    return _frame(pickle.dumps((call, failure), 5), [])


class Frame:
    """A frame that has arrived.

    Args:
        data: The whole frame. Its buffers are views of it.

    Attributes:
        header: The header's values; the first two are the call's id and what the frame is.
        call: The call's id; 0 for a probe, and for the answer to one.
        kind: What the frame is; for a failure the `Failure`, and of a probe ``None``.
        buffers: The buffers, as views of the frame.
    """

    __slots__ = ("buffers", "call", "header", "kind")

    def __init__(self, data: memoryview) -> None:
        header_size, count, _ = PREFIX.unpack_from(data)
        at = PREFIX.size
        sizes = struct.unpack_from(f"<{count}Q", data, at)
        at += 8 * count
        header = data[at : at + header_size]
        at += header_size
        self.buffers: list[memoryview] = []
        for size in sizes:
            at += -at % _ALIGNMENT
            self.buffers.append(data[at : at + size])
            at += size
        self.header: tuple[Any, ...] = pickle.loads(header, buffers=self.buffers)  # noqa: S301 - see above
        self.call: int
        self.kind: Any
        self.call, self.kind = self.header[:2] if len(self.header) > 1 else (self.header[0], None)


def encode_ping() -> list[Part]:
    """Make the frame that probes, and that answers a probe: a call of number 0, which nobody waits for."""
    return _frame(pickle.dumps((0,), 5), [])


def _pickled(values: tuple[Any, ...]) -> list[Part]:
    buffers: list[pickle.PickleBuffer] = []
    header = pickle.dumps(values, 5, buffer_callback=buffers.append)
    return _frame(header, [[buffer.raw()] for buffer in buffers])


def _frame(header: bytes, buffers: Sequence[Buffer]) -> list[Part]:
    """Lay out a pickled header and the buffers."""
    at = PREFIX.size + 8 * len(buffers) + len(header)
    sizes: list[int] = []
    parts: list[Part] = []
    for buffer in buffers:
        padding, size = -at % _ALIGNMENT, sum(map(len, buffer))
        if padding:
            parts.append(_PADDING[:padding])
        if size:
            parts += buffer
        sizes.append(size)
        at += padding + size
    prefix = PREFIX.pack(len(header), len(sizes), at)
    return [b"".join((prefix, struct.pack(f"<{len(sizes)}Q", *sizes), header)), *parts]


def _pack(payloads: Sequence[Any], arena: Arena | None) -> tuple[list[Column], list[Buffer], list[Any]] | None:
    """Lay tensors out by column. ``None`` for what only pickle can carry: media, strings, answers, different names."""
    first_payload = payloads[0] if payloads else None
    if type(first_payload) is not dict:
        return None
    names = first_payload.keys()
    for payload in payloads:
        if type(payload) is not dict or payload.keys() != names:
            return None
    columns: list[Column] = []
    buffers: list[Buffer] = []
    kept: list[Any] = []
    for name, first in first_payload.items():
        arrays = [first] if len(payloads) == 1 else [payload[name] for payload in payloads]
        for array in arrays:
            if not isinstance(array, np.ndarray):
                return None
        dtype, trailing = first.dtype, first.shape[1:]
        if dtype.hasobject:
            return None
        # What `numpy.dtype` makes the dtype of again: its letters, or the name of one that numpy has none for.
        dtype_name = dtype.str if dtype.kind != "V" else dtype.name
        small, alone = arena is None or first.nbytes <= SHARE_ABOVE, len(arrays) == 1
        if small and (first.ndim if alone else _alike(arrays, dtype, trailing)):
            buffers.append([_bytes_of(first)] if alone else _rows(arrays))
            columns.append((name, dtype_name, trailing, list(map(len, arrays))))
            continue
        places: list[tuple[tuple[int, ...], int]] = []
        for array in arrays:
            if array.dtype != dtype:
                return None
            placed, offset = _place(array, arena)
            if offset < 0:
                buffers.append([_bytes_of(placed)])
            else:
                kept.append(placed)
            places.append((array.shape, offset))
        columns.append((name, dtype_name, None, places))
    return columns, buffers, kept


def _alike(arrays: Sequence[npt.NDArray[Any]], dtype: np.dtype[Any], trailing: tuple[int, ...]) -> bool:
    """Whether the rows of arrays can lie one behind the other."""
    for array in arrays:  # noqa: SIM110 - a quarter of the time of all()
        if array.dtype != dtype or not array.ndim or array.shape[1:] != trailing:
            return False
    return True


def _place(array: npt.NDArray[Any], arena: Arena | None) -> tuple[npt.NDArray[Any], int]:
    """Find or make an array's place in the arena: the array as it lies there, and its offset; -1 without one."""
    contiguous = np.ascontiguousarray(array) if array.ndim else array
    if arena is None or contiguous.nbytes == 0:
        return contiguous, -1
    offset = arena.offset_of(contiguous)
    if offset is not None:
        return contiguous, offset
    if contiguous.nbytes <= SHARE_ABOVE or (block := arena.allocate(contiguous.nbytes)) is None:
        return contiguous, -1
    placed = block.view(contiguous.dtype).reshape(contiguous.shape)
    np.copyto(placed, contiguous)
    offset = arena.offset_of(placed)
    assert offset is not None
    return placed, offset


def _rows(arrays: Sequence[npt.NDArray[Any]]) -> Buffer:
    """The rows of all, one behind the other: where they lie, unless they are small."""
    nbytes = arrays[0].nbytes
    whole = joined(arrays) if nbytes > _COPYING_IS_DEAR else None
    if whole is not None:
        return [_bytes_of(whole)]
    if nbytes > SHARE_ABOVE:  # the kernel gathers them, in pieces that do not keep the event loop as long as a copy
        return [_bytes_of(array) for array in arrays]
    return [_bytes_of(np.concatenate(arrays))]


def _bytes_of(array: npt.NDArray[Any]) -> memoryview:
    # Through uint8: not every dtype has a buffer format (float16's extensions, datetimes). As a plain array: a matrix
    # has two dimensions whatever is done to it.
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _unpack(
    columns: Sequence[Column], buffers: Sequence[memoryview], count: int, arena: ArenaReader | None
) -> list[Tensors]:
    payloads: list[Tensors] = list(map(dict, repeat((), count)))
    unread = iter(buffers)
    for name, dtype_name, trailing, entries in columns:
        dtype = np.dtype(dtype_name)
        if trailing is not None:
            buffer, shape = next(unread), (sum(entries), *trailing)
            whole = np.frombuffer(buffer, dtype).reshape(shape) if buffer else np.empty(shape, dtype)
            start = 0
            for payload, rows in zip(payloads, entries, strict=True):
                payload[name] = whole[start : start + rows]
                start += rows
            continue
        for payload, (shape, offset) in zip(payloads, entries, strict=True):
            if offset < 0:
                buffer = next(unread)
                payload[name] = np.frombuffer(buffer, dtype).reshape(shape) if buffer else np.empty(shape, dtype)
            elif arena is None:
                raise ValueError("the frame refers to an arena that was not shared")
            else:
                payload[name] = arena.array(dtype, shape, offset)
    return payloads
