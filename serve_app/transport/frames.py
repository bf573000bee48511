"""Encodes bundles and results for the link between a router and a replica.

A frame is a prefix (``<IIQ``: bytes of the header, number of buffers, bytes of the whole frame), the sizes of the
buffers (``<Q`` each), the header, and the buffers, each at a multiple of 64 bytes from the frame's start.

The header is a pickle: the link ensures that both sides are processes of one user on one node. Pickling many small
arrays is slow, so arrays of equal dtype and trailing shape, the usual case, are sent as one per tensor. Arrays in the
router's arena are not sent at all: the header holds their places.
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
    RequestAttributes,
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
    """Encode a bundle.

    Args:
        call: Id of the call, for the answer.
        arena: Readable by the replica, if any.
        clock: Common to all processes of this node, seconds.

    Returns:
        The frame's parts, and arrays in the arena to keep until the answer.
    """
    sent_at = clock()
    payloads, facts, origins = [], [], []
    for entry in bundle.entries:
        # The class as a plain number, structs as plain tuples: both take a quarter of the time.
        fields = astuple(entry)
        facts.append((int(entry.priority), *fields[1:4], astuple(entry.attributes), *fields[7:]))
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
    """Decode a bundle. Its tensors are views of the frame and of the arena.

    Budgets are reduced by the time in transit, since frames wait for both event loops. Expired entries have 0.

    Args:
        arena: The replica's view of the router's, if shared.
        ties: The router's table of ties, if shared, to attach to the bundle.

    Raises:
        ValueError: The frame is invalid: the sides have different versions.
    """
    _, kind, sent_at, (sender, revision, model), facts, payloads, told = frame.header
    passed_s = max(0.0, clock() - sent_at)
    if kind != _PICKLED:
        payloads = _unpack(payloads, frame.buffers, len(facts), arena)
    entries: list[WireEntry] = []
    for at, (priority, budget_s, rows, variant, attributes, *more) in enumerate(facts):
        origin = None if told is None or told[at] is None else Origin(*told[at])
        left_s = max(0.0, budget_s - passed_s)
        known = RequestAttributes(*attributes)
        entries.append(WireEntry(priority, left_s, rows, variant, payloads[at], origin, known, *more))
    return Bundle(entries, sender, set(), ties, revision, model)


def encode_result(call: int, result: BundleResult) -> list[Part]:
    """Encode a bundle's result."""
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
    """Decode a result. Its tensors are views of the frame. Raises what `decode_bundle` raises."""
    _, kind, count, values, failures, executions, *more = frame.header
    if kind != _PICKLED:
        values = _unpack(values, frame.buffers, count - len(failures), None)
    results: list[EntryResult] = list(map(Success, values))
    for index, failure in failures:  # in order: each finds its place among those that are there already
        results.insert(index, Failure(*failure))
    return BundleResult(results, list(starmap(Execution, executions)), *more)


def encode_recall(call: int, positions: Sequence[int]) -> list[Part]:
    """Encode a recall of a bundle's waiting entries."""
    return _frame(pickle.dumps((call, RECALL, tuple(positions)), 5), [])


def recalled(frame: Frame) -> Sequence[int]:
    """The positions in a `RECALL` frame."""
    positions: Sequence[int] = frame.header[2]
    return positions


def encode_part(call: int, position: int, number: int, waited_s: float, outputs: Tensors) -> list[Part]:
    """Encode a part of an answer; see `serve_app.payloads.PartSink`."""
    packed = _pack([outputs], None)
    if packed is None:
        return _pickled((call, PART, position, number, waited_s, None, outputs))
    columns, buffers, _ = packed
    return _frame(pickle.dumps((call, PART, position, number, waited_s, columns), 5), buffers)


def decode_part(frame: Frame) -> tuple[int, int, float, Tensors]:
    """Decode a `PART` frame, for `serve_app.payloads.PartSink`. Tensors are views of the frame. Raises ValueError."""
    _, _, position, number, waited_s, columns, *pickled = frame.header
    if columns is None:
        outputs: Tensors = pickled[0]
        return position, number, waited_s, outputs
    return position, number, waited_s, _unpack(columns, frame.buffers, 1, None)[0]


def encode_taken(call: int, position: int, count: int) -> list[Part]:
    """Encode a number of parts read of an entry's answer."""
    return _frame(pickle.dumps((call, TAKEN, position, count), 5), [])


def taken(frame: Frame) -> tuple[int, int]:
    """The position and number of parts in a `TAKEN` frame."""
    position, count = frame.header[2:]
    return position, count


def encode_failure(call: int, failure: Failure) -> list[Part]:
    """Encode the failure of a whole bundle."""
    return _frame(pickle.dumps((call, failure), 5), [])


class Frame:
    """A received frame.

    Args:
        data: Complete; the buffers are views of it.

    Attributes:
        header: Starts with the call's id and the kind.
        call: The call's id; 0 for a probe and its answer.
        kind: For a failure the `Failure`, for a probe ``None``.
        buffers: Views of the frame.
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
    """Encode a probe or its answer: call 0, which has no caller."""
    return _frame(pickle.dumps((0,), 5), [])


def _pickled(values: tuple[Any, ...]) -> list[Part]:
    buffers: list[pickle.PickleBuffer] = []
    header = pickle.dumps(values, 5, buffer_callback=buffers.append)
    return _frame(header, [[buffer.raw()] for buffer in buffers])


def _frame(header: bytes, buffers: Sequence[Buffer]) -> list[Part]:
    """Assemble a pickled header and buffers."""
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
    """Arrange tensors by column. ``None`` if only pickle can encode them: media, strings, answers, different names."""
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
    """Whether the rows of arrays can be concatenated."""
    for array in arrays:  # noqa: SIM110 - a quarter of the time of all()
        if array.dtype != dtype or not array.ndim or array.shape[1:] != trailing:
            return False
    return True


def _place(array: npt.NDArray[Any], arena: Arena | None) -> tuple[npt.NDArray[Any], int]:
    """Find or make an array's place in the arena: the array there and its offset; -1 without one."""
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
    """The consecutive rows of all, in place unless small."""
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
