"""Runs items of jobs: a bounded number at once, through the same queue as all requests.

Exchanges with the store follow each other: each delivers outcomes, keeps the session alive, and fetches as many new
items as fit. More items end during one, so that busy routers exchange many at once.

An item refused for now (no capacity, no replica) keeps its place and retries after a pause: there are never more tries
than places. One whose model is no longer served here returns to the store, and waits there without a place. Any other
failure ends the item with its error.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import Counter
from collections.abc import Callable, Mapping
from contextvars import Context
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Final, Protocol

from msgspec import Struct

from serve_app.domain.options import MAX_TIMEOUT_S
from serve_app.errors import (
    DeadlineExceeded,
    ModelNotFound,
    ModelUnavailable,
    PayloadTooLarge,
    QueueFull,
    RateLimited,
    ServeAppError,
    StoreUnavailable,
)
from serve_app.jobs.records import Exchanged, Lease, Outcome
from serve_app.jobs.settings import JobSettings
from serve_app.jobs.states import JobState
from serve_app.jobs.store import SessionOver, Store

logger = logging.getLogger(__name__)

_FOR_NOW: Final = (QueueFull, ModelUnavailable, RateLimited)
"""Errors that say nothing of the item."""
_POISONED: Final = "poisoned"
"""`ServeAppError.outcome` of a request that two replicas failed at, wholly."""
_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 30.0
_IDLE_S: Final = 1.0
"""How often a router without work looks whether others have taken some in."""
_OTHERS: Final = 16
"""Items in flight whose models are not known before their requests are read."""
_APPEARS_S: Final = 5.0
"""How long an item whose model only its request names is tried while that model is not served."""
LONGEST_TRY_S: Final = MAX_TIMEOUT_S
"""A request can wait no longer than this; a job can, whose item tries again then."""
_MOST_LOSSES: Final = 5
"""An item whose routers stopped so often is not run again: it may be why."""


class ItemReply(Struct, frozen=True):
    """The answer to an item's request.

    Attributes:
        status: HTTP status.
        headers: Those needed to read the body.
    """

    status: int
    body: bytes
    headers: Mapping[str, str]


class RunItem(Protocol):
    """Answers an item's request."""

    async def __call__(self, lease: Lease, /) -> ItemReply:
        """Run it; cancelling cancels the work. Raises `ServeAppError`."""


class JobRoom(Protocol):
    """Limits items in flight."""

    def __call__(self) -> Mapping[str, int]:
        """Items in flight by model."""


@dataclass(slots=True)
class RunnerCounts:
    """Counters since a runner's start."""

    ended: Counter[str] = field(default_factory=Counter)
    """Items by their state; also those whose outcomes counted for nothing."""
    retried: int = 0
    discarded: int = 0
    """Outcomes that counted for nothing."""
    sessions_lost: int = 0
    store_failures: int = 0
    exchanges: int = 0
    exchange_s: float = 0.0
    """How long these took, seconds."""


class JobRunner:
    """Runs items from `start` to `close`.

    Args:
        room: Items of each model that may be in flight.
        changed: Called with the ids of jobs that ended here.

    Attributes:
        paused: Whether it accepts no more items; running ones continue.
    """

    def __init__(
        self,
        store: Store,
        room: JobRoom,
        settings: JobSettings,
        now: Callable[[], float],
        changed: Callable[[tuple[str, ...]], None],
    ) -> None:
        self._store = store
        self._run: RunItem
        self._room = room
        self._settings = settings
        self._now = now
        self._changed = changed
        self._session: str | None = None
        self._running: dict[str, tuple[asyncio.Task[None], Lease]] = {}
        self._ended: list[tuple[Outcome, Lease]] = []
        self._wake = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None
        self.counts = RunnerCounts()
        self.paused = False

    def start(self, run: RunItem) -> None:
        """Start running items; ``run`` answers one."""
        self._run = run
        self._worker = asyncio.get_running_loop().create_task(self._work(), context=Context())

    def wake(self) -> None:
        """Check for new items."""
        self._wake.set()

    @property
    def in_flight(self) -> Counter[str]:
        """Its items, by model."""
        held = Counter(lease.request.model for _, lease in self._running.values())
        held.update(lease.request.model for _, lease in self._ended)
        return held

    def drop(self, job: str) -> None:
        """Stop the items of an ended job."""
        for task, lease in list(self._running.values()):
            if lease.job == job:
                task.cancel()

    async def close(self) -> None:
        """Stop; unfinished items return to the store for other routers."""
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
            self._worker = None
        await self._stop_tasks()
        if self._session is not None:
            with contextlib.suppress(StoreUnavailable, SessionOver):  # then it is over when its lease is
                await self._exchange({}, 0)
                await self._store.end_session(self._session)
            self._session = None

    async def _stop_tasks(self) -> None:
        tasks = [task for task, _ in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self) -> None:
        pause_s = _PAUSE_S
        while True:
            self._wake.clear()
            try:
                started = await self._turn()
            except StoreUnavailable as error:
                self.counts.store_failures += 1
                logger.warning("Jobs wait: %s", error.message)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S / 6)
                continue
            except Exception:
                logger.exception("Jobs wait after a failure")
                await asyncio.sleep(_LONGEST_PAUSE_S / 6)
                continue
            pause_s = _PAUSE_S
            if not started:
                await self._rest()

    async def _rest(self) -> None:
        """Wait for a reason to exchange: news, items from other routers, or a lease to renew."""
        renewed = monotonic() + self._settings.lease_s / 3
        while not self._wake.is_set() and (left_s := renewed - monotonic()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(_IDLE_S, left_s)):
                    await self._wake.wait()
            if not self._running and not self.paused and not self._wake.is_set():
                with contextlib.suppress(StoreUnavailable):
                    if await self._store.has_waiting(self._room()):
                        return

    async def _turn(self) -> int:
        """One exchange; returns the number of started items."""
        if self._session is None:
            self._session = await self._store.begin_session(self._now(), self._settings.lease_s)
        room, others, nbytes = self._places()
        try:
            exchanged = await self._exchange(room, others, nbytes)
        except SessionOver:
            logger.warning("Items of jobs are others' now: this router was not heard of for too long")
            self.counts.sessions_lost += 1
            self._session = None
            await self._stop_tasks()
            self.counts.discarded += len(self._ended)
            self._ended.clear()
            return 1
        for job in exchanged.ended:
            self.drop(job)
        has = self._running.keys() | {outcome.item for outcome, _ in self._ended}
        for lease in exchanged.leases:
            if lease.item in has:  # the store had lost that it is run here
                continue
            task = asyncio.get_running_loop().create_task(self._carry(lease), context=Context())
            self._running[lease.item] = task, lease
            task.add_done_callback(partial(self._free_place, lease))
        return len(exchanged.leases)

    def _places(self) -> tuple[dict[str, int], int, int]:
        """Free places by model and for items of unknown model, and their total bytes.

        A model may have as many bytes in flight as are free of twice ``max_bytes_in_flight``. So a single model has
        ``max_bytes_in_flight``; and if several have used their share and are down, another one still fits. An exchange
        fetches at least one item if any place is free.
        """
        if self.paused:
            return {}, 0, 0
        items: Counter[str] = Counter()
        nbytes: Counter[str] = Counter()
        for _, lease in self._running.values():  # what has ended leaves its place with this exchange
            items[lease.request.model] += 1
            nbytes[lease.request.model] += lease.request.nbytes
        free = 2 * self._settings.max_bytes_in_flight - nbytes.total()
        limits = {**self._room(), "": _OTHERS}
        room = {
            model: limit - items[model]
            for model, limit in limits.items()
            if limit > items[model] and nbytes[model] < free
        }
        # Any of them may get it all, which takes as much from what is free.
        most = min(((free - nbytes[model]) // 2 for model in room), default=0)
        others = room.pop("", 0)
        return room, others, most

    async def _exchange(self, room: Mapping[str, int], others: int, nbytes: int = 0) -> Exchanged:
        assert self._session is not None
        ended, began = self._ended[:], monotonic()
        exchanged = await self._store.exchange(
            self._session,
            [outcome for outcome, _ in ended],
            room,
            others,
            nbytes,
            self._now(),
            self._settings.lease_s,
            list(self._running),
        )
        self.counts.exchanges += 1
        self.counts.exchange_s += monotonic() - began
        del self._ended[: len(ended)]
        self.counts.discarded += exchanged.discarded
        for outcome, _ in ended:
            if outcome.state is JobState.PENDING:
                self.counts.retried += 1
            else:
                self.counts.ended[outcome.state] += 1
        if exchanged.finished:
            self._changed(exchanged.finished)
        return exchanged

    async def _carry(self, lease: Lease) -> None:
        """Run one item to its end."""
        outcome = await self._outcome(lease)
        del self._running[lease.item]
        self._ended.append((outcome, lease))
        self._wake.set()

    def _free_place(self, lease: Lease, task: asyncio.Task[None]) -> None:
        """Free the place of a cancelled task, which may not have begun."""
        if (running := self._running.get(lease.item)) is not None and running[0] is task:
            del self._running[lease.item]

    async def _outcome(self, lease: Lease) -> Outcome:
        if lease.losses >= _MOST_LOSSES:
            error = ModelUnavailable(f"the server stopped {lease.losses} times while it ran this item; it is given up")
            return _failed(lease, error)
        pause_s, suspected, first = _PAUSE_S, False, self._now()
        while True:
            began = self._now()
            try:
                reply = await self._run(lease)
            except asyncio.CancelledError:
                if (task := asyncio.current_task()) is None or task.cancelling():
                    raise
                refused: ServeAppError = ModelUnavailable("what ran the item was cancelled")  # not the item itself
            except (*_FOR_NOW, ModelNotFound) as error:
                if (model := lease.request.model) and model not in self._room():
                    return Outcome(lease.item, JobState.PENDING, 0)  # others may serve it, or this router again
                # It was there when the job was taken. A model that is served lacks something else, such as a version.
                if isinstance(error, ModelNotFound) and (model or self._now() - first >= _APPEARS_S):
                    return _failed(lease, error)
                refused = error
            except ServeAppError as error:
                if error.outcome == _POISONED and not suspected:
                    # Two replicas died while they had it. They may have died of something else: it has one more try.
                    suspected = True
                    await asyncio.sleep(pause_s)
                elif not isinstance(error, DeadlineExceeded):
                    return _failed(lease, error)
                elif self._now() - began < LONGEST_TRY_S:
                    # The scheduler gives up what cannot be in time before the time is over. The job ends with that.
                    if (left_s := lease.expires - self._now()) <= _LONGEST_PAUSE_S:
                        await asyncio.sleep(left_s)
                    return _failed(lease, error)
                continue
            except Exception:
                logger.exception("An item of job %s failed", lease.job)
                return _failed(lease, ServeAppError(f"internal error; quote job {lease.job}, item {lease.index}"))
            else:
                if len(reply.body) > self._settings.max_result:
                    most = self._settings.max_result
                    large = f"the answer has {len(reply.body)} bytes; router.jobs.max_result allows {most}"
                    return _failed(lease, PayloadTooLarge(large))
                return Outcome(lease.item, JobState.COMPLETED, reply.status, reply.body, reply.headers)
            self.counts.retried += 1
            if (left_s := lease.expires - self._now()) <= 0:
                return _failed(lease, DeadlineExceeded("the job's deadline passed while the item waited"))
            pause_s = min(_LONGEST_PAUSE_S, max(pause_s, refused.retry_after_s or 0.0))
            # Apart from each other: all of a model's items are refused at the same time. No pause goes up to the
            # deadline: what is there again by then is asked once more.
            apart_s = pause_s * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
            await asyncio.sleep(min(apart_s, max(left_s / 2, _PAUSE_S)))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _failed(lease: Lease, error: ServeAppError) -> Outcome:
    return Outcome(lease.item, JobState.ERROR, 0, code=error.code, message=error.message)
