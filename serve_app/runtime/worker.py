"""The worker: what runs inside a model replica.

    bundle -> preprocess (thread pool, while the previous batch runs)
           -> gate (waits for the session, by class and deadline)
           -> one batch of one or more bundles, without what could not end in time -> backend (its own thread)
           -> postprocess (thread pool) -> one result per entry

Nothing here knows Ray. The model deployment passes in ``batch``, a function that turns "run these bundles" into "run
this bundle, together with the others that ask in the same turn of the event loop".
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias, cast

from serve_app.errors import DeadlineExceeded, InferenceFailed, ServeAppError
from serve_app.inference.backend import Backend
from serve_app.inference.batch import rows_of, run_entries
from serve_app.payloads import (
    Bundle,
    BundleResult,
    EntryResult,
    Execution,
    Failure,
    Success,
    Tensors,
)
from serve_app.processors.processor import Processor
from serve_app.runtime.processor_pool import ProcessorPool
from serve_app.runtime.staged import EXPIRED, Grant, Staged
from serve_app.scheduling.foresight import Due, Foresight
from serve_app.scheduling.gate import Gate, Ticket

logger = logging.getLogger(__name__)


RunBatch: TypeAlias = Callable[[list[Staged]], Awaitable[list[Staged]]]
RunOne: TypeAlias = Callable[[Staged], Awaitable[Staged]]
BatchTogether: TypeAlias = Callable[[RunBatch], RunOne]


class Worker:
    """Runs bundles on one model.

    Args:
        name: The model's name, for messages.
        backends: The exact model under ``""`` and its variants by name. Loaded already.
        processor: Makes tensors of media; ``None`` for a model that takes tensors only.
        max_rows: Most rows in one batch.
        preprocess_threads: Size of the pool for decoding and postprocessing.
        batch: Turns the batch function into one that takes a single bundle; see the module's docstring.
        warm_up: The executions of its backends' warm-up: what it predicts from at first.
    """

    def __init__(
        self,
        *,
        name: str,
        backends: Mapping[str, Backend],
        processor: Processor | None,
        max_rows: int,
        preprocess_threads: int,
        batch: BatchTogether,
        warm_up: Sequence[Execution] = (),
    ) -> None:
        self._name = name
        self._backends = backends
        self._processor = processor
        self._max_rows = max_rows
        self._pool = ProcessorPool(name, processor, preprocess_threads)
        self._session_thread = ThreadPoolExecutor(1, thread_name_prefix="session")
        self._foresight = Foresight(max_rows)
        self._foresight.seed(warm_up)
        self._gate = Gate(self._foresight)
        self._reopening: asyncio.TimerHandle | None = None
        self._ids = itertools.count(1)
        self._granted: dict[int, asyncio.Future[bool]] = {}
        self._grants: dict[int, Grant] = {}
        self._busy = False
        self._session_started_at: float | None = None
        self._run_together = batch(self._run_batch)

    def __repr__(self) -> str:
        return f"<Worker {self._name} {'busy' if self._busy else 'idle'}, {len(self._granted)} bundles at the gate>"

    async def run(self, bundle: Bundle) -> BundleResult:
        """Run one bundle. One result or error per entry, in order; it never raises for an entry's fault."""
        started = time.monotonic()
        staged = Staged(
            bundle.entries,
            [started + entry.budget_s for entry in bundle.entries],
            [_NOT_PREPROCESSED] * len(bundle.entries),
            [None] * len(bundle.entries),
            sender=bundle.sender,
        )
        await self._pool.preprocess(staged)
        preprocessed = time.monotonic()
        staged.count_rows()
        if staged.rows:
            await self._wait_and_run(staged)
        executed = staged.executed_at or preprocessed
        await self._pool.postprocess(staged)
        finished = time.monotonic()
        return BundleResult(
            [cast("EntryResult", result) for result in staged.results],
            staged.executions,
            preprocessed - started,
            max(0.0, executed - preprocessed),
            max(0.0, finished - (staged.finished_at or preprocessed)),
            self._gate.outlook(staged.sender, finished, staged.behind_others_s),
        )

    def stalled_s(self) -> float:
        """For how long the session has been inside one run, seconds; 0.0 when it is idle."""
        started = self._session_started_at
        return 0.0 if started is None else time.monotonic() - started

    def close(self) -> None:
        """Free threads and sessions. Idempotent."""
        if self._reopening is not None:
            self._reopening.cancel()
            self._reopening = None
        self._pool.close()
        self._session_thread.shutdown(wait=True, cancel_futures=True)
        for backend in self._backends.values():
            backend.close()

    # --- gate ---------------------------------------------------------------------------------------------------

    async def _wait_and_run(self, staged: Staged) -> None:
        ticket = next(self._ids)
        reached = time.monotonic()
        granted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._granted[ticket] = granted
        self._gate.add(
            Ticket(
                id=ticket,
                priority=min(entry.priority for entry in staged.entries),
                deadline=min(staged.deadlines),
                rows=staged.rows,
                bucket=self._bucket(staged),
                expires=max(staged.deadlines),
                sender=staged.sender,
                variant=staged.entries[0].variant,
            )
        )
        self._open_gate()
        try:
            may_run = await granted
        except asyncio.CancelledError:
            self._gate.remove(ticket)
            if granted.done() and not granted.cancelled() and (grant := self._grants.pop(ticket, None)):
                grant.leave()
            raise
        finally:
            self._granted.pop(ticket, None)
        if not may_run:
            return  # every entry's deadline has passed at the gate
        grant = self._grants.pop(ticket)
        staged.grant = grant
        if self._gate.others_since(staged.sender, reached):
            staged.behind_others_s = time.monotonic() - reached
        try:
            await self._run_together(staged)
        finally:
            grant.leave()

    def _open_gate(self) -> None:
        """Grant one batch if the session is free. All bundles of a batch are woken in the same turn of the loop."""
        while not self._busy:
            now = time.monotonic()
            if (opens := self._gate.opens_at(now, self._max_rows)) > now:
                if self._reopening is None:
                    self._reopening = asyncio.get_running_loop().call_later(opens - now, self._reopen)
                return
            decision = self._gate.grant(now, self._max_rows)
            self._wake(decision.expired, may_run=False)
            if not decision.granted:
                return
            # A bundle whose caller has left in this very turn is still at the gate, but nobody waits behind it.
            tickets = [ticket for ticket in decision.granted if not self._granted[ticket].done()]
            if tickets:
                self._busy = True
                grant = Grant(len(tickets), self._session_free)
                self._grants.update(dict.fromkeys(tickets, grant))
                self._wake(tickets, may_run=True)

    def _wake(self, tickets: Sequence[int], *, may_run: bool) -> None:
        for ticket in tickets:
            if not self._granted[ticket].done():
                self._granted[ticket].set_result(may_run)

    def _reopen(self) -> None:
        self._reopening = None
        self._open_gate()

    def _session_free(self) -> None:
        self._gate.ended(time.monotonic())
        self._busy = False
        self._open_gate()

    # --- session ------------------------------------------------------------------------------------------------

    async def _run_batch(self, bundles: list[Staged]) -> list[Staged]:
        """Run the bundles of one grant as one batch, in the session's thread."""
        grant = bundles[0].grant
        assert grant is not None
        grant.running = True
        try:
            loop = asyncio.get_running_loop()
            for execution in await loop.run_in_executor(self._session_thread, self._execute, bundles):
                self._foresight.observe(*execution)
        finally:
            grant.end()
        return bundles

    def _execute(self, bundles: Sequence[Staged]) -> list[Execution]:
        executions: list[Execution] = []
        started = time.monotonic()
        self._session_started_at = started
        try:
            by_variant: dict[str, list[tuple[Staged, int]]] = {}
            for staged in bundles:
                staged.executed_at = started
                for index, tensors in enumerate(staged.tensors):
                    if isinstance(tensors, Failure):
                        staged.results[index] = tensors
                    elif staged.deadlines[index] <= started:
                        staged.results[index] = EXPIRED
                    else:
                        by_variant.setdefault(staged.entries[index].variant, []).append((staged, index))
            for variant, places in by_variant.items():
                try:
                    executions += self._execute_variant(variant, places)
                except Exception:
                    # E.g. a router that still knows a variant which a redeploy has removed.
                    logger.exception("%s could not run the entries for its variant %r", self._name, variant)
                    for staged, index in places:
                        staged.results[index] = Failure(
                            InferenceFailed.code, f"model {self._name} failed on this request"
                        )
        finally:
            self._session_started_at = None
            finished = time.monotonic()
            for staged in bundles:
                staged.finished_at = finished
        return executions

    def _execute_variant(self, variant: str, places: Sequence[tuple[Staged, int]]) -> list[Execution]:
        places = self._in_time(variant, places)
        if not places:
            return []
        started = time.monotonic()
        for staged, _ in places:
            staged.executed_at = started
        inputs = [cast("Tensors", staged.tensors[index]) for staged, index in places]
        buckets = None
        if self._processor is not None:
            buckets = self._buckets(places, inputs)
            inputs = self._pad(self._processor, places, inputs, buckets)
        ran = run_entries(self._backends[variant], inputs, self._max_rows, buckets, clock=self._progress)
        for (staged, index), outcome in zip(places, ran.outcomes, strict=True):
            if isinstance(outcome, ServeAppError):
                staged.results[index] = Failure(outcome.code, outcome.message)
            else:
                staged.results[index] = Success(outcome)
        executions = [execution._replace(variant=variant) for execution in ran.executions]
        for staged in dict.fromkeys(staged for staged, _ in places):
            staged.executions.extend(executions)
        return executions

    def _in_time(self, variant: str, places: Sequence[tuple[Staged, int]]) -> list[tuple[Staged, int]]:
        """Leave out the entries that could not be executed in time, and tell the gate how long the others take."""
        now = time.monotonic()
        inputs = [cast("Tensors", staged.tensors[index]) for staged, index in places]
        buckets = self._buckets(places, inputs)
        due = [
            Due(staged.deadlines[index], rows_of(tensors), bucket)
            for (staged, index), tensors, bucket in zip(places, inputs, buckets, strict=True)
        ]
        late = set(self._foresight.late(due, variant, now))
        staying: list[tuple[Staged, int]] = []
        rows: dict[int, int] = {}
        for place, ((staged, index), entry) in enumerate(zip(places, due, strict=True)):
            if place in late:
                staged.results[index] = _NOT_IN_TIME
            else:
                staying.append((staged, index))
                rows[entry.bucket] = rows.get(entry.bucket, 0) + entry.rows
        predicted_s = sum(self._foresight.seconds(count, bucket, variant) for bucket, count in rows.items())
        self._gate.begun(predicted_s, now)
        return staying

    def _progress(self) -> float:
        """The clock of the session's runs. It is read before and after each, so it also notes that one has ended."""
        self._session_started_at = time.monotonic()
        return self._session_started_at

    def _buckets(self, places: Sequence[tuple[Staged, int]], inputs: Sequence[Tensors]) -> list[int]:
        """The bucket that each entry costs in a run with the others, as the router prices it.

        Entries go to the largest bucket among them where that leaves their answers as they are, and otherwise each to
        its own: entries of one bucket then still share a run. Clients' own tensors run as they came.
        """
        processor = self._processor
        if processor is None:
            return [0] * len(places)
        buckets = [processor.bucket(tensors) for tensors in inputs]
        if processor.bucket_invariant:
            made = [_is_made(staged, index) for staged, index in places]
            largest = max((bucket for bucket, ours in zip(buckets, made, strict=True) if ours), default=0)
            buckets = [largest if ours else bucket for bucket, ours in zip(buckets, made, strict=True)]
        return buckets

    @staticmethod
    def _pad(
        processor: Processor,
        places: Sequence[tuple[Staged, int]],
        inputs: Sequence[Tensors],
        buckets: Sequence[int],
    ) -> list[Tensors]:
        """Pad what the processor made to its bucket, so that it can share a run."""
        return [
            processor.pad(tensors, bucket) if _is_made(staged, index) else tensors
            for (staged, index), tensors, bucket in zip(places, inputs, buckets, strict=True)
        ]

    def _bucket(self, staged: Staged) -> int:
        """The largest cost bucket of a bundle."""
        if self._processor is None:
            return 0
        tensors = (tensors for tensors in staged.tensors if not isinstance(tensors, Failure))
        return max((self._processor.bucket(each) for each in tensors), default=0)


_NOT_PREPROCESSED = Failure(InferenceFailed.code, "this request was not preprocessed")
_NOT_IN_TIME = Failure(DeadlineExceeded.code, "the request could not be executed in time")


def _is_made(staged: Staged, index: int) -> bool:
    """Whether the processor made an entry's tensors, rather than the client."""
    return not isinstance(staged.entries[index].payload, dict)
