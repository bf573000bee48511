"""Runs a replica's batches: entries wait at the gate, and the session never waits for the event loop.

    event loop      run ─> _add ─> gate; an instance is free: _next ─> _compose
                      ├─ a short batch:  _run in this turn ─> _answer
                      └─ any other:      to a session's thread, one per instance
    session         _serve: _run ─> _ended ─> _next: the following batch, if any
                      ├─ nothing follows:  _answer in the event loop
                      └─ a batch follows:  _answer in the event loop, by way of the thread "answers"

Theory of operation. Only a free instance composes a batch, in whichever thread it became free, so a batch is made of
the latest entries. A run of well under a millisecond happens in the event loop's turn: a thread would take longer to
wake up. Any other run happens in a session's thread, which takes the following batch itself when its run has ended. The
answers of the last run are made in the event loop during the next one; the thread "answers" wakes the loop, because the
session's thread would otherwise lose Python's lock to it. ``batch`` joins several bundles from the event loop on their
way to a thread. If pool members share a host's session, a `Turn` decides whose gate is next.

A bundle's stages are those of `Stage`, changed by the table `AFTER`:

    PREPARED ─ admitted ─> AT_GATE ─ granted ─> GRANTED ─ submitted ─> SUBMITTED ─ ended ─> ENDED
                              └─ nothing of it runs ─> ENDED   └─ ran in the event loop ─> ENDED

Invariants, all under ``_lock``, which is why this is one file:

    a bundle is in ``_waiting`` while entries of it are at the gate, then in ``_held`` until it has run, never in both
    a bundle runs once: entries not chosen with the first ones return to their router
    an instance is in ``_idle`` or belongs to the `_Run` of one batch; the last bundle of the batch frees it
    an entry tied to other replicas runs here only if this process has taken its place (`transport.ties`)
    after `close` nothing is granted, and waiting entries return to their router

An exception in this file is a bug. `_fault` fails the bundles concerned, frees all instances, and marks the runner as
broken, so that the health check has the replica replaced.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from queue import SimpleQueue
from threading import Lock, current_thread
from typing import Final, TypeAlias

from msgspec import Struct

from serve_app.backends.memory import give_end_of_heap_back
from serve_app.domain.priority import Priority
from serve_app.errors import InferenceFailed, ModelUnavailable
from serve_app.payloads import EXPIRED, NO_ATTRIBUTES, NOT_IN_TIME, RETURNED, Failure, Ties, WireEntry
from serve_app.replica.execution import Executor, Progress, Ran
from serve_app.replica.joining import Joining
from serve_app.replica.staged import AFTER, BackgroundWork, Stage, Staged, StageEvent
from serve_app.replica.turn import Turn
from serve_app.scheduling.entry import EXACT_ONLY, UNBATCHED, Entry
from serve_app.scheduling.gate import Gate
from serve_app.threads import Task, in_thread
from serve_app.timers import PreciseTimer

logger = logging.getLogger(__name__)

CLOSE_S: Final = 5.0
"""How long `Runner.close` waits for a run, seconds. One that lasts longer is left alone: it ends with the process."""

RunBatch: TypeAlias = Callable[[list[Staged]], Awaitable[Sequence[Staged]]]
RunOne: TypeAlias = Callable[[Staged], Awaitable[Staged]]
BatchTogether: TypeAlias = Callable[[RunBatch], RunOne]

_SHORT_S = 0.001
"""Runs that usually take no longer are in the event loop: a thread and the loop would wait for each other's lock."""
_JOBS_WAIT_S = 60.0
_CLOSED = Failure(ModelUnavailable.code, "the replica that was answering has ended; ask again", 1.0)
_CLASSES = {int(priority): priority for priority in Priority}


class _Granted(Struct, frozen=True):
    """The gate's decision for bundles.

    Attributes:
        granted: Bundles of the next batch, with chosen entries.
        short: Whether it runs in the event loop.
        ended: Bundles without any entry left to run.
        recheck_at: When to ask again at the latest; ``inf``: never.
    """

    granted: list[Staged]
    short: bool
    ended: list[Staged]
    recheck_at: float = inf


_NOTHING = _Granted([], short=False, ended=[])


class _Run(Progress, eq=False):
    """A batch in flight.

    Attributes:
        instance: Its number.
        left: Bundles that have not run yet.
    """

    instance: int
    left: set[Staged]


class Runner:
    """Lends the backends to one batch per instance, in the gate's order.

    Args:
        gate: Composes the batches.
        lock: Held for each use of the gate.
        joining: Which requests may share runs.
        batch: Makes a single-bundle function from the batch function; see `serve_app.replica.worker`.
        in_loop: Whether short runs may happen in the event loop.
        turn: Shared by runners that together run one batch at a time, if any.
        close_s: How long `close` waits for a run, seconds.
        instances: Concurrent batches, which the backends must allow. 1 with a ``turn``.

    Attributes:
        broken: Whether a bug has occurred in lending, after which no turn can be trusted. It continues as well as it
            can until the replica is replaced.
    """

    def __init__(
        self,
        name: str,
        executor: Executor,
        gate: Gate,
        lock: Lock,
        joining: Joining,
        batch: BatchTogether,
        *,
        in_loop: bool,
        turn: Turn | None = None,
        close_s: float = CLOSE_S,
        instances: int = 1,
    ) -> None:
        self._turn = turn
        self._instances = instances
        self._close_s = close_s
        self._name = name
        self._executor = executor
        self._gate = gate
        self._lock = lock
        self._joinable = joining
        self._in_loop = in_loop
        self._join = batch(self._take_joined)
        self._ids = itertools.count(1)
        self._waiting: dict[Staged, None] = {}
        self._idle = list(range(instances))
        self._tied: dict[Entry, tuple[Ties, int]] = {}  # what other replicas have, too, with its place among the ties
        self._held: dict[Staged, _Run] = {}  # granted, and not run yet
        self._ended_now: list[Staged] = []  # of the latest turn
        self._closed = False
        self.broken = False
        self._timer: PreciseTimer | None = None
        self._joining: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: list[Task] = []
        self._handed: SimpleQueue[Sequence[Staged] | None] = SimpleQueue()
        self._answers: SimpleQueue[tuple[Sequence[Staged], Sequence[Ran], _Granted] | None] = SimpleQueue()

    def __repr__(self) -> str:
        return f"<Runner of {self._name} {'busy' if self.busy else 'idle'}, {len(self._waiting)} bundles at the gate>"

    @property
    def busy(self) -> bool:
        """Whether all instances are in use, so that the next bundle's turn is not immediate."""
        return not self._idle

    @property
    def urgency(self) -> Priority:
        """The most urgent waiting class."""
        return self._gate.urgency

    def turn_has_come(self) -> None:
        """Use or leave the turn; see `serve_app.replica.turn.Asker`."""
        try:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._have_turn)
        except RuntimeError:
            logger.debug("%s: event loop closed; its turn is not taken", self._name)

    def stalled_s(self) -> float:
        """Seconds without progress of the granted run where that is longest.

        Returns:
            0.0 when idle, or while the session waits for the reader of a part.
        """
        with self._lock:
            earliest = min([run.at for run in self._held.values()], default=inf)
        return max(0.0, time.monotonic() - earliest)

    async def run(self, staged: Staged) -> None:
        """Wait for the session, run a bundle, and release the session. Fills in results, except of expired entries."""
        self._loop = asyncio.get_running_loop()
        self._add(staged)
        if staged.stage is Stage.ENDED:
            return
        staged.waiter = self._loop.create_future()
        try:
            await staged.waiter
        except asyncio.CancelledError:
            with self._lock:
                self._take_out(staged)
            staged.stop(RETURNED)  # its reader is gone
            raise

    def submit_background(self, job: BackgroundWork, rows: int, bucket: int, variant: str, sender: str) -> None:
        """Queue a job for the session, in class `low`. Thread-safe.

        Args:
            job: Runs in its turn, or is dropped after a minute.
            rows: Approximate rows.
            bucket: Their cost bucket.
            sender: The router whose requests caused it.
        """
        assert self._loop is not None
        deadline = time.monotonic() + _JOBS_WAIT_S
        staged = Staged(
            [], [deadline], [], [], sender=sender, rows=rows, counts=[rows], whole=[True], buckets=[bucket], job=job,
            on_behalf_of=variant,
        )  # fmt: skip
        try:
            self._loop.call_soon_threadsafe(self._add, staged)
        except RuntimeError:
            job.drop()  # the event loop has ended

    def _add(self, staged: Staged) -> None:
        """Queue a bundle's entries that have rows, and run them if the session is free."""
        now = staged.arrived_at or time.monotonic()
        ended: list[Staged] = []
        try:
            with self._lock:
                self._waiting[staged] = None
                staged.stage = AFTER[staged.stage, StageEvent.ADMITTED]
                for index, rows in enumerate(staged.counts):
                    if not rows:
                        continue
                    wire = staged.entries[index] if staged.entries else None
                    here = Entry(
                        next(self._ids),
                        self._name,
                        Priority.LOW if wire is None else _CLASSES[wire.priority],
                        now,
                        staged.deadlines[index],
                        rows,
                        staged.buckets[index],
                        0,
                        (staged, index),
                        staged.on_behalf_of if wire is None else wire.variant,
                        attributes=NO_ATTRIBUTES if wire is None else wire.attributes,
                    )
                    if wire is not None:
                        here.batch_key = EXACT_ONLY if wire.exact and not wire.variant else wire.variant
                        here.probe = wire.probe
                        if wire.place and staged.ties is not None:
                            self._tied[here] = staged.ties, wire.place
                    if staged.whole[index] or (wire is not None and wire.unbatched):
                        here.batch_key = UNBATCHED
                    staged.waiting[index] = here
                    self._gate.add(here, now)
                if self._closed:
                    self._send_back(ended, now)
            if ended:
                self._apply_decision(_Granted([], short=False, ended=ended))
            self._grant_free_instances()
        except Exception:
            self._fault(ended)

    def recall(self, entries: Sequence[WireEntry], positions: Iterable[int]) -> None:
        """Remove a bundle's entries from the gate; the bundle is answered without them, at once if none are left.

        Args:
            entries: Of the bundle. An unknown or running bundle is ignored, except that streamed answers end.
            positions: Entries to remove. Repetitions are ignored.
        """
        ended: list[Staged] = []
        try:
            positions = tuple(positions)
            with self._lock:
                for staged in self._held:
                    if staged.entries is entries and staged.outlets:
                        for index in positions:
                            staged.outlets[index].stop(RETURNED)
                for staged in self._waiting:
                    if staged.entries is entries:
                        break
                else:
                    return
                for index in positions:
                    if (here := staged.waiting.pop(index, None)) is not None:
                        self._tied.pop(here, None)
                        self._gate.remove(here)
                        staged.results[index] = RETURNED
                if not staged.waiting:
                    ended.append(staged)
                    self._leave(staged, time.monotonic())
            self._apply_decision(_Granted([], short=False, ended=ended))
            self._grant_free_instances()
        except Exception:
            self._fault(ended)

    def _leave(self, staged: Staged, now: float) -> None:
        """Finish a bundle without entries at the gate or to run. The lock is held."""
        staged.executed_at = staged.finished_at = now  # it has waited until now
        self._waiting.pop(staged, None)

    def _take_out(self, staged: Staged) -> None:
        """Remove the rest of a bundle from the gate. The lock is held."""
        for here in staged.waiting.values():
            self._tied.pop(here, None)
            self._gate.remove(here)
        staged.waiting.clear()
        self._waiting.pop(staged, None)

    def _take_out_taken(self, ended: list[Staged], now: float) -> None:
        """Remove entries from the gate that another replica runs. The lock is held.

        Args:
            ended: Receives bundles with no entries left here.
        """
        for here, (ties, place) in list(self._tied.items()):
            if ties.taken(place):
                del self._tied[here]
                self._gate.remove(here, elsewhere=True)
                self._return_entry(here, ended, now)

    def _return_entry(self, here: Entry, ended: list[Staged], now: float) -> None:
        """Return an entry from the gate to its router."""
        staged, index = here.payload
        del staged.waiting[index]
        staged.results[index] = RETURNED
        if not staged.waiting:
            ended.append(staged)
            self._leave(staged, now)

    def _send_back(self, ended: list[Staged], now: float) -> None:
        """Return everything waiting to its router. The lock is held."""
        for staged in list(self._waiting):
            if staged.job is None:
                for index in staged.waiting:
                    staged.results[index] = RETURNED
            self._take_out(staged)
            self._leave(staged, now)
            ended.append(staged)

    def close(self) -> None:
        """Stop the threads, waiting at most `CLOSE_S` for a run. Idempotent.

        Waiting entries return to their router at once.
        """
        left: list[Staged] = []
        with self._lock:
            self._closed = True
            for staged in self._held:
                staged.stop(_CLOSED)
            self._send_back(left, time.monotonic())
        if left:
            self._post_answer([], [], _Granted([], short=False, ended=left))
        if self._loop is not None:
            with suppress(RuntimeError):  # it has ended, and its timers with it
                self._loop.call_soon_threadsafe(self._close_timer)  # timers are the loop's own
        if self._turn is not None:
            self._turn.forget(self)
        until = time.monotonic() + self._close_s
        tasks, self._tasks = self._tasks, []
        # The session's threads first: the other one makes the answers of their last runs.
        for _ in tasks[1:]:
            self._handed.put(None)
        for place in reversed(range(len(tasks))):
            if place == 0:
                self._answers.put(None)
            thread, ended = tasks[place]
            if thread is current_thread():  # whose garbage collection may have come upon the last reference
                continue
            if not ended.wait(max(0.0, until - time.monotonic())) and place > 0:
                logger.warning("%s: closed inside a run that does not end: its thread is left alone", self._name)

    # --- in the event loop ----------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Start the next batch if an instance is free."""
        try:
            self._grant_free_instances()
        except Exception:
            self._fault()

    def _have_turn(self) -> None:
        """Use the turn for waiting entries, or leave it to others."""
        self._open()
        if not self.busy:
            self._leave_turn()

    def _leave_turn(self) -> None:
        if self._turn is not None:
            self._turn.leave(self)

    def _grant_free_instances(self) -> None:
        while self._idle:
            with self._lock:
                turn = self._next(time.monotonic())
            if turn.ended or turn.recheck_at < inf:
                self._apply_decision(turn)
            if not turn.granted:
                return
            if not self._in_loop or not turn.short:
                if len(turn.granted) > 1:
                    self._join_soon(turn.granted)
                else:
                    self._hand_to_session(turn.granted)
                if self._instances == 1:
                    return
                continue
            ran = self._run(turn.granted)
            with self._lock:
                self._ended(turn.granted, ran)
            self._answer(turn.granted, ran, _NOTHING)

    def _hand_to_session(self, bundles: Sequence[Staged]) -> None:
        with self._lock:  # nothing is handed over once `close` ends the thread
            if not self._closed:
                for staged in bundles:
                    staged.stage = AFTER[staged.stage, StageEvent.SUBMITTED]
                if len(self._tasks) <= self._instances:
                    threads = [("answers", self._publish_results), *[("session", self._serve)] * self._instances]
                    for name, work in threads[len(self._tasks) :]:
                        self._tasks.append(in_thread(name, partial(_run_work_item, work)))
                self._handed.put(bundles)
                return
            for staged in bundles:
                self._held.pop(staged, None)
        for staged in bundles:
            if staged.job is None:
                for index in staged.chosen:
                    staged.results[index] = RETURNED
        self._apply_decision(_Granted([], short=False, ended=list(bundles)))

    def _apply_decision(self, turn: _Granted) -> None:
        for staged in turn.ended:
            staged.wake()
            if staged.job is not None:
                staged.job.drop()
        if turn.recheck_at < inf:
            if self._timer is None:
                self._timer = PreciseTimer(self._open)
            if turn.recheck_at < self._timer.due:
                self._timer.set(turn.recheck_at)

    def _close_timer(self) -> None:
        if self._timer is not None:
            self._timer.close()
            self._timer = None

    def _answer(self, bundles: Sequence[Staged], ran: Sequence[Ran], turn: _Granted) -> None:
        """Make results of completed runs, and handle what the gate granted meanwhile."""
        try:
            self._executor.finish(ran)
        except Exception:  # as in `_run`
            logger.exception("%s could not make answers of a batch", self._name)
            self._fail(bundles)
        for staged in bundles:
            staged.wake()
        if turn is _NOTHING:
            return
        try:
            self._apply_decision(turn)
            if self._instances > 1:  # what one of them has left at the gate is for the others
                self._grant_free_instances()
        except Exception:
            self._fault(turn.ended)

    # --- in the thread of whoever has the session -----------------------------------------------------------------

    def _serve(self) -> None:
        """A thread of the session: runs granted batches, then without pause those waiting at the gate."""
        while (bundles := self._handed.get()) is not None:
            while bundles:
                try:
                    ran = self._run(bundles)
                    with self._lock:
                        self._ended(bundles, ran)
                        turn = self._next(time.monotonic())
                except BaseException:  # otherwise the session would be lost without a report
                    self._fault(bundles)
                    break
                if turn.granted:
                    for staged in turn.granted:
                        staged.stage = AFTER[staged.stage, StageEvent.SUBMITTED]
                    self._answers.put((bundles, ran, turn))
                    bundles = turn.granted
                else:
                    self._post_answer(bundles, ran, turn)
                    break

    def _publish_results(self) -> None:
        """A thread between the session's and the event loop, for work that must not delay the next run.

        Waking the event loop gives it Python's lock, and the session would have to wait until the answers are made.
        This thread gets it only when the next run is under way.
        """
        while (answer := self._answers.get()) is not None:
            self._post_answer(*answer)

    def _run(self, bundles: Sequence[Staged]) -> list[Ran]:
        try:
            return self._executor.run(bundles, self._held.get(bundles[0]))
        except Exception:  # a fault of ours: it must cost these bundles, and not the session
            logger.exception("%s could not run a batch", self._name)
            self._fail(bundles)
            return []

    def _fail(self, bundles: Sequence[Staged]) -> None:
        failure = Failure(InferenceFailed.code, f"model {self._name} failed on this request")
        for staged in bundles:
            staged.results[:] = [failure if result is None else result for result in staged.results]
            staged.model_works = False

    def _fault(self, bundles: Sequence[Staged] = ()) -> None:
        """Handle an exception while lending the session, i.e. a bug: fail affected bundles, and release the session.

        Failing all later bundles as well would look like a fast replica and attract more. The health check reports the
        bug.

        Args:
            bundles: Those not tracked elsewhere. The lock is not held.
        """
        logger.exception("The session of %s failed: this replica must be replaced", self._name)  # noqa: LOG004 - handlers call this
        with self._lock:
            self.broken = True
            waiting = list(self._waiting)
            for staged in waiting:
                self._take_out(staged)
            for staged in self._held:
                staged.stage = AFTER[staged.stage, StageEvent.SUBMITTED]  # too late to join them now
            found = dict.fromkeys([*bundles, *self._held, *self._ended_now, *waiting])
            concerned = [staged for staged in found if staged.stage is not Stage.ENDED]
            self._held.clear()
            self._ended_now = []
            self._idle = list(range(self._instances))
        self._leave_turn()
        if concerned:
            self._fail(concerned)
            self._post_answer([], [], _Granted([], short=False, ended=concerned))

    def _post_answer(self, bundles: Sequence[Staged], ran: Sequence[Ran], turn: _Granted) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._answer, bundles, ran, turn)
        except RuntimeError:
            logger.debug("%s: event loop closed; the results of the last batch are discarded", self._name)

    # --- with the lock held ---------------------------------------------------------------------------------------

    def _next(self, now: float) -> _Granted:
        """Take the next batch from the gate, if an instance is free."""
        if not self._idle or self._closed:
            return _NOTHING
        self._ended_now = []
        if not self._waiting:
            return _NOTHING
        if self._turn is None:
            return self._compose(now)
        if not self._turn.take(self):
            return _NOTHING
        composed = self._compose(now)
        if not composed.granted:
            self._turn.leave(self)
        return composed

    def _compose(self, now: float) -> _Granted:
        ended = self._ended_now
        self._gate.latencies.whole = self._joinable.unbatched_variants
        while self._waiting:
            if self._tied:
                self._take_out_taken(ended, now)
            turn = self._gate.next(now, self._idle[-1])
            for here in turn.dropped:
                self._tied.pop(here, None)
                staged, index = here.payload
                del staged.waiting[index]
                if staged.entries:
                    staged.results[index] = EXPIRED if here.deadline <= now else NOT_IN_TIME
                if not staged.waiting:
                    ended.append(staged)
                    self._leave(staged, now)
            granted: dict[Staged, None] = {}
            lost: list[Entry] = []
            for here in turn.entries:
                tied = self._tied.pop(here, None)
                if tied is not None and not tied[0].take(tied[1]):
                    lost.append(here)  # another replica has taken it at this moment
                    continue
                staged, index = here.payload
                del staged.waiting[index]
                staged.chosen.append(index)
                staged.runs_on = turn.variant
                granted[staged] = None
            for here in lost:
                staged, index = here.payload
                if staged in granted:
                    del staged.waiting[index]
                    staged.results[index] = RETURNED
                else:
                    self._return_entry(here, ended, now)
            # A bundle whose caller has just left is still at the gate, without a waiter.
            staying: list[Staged] = []
            for staged in granted:
                if staged.waiter is None or not staged.waiter.cancelled():
                    staying.append(staged)
                if staged.waiting:
                    for index in staged.waiting:
                        staged.results[index] = RETURNED
                    self._take_out(staged)
                else:
                    del self._waiting[staged]
            if staying:
                run = _Run(now, self._idle.pop(), set(staying))
                self._held.update(dict.fromkeys(staying, run))
            for staged in staying:
                staged.stage = AFTER[staged.stage, StageEvent.GRANTED]
            if staying:
                staying[0].first = True
                short = 0.0 < turn.predicted_s <= _SHORT_S
                if not short and turn.predicted_s:  # beside other load a quantile says little of a short run
                    short = self._gate.latencies.of(turn.variant).typical(turn.rows, turn.bucket) <= _SHORT_S
                short = short and staying[0].job is None
                return _Granted(staying, short, ended)
            if not granted and not lost:
                return _Granted([], short=False, ended=ended, recheck_at=turn.recheck_at)
        return _Granted([], short=False, ended=ended)

    def _ended(self, bundles: Sequence[Staged], ran: Sequence[Ran]) -> None:
        """Record that bundles of a batch have run. The last frees its instance."""
        run = self._held.get(bundles[0])
        instance = 0 if run is None else run.instance
        for _, variant, batch in ran:
            for execution in batch.executions:
                self._gate.observe(execution.rows, execution.bucket, execution.seconds, variant, instance)
        if run is None:  # a fault has freed all instances
            return
        run.left.difference_update(bundles)
        if not run.left:
            self._gate.ended(instance)
            self._idle.append(instance)
            self._leave_turn()
        for staged in bundles:
            self._held.pop(staged, None)

    # --- several bundles ------------------------------------------------------------------------------------------

    def _join_soon(self, bundles: Sequence[Staged]) -> None:
        task = asyncio.ensure_future(self._join_all(bundles))
        self._joining.add(task)
        task.add_done_callback(self._joining.discard)

    async def _join_all(self, bundles: Sequence[Staged]) -> None:
        """Have ``batch`` join the bundles: all ask in the same turn of the event loop."""
        outcomes = await asyncio.gather(*map(self._join, bundles), return_exceptions=True)
        if faults := [outcome for outcome in outcomes if isinstance(outcome, BaseException)]:
            logger.error("%s could not join bundles: they run all the same", self._name, exc_info=faults[0])
            await self._take_joined(bundles)

    async def _take_joined(self, bundles: Sequence[Staged]) -> Sequence[Staged]:
        """The batch function, with bundles that asked together: hands new ones to the session's thread."""
        due: dict[_Run | None, list[Staged]] = {}  # those of two instances may ask together
        for staged in bundles:
            if staged.stage < Stage.SUBMITTED:
                due.setdefault(self._held.get(staged), []).append(staged)
        try:
            for batch in due.values():
                self._hand_to_session(batch)
        except Exception:  # no thread could be started
            self._fault()
        return bundles


def _run_work_item(work: Callable[[], None]) -> None:
    """Run a thread's work item. Its references are dropped before the next, which needs the memory."""
    work()
    give_end_of_heap_back()
