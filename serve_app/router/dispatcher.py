"""The dispatcher: does what the scheduler decides.

It owns everything that the pure core may not touch: the clock, futures, one timer, and the calls to replicas. Every
accepted entry's future ends exactly once: by its result, its error, its deadline, or its client leaving.

Decisions are taken once per turn of the event loop: arrivals of one turn are queued first and dispatched together,
so a burst that the loop read at once also travels in one bundle.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from time import monotonic
from typing import NamedTuple

from serve_app.domain.service import Answer
from serve_app.errors import DeadlineExceeded, InferenceFailed, ModelUnavailable, ServeAppError, error_from_code
from serve_app.payloads import (
    NOT_IN_TIME,
    RETURNED,
    Bundle,
    BundleResult,
    EntryResult,
    Failure,
    Origin,
    Payload,
    Success,
    WireEntry,
)
from serve_app.router.lateness import slower_than_classes, too_late
from serve_app.router.recovery import Recovery
from serve_app.router.verdict import log_changes, verdict_of, verdict_of_error
from serve_app.scheduling.decisions import Dispatch, Rejection, Requeue
from serve_app.scheduling.entry import Entry, EntryState, Priority
from serve_app.scheduling.scheduler import Scheduler
from serve_app.scheduling.settings import ModelScheduling
from serve_app.telemetry.observer import Observer
from serve_app.timers import call_at
from serve_app.transport.send import Recall, ReplicaLost, Send
from serve_app.transport.ties import TieTable

logger = logging.getLogger(__name__)

_NOT_RUN = frozenset({RETURNED.code, DeadlineExceeded.code})
_PATIENCE = 4
"""A bundle may take this many times its predicted execution on top of the time-out before its replica is given up."""


class Work(NamedTuple):
    """An entry's payload, as the scheduler carries it.

    Attributes:
        payload: What to run.
        future: Ends with the entry.
        variant: The variant asked for, empty for the exact model. What runs is the entry's own ``variant``.
        origin: Where it comes from, for the replica.
    """

    payload: Payload
    future: asyncio.Future[Answer]
    variant: str
    origin: Origin | None = None


class Dispatcher:
    """Drives one `Scheduler` from the event loop.

    Args:
        scheduler: Decides. Nobody else may call it.
        send: Carries one bundle to a replica and brings its result.
        observer: Is told what happens.
        bundle_timeout_s: After this long without an answer a replica counts as wedged: its bundles' living entries
            go elsewhere once, and it gets no more until it answers.
        recall: Asks for entries back that nobody waits for any more; ``None``: nothing can, and they run.
        ties: Where replicas agree on who runs what several have; ``None``: they cannot, and each runs it.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        send: Send,
        observer: Observer,
        bundle_timeout_s: float,
        recall: Recall | None = None,
        ties: TieTable | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._send = send
        self._observer = observer
        self._bundle_timeout_s = bundle_timeout_s
        self._recall = recall
        self._ties = ties
        self._places: dict[int, list[int]] = {}  # of a tied entry its place, and how many bundles carry it
        self._ids = itertools.count(1)
        self._name = uuid.uuid4().hex
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.Context()
        self._pump_scheduled = False
        self._timer: asyncio.Handle | None = None
        self._timer_at = 0.0
        self._dispatched_at: dict[int, float] = {}
        self._wake_ups: dict[str, Dispatch] = {}
        self._bundles: dict[asyncio.Task[None], Dispatch] = {}
        self._sent: dict[int, tuple[Dispatch, Bundle]] = {}
        self._told_slow: set[str] = set()
        self._recovery = Recovery(scheduler.usable, observer.recovered)
        self.broken = False
        """Whether a decision has raised, which is a bug that no later decision can be trusted after."""

    def __repr__(self) -> str:
        return f"<Dispatcher {len(self._dispatched_at)} entries and {len(self._bundles)} bundles in flight>"

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler, for reading its state."""
        return self._scheduler

    def now(self) -> float:
        """The clock of every deadline in this process, seconds."""
        return monotonic()

    async def submit(
        self,
        model: str,
        payload: Payload,
        *,
        priority: Priority,
        timeout_s: float,
        rows: int,
        bucket: int,
        nbytes: int,
        variant: str = "",
        exact: bool = False,
        default_of: Priority | None = None,
        tenant: str = "",
        weight: float = 1.0,
        origin: Origin | None = None,
        queued: Callable[[Entry], None] | None = None,
    ) -> Answer:
        """Queue one entry and wait for its end. Cancelling the call takes the entry out of the queue.

        Args:
            model: Name of the model.
            payload: What to run.
            priority: The class asked for.
            timeout_s: Time until the deadline, seconds.
            rows: Rows that it adds to a batch.
            bucket: Its cost bucket.
            nbytes: Bytes that it holds.
            variant: The variant to run, empty for the exact model.
            exact: Whether no fallback may stand in for the exact model.
            default_of: The class whose default the deadline is; ``None`` where the request names one.
            tenant: Who shares the class with others.
            weight: The tenant's weight.
            origin: Where it comes from, for the replica.
            queued: Is told the entry once it is accepted.

        Raises:
            QueueFull: There is no room.
            DeadlineExceeded: It did not finish in time, or could not in any case.
            ServeAppError: Whatever else went wrong with it.
        """
        now = monotonic()
        future: asyncio.Future[Answer] = self._loop.create_future()
        entry = Entry(
            next(self._ids),
            model,
            priority,
            now,
            now + timeout_s,
            rows,
            bucket,
            nbytes,
            Work(payload, future, variant, origin),
            variant,
            exact=exact,
            default_of=default_of,
            tenant=tenant,
            weight=weight,
        )
        rejection = self._scheduler.on_arrival(entry, now)
        if rejection is not None:
            self._observer.rejected(model, entry.priority, rejection.code)
            raise refused(rejection)
        self._schedule_pump()
        if queued is not None:
            queued(entry)
        try:
            return await future
        except asyncio.CancelledError:
            if entry.state is not EntryState.DONE:  # else it ended in this very turn, and has been counted
                self._scheduler.on_cancel(entry, monotonic())
                self._end(entry, "cancelled")
                self._schedule_pump()
            raise
        finally:
            # An error's traceback has this frame: it would keep the future, which keeps the error, and with them the
            # request's tensors until the next garbage collection.
            del entry, future, payload

    def end_early(self, entry: Entry, answer: Answer) -> bool:
        """Answer an accepted entry with what came another way, and take it out; the observer is not told.

        Returns:
            Whether it had not ended by itself, and its client has not left: that ends it when its task runs.
        """
        if entry.state is EntryState.DONE or entry.payload.future.done():
            return False
        self._scheduler.on_cancel(entry, monotonic())
        self._dispatched_at.pop(entry.id, None)
        self._schedule_pump()
        entry.payload.future.set_result(answer)
        return True

    def add_model(self, settings: ModelScheduling, group: str | None = None) -> None:
        """See `Scheduler.add_model`."""
        self._scheduler.add_model(settings, group)

    def remove_model(self, model: str, successor: str | None = None) -> Awaitable[None]:
        """Take no more entries of a model.

        What is queued moves to the successor or is refused; what was sent is answered, expires or fails as ever.

        Args:
            model: Its name. Raises KeyError when there is none.
            successor: See `Scheduler.remove_model`.

        Returns:
            Waits until nothing of it is under way.
        """
        self._scheduler.remove_model(model, monotonic(), successor)
        self._told_slow.discard(model)
        self._recovery.forget(model)
        sent = [(task, dispatch) for task, dispatch in self._bundles.items() if dispatch.model == model]
        for task, dispatch in sent:
            if dispatch.replica is None:
                task.cancel()  # it waits for a replica of which nothing is needed any more
        self._pump()
        return self._ended([task for task, _ in sent])

    async def _ended(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        if tasks:
            await asyncio.wait(tasks)
            self._pump()  # what came back of them is refused

    def on_replicas(self, model: str, replicas: Sequence[str]) -> None:
        """Tell the scheduler which replicas of a model can be reached now."""
        self._scheduler.on_replicas(model, replicas, monotonic())
        self._tell_slowness(model)
        if replicas and (wake_up := self._wake_ups.pop(model, None)) is not None:
            self._end_wake_up(wake_up)
        self._schedule_pump()

    def _tell_slowness(self, model: str) -> None:
        """Tell operators once of a model that takes longer than its classes allow, as soon as that is known."""
        if model in self._told_slow or not (buckets := self._scheduler.latency(model).buckets):
            return
        alone_s = self._scheduler.alone_s(model, 1, buckets[0])
        if (slowness := slower_than_classes(model, alone_s, self._scheduler.timeouts_s)) is not None:
            self._told_slow.add(model)
            logger.warning("%s", slowness)

    def on_linked(self, model: str, replica: str, *, linked: bool) -> None:
        """Tell the scheduler whether a replica shares the table of ties."""
        if not self._scheduler.serves(model):
            return
        self._scheduler.on_linked(model, replica, linked=linked and self._ties is not None)

    def on_silent(self, model: str, replica: str) -> None:
        """Tell the scheduler of a replica that has requests in flight and is unresponsive."""
        if not self._scheduler.serves(model):
            return
        logger.error("Replica %s of %s is unresponsive: what it has is tried elsewhere", replica, model)
        self._observer.replica_silent(model)
        now, before = monotonic(), self._scheduler.listed(model)
        self._scheduler.on_silent(model, replica, now)
        self._recovery.lost(model, before, now)
        self._schedule_pump()

    def on_heard(self, model: str, replica: str) -> None:
        """Tell the scheduler that a silent replica speaks again."""
        if not self._scheduler.serves(model):
            return
        logger.warning("Replica %s of %s is back", replica, model)
        self._scheduler.on_heard(model, replica, monotonic())
        self._schedule_pump()

    def _schedule_pump(self) -> None:
        if not self._pump_scheduled:
            self._pump_scheduled = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_scheduled = False
        try:
            self._decide_and_do()
        except Exception:
            # Nothing would be dispatched or expire any more, and nobody would be told. The health check tells.
            self.broken = True
            logger.exception("The scheduler failed: this router must be replaced")

    def _decide_and_do(self) -> None:
        now = monotonic()
        decisions = self._scheduler.decide(now)
        for entry in decisions.expired:
            self._fail(entry, self._why_late(entry, _late))
        for entry in decisions.given_up:
            self._fail(entry, self._why_late(entry, _given_up), "given_up")
        for entry, why in decisions.refused:
            self._fail(entry, error_from_code(why.code, why.message, why.retry_after_s))
        if decisions.changes:
            log_changes(logger, decisions.changes)
        for dispatch in decisions.dispatches:
            if dispatch.replica is None:
                self._wake_ups[dispatch.model] = dispatch
                work = self._wake_up(dispatch)
            else:
                for entry in dispatch.entries:
                    self._dispatched_at[entry.id] = now
                tied = dispatch.entries if len(dispatch.entries[0].bundles) > 1 else ()
                if tied and self._ties is not None:
                    for entry in tied:
                        self._places.setdefault(entry.id, [0, 0])[1] += 1
                work = self._carry(dispatch, now, tied)
            # An empty context: Serve would otherwise tie the bundle to the request whose turn it happens to be and
            # cancel everybody's bundle when that one client leaves.
            task = self._loop.create_task(work, context=self._context.copy())
            self._bundles[task] = dispatch
            task.add_done_callback(self._bundles.pop)
        if decisions.recalls and self._recall is not None:
            self._recall_all(decisions.recalls, self._recall)
        if self._recovery.pending:
            self._recovery.check(now)
        self._set_timer()

    def _recall_all(self, recalls: Mapping[int, Sequence[Entry]], recall: Recall) -> None:
        """Ask replicas for entries back."""
        for bundle_id, entries in recalls.items():
            if (sent := self._sent.get(bundle_id)) is not None:
                dispatch, bundle = sent
                recall(bundle, dispatch.replica, [dispatch.entries.index(entry) for entry in entries])

    def _why_late(self, entry: Entry, message: Callable[[Entry], str]) -> ServeAppError:
        """Say whose fault it is that nothing was done about an entry in time."""
        if entry.attempts == 0 and self._scheduler.usable(entry.model) == 0:
            return ModelUnavailable(f"no replica of model {entry.model} could take the request in time", 1.0)
        return self._late(message(entry), entry)

    def _late(self, what: str, entry: Entry) -> DeadlineExceeded:
        """The error of an accepted entry whose deadline was not met: what came of it, and what to do."""
        alone_s = self._scheduler.alone_s(entry.model, entry.rows, entry.bucket, entry.variant)
        return DeadlineExceeded(too_late(what, entry, alone_s))

    def _set_timer(self) -> None:
        wake_at = self._scheduler.wake_at
        if wake_at is None:
            return
        if self._timer is not None:
            if self._timer_at <= wake_at:
                return  # it will be set again when it fires
            self._timer.cancel()
        self._timer_at = wake_at  # by the clock of the decisions, which the handle does not know
        self._timer = call_at(self._loop, wake_at, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._pump()

    async def _wake_up(self, dispatch: Dispatch) -> None:
        """Ask for a replica of a model that has none, and give the entries back to the queue when there is one.

        The call carries no entries. It may wait for a start longer than their deadlines, and nothing could take out
        those that expire meanwhile or tell the replica how much of their budgets is left.
        """
        try:
            await self._send(dispatch.model, Bundle([]), None, 0)
        except ReplicaLost as lost:
            logger.warning("No replica of %s could be woken up: %s", dispatch.model, lost)
            self._end_wake_up(dispatch)
        except asyncio.CancelledError:
            self._end_wake_up(dispatch)
            raise
        except ServeAppError as error:
            self._on_error(dispatch, error)
        except Exception:  # as in `_carry`
            logger.exception("No replica of %s could be woken up", dispatch.model)
            self._on_error(dispatch, ModelUnavailable(f"no replica of model {dispatch.model} could be started", 1.0))
        else:
            self._end_wake_up(dispatch)
        finally:
            if self._wake_ups.get(dispatch.model) is dispatch:
                del self._wake_ups[dispatch.model]
            self._schedule_pump()

    def _end_wake_up(self, dispatch: Dispatch) -> None:
        """Queue the entries of a wake-up again, if this has not been done yet."""
        now = monotonic()
        if self._scheduler.usable(dispatch.model):
            requeue = self._scheduler.on_timeout(dispatch.bundle_id, now)
        else:
            # There is still none: the next wake-up is held back for a while, so that this is no tight loop.
            requeue = self._scheduler.on_failed(dispatch.bundle_id, now, False)
        self._deal_with(requeue)

    def _place(self, entry: Entry) -> int:
        """The place of a tied entry in the table of ties; 0 where it has none."""
        if self._ties is None or (place := self._places.get(entry.id)) is None:
            return 0
        place[0] = place[0] or self._ties.place()
        return place[0]

    def _free_places(self, tied: Sequence[Entry]) -> None:
        """One bundle with tied entries has ended."""
        if self._ties is None:
            return
        for entry in tied:
            place = self._places[entry.id]
            place[1] -= 1
            if not place[1]:
                self._ties.free(place[0])
                del self._places[entry.id]

    async def _carry(self, dispatch: Dispatch, sent_at: float, tied: Sequence[Entry]) -> None:
        """Send one bundle and deal out what comes back."""
        entries = list(dispatch.entries)
        bundle = Bundle(
            [
                WireEntry(
                    entry.priority,
                    entry.deadline - sent_at - (0.0 if entry.probe else dispatch.overhead_s),
                    entry.rows,
                    dispatch.variant,
                    entry.payload.payload,
                    entry.payload.origin,
                    entry.exact or dispatch.exact,
                    entry.probe,
                    entry.tenant,
                    entry.weight,
                    entry.attempts > 1,
                    self._place(entry) if tied else 0,
                )
                for entry in entries
            ],
            self._name,
        )
        self._sent[dispatch.bundle_id] = dispatch, bundle
        nbytes = sum(entry.nbytes for entry in entries)
        watchdog = self._watch(dispatch)
        try:
            result = await self._send(dispatch.model, bundle, dispatch.replica, nbytes)
        except ReplicaLost as lost:
            self._observer.replica_lost(dispatch.model)
            logger.warning("A bundle of %d entries for %s failed: %s", len(entries), dispatch.model, lost)
            now, before = monotonic(), self._scheduler.listed(dispatch.model)
            self._deal_with(self._scheduler.on_failed(dispatch.bundle_id, now, True, reached=lost.reached))
            self._recovery.lost(dispatch.model, before, now)
        except asyncio.CancelledError:
            # The call was cancelled, here or in the replica. Its entries are not: they get their other try.
            self._deal_with(self._scheduler.on_failed(dispatch.bundle_id, monotonic(), False))
            raise
        except ServeAppError as error:
            self._on_error(dispatch, error)
        except Exception:  # whatever the way to the replica raises, its entries are answered
            logger.exception("A bundle for %s failed", dispatch.model)
            self._on_error(dispatch, InferenceFailed(f"model {dispatch.model} failed on this request"))
        else:
            self._on_result(dispatch, entries, result)
        finally:
            watchdog.cancel()
            del self._sent[dispatch.bundle_id]
            self._free_places(tied)
            self._schedule_pump()

    def _watch(self, dispatch: Dispatch) -> asyncio.TimerHandle:
        """Set the bundle's time-out."""
        # Its own execution, and what runs or waits at the replica before it, are not the replica's silence.
        patience_s = self._bundle_timeout_s + _PATIENCE * dispatch.predicted_s
        return self._loop.call_later(patience_s, self._on_bundle_timeout, dispatch)

    def _on_result(self, dispatch: Dispatch, entries: Sequence[Entry], result: BundleResult) -> None:
        allowed = (
            {dispatch.variant} if dispatch.exact else {dispatch.variant, *self._scheduler.fallbacks(dispatch.model)}
        )
        if (misfit := _misfit(dispatch, result, allowed)) is not None:
            logger.error("Replica %s of %s %s", dispatch.replica, dispatch.model, misfit)
            self._on_error(dispatch, InferenceFailed(f"model {dispatch.model} failed on this request"))
            return
        now = monotonic()
        variant = result.executions[0].variant if result.executions else dispatch.variant
        self._scheduler.on_verdict(dispatch.bundle_id, variant, verdict_of(result), now)
        pairs = list(zip(entries, result.results, strict=True))
        returned = [entry for entry, answer in pairs if _failed_as(answer, RETURNED.code)]
        for entry, answer in pairs:
            if entry.id in self._dispatched_at and (len(entry.bundles) == 1 or _has_run(answer)):
                self._dispatched_at[entry.id] += result.wait_s  # it was queued there, too
        alive = self._scheduler.on_done(
            dispatch.bundle_id,
            result.executions,
            now,
            result.wait_s,
            result.runs_s,
            result.backlog_s,
            returned,
            [entry for entry, answer in pairs if _failed_as(answer, DeadlineExceeded.code)],
        )
        for entry in returned:
            if entry.state is EntryState.QUEUED:
                self._dispatched_at.pop(entry.id, None)
        for entry in alive:
            entry.variant = variant
        try:
            self._deal_out(dispatch, entries, result, alive, now)
        except Exception:  # a bug; the scheduler has let go of these entries, and nobody else would answer them
            logger.exception("An answer of %s could not be dealt out", dispatch.model)
            for entry in alive:
                self._dispatched_at.pop(entry.id, None)
                if not entry.payload.future.done():
                    entry.payload.future.set_exception(
                        InferenceFailed(f"model {dispatch.model} failed on this request")
                    )

    def _deal_out(
        self,
        dispatch: Dispatch,
        entries: Sequence[Entry],
        result: BundleResult,
        alive: Sequence[Entry],
        now: float,
    ) -> None:
        """Give each entry that is still waited for its answer."""
        ran = [entry.rows for entry, answer in zip(entries, result.results, strict=True) if _has_run(answer)]
        self._observer.bundle_done(dispatch.model, sum(ran), len(ran), result)
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
                        )
                    )
            elif answer.code == DeadlineExceeded.code:
                outcome = "given_up" if answer == NOT_IN_TIME else None
                self._fail(entry, self._late(answer.message, entry), outcome)
            else:
                self._fail(entry, error_from_code(answer.code, answer.message, answer.retry_after_s))

    def _on_error(self, dispatch: Dispatch, error: ServeAppError) -> None:
        """The replica answered, and what it said concerns every entry."""
        now = monotonic()
        self._scheduler.on_verdict(dispatch.bundle_id, dispatch.variant, verdict_of_error(error.code), now)
        for entry in self._scheduler.on_done(dispatch.bundle_id, (), now):
            self._fail(entry, error_from_code(error.code, error.message, error.retry_after_s))

    def _on_bundle_timeout(self, dispatch: Dispatch) -> None:
        logger.error(
            "Replica %s of %s does not answer a bundle of %d rows: it gets no more work until it does",
            dispatch.replica,
            dispatch.model,
            dispatch.rows,
        )
        self._deal_with(self._scheduler.on_timeout(dispatch.bundle_id, monotonic()))
        self._schedule_pump()

    def _deal_with(self, requeue: Requeue) -> None:
        """Answer those entries of a failed bundle that do not get another try."""
        for entry in requeue.poisoned:
            self._fail(
                entry,
                InferenceFailed("two replicas failed while they ran this request, so it is not tried a third time"),
                "poisoned",
            )
        for entry in requeue.expired:
            self._fail(entry, self._why_late(entry, _late))

    def _fail(self, entry: Entry, error: ServeAppError, outcome: str | None = None) -> None:
        if outcome is not None:
            error.outcome = outcome
        self._end(entry, outcome or error.code)
        future = entry.payload.future
        if not future.done():
            future.set_exception(error)

    def _end(self, entry: Entry, outcome: str) -> None:
        self._observer.ended(entry, outcome, *self._times(entry, monotonic()))

    def _times(self, entry: Entry, now: float) -> tuple[float, float]:
        """How long an entry that ends now was queued, and how long it was here, seconds."""
        arrival = entry.arrival
        return self._dispatched_at.pop(entry.id, now) - arrival, now - arrival


def refused(rejection: Rejection) -> ServeAppError:
    """The error of a request that is not accepted, and that the metrics have counted.

    To be raised as it is: in a variable of the frame that raises it, it would be a cycle with its traceback, and keep
    the request until the next garbage collection. A flood makes hundreds of them per second.
    """
    error = error_from_code(rejection.code, rejection.message, rejection.retry_after_s)
    error.counted = True
    return error


def _failed_as(answer: EntryResult, code: str) -> bool:
    return type(answer) is Failure and answer.code == code


def _misfit(dispatch: Dispatch, result: BundleResult, allowed: set[str]) -> str | None:
    """Why an answer cannot be one to this bundle, or ``None``."""
    if len(result.results) != len(dispatch.entries):
        return f"gave {len(result.results)} answers to {len(dispatch.entries)} entries"
    if ran := {execution.variant for execution in result.executions} - allowed:
        return f"ran {', '.join(map(repr, sorted(ran)))} for entries that were to run on {dispatch.variant!r}"
    return None


def _has_run(answer: EntryResult) -> bool:
    return isinstance(answer, Success) or answer.code not in _NOT_RUN


def _late(entry: Entry) -> str:
    return f"the deadline of {(entry.deadline - entry.arrival) * 1000:.0f} ms passed before the answer was ready"


def _given_up(entry: Entry) -> str:
    return (
        f"the deadline of {(entry.deadline - entry.arrival) * 1000:.0f} ms could not be met any more, so the request"
        " was not executed"
    )
