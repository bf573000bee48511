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
from time import monotonic
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from serve_app.payloads import (
    Bundle,
    BundleResult,
    EntryResult,
    Execution,
    Failure,
    Origin,
    Success,
    Tensors,
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
_TENSORS, _PICKLED, _RECALL = 0, 1, 2
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
    entries, sent_at = bundle.entries, clock()
    packed = _pack([entry.payload for entry in entries], arena)
    if packed is None:
        return _pickled(call, (sent_at, bundle)), []
    columns, buffers, kept = packed
    facts = [(*entry[:4], *entry[6:]) for entry in entries]
    # As plain tuples, which take a quarter of the time; and nothing where nothing is known.
    origins = [entry.origin and tuple(entry.origin) for entry in entries]
    told = origins if any(origins) else None
    return _frame((call, _TENSORS, sent_at, bundle.sender, facts, columns, told), buffers), kept


def decode_bundle(frame: Frame, arena: ArenaReader | None, clock: Callable[[], float] = monotonic) -> Bundle:
    """Read the frame of a bundle. Its tensors are views of the frame and of the arena.

    Budgets are what is left of them now: a frame waits while either side's event loop is at something else. What has
    expired has 0.

    Raises:
        ValueError: It makes no sense; the two sides are not of one version.
    """
    _, kind, *rest = frame.header
    if kind == _PICKLED:
        sent_at, bundle = rest[0]
        passed_s = max(0.0, clock() - sent_at)
        left = [entry._replace(budget_s=max(0.0, entry.budget_s - passed_s)) for entry in bundle.entries]
        return Bundle(left, bundle.sender, set())
    sent_at, sender, facts, columns, told = rest
    passed_s = max(0.0, clock() - sent_at)
    payloads = _unpack(columns, frame.buffers, len(facts), arena)
    origins = [None] * len(facts) if told is None else [origin and Origin(*origin) for origin in told]
    entries = [
        WireEntry(priority, max(0.0, budget_s - passed_s), rows, variant, payload, origin, *more)
        for (priority, budget_s, rows, variant, *more), payload, origin in zip(facts, payloads, origins, strict=True)
    ]
    return Bundle(entries, sender, set())


def encode_result(call: int, result: BundleResult) -> list[Part]:
    """Make the frame of a bundle's result."""
    values = [answer.value for answer in result.results if type(answer) is Success]
    packed = _pack(values, None)
    if packed is None:
        return _pickled(call, result)
    columns, buffers, _ = packed
    failures = [(index, tuple(answer)) for index, answer in enumerate(result.results) if type(answer) is not Success]
    executions = [tuple(execution) for execution in result.executions]
    return _frame((call, _TENSORS, len(result.results), failures, columns, executions, *result[2:]), buffers)


def decode_result(frame: Frame) -> BundleResult:
    """Read the frame of a result. Its tensors are views of the frame.

    Raises:
        ValueError: As in `decode_bundle`.
    """
    _, kind, *rest = frame.header
    if kind == _PICKLED:
        result: BundleResult = rest[0]
        return result
    count, failures, columns, executions, *more = rest
    values = iter(_unpack(columns, frame.buffers, count - len(failures), None))
    failed = {index: Failure(*failure) for index, failure in failures}
    results: list[EntryResult] = [failed[index] if index in failed else Success(next(values)) for index in range(count)]
    return BundleResult(results, [Execution(*execution) for execution in executions], *more)


def encode_recall(call: int, positions: Sequence[int]) -> list[Part]:
    """Make the frame that asks for entries of a call's bundle back, as far as they wait."""
    return _frame((call, _RECALL, tuple(positions)), [])


def recalled(frame: Frame) -> Sequence[int] | None:
    """The positions that such a frame names; ``None`` for any other frame."""
    positions: Sequence[int] | None = frame.header[2] if frame.header[1] == _RECALL else None
    return positions


def encode_failure(call: int, failure: Failure) -> list[Part]:
    """Make the frame that says a bundle failed as a whole."""
    return _frame((call, failure), [])


class Frame:
    """A frame that has arrived.

    Args:
        data: The whole frame. Its buffers are views of it.

    Attributes:
        header: The header's values; the first is the call's id.
        buffers: The buffers, as views of the frame.
    """

    __slots__ = ("buffers", "header")

    def __init__(self, data: memoryview) -> None:
        header_size, count, _ = PREFIX.unpack_from(data)
        at = PREFIX.size
        sizes = struct.unpack_from(f"<{count}Q", data, at)
        at += 8 * count
        header = data[at : at + header_size]
        at += header_size
        self.buffers: list[memoryview] = []
        for size in sizes:
            at = _aligned(at)
            self.buffers.append(data[at : at + size])
            at += size
        self.header: tuple[Any, ...] = pickle.loads(header, buffers=self.buffers)  # noqa: S301 - see above


def encode_ping() -> list[Part]:
    """Make the frame that probes, and that answers a probe: a call of number 0, which nobody waits for."""
    return _frame((0,), [])


def is_ping(frame: Frame) -> bool:
    """Whether a frame is that."""
    return bool(frame.header[0] == 0)


def _frame(header: tuple[Any, ...], buffers: Sequence[Buffer]) -> list[Part]:
    return _lay_out(pickle.dumps(header, 5), buffers)


def _pickled(call: int, value: tuple[float, Bundle] | BundleResult) -> list[Part]:
    buffers: list[pickle.PickleBuffer] = []
    header = pickle.dumps((call, _PICKLED, value), 5, buffer_callback=buffers.append)
    return _lay_out(header, [[buffer.raw()] for buffer in buffers])


def _lay_out(header: bytes, buffers: Sequence[Buffer]) -> list[Part]:
    sizes = [sum(map(len, buffer)) for buffer in buffers]
    at = PREFIX.size + 8 * len(sizes) + len(header)
    parts: list[Part] = []
    for buffer, size in zip(buffers, sizes, strict=True):
        start = _aligned(at)
        if start > at:
            parts.append(_PADDING[: start - at])
        if size:
            parts += buffer
        at = start + size
    prefix = PREFIX.pack(len(header), len(sizes), at)
    return [b"".join((prefix, struct.pack(f"<{len(sizes)}Q", *sizes), header)), *parts]


def _aligned(at: int) -> int:
    return -(-at // _ALIGNMENT) * _ALIGNMENT


def _pack(payloads: Sequence[Any], arena: Arena | None) -> tuple[list[Column], list[Buffer], list[Any]] | None:
    """Lay tensors out by column. ``None`` for what only pickle can carry: media, strings, different names."""
    first_payload = payloads[0] if payloads else None
    if type(first_payload) is not dict:
        return None
    names = first_payload.keys()
    columns: list[Column] = []
    buffers: list[Buffer] = []
    kept: list[Any] = []
    for payload in payloads:
        if type(payload) is not dict or payload.keys() != names:
            return None
    for name in names:
        arrays = [payload[name] for payload in payloads]
        first = arrays[0]
        dtype, trailing = first.dtype, first.shape[1:]
        if dtype.hasobject:
            return None
        alike = all(array.dtype == dtype and array.ndim and array.shape[1:] == trailing for array in arrays)
        if alike and (arena is None or first.nbytes <= SHARE_ABOVE):
            buffers.append(_rows(arrays))
            columns.append((name, _name_of(dtype), trailing, [len(array) for array in arrays]))
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
        columns.append((name, _name_of(dtype), None, places))
    return columns, buffers, kept


def _name_of(dtype: np.dtype[Any]) -> str:
    """What `numpy.dtype` makes the dtype of again: its letters, or the name of one that numpy has none for."""
    return dtype.str if dtype.kind != "V" else dtype.name


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
    if len(arrays) == 1:
        return [_bytes_of(np.ascontiguousarray(arrays[0]))]
    whole = joined(arrays) if nbytes > _COPYING_IS_DEAR else None
    if whole is not None:
        return [_bytes_of(whole)]
    if nbytes > SHARE_ABOVE:  # the kernel gathers them, in pieces that do not keep the event loop as long as a copy
        return [_bytes_of(np.ascontiguousarray(array)) for array in arrays]
    return [_bytes_of(np.concatenate(arrays))]


def _bytes_of(array: npt.NDArray[Any]) -> memoryview:
    # Through uint8: not every dtype has a buffer format (float16's extensions, datetimes). As a plain array: a matrix
    # has two dimensions whatever is done to it.
    return np.asarray(array).reshape(-1).view(np.uint8).data


def _unpack(
    columns: Sequence[Column], buffers: Sequence[memoryview], count: int, arena: ArenaReader | None
) -> list[Tensors]:
    payloads: list[Tensors] = [{} for _ in range(count)]
    unread = iter(buffers)
    for name, dtype_name, trailing, entries in columns:
        dtype = np.dtype(dtype_name)
        if trailing is not None:
            whole = _array(next(unread), dtype, (sum(entries), *trailing))
            start = 0
            for payload, rows in zip(payloads, entries, strict=True):
                payload[name] = whole[start : start + rows]
                start += rows
            continue
        for payload, (shape, offset) in zip(payloads, entries, strict=True):
            if offset < 0:
                payload[name] = _array(next(unread), dtype, shape)
            elif arena is None:
                raise ValueError("the frame refers to an arena that was not shared")
            else:
                payload[name] = arena.array(dtype, shape, offset)
    return payloads


def _array(buffer: memoryview, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    if not buffer:
        return np.empty(shape, dtype)
    return np.frombuffer(buffer, dtype).reshape(shape)
