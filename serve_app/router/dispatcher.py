"""The dispatcher: drives the router's core (`serve_app.scheduling.core`) by the event loop.

It owns everything that the core may not touch: the clock, futures, one timer, and the calls to replicas. Every
accepted entry's future ends exactly once: by its result, its error, its deadline, or its client leaving.

Arrivals of one turn of the event loop are queued first and dispatched together, so a burst that the loop read at once
also travels in one bundle.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Sequence, Set
from functools import partial
from time import monotonic

from msgspec import Struct

from serve_app.domain.service import Answer
from serve_app.errors import (
    DeadlineExceeded,
    InferenceFailed,
    InvalidRequest,
    ModelUnavailable,
    ServeAppError,
    SlowReader,
    error_from_code,
)
from serve_app.payloads import (
    NOT_IN_TIME,
    RETURNED,
    Bundle,
    BundleResult,
    EntryResult,
    Origin,
    Payload,
    Streamed,
    Success,
    Tensors,
    WireEntry,
    nbytes_of,
)
from serve_app.router.breaker_log import log_changes
from serve_app.router.lateness import given_up, passed, slower_than_classes, too_late
from serve_app.router.parts import BundleParts, PartQueue
from serve_app.router.recovery import Recovery
from serve_app.scheduling.core import RouterCore
from serve_app.scheduling.decisions import Change, Dispatch, Rejection
from serve_app.scheduling.demand import ModelDemand
from serve_app.scheduling.driver import CarryOut, Why
from serve_app.scheduling.entry import Entry, EntryState
from serve_app.scheduling.queueing.lateness import shown_s
from serve_app.scheduling.scheduler import Scheduler
from serve_app.scheduling.view import SchedulerView
from serve_app.telemetry.observer import Observer
from serve_app.timers import call_at
from serve_app.transport.send import Recall, ReplicaLost, Send
from serve_app.transport.ties import TieTable

logger = logging.getLogger(__name__)

_NOT_RUN = frozenset({RETURNED.code, DeadlineExceeded.code})


class Work(Struct):
    """An entry's payload, opaque to the scheduler.

    Attributes:
        variant: Requested variant, empty for the exact model. `Entry.variant` names the one that runs.
        origin: Request id and trace, for the replica.
        parts: Queue of the answer's parts; ``None``: the answer comes at once.
        future: Ends with the entry. Set by `Dispatcher.submit`.
    """

    payload: Payload
    variant: str = ""
    origin: Origin | None = None
    parts: PartQueue | None = None
    future: asyncio.Future[Answer] = None  # type: ignore[assignment]  # from submit on


class Dispatcher:
    """Drives one `RouterCore` from the event loop: its `serve_app.scheduling.core.Driver`.

    Args:
        scheduler: Called by `RouterCore` only; others read it by `scheduler`.
        send: Carries one bundle to a replica and returns its result.
        observer: Records events.
        recall: Recalls entries that are no longer awaited; ``None``: not possible, and they run.
        ties: Table in which replicas agree on who runs a tied entry; ``None``: they cannot, and each runs it.
        revision_for: Which state of a model a replica is to run, given both names (`Bundle.revision`). Called once for
            each bundle that is then sent.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        send: Send,
        observer: Observer,
        bundle_timeout_s: float,
        recall: Recall | None = None,
        ties: TieTable | None = None,
        revision_for: Callable[[str, str | None], str] = lambda _model, _replica: "",
        carry_out: CarryOut | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._core = core = RouterCore(scheduler, self, bundle_timeout_s, ties, carry_out)
        self.scheduler: SchedulerView = scheduler
        self.add_model, self.learn, self.on_linked = core.add_model, core.learn, core.on_linked  # as they are
        self.on_turned_away = core.on_turned_away
        self._send = send
        self._observer = observer
        self._recall = recall
        self._revision_for = revision_for
        self._ids = itertools.count(1)
        self._name = uuid.uuid4().hex
        self._timer: asyncio.Handle | None = None
        self._dispatched_at: dict[int, float] = {}
        self._sent: dict[int, tuple[Dispatch, Callable[[], object] | None]] = {}  # by bundle, and what ends it early
        self._one_ended = asyncio.Event()
        self._told_slow: set[str] = set()
        self._recovery = Recovery(scheduler.usable, observer.recovered)
        self.broken = False
        """Whether a decision has raised: a bug, after which no decision can be trusted."""

    def __repr__(self) -> str:
        return f"<Dispatcher {len(self._dispatched_at)} entries and {len(self._core)} bundles in flight>"

    async def submit(self, entry: Entry, queued: Callable[[Entry], None] | None = None) -> Answer:
        """Queue an entry whose payload is `Work`, and wait for its end. Cancelling the call takes it out of the queue.

        Args:
            entry: NEW. It gets its id and its future here.
            queued: Called with the entry once it is accepted.

        Raises:
            QueueFull: There is no room.
            DeadlineExceeded: It did not finish in time, or could not in any case.
            ServeAppError: Any other failure.
        """
        future = self._arrive(entry)
        if queued is not None:
            queued(entry)
        try:
            return await future
        except asyncio.CancelledError:
            if self._core.cancel(entry, monotonic()):  # else it ended in this very turn, and has been counted
                self._end(entry, "cancelled")
            raise
        finally:
            # An error's traceback has this frame: it would keep the future, which keeps the error, and with them the
            # request's tensors until the next garbage collection.
            del entry, future

    async def stream(self, entry: Entry) -> AsyncGenerator[Answer, None]:
        """Queue an entry whose answer comes in parts (`Work.parts`). Closing the generator ends its work.

        Yields:
            Each part.

        Raises:
            ServeAppError: As `submit`; after a part, that the rest does not come.
        """
        parts: PartQueue = entry.payload.parts
        future = self._arrive(entry)
        future.add_done_callback(lambda ended: parts.end(ended.exception()))
        parts.on_given_up = partial(self._give_up, entry)
        try:
            while (part := await parts.next()) is not None:
                yield part
        finally:
            if self._core.cancel(entry, monotonic()):  # else it has ended, and has been counted
                self._end(entry, "cancelled")
            parts.close()
            del entry, future  # as in `submit`

    def _arrive(self, entry: Entry) -> asyncio.Future[Answer]:
        """Queue an entry. Returns the future of its answer; raises the reason if it is refused."""
        entry.id = next(self._ids)
        future: asyncio.Future[Answer] = self._loop.create_future()
        entry.payload.future = future
        rejection = self._core.arrive(entry, entry.arrival)
        if rejection is not None:
            self._observer.rejected(entry.model, entry.priority, rejection.code)
            raise refused(rejection)
        return future

    def _give_up(self, entry: Entry, error: ServeAppError) -> None:
        """End an entry whose reader is too slow, or takes one part only."""
        if self._core.cancel(entry, monotonic()):
            self._fail(entry, error)

    def end_early(self, entry: Entry, answer: Answer) -> bool:
        """Answer an accepted entry from elsewhere, and remove it; the observer is not called.

        Returns:
            Whether this call has ended it. If its client has left, its own task ends it.
        """
        if entry.payload.future.done() or not self._core.cancel(entry, monotonic()):
            return False
        self._dispatched_at.pop(entry.id, None)
        entry.payload.future.set_result(answer)
        return True

    def remove_model(
        self, model: str, successor: str | None = None, refusal: Rejection | None = None
    ) -> Awaitable[None]:
        """Remove a model.

        Queued entries move to the successor or are refused; those in flight are answered, expire or fail as usual.

        Args:
            model: Raises KeyError if it is unknown.

        Returns:
            Waits until none of its entries is under way.
        """
        self._core.remove_model(model, monotonic(), successor, refusal)
        self._told_slow.discard(model)
        self._recovery.forget(model)
        sent = {bundle: each for bundle, each in self._sent.items() if each[0].model == model}
        for dispatch, cancel in sent.values():
            if dispatch.replica is None and cancel is not None:
                cancel()  # it waits for a replica that is no longer needed
        self._pump()
        return self._ended(sent.keys())

    async def _ended(self, bundles: Set[int]) -> None:
        while not bundles.isdisjoint(self._sent):
            self._one_ended.clear()
            await self._one_ended.wait()
        if bundles:
            self._pump()  # their returned entries are refused

    def read_demand(self, model: str) -> ModelDemand:
        """What was asked of a model since the last call; nothing of one that is not served."""
        return self._core.read_demand(model, monotonic()) if self.scheduler.serves(model) else ModelDemand()

    def on_replicas(self, model: str, replicas: Sequence[str]) -> None:
        """Replace the list of a model's reachable replicas."""
        self._core.on_replicas(model, replicas, monotonic())
        self.tell_slowness(model)

    def tell_slowness(self, model: str) -> None:
        """Log once that a model takes longer than its classes allow, as soon as that is known."""
        if model in self._told_slow or not self.scheduler.serves(model):
            return
        if not (buckets := self.scheduler.latency(model).buckets):
            return
        solo_s = self.scheduler.solo_s(model, 1, buckets[0])
        if (slowness := slower_than_classes(model, solo_s, self.scheduler.timeouts_s)) is not None:
            self._told_slow.add(model)
            logger.warning("%s", slowness)

    def on_unresponsive(self, model: str, replica: str) -> None:
        """Record that a replica with requests in flight is unresponsive."""
        now, before = monotonic(), self.scheduler.listed(model)
        if self._core.on_unresponsive(model, replica, now):
            logger.error("Replica %s of %s is unresponsive; its requests are retried on other replicas", replica, model)
            self._observer.replica_unresponsive(model)
            self._recovery.lost(model, before, now)

    def on_responsive(self, model: str, replica: str) -> None:
        """Record that an unresponsive replica sends data again."""
        if self._core.on_responsive(model, replica, monotonic()):
            logger.warning("Replica %s of %s is back", replica, model)

    def on_device_event(self, device: str, event: object) -> None:
        """Pass an event to a shared device."""
        self._core.on_device_event(device, event, monotonic())

    def _pump(self, *, timer: bool = False) -> None:
        now = monotonic()
        try:
            if timer:
                self._core.fire(now)
            else:
                self._core.pump(now)
            if self._recovery.pending:
                self._recovery.check(now)
        except Exception as error:
            self._break(error)

    def _break(self, error: Exception) -> None:
        """Record a bug in a decision: nothing may be dispatched or expire any more, and the health check fails."""
        self.broken = True
        logger.error("The scheduler failed: this router must be replaced", exc_info=error)

    def _on_timer(self) -> None:
        self._timer = None
        self._pump(timer=True)

    # ------------------------------------------------------------ as `Driver`

    def pump_soon(self) -> None:
        """Schedule `RouterCore.pump` after the events of this turn."""
        self._loop.call_soon(self._pump)

    def set_timer(self, at: float) -> None:
        """Schedule `RouterCore.fire`. It may fire a millisecond early; the core then sets the timer again."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = call_at(self._loop, at, self._on_timer)

    def wake_up(self, dispatch: Dispatch) -> None:
        """Send an empty bundle to a model without replicas, so that one is started."""
        # The call carries no entries. It may wait for a start longer than their deadlines, and nothing could take out
        # those that expire meanwhile or tell the replica how much of their budgets is left.
        cancel = self._send(dispatch.model, Bundle([]), None, 0, partial(self._came, dispatch, None))
        self._sent[dispatch.bundle_id] = dispatch, cancel

    def send(self, dispatch: Dispatch, now: float, places: Sequence[int]) -> Bundle:
        """Send a bundle to its replica."""
        overhead_s = dispatch.overhead_s
        wire: list[WireEntry] = []
        nbytes = 0
        for entry, place in zip(dispatch.entries, places or itertools.repeat(0)):  # noqa: B905 - nothing is tied
            self._dispatched_at[entry.id] = now
            nbytes += entry.nbytes
            work: Work = entry.payload
            wire.append(
                WireEntry(
                    priority=entry.priority,
                    budget_s=entry.deadline - now - (0.0 if entry.probe else overhead_s),
                    rows=entry.rows,
                    variant=dispatch.variant,
                    payload=work.payload,
                    origin=work.origin,
                    attributes=entry.attributes,
                    exact=entry.exact or dispatch.exact,
                    probe=entry.probe,
                    unbatched=entry.attempts > 1,
                    place=place,
                    stream=None if work.parts is None else work.parts.limits._replace(seconds=entry.answer_by - now),
                )
            )
        revision = self._revision_for(dispatch.model, dispatch.replica)
        shared = bool(self.scheduler.devices) and self.scheduler.device_of(dispatch.model) is not None
        member = dispatch.model if shared else ""
        sink = BundleParts(dispatch, revision, self._on_part) if dispatch.entries[0].answer_by else None
        bundle = Bundle(wire, self._name, revision=revision, model=member, parts=sink)
        done = partial(self._came, dispatch, bundle)
        self._sent[dispatch.bundle_id] = dispatch, self._send(dispatch.model, bundle, dispatch.replica, nbytes, done)
        return bundle

    def recall(self, sent: Bundle, dispatch: Dispatch, entries: Collection[Entry]) -> None:
        """Recall entries of a bundle from its replica."""
        if self._recall is not None:
            self._recall(sent, dispatch.replica, [dispatch.entries.index(entry) for entry in entries])

    def fail(self, entry: Entry, why: Why, refusal: Rejection | None = None) -> None:
        """End an entry without an answer."""
        outcome = None
        if why is Why.EXPIRED:
            error = self._why_late(entry, passed)
        elif why is Why.GIVEN_UP:
            error, outcome = self._why_late(entry, given_up), "given_up"
        elif why is Why.POISONED:
            outcome = "poisoned"
            error = InferenceFailed("two replicas failed while running this request; it is not retried")
        elif why is Why.BROKEN:
            parts: PartQueue = entry.payload.parts
            told = f"the replica that was answering was lost after {parts.count} parts; ask again"
            error = ModelUnavailable(told, 1.0)
        else:
            assert refusal is not None
            error = error_from_code(refusal.code, refusal.message, refusal.retry_after_s)
        self._fail(entry, error, outcome)

    def timed_out(self, dispatch: Dispatch) -> None:
        """Log an overdue bundle."""
        logger.error(
            "Replica %s of %s has not answered a bundle of %d rows; no new requests are sent to it until it answers",
            dispatch.replica,
            dispatch.model,
            dispatch.rows,
        )

    def changed(self, changes: Sequence[Change]) -> None:
        """Log changes of circuit breakers and ejections."""
        log_changes(logger, changes)

    # ------------------------------------------------------------------- ends

    def _why_late(self, entry: Entry, message: Callable[[Entry], str]) -> ServeAppError:
        """The error of a late entry: the reason is the server's or the deadline's."""
        if self._core.unreached(entry):
            return ModelUnavailable(f"no replica of model {entry.model} could take the request in time", 1.0)
        return self._late(message(entry), entry)

    def _late(self, what: str, entry: Entry) -> DeadlineExceeded:
        """The error of an accepted entry whose deadline was missed: its fate, and advice."""
        if entry.begun:
            allowed = shown_s(entry.deadline - entry.arrival)
            return DeadlineExceeded(f"not all parts of the answer came within {allowed}; see stream_timeout_s")
        solo_s = self.scheduler.solo_s(entry.model, entry.rows, entry.bucket, entry.variant)
        return DeadlineExceeded(too_late(what, entry, solo_s))

    def _came(self, dispatch: Dispatch, bundle: Bundle | None, result: BundleResult | BaseException) -> None:
        """Handle the result of a bundle, or of a wake-up, which has none; as its `Done`."""
        del self._sent[dispatch.bundle_id]
        self._one_ended.set()
        try:
            if bundle is None:
                self._give_back(dispatch, result)
            else:
                self._take(dispatch, bundle, result)
        except Exception as error:
            self._break(error)

    def _give_back(self, dispatch: Dispatch, result: BundleResult | BaseException) -> None:
        """End a wake-up: queue its entries again."""
        if isinstance(result, ReplicaLost):
            logger.warning("No replica of %s could be woken up: %s", dispatch.model, result)
        if not isinstance(result, BaseException) or isinstance(result, ReplicaLost | asyncio.CancelledError):
            self._core.woken(dispatch, monotonic())
        elif isinstance(result, ServeAppError):
            self._on_error(dispatch, result)
        else:  # as in `_take`
            logger.error("No replica of %s could be woken up", dispatch.model, exc_info=result)
            self._on_error(dispatch, ModelUnavailable(f"no replica of model {dispatch.model} could be started", 1.0))

    def _take(self, dispatch: Dispatch, bundle: Bundle, result: BundleResult | BaseException) -> None:
        core = self._core
        if not isinstance(result, BaseException):
            self._on_result(dispatch, result, bundle.revision)
        elif isinstance(result, ReplicaLost):
            self._observer.replica_lost(dispatch.model)
            logger.warning("A bundle of %d entries for %s failed: %s", len(bundle.entries), dispatch.model, result)
            now, before = monotonic(), self.scheduler.listed(dispatch.model)
            core.lost(dispatch, now, replica_lost=True, reached=result.reached)
            self._recovery.lost(dispatch.model, before, now)
        elif isinstance(result, asyncio.CancelledError):
            # The call was cancelled, here or in the replica. Its entries are not: they get their other try.
            core.lost(dispatch, monotonic(), replica_lost=False)
        elif isinstance(result, ServeAppError):
            self._on_error(dispatch, result)
        else:  # whatever the way to the replica raises, its entries are answered
            logger.error("A bundle for %s failed", dispatch.model, exc_info=result)
            self._on_error(dispatch, InferenceFailed(f"model {dispatch.model} failed on this request"))

    def _on_part(
        self,
        dispatch: Dispatch,
        position: int,
        waited_s: float,
        outputs: Tensors,
        revision: str,
        taken: Callable[[int], None] | None,
    ) -> None:
        """Deliver a part of an answer to its reader, if still awaited."""
        now = monotonic()
        if not self._core.part(dispatch, position, now):
            return
        entry = dispatch.entries[position]
        entry.variant = dispatch.variant
        work: Work = entry.payload
        assert work.parts is not None
        if taken is not None:
            work.parts.taken = taken
        if not work.parts.count and entry.id in self._dispatched_at:
            self._dispatched_at[entry.id] += waited_s  # it was queued there, too
        self._put(entry, work.parts, outputs, now, revision)

    def _put(self, entry: Entry, parts: PartQueue, outputs: Tensors, now: float, revision: str) -> None:
        """Queue a part for its reader. With the first the request counts as answered."""
        total_s = now - entry.arrival
        if not parts.count:
            parts.queue_s = self._dispatched_at.get(entry.id, now) - entry.arrival
            if not parts.whole:
                self._observer.ended(entry, "ok", *self._times(entry, now))
        elif parts.whole:
            self._give_up(entry, _not_in_one(entry))
            return
        self._observer.part(entry.model)
        allowed_s = entry.deadline - entry.arrival
        answer = Answer(outputs, entry.priority, parts.queue_s, total_s, entry.variant, allowed_s, revision=revision)
        parts.put(answer, nbytes_of(outputs))

    def _end_stream(self, entry: Entry, parts: PartQueue, streamed: Streamed, now: float, revision: str) -> None:
        if parts.whole and streamed.parts != 1:
            self._fail(entry, _not_in_one(entry))
            return
        for outputs in streamed.collected:
            self._put(entry, parts, outputs, now, revision)
            if parts.given_up:  # together they are too many
                break
        self._end(entry, SlowReader.code if parts.given_up else "ok")
        parts.end()

    def _on_result(self, dispatch: Dispatch, result: BundleResult, revision: str) -> None:
        entries = dispatch.entries
        if (misfit := self._core.misfit(dispatch, len(result.results), result.executions)) is not None:
            logger.error("Replica %s of %s %s", dispatch.replica, dispatch.model, misfit)
            self._on_error(dispatch, InferenceFailed(f"model {dispatch.model} failed on this request"))
            return
        now, dispatched_at, wait_s = monotonic(), self._dispatched_at, result.wait_s
        codes: list[str | None] = []
        ran = rows = 0
        for entry, answer in zip(entries, result.results, strict=True):
            code = None if isinstance(answer, Success) else answer.code
            codes.append(code)
            has_run = code not in _NOT_RUN
            if has_run:
                ran += 1
                rows += entry.rows
            if entry.id in dispatched_at and (has_run or len(entry.bundles) == 1):
                dispatched_at[entry.id] += wait_s  # it was queued there, too
        alive = self._core.answered(
            dispatch, codes, result.executions, now, wait_s, result.runs_s, result.backlog_s, result.model_works
        )
        if len(alive) < len(entries):
            for entry, code in zip(entries, codes, strict=True):
                if code == RETURNED.code and entry.state is EntryState.QUEUED:
                    dispatched_at.pop(entry.id, None)
        try:
            self._observer.bundle_done(dispatch.model, rows, ran, result)
            self._deal_out(entries, result, alive, now, revision)
        except Exception:  # a bug; the scheduler has released these entries, so they must be answered here
            logger.exception("Processing a result of %s failed", dispatch.model)
            for entry in alive:
                dispatched_at.pop(entry.id, None)
                if not entry.payload.future.done():
                    entry.payload.future.set_exception(
                        InferenceFailed(f"model {dispatch.model} failed on this request")
                    )

    def _deal_out(
        self, entries: Sequence[Entry], result: BundleResult, alive: Sequence[Entry], now: float, revision: str
    ) -> None:
        """Deliver the results to entries still awaited."""
        self._observer.served(alive, result)
        pairs: Iterable[tuple[Entry, EntryResult]] = zip(entries, result.results, strict=True)
        if len(alive) < len(entries):
            answered = {entry.id for entry in alive}
            pairs = [pair for pair in pairs if pair[0].id in answered]
        observer = self._observer
        preprocess_s, postprocess_s = result.preprocess_s, result.postprocess_s
        infer_s = sum([execution.seconds for execution in result.executions])
        for entry, answer in pairs:
            if isinstance(answer, Success):
                if (parts := entry.payload.parts) is not None:
                    self._end_stream(entry, parts, answer.value, now, revision)
                    continue
                queue_s, total_s = self._times(entry, now)
                observer.ended(entry, "ok", queue_s, total_s)
                work: Work = entry.payload
                if entry.variant != work.variant:
                    observer.fell_back(entry)
                if not work.future.done():
                    work.future.set_result(
                        Answer(
                            answer.value,
                            entry.priority,
                            queue_s,
                            total_s,
                            entry.variant,
                            entry.deadline - entry.arrival,
                            preprocess_s,
                            infer_s,
                            postprocess_s,
                            revision=revision,
                        )
                    )
            elif answer.code == DeadlineExceeded.code:
                outcome = "given_up" if answer == NOT_IN_TIME else None
                self._fail(entry, self._late(answer.message, entry), outcome)
            else:
                self._fail(entry, error_from_code(answer.code, answer.message, answer.retry_after_s))

    def _on_error(self, dispatch: Dispatch, error: ServeAppError) -> None:
        """Handle an error that concerns every entry."""
        for entry in self._core.refused(dispatch, error.code, monotonic()):
            self._fail(entry, error_from_code(error.code, error.message, error.retry_after_s))

    def _fail(self, entry: Entry, error: ServeAppError, outcome: str | None = None) -> None:
        if outcome is not None:
            error.outcome = outcome
        self._end(entry, outcome or error.code)
        future = entry.payload.future
        if not future.done():
            future.set_exception(error)

    def _end(self, entry: Entry, outcome: str) -> None:
        queue_s, total_s = self._times(entry, monotonic())
        parts: PartQueue | None = entry.payload.parts
        if parts is not None and parts.counted:
            self._observer.stream_ended(entry.model, outcome, total_s)
        else:
            self._observer.ended(entry, outcome, queue_s, total_s)

    def _times(self, entry: Entry, now: float) -> tuple[float, float]:
        """Queueing and total time of an entry that ends now, seconds."""
        arrival = entry.arrival
        return self._dispatched_at.pop(entry.id, now) - arrival, now - arrival


def refused(rejection: Rejection) -> ServeAppError:
    """The error of a refused request, which the metrics have counted.

    Raise it directly: a variable of the raising frame would form a cycle with its traceback, and keep the request until
    the next garbage collection. A flood makes hundreds of them per second.
    """
    error = error_from_code(rejection.code, rejection.message, rejection.retry_after_s)
    error.counted = True
    return error


def _not_in_one(entry: Entry) -> InvalidRequest:
    return InvalidRequest(f"model {entry.model} answers in parts, and here not in one: use generate_stream")
