"""The worker of a model's replica.

    bundle -> preprocess and assemble (while the previous batch runs)
           -> gate (its entries wait for the session)
           -> a batch of entries of one or more bundles, composed when the session is free -> backend (in its thread)
           -> postprocess (thread pool, or here where it is quick) -> one result per entry

Independent of Ray. The model deployment passes ``batch``, which makes from "run these bundles" a function "run this
bundle, together with others that ask in the same turn of the event loop".
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from threading import Lock
from types import MappingProxyType
from typing import Any

import msgspec

from serve_app.backends.backend import Backend
from serve_app.domain.priority import Priority
from serve_app.errors import InferenceFailed
from serve_app.payloads import (
    RETURNED,
    Bundle,
    BundleResult,
    Execution,
    Failure,
    PartSink,
    StreamLimits,
    Success,
    Tensors,
    WireEntry,
)
from serve_app.processors.processor import Processor
from serve_app.replica.execution import Executor
from serve_app.replica.joining import Joining
from serve_app.replica.parts import Outlet, Send
from serve_app.replica.pieces import Piece, cut
from serve_app.replica.processor_pool import ProcessorPool
from serve_app.replica.proof import ProofContext
from serve_app.replica.runner import CLOSE_S, BatchTogether, RunBatch, Runner, RunOne
from serve_app.replica.self_test import SelfTest
from serve_app.replica.staged import SMALL_BYTES, Stage, Staged
from serve_app.replica.turn import Turn
from serve_app.replica.verification import Verification
from serve_app.scheduling.gate import Gate
from serve_app.scheduling.settings import ModelScheduling

__all__ = ["BatchTogether", "RunBatch", "RunOne", "Worker"]


NO_SHARES: Mapping[Priority, float] = MappingProxyType(dict.fromkeys(Priority, 0.0))
"""No class is guaranteed anything."""


class Worker:
    """Runs bundles on one model.

    Args:
        scheduling: How batches are composed; its name is the model's.
        backends: The exact model under ``""`` and its variants by name. Loaded.
        processor: ``None`` for models of tensors.
        preprocess_threads: Size of the pool for decoding and postprocessing.
        batch: Makes a single-bundle function from the batch function; see the module's docstring.
        warm_up: The warm-up's executions, for initial predictions.
        examples: By variant, an input known to run, to distinguish bad inputs from a bad model.
        joining: Which requests share runs; ``None``: all.
        proofs: Settings of the proofs; ``None``: nothing is verified.
        verify: Part of shared runs' computing time for verification.
        refuse_non_finite: Whether NaN or infinity in an output fails the entry.
        min_share: Guaranteed share of the session's time per class, 0 to 1.
        protect: Part of class `high` that is to be in time whatever that costs the others, 0 to 1.
        planned: Whether routers compose batches already; see `Gate`.
        on_lost: Called when a session has ended, before its entries are answered.
        turn: Shared with other pool members on its host, if any.
        close_s: How long `close` waits for a run, seconds.
        lengths: Padded lengths, ascending; default all buckets of the processor.
        instances: Concurrent batches, in as many threads as the backends allow. 1 with a ``turn``.

    Raises:
        SessionLost: A session has ended. The caller still owns the backends.
    """

    def __init__(
        self,
        *,
        scheduling: ModelScheduling,
        backends: Mapping[str, Backend],
        processor: Processor | None,
        preprocess_threads: int,
        batch: BatchTogether,
        warm_up: Sequence[Execution] = (),
        examples: Mapping[str, Tensors] | None = None,
        joining: Joining | None = None,
        proofs: ProofContext | None = None,
        verify: float = 0.0,
        refuse_non_finite: bool = False,
        min_share: Mapping[Priority, float] = NO_SHARES,
        protect: float = 0.0,
        planned: bool = False,
        on_lost: Callable[[], None] | None = None,
        turn: Turn | None = None,
        close_s: float = CLOSE_S,
        lengths: Sequence[int] = (),
        instances: int = 1,
    ) -> None:
        name, max_rows = scheduling.name, scheduling.max_rows
        self._name = name
        self._scheduling = scheduling
        self._processor = processor
        self._lengths = lengths or (() if processor is None else tuple(processor.buckets))
        self._instances = instances
        self._in_pieces: dict[int, dict[int, list[Staged]]] = {}
        self._backends = backends
        self._pool = ProcessorPool(name, processor, preprocess_threads)
        self._lock = Lock()
        self._gate = Gate(
            scheduling, min_share, planned=planned, timer_s=_TIMER_S, instances=instances, protect=protect
        )
        self._gate.seed(warm_up)
        self._joining = joining or Joining(name)
        self._self_test = SelfTest(
            name,
            backends,
            examples or {},
            joining=self._joining,
            refuse_non_finite=refuse_non_finite,
            on_lost=on_lost,
        )
        self._self_test.start()
        self._executor = Executor(
            name,
            backends,
            processor,
            max_rows,
            self._self_test,
            joining=self._joining,
            refuse_non_finite=refuse_non_finite,
            lengths=self._lengths,
        )
        # A GPU's runs must not keep the event loop waiting for the device, however short they are.
        in_loop = all(backend.device == "cpu" for backend in backends.values()) and not self._executor.streams
        self._runner = Runner(
            name,
            self._executor,
            self._gate,
            self._lock,
            self._joining,
            batch,
            in_loop=in_loop,
            turn=turn,
            close_s=close_s,
            instances=instances,
        )

        self._verification = None
        if proofs is not None:
            self._verification = self._executor.verification = Verification(
                proofs, backends, processor, self._joining, verify, self._runner.submit_background
            )

    def __repr__(self) -> str:
        return f"<Worker {self._name}: {self._runner!r}>"

    async def run(self, bundle: Bundle) -> BundleResult:
        """Run one bundle. One result or error per entry, in order; never raises for an entry's fault."""
        started = time.monotonic()
        deadlines: list[float] = []
        tensors: list[Tensors | Failure] = []
        media: list[int] = []
        for index, entry in enumerate(bundle.entries):
            deadlines.append(started + entry.budget_s)
            if isinstance(entry.payload, dict):
                tensors.append(entry.payload)
            else:
                tensors.append(_NOT_PREPROCESSED)
                media.append(index)
        staged = Staged(
            bundle.entries,
            deadlines,
            tensors,
            [None] * len(bundle.entries),
            sender=bundle.sender,
            recalled=bundle.recalled,
            ties=bundle.ties,
        )
        if self._executor.streams:
            staged.outlets = _outlets(bundle, deadlines)
        if media:
            await self._pool.preprocess(staged, media)
        preprocessed = time.monotonic()
        if self._processor is None:
            staged.buckets = [0] * len(tensors)
        else:
            staged.buckets = self._executor.buckets(staged)
        staged.count_rows(self._joining)
        if media and not self._executor.streams:
            self._cut(staged, media)
        try:
            if staged.pieces:
                await self._run_pieces(staged)
            elif staged.rows:
                self._assemble(staged)
                await self._runner.run(staged)
        finally:
            for outlet in staged.outlets:
                outlet.close()
        executed = staged.executed_at or preprocessed
        await self._pool.postprocess(staged)
        finished = time.monotonic()
        with self._lock:
            runs_s, backlog_s = self._gate.outlook_s(finished)
        results: list[Any] = staged.results  # `postprocess` has left none out
        return BundleResult(
            results,
            staged.executions,
            preprocessed - started,
            max(0.0, executed - preprocessed) if not staged.pieces else _waited_s(staged, preprocessed),
            max(0.0, finished - (staged.finished_at or preprocessed)),
            runs_s,
            backlog_s,
            staged.model_works,
            self._joining.news(staged.sender),
            staged.first,
        )

    def recall(self, bundle: Bundle) -> None:
        """Recall more entries of a bundle: those at the gate will not run.

        Also applies to those still on their way to the gate; running and finished ones are not affected.
        """
        self._runner.recall(bundle.entries, bundle.recalled)
        if (cut := self._in_pieces.get(id(bundle.entries))) is not None:
            for index in bundle.recalled:
                self._recall_parts(cut.get(index, ()))

    def stalled_s(self) -> float:
        """Seconds without progress of the session's work; 0.0 when idle."""
        return self._runner.stalled_s()

    def calls_stalled_s(self) -> float:
        """Seconds that every processor thread has been in one call; 0.0 while one is free."""
        return self._pool.stalled_s()

    def stuck_calls(self, limit_s: float) -> int:
        """The number of processor threads in one call for longer than this. Logged once."""
        return self._pool.stuck(limit_s)

    @property
    def verified(self) -> tuple[int, int]:
        """Requests run again alone, and those with a difference above the tolerance."""
        checks = self._verification
        return (0, 0) if checks is None else (checks.checked, checks.deviated)

    @property
    def failing(self) -> bool:
        """Whether the model keeps failing on an input that it could run at first: replace this worker."""
        return self._self_test.failing

    @property
    def broken(self) -> bool:
        """Whether a bug in lending the session requires replacing this worker."""
        return self._runner.broken

    def close(self) -> None:
        """Free threads and sessions. Idempotent.

        Waits ``close_s`` for a run, and not for calls of the processor. Hanging ones end with this process, or with
        that of the class, which is ended here.
        """
        self._self_test.close()
        self._pool.close()
        self._runner.close()
        for backend in self._backends.values():
            backend.close()

    def _cut(self, staged: Staged, media: Sequence[int]) -> None:
        """Cut entries with rows of several lengths. The rest of the bundle waits unchanged."""
        processor, scheduling = self._processor, self._scheduling
        if processor is None:
            return
        for index in media:
            tensors = staged.tensors[index]
            # One row that shares runs has nothing to cut; of one that does not, the rows are not counted.
            if isinstance(tensors, Failure) or (staged.counts[index] < 2 and not staged.whole[index]):
                continue
            entry = staged.entries[index]
            verdicts, sizes = self._joining.of_entry(entry), self._joining.own_sizes(processor, entry)
            latency = self._gate.latencies.of(entry.variant)
            pieces = cut(
                processor,
                tensors,
                processor.buckets if sizes else self._lengths,
                latency,
                scheduling.max_rows,
                pads=sizes or all(verdict.pads for verdict in verdicts),
                one_row_each=not all(verdict.joins for verdict in verdicts),
                lock=self._lock,
            )
            if pieces:
                staged.pieces[index] = pieces

    async def _run_pieces(self, staged: Staged) -> None:
        """Run pieces and uncut entries of a bundle, and join the outputs."""
        parts = {index: self._parts(staged, index, pieces) for index, pieces in staged.pieces.items()}
        self._in_pieces[id(staged.entries)] = parts
        runs = [self._run_part(part, siblings) for siblings in parts.values() for part in siblings]
        for index in parts:
            staged.rows -= staged.counts[index]
            staged.counts[index] = 0
        if staged.rows:
            staged.valid = False
            runs.append(self._runner.run(staged))
        try:
            await asyncio.gather(*runs)
        finally:
            del self._in_pieces[id(staged.entries)]
        for index, siblings in parts.items():
            staged.take_pieces(index, siblings)

    def _parts(self, staged: Staged, index: int, pieces: Sequence[Piece]) -> list[Staged]:
        """Make a bundle of each piece of an entry, with a deadline that leaves time for those after it."""
        entry = self._on_one_variant(staged.entries[index], pieces, staged.deadlines[index])
        ours = staged.ties is None or not entry.place or staged.ties.take(entry.place)
        parts, arrived_at = [], time.monotonic()
        for piece in pieces:
            deadline = staged.deadlines[index] - piece.after_s / self._instances
            part = Staged([entry], [deadline], [piece.tensors], [None], sender=staged.sender)
            part.arrived_at = arrived_at
            part.buckets = [piece.bucket]
            part.count_rows(self._joining)
            if not ours:
                part.results[0] = RETURNED
            parts.append(part)
            if part.results[0] is not None:
                break
        return parts

    def _on_one_variant(self, entry: WireEntry, pieces: Sequence[Piece], deadline: float) -> WireEntry:
        """Choose one build for all pieces of an entry: its first fallback if the exact model would be late.

        Separately chosen builds would mix two in one answer.
        """
        fallbacks, now = self._scheduling.fallbacks, time.monotonic()
        if entry.variant or entry.exact or not fallbacks:
            return entry
        with self._lock:
            latencies, ahead_s, first = self._gate.latencies, self._gate.backlog_s(now), pieces[0]
            own_s = latencies.exact.typical(len(first.rows), first.bucket) + first.after_s
            if now + ahead_s + own_s / self._instances > deadline:
                for name in filter(latencies.has, fallbacks):
                    return msgspec.structs.replace(entry, variant=name)
        return msgspec.structs.replace(entry, exact=True)

    async def _run_part(self, part: Staged, siblings: Sequence[Staged]) -> None:
        """Run a piece of an entry. After one without outputs, waiting ones are not run."""
        if part.results[0] is None:
            self._assemble(part)
            await self._runner.run(part)
        if not isinstance(part.results[0], Success):
            self._recall_parts(siblings)

    def _recall_parts(self, parts: Sequence[Staged]) -> None:
        """Recall pieces of an entry at the gate or on their way to it."""
        for part in parts:
            if part.results[0] is None:
                if part.stage is Stage.PREPARED:
                    part.results[0] = RETURNED
                else:
                    self._runner.recall(part.entries, (0,))

    def _assemble(self, staged: Staged) -> None:
        """Assemble the bundle's rows before its turn, if there is time."""
        staged.bucket = max(staged.buckets, default=0)
        if not staged.valid:
            return
        inputs: list[Any] = staged.tensors  # if valid, all of them are
        for tensors in inputs:
            for array in tensors.values():
                staged.nbytes += array.nbytes
        if staged.nbytes <= SMALL_BYTES:
            self._executor.assemble(staged)
        elif self._runner.busy and len(staged.entries) > 1 and staged.nbytes > _LARGE_BYTES:
            staged.assembling = self._pool.submit("pad", partial(self._executor.assemble, staged))


def _waited_s(staged: Staged, since: float) -> float:
    """Seconds that a bundle in pieces was at the gate while none of it ran."""
    span_s = staged.finished_at - since if staged.finished_at else 0.0
    return max(0.0, span_s - sum(execution.seconds for execution in staged.executions))


def _outlets(bundle: Bundle, deadlines: Sequence[float]) -> Sequence[Outlet]:
    """The exits of each entry's streamed parts."""
    sink, loop = bundle.parts, asyncio.get_running_loop()
    outlets = []
    for position, entry in enumerate(bundle.entries):
        send: Send | None = None if sink is None else partial(_send_from_thread, loop, sink, position)
        outlets.append(Outlet(entry.stream or _UNLIMITED, send, deadlines[position]))
        if sink is not None:
            sink.on_taken(position, outlets[position].taken)
    return outlets


def _send_from_thread(
    loop: asyncio.AbstractEventLoop, sink: PartSink, position: int, number: int, waited_s: float, outputs: Tensors
) -> None:
    loop.call_soon_threadsafe(sink.send, position, number, waited_s, outputs)


_UNLIMITED = StreamLimits(inf, 1, 0, 0.0)
"""Of an entry whose router does not know that the model streams: its parts are collected."""

_LARGE_BYTES = 2**20
"""Below this, a thread would cost more of the processor than the session's thread gains when another one copies."""

_TIMER_S = 0.001
"""By how much an event loop's timers are late until the gate has measured it: they have whole milliseconds."""

_NOT_PREPROCESSED = Failure(InferenceFailed.code, "this request was not preprocessed")
