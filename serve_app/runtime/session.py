"""The session of a replica: bundles wait for it at the gate, and it never waits for the event loop.

    bundle -> gate -> session, in one of three ways:

    a run of well under a millisecond   in the event loop's turn: a thread would take longer to wake than to run it
    a bundle alone                      in the session's thread, which takes it from the gate where the last run ended
    several bundles                     likewise; joined by ``batch`` in the event loop before their turn

The gate decides only when the session is free, whoever asks it then. What a run came to is made into answers in the
event loop, while the next one is under way.

Everything that the event loop and the session's thread share changes under one lock, and is in this file for that.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from queue import SimpleQueue
from threading import Lock, Thread, current_thread
from typing import NamedTuple, TypeAlias

from serve_app.errors import InferenceFailed
from serve_app.payloads import Failure
from serve_app.runtime.execution import Executor, Ran
from serve_app.runtime.staged import Job, Staged
from serve_app.scheduling.foresight import Foresight
from serve_app.scheduling.gate import Gate, Ticket

logger = logging.getLogger(__name__)

RunBatch: TypeAlias = Callable[[list[Staged]], Awaitable[list[Staged]]]
RunOne: TypeAlias = Callable[[Staged], Awaitable[Staged]]
BatchTogether: TypeAlias = Callable[[RunBatch], RunOne]

_SHORT_S = 0.0002
_LOW = 3
"""The class of jobs, as a number."""
_JOBS_WAIT_S = 60.0


class _Turn(NamedTuple):
    """What the gate let through.

    Attributes:
        granted: The bundles of the next batch.
        direct: Whether they are one batch already, and may run.
        expired: Bundles that nobody waits for any more.
        opens: When to ask again, where it is not time yet.
    """

    granted: list[Staged]
    direct: bool
    expired: list[Staged]
    opens: float | None = None


_NOTHING = _Turn([], direct=False, expired=[])


class Session:
    """Lends the backends to one batch at a time, in the gate's order.

    Args:
        name: The model's name, for messages.
        executor: Runs batches.
        foresight: Predicts which are short.
        gate: Orders what waits.
        lock: Is held around every use of the last two.
        max_rows: Most rows in one batch.
        batch: Turns the batch function into one that takes a single bundle; see `serve_app.runtime.worker`.
        in_loop: Whether short runs may happen in the event loop.

    Attributes:
        broken: Whether lending it has failed, which is a bug that no later turn can be trusted after. It goes on as
            well as it can until the replica is replaced.
    """

    def __init__(
        self,
        name: str,
        executor: Executor,
        foresight: Foresight,
        gate: Gate,
        lock: Lock,
        max_rows: int,
        batch: BatchTogether,
        *,
        in_loop: bool,
    ) -> None:
        self._name = name
        self._executor = executor
        self._foresight = foresight
        self._gate = gate
        self._lock = lock
        self._max_rows = max_rows
        self._in_loop = in_loop
        self._ahead = executor.ahead
        self._worth_a_look = 2 if self._ahead is None else 1  # bundles that wait
        self._join = batch(self._take_joined)
        self._ids = itertools.count(1)
        self._waiting: dict[int, tuple[Staged, float]] = {}
        self._busy = False
        self._granted_at = 0.0
        self._held: set[Staged] = set()  # granted, and not run yet
        self._expired: list[Staged] = []  # of the latest turn
        self._closed = False
        self.broken = False
        self._reopening: asyncio.TimerHandle | None = None
        self._joining: set[asyncio.Task[None]] = set()
        self._foreseen: set[int] = set()
        self._joined: set[int] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads: list[Thread] = []
        self._handed: SimpleQueue[Sequence[Staged] | None] = SimpleQueue()
        self._answers: SimpleQueue[tuple[Sequence[Staged], Sequence[Ran], _Turn] | None] = SimpleQueue()

    def __repr__(self) -> str:
        return f"<Session of {self._name} {'busy' if self._busy else 'idle'}, {len(self._waiting)} bundles at the gate>"

    @property
    def busy(self) -> bool:
        """Whether something runs, so that there is time until the next bundle's turn."""
        return self._busy

    def stalled_s(self) -> float:
        """For how long nothing has come of what was granted, seconds; 0.0 when the session is free."""
        if not self._busy:
            return 0.0
        return time.monotonic() - max(self._granted_at, self._executor.progressed_at)

    async def run(self, staged: Staged) -> None:
        """Wait for the session, have it, and give it back. Results are filled in, but those of what expired."""
        self._loop = asyncio.get_running_loop()
        ticket = self._add(staged, min(entry.priority for entry in staged.entries))
        if staged.ended:
            return
        if len(self._waiting) >= self._worth_a_look:
            self._look_ahead()
        staged.waiter = self._loop.create_future()
        try:
            await staged.waiter
        except asyncio.CancelledError:
            with self._lock:
                self._gate.remove(ticket.id)
                self._waiting.pop(ticket.id, None)
            self._forget(staged)
            raise

    def later(self, job: Job, rows: int, bucket: int, variant: str, sender: str) -> None:
        """Let a job wait for the session, in class `low`. From any thread.

        Args:
            job: Is run in its turn, or dropped where that does not come within a minute.
            rows: About as many rows as it runs.
            bucket: Of this cost bucket.
            variant: On this variant.
            sender: For this router: its requests are the reason.
        """
        assert self._loop is not None
        deadline = time.monotonic() + _JOBS_WAIT_S
        staged = Staged([], [deadline], [], [], sender=sender, rows=rows, bucket=bucket, job=job, on_behalf_of=variant)
        try:
            self._loop.call_soon_threadsafe(self._add, staged, _LOW)
        except RuntimeError:
            job.drop()  # the event loop has ended

    def _add(self, staged: Staged, priority: int) -> Ticket:
        """Let a bundle wait, and run it where the session is free."""
        reached = time.monotonic()
        staged.ticket = next(self._ids)
        ticket = Ticket(
            id=staged.ticket,
            priority=priority,
            deadline=min(staged.deadlines),
            rows=staged.rows,
            bucket=staged.bucket,
            expires=max(staged.deadlines),
            sender=staged.sender,
            variant=staged.variant,
            alone=staged.alone,
        )
        with self._lock:
            self._gate.add(ticket)
            self._waiting[ticket.id] = (staged, reached)
        self._open()
        return ticket

    def close(self) -> None:
        """End the thread after its run. Idempotent."""
        with self._lock:
            self._closed = True
        if self._reopening is not None:
            self._reopening.cancel()
            self._reopening = None
        self._handed.put(None)
        self._answers.put(None)
        for thread in self._threads:
            if thread is not current_thread():  # whose garbage collection may have come upon the last reference
                thread.join()
        self._threads = []
        if self._ahead is not None:
            self._ahead.close()

    # --- in the event loop ----------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Let the next batch begin if the session is free."""
        try:
            self._let_in()
        except Exception:
            self._fault()

    def _let_in(self) -> None:
        while not self._busy:
            with self._lock:
                turn = self._next(time.monotonic())
            self._see(turn)
            if not turn.granted:
                return
            if not turn.direct:
                self._join_soon(turn.granted)
                return
            if not self._in_loop or not self._is_short(turn.granted):
                self._hand(turn.granted)
                return
            ran = self._run(turn.granted)
            with self._lock:
                self._ended(turn.granted, ran)
            self._answer(turn.granted, ran, _NOTHING)

    def _hand(self, bundles: Sequence[Staged]) -> None:
        if len(self._threads) < 2:
            missing = [("answers", self._bear_answers), ("session", self._serve)][len(self._threads) :]
            for name, work in missing:
                thread = Thread(target=work, name=name, daemon=True)
                thread.start()
                self._threads.append(thread)
        self._handed.put(bundles)

    def _see(self, turn: _Turn) -> None:
        for staged in turn.expired:
            if staged.job is not None:
                staged.job.drop()
            staged.wake()
        for staged in turn.expired:
            self._forget(staged)
        if turn.opens is not None and self._reopening is None:
            delay = max(0.0, turn.opens - time.monotonic())
            self._reopening = asyncio.get_running_loop().call_later(delay, self._reopen)

    def _reopen(self) -> None:
        self._reopening = None
        self._open()

    def _answer(self, bundles: Sequence[Staged], ran: Sequence[Ran], turn: _Turn) -> None:
        """Make results of what ran, and see to what the gate let through meanwhile."""
        try:
            self._executor.finish(ran)
        except Exception:  # as in `_run`
            logger.exception("%s could not make answers of a batch", self._name)
            self._fail(bundles)
        for staged in bundles:
            staged.wake()
        try:
            self._see(turn)
            if not turn.direct and turn.granted:
                self._join_soon(turn.granted)
        except Exception:
            self._fault()
        if len(self._waiting) >= self._worth_a_look and (turn.direct or not turn.granted):
            self._look_ahead()

    def _forget(self, staged: Staged) -> None:
        """A bundle will not be run, or its batch not as it was prepared."""
        if self._ahead is not None:
            self._ahead.forget(staged)

    # --- in the thread of whoever has the session -----------------------------------------------------------------

    def _serve(self) -> None:
        """The session's thread: run what is handed over, and then, without a pause, what waits at the gate."""
        while (bundles := self._handed.get()) is not None:
            while bundles:
                try:
                    ran = self._run(bundles)
                    with self._lock:
                        self._ended(bundles, ran)
                        turn = self._next(time.monotonic())
                except BaseException:  # nobody would have the session any more, and nobody would be told
                    self._fault(bundles)
                    break
                if turn.direct:
                    self._answers.put((bundles, ran, turn))
                    bundles = turn.granted
                else:
                    self._tell(bundles, ran, turn)
                    break

    def _bear_answers(self) -> None:
        """A thread between the session's and the event loop, for what must not delay the next run.

        Waking the event loop gives it Python's lock, and the session would have to wait until the answers are made.
        This thread gets it only when the next run is under way.
        """
        while (answer := self._answers.get()) is not None:
            self._tell(*answer)

    def _run(self, bundles: Sequence[Staged]) -> list[Ran]:
        try:
            return self._executor.run(bundles)
        except Exception:  # a fault of ours: it must cost these bundles, and not the session
            logger.exception("%s could not run a batch", self._name)
            self._fail(bundles)
            return []

    def _fail(self, bundles: Sequence[Staged]) -> None:
        failure = Failure(InferenceFailed.code, f"model {self._name} failed on this request")
        for staged in bundles:
            staged.results[:] = [failure] * len(staged.entries)
            staged.model_works = False

    def _fault(self, bundles: Sequence[Staged] = ()) -> None:
        """Lending the session has just raised: a bug. Fail whom it may concern, and let others have the session.

        To fail them all in future, too, would look like a quick replica and attract more. The health check tells.

        Args:
            bundles: Of whom nobody else knows any more. The lock is not held.
        """
        logger.exception("The session of %s failed: this replica must be replaced", self._name)  # noqa: LOG004 - handlers call this
        with self._lock:
            self.broken = True
            waiting = [staged for staged, _ in self._waiting.values()]
            for ticket in self._waiting:
                self._gate.remove(ticket)
            for staged in self._held:
                staged.handed = True  # whoever joins them now comes too late
            found = dict.fromkeys([*bundles, *self._held, *self._expired, *waiting])
            concerned = [staged for staged in found if not staged.ended]
            self._waiting.clear()
            self._held.clear()
            self._expired = []
            self._busy = False
        if concerned:
            self._fail(concerned)
            self._tell([], [], _Turn([], direct=False, expired=concerned))

    def _tell(self, bundles: Sequence[Staged], ran: Sequence[Ran], turn: _Turn) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._answer, bundles, ran, turn)
        except RuntimeError:
            logger.debug("%s: the event loop has ended, and nobody waits for an answer", self._name)

    # --- with the lock held ---------------------------------------------------------------------------------------

    def _next(self, now: float) -> _Turn:
        """Take the next batch from the gate; the session is free."""
        if self._busy or self._closed or not self._waiting:
            return _NOTHING
        opens = self._gate.opens_at(now, self._max_rows)
        if opens > now and not self._is_short([staged for staged, _ in self._waiting.values()]):
            return _Turn([], direct=False, expired=[], opens=opens)
        self._expired = expired = []
        while True:
            decision = self._gate.grant(now, self._max_rows)
            expired += [self._waiting.pop(ticket)[0] for ticket in decision.expired]
            if not decision.granted:
                return _Turn([], direct=False, expired=expired)
            granted: list[Staged] = []
            for ticket in decision.granted:
                staged, reached = self._waiting.pop(ticket)
                # A bundle whose caller has just left is still at the gate, but nobody waits behind it.
                if not staged.left:
                    staged.granted = True
                    granted.append(staged)
                    self._held.add(staged)
                    if self._gate.others_since(staged.sender, reached):
                        staged.behind_others_s = now - reached
            if granted:
                self._granted_at = now
                self._busy = True
                direct = len(granted) == 1 or {staged.ticket for staged in granted} == self._joined
                for staged in granted:
                    staged.handed = direct
                return _Turn(granted, direct, expired)

    def _ended(self, bundles: Sequence[Staged], ran: Sequence[Ran]) -> None:
        """Note that these bundles have run. With the last of its batch the session is free."""
        self._executor.observe(ran)
        held = self._held.difference(bundles)
        if self._busy and not held:
            self._gate.ended(time.monotonic())
            self._busy = False
        self._held = held

    def _is_short(self, bundles: Sequence[Staged]) -> bool:
        """Whether running these takes less than what it would take to wait for anything."""
        predicted = [self._foresight.seconds(staged.rows, staged.bucket, staged.variant) for staged in bundles]
        if any(staged.job is not None for staged in bundles):
            return False
        return all(predicted) and sum(predicted) <= _SHORT_S

    # --- several bundles ------------------------------------------------------------------------------------------

    def _look_ahead(self) -> None:
        """Join the bundles that would go next, so that they are one batch when their turn comes, ready on the device.

        This decides nothing: if the gate decides otherwise then, what was joined is not used.
        """
        try:
            bundles = self._foresee()
        except Exception:
            self._fault()
        else:
            if bundles:
                self._join_soon(bundles)

    def _foresee(self) -> list[Staged]:
        """The bundles that would go next together, unless they have been joined already."""
        with self._lock:
            upcoming = self._gate.upcoming(self._max_rows) if self._busy or self._ahead is not None else []
            if self._ahead is not None:
                # With the lock: once they are granted, nothing may be prepared for them any more.
                self._ahead.want([self._waiting[ticket][0] for ticket in upcoming])
            if not self._busy or len(upcoming) < 2 or set(upcoming) == self._foreseen or self._joining:
                return []
            self._foreseen = set(upcoming)
            return [self._waiting[ticket][0] for ticket in upcoming]

    def _join_soon(self, bundles: Sequence[Staged]) -> None:
        task = asyncio.ensure_future(self._join_all(bundles))
        self._joining.add(task)
        task.add_done_callback(self._have_joined)

    def _have_joined(self, task: asyncio.Task[None]) -> None:
        self._joining.discard(task)
        self._look_ahead()

    async def _join_all(self, bundles: Sequence[Staged]) -> None:
        """Let ``batch`` make one batch of the bundles: all ask for it in the same turn of the event loop."""
        outcomes = await asyncio.gather(*(self._join(staged) for staged in bundles), return_exceptions=True)
        lost = []
        for staged, outcome in zip(bundles, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                logger.error("%s could not join a bundle to its batch", self._name, exc_info=outcome)
                if staged.granted and not staged.handed:
                    staged.handed = True
                    lost.append(staged)
        if lost:
            self._fail(lost)
            try:
                with self._lock:
                    self._ended(lost, [])
            except Exception:
                self._fault()
            self._answer(lost, [], _NOTHING)
            self._open()

    async def _take_joined(self, bundles: list[Staged]) -> list[Staged]:
        """What ``batch`` calls with the bundles that asked together: they run now, or wait as one batch."""
        with self._lock:
            due = [staged for staged in dict.fromkeys(bundles) if staged.granted and not staged.handed]
            for staged in due:
                staged.handed = True
            if not due:
                self._joined = {staged.ticket for staged in bundles}
        if due:
            try:
                self._hand(due)
            except Exception:  # no thread could be started
                self._fault()
        return bundles
