"""Jobs of one router process: requests of APIs, and background work."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Sequence
from contextvars import Context
from time import monotonic
from typing import Any, Final

from serve_app.errors import InvalidRequest, JobNotFound, PayloadTooLarge, StoreUnavailable
from serve_app.jobs.callbacks import Callbacks, Post, check_callback
from serve_app.jobs.records import Census, Item, Job, JobBounds, NewItem, NewJob, StoredFile
from serve_app.jobs.runner import JobRoom, JobRunner, RunItem
from serve_app.jobs.settings import JobSettings
from serve_app.jobs.store import Store

logger = logging.getLogger(__name__)

_STEP: Final = 200
"""Rows of one step of the sweep."""
_BETWEEN_STEPS_S: Final = 0.02
_SWEEP_S: Final = 5.0
_LOOK_S: Final = 1.0
"""How often a job is looked at that other routers may end."""
_OPEN_WITHIN_S: Final = 5.0
_PAGE_BYTES: Final = 8 * 2**20
"""Bytes of answers in one page of results, about."""


class Jobs:
    """Implements jobs over a store. Must be made in the event loop that uses it.

    Args:
        room: Items of each model that may be in flight.

    Attributes:
        census: The store's last census; ``None`` before the first.
    """

    def __init__(
        self, store: Store, settings: JobSettings, room: JobRoom, post: Post, now: Callable[[], float]
    ) -> None:
        self.settings = settings
        self._store = store
        self._now = now
        self._ended: dict[str, asyncio.Event] = {}
        self.runner = JobRunner(store, room, settings, now, self._on_ended)
        self.callbacks = Callbacks(store, settings.callbacks, post, now)
        self.census: Census | None = None
        self._bounds = JobBounds(settings.max_jobs, settings.max_bytes, settings.max_files)
        self._tasks: list[asyncio.Task[None]] = []
        self._opened = asyncio.Event()

    def start(self, run: RunItem) -> None:
        """Open the store, and run its items in the background; ``run`` answers one item."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._open_and_run(run), context=Context())]

    async def close(self) -> None:
        """Stop; other routers do the rest, or this one after its next start."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        await self.runner.close()
        await self.callbacks.close()
        with contextlib.suppress(StoreUnavailable):
            await self._store.close()

    def status(self) -> dict[str, Any]:
        """JSON data of the store's last census and this router's items."""
        runner, census = self.runner, self.census
        shown: dict[str, Any] = {
            "open": self._opened.is_set(),
            "paused": runner.paused,
            "in_flight": dict(runner.in_flight),
        }
        if census is not None:
            shown |= {"jobs": dict(census.jobs), "waiting": dict(census.backlog), "store_bytes": census.nbytes}
        return {**shown, "store_failures": runner.counts.store_failures, "callbacks": dict(self.callbacks.results)}

    async def stop(self) -> None:
        """Run no more items here; jobs are still accepted and shown."""
        await self.runner.close()

    async def _open_and_run(self, run: RunItem) -> None:
        while not self._opened.is_set():
            try:
                await self._store.open()
                await self._count()
                self._opened.set()
            except StoreUnavailable as error:
                logger.warning("Jobs cannot be run: %s", error.message)
                await asyncio.sleep(_LOOK_S)
        self.runner.start(run)
        self.callbacks.start()
        self._tasks.append(asyncio.get_running_loop().create_task(self._sweep(), context=Context()))

    async def _sweep(self) -> None:
        """Clean up, in small steps."""
        counted = monotonic()
        while True:
            try:
                swept = await self._store.sweep(self._now(), _STEP)
                if monotonic() - counted > _SWEEP_S:
                    await self._count()
                    counted = monotonic()
            except StoreUnavailable as error:
                swept = 0
                logger.warning("Jobs cannot be cleaned up: %s", error.message)
            except Exception:
                swept = 0
                logger.exception("Jobs cannot be cleaned up")
            pause_s = min(_SWEEP_S, self.settings.lease_s / 3)
            await asyncio.sleep(_BETWEEN_STEPS_S if swept >= _STEP else pause_s)

    async def _count(self) -> None:
        """Take a census. While the store is far above its limit, no items run: their answers would add to it."""
        self.census = await self._store.census()
        nbytes = self.census.nbytes
        full = nbytes * 4 > self.settings.max_bytes * 5
        if full and not self.runner.paused:
            most = f"{nbytes} bytes, and router.jobs.max_bytes allows {self.settings.max_bytes}"
            logger.warning("No items of jobs are run until older jobs expire: the store has %s", most)
        self.runner.paused = full

    # ----------------------------------------------------------------- jobs

    async def submit(
        self,
        kind: str,
        owner: str,
        items: Sequence[NewItem],
        *,
        timeout_s: float | None = None,
        headers: dict[str, str] | None = None,
        callback: str = "",
        meta: bytes = b"{}",
        idempotency_key: str = "",
        digest: bytes = b"",
    ) -> tuple[Job, bool]:
        """Accept a job, which is stored when this returns.

        Args:
            timeout_s: Until its deadline, seconds; ``None`` for the default.

        Returns:
            The job, and whether it is new.

        Raises:
            InvalidRequest: It has no items or too many, or its callback or deadline is not allowed.
            QueueFull: The store has no room for it.
            Conflict: Its idempotency key belongs to another request.
            StoreUnavailable: It cannot be stored now.
        """
        await self._open()
        if not items:
            raise InvalidRequest("items: expected at least one")
        if len(items) > self.settings.max_items:
            raise PayloadTooLarge(
                f"items: {len(items)} of them; router.jobs.max_items allows {self.settings.max_items} in one job"
            )
        if timeout_s is not None and not 0 < timeout_s <= self.settings.max_timeout_s:
            raise InvalidRequest(f"timeout_s: expected more than 0 and at most {self.settings.max_timeout_s:g}")
        if callback:
            check_callback(callback, self.settings.callbacks)
        now = self._now()
        job = NewJob(
            id=f"{kind}_{secrets.token_hex(12)}",
            kind=kind,
            owner=owner,
            created=now,
            expires=now + (timeout_s or self.settings.timeout_s),
            keep_s=self.settings.keep_s,
            headers=headers or {},
            callback=callback,
            meta=meta,
            idempotency_key=idempotency_key,
            digest=digest,
        )
        taken = await self._store.create(job, items, self._bounds)
        self.runner.wake()
        return taken

    async def find(self, job: str, owner: str, kind: str) -> Job:
        """A job. Raises `JobNotFound`, also for another owner's."""
        await self._open()
        found = await self._store.job(job)
        if found is None or found.owner != owner or found.kind != kind:
            raise JobNotFound(f"there is no {kind} {job[:64]!r} here: it was never made, or has expired")
        return found

    async def wait(self, job: str, owner: str, kind: str, limit_s: float) -> Job:
        """`find` at the end of the job, or after this many seconds."""
        until = monotonic() + limit_s
        found = await self.find(job, owner, kind)
        event = self._ended.setdefault(job, asyncio.Event())
        try:
            while not found.has_ended and (left_s := until - monotonic()) > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(left_s, _LOOK_S)):  # what other routers do is not heard of here
                        await event.wait()
                found = await self.find(job, owner, kind)
        finally:
            if self._ended.get(job) is event and not event.is_set():
                del self._ended[job]
        return found

    def _on_ended(self, jobs: Sequence[str]) -> None:
        for job in jobs:
            if (event := self._ended.pop(job, None)) is not None:
                event.set()
        self.callbacks.wake()

    async def newest(self, owner: str, kind: str, after: str, limit: int) -> list[Job]:
        """Jobs, newest first; ``after`` is the last one of the previous page. Raises what `find` raises for it."""
        await (self.find(after, owner, kind) if after else self._open())
        return await self._store.jobs(owner, kind, after, limit)

    async def cancel(self, job: str, owner: str, kind: str) -> Job:
        """End a job, unless it has ended. Raises `JobNotFound`."""
        await self.find(job, owner, kind)
        cancelled = await self._store.cancel(job, self._now())
        self.runner.drop(job)
        self._on_ended([job])
        return cancelled or await self.find(job, owner, kind)

    async def items(self, job: Job, after: int, limit: int, states: frozenset[str] = frozenset()) -> list[Item]:
        """A page of items after an index; not empty if there are any."""
        return await self._store.items(job.id, after, limit, _PAGE_BYTES, states)

    # ---------------------------------------------------------------- files

    async def add_file(
        self, owner: str, name: str, purpose: str, content: bytes, keep_s: float | None = None
    ) -> StoredFile:
        """Store a file, for at most ``keep_s``. Raises `PayloadTooLarge`, `QueueFull` and `StoreUnavailable`."""
        await self._open()
        if len(content) > self.settings.max_file:
            raise PayloadTooLarge(f"the file has {len(content)} bytes; the limit is {self.settings.max_file}")
        now = self._now()
        expires = now + min(self.settings.keep_s, self.settings.keep_s if keep_s is None else keep_s)
        file = StoredFile(f"file-{secrets.token_hex(12)}", owner, name, purpose, len(content), now, expires)
        await self._store.add_file(file, content, self._bounds)
        return file

    async def file(self, file: str, owner: str) -> StoredFile:
        """A file. Raises `JobNotFound`, also for another owner's."""
        await self._open()
        found = await self._store.file(file)
        if found is None or found.owner != owner:
            raise JobNotFound(f"there is no file {file[:64]!r} here: it was never made, or has expired")
        return found

    async def files(self, owner: str, after: str, limit: int, *, oldest_first: bool = False) -> list[StoredFile]:
        """Files, newest or oldest first; ``after`` is the last one of the previous page. Raises what `file` raises."""
        await (self.file(after, owner) if after else self._open())
        return await self._store.files(owner, after, limit, oldest_first=oldest_first)

    async def content(self, file: str, owner: str) -> bytes:
        """The content of a file. Raises what `file` raises."""
        await self.file(file, owner)
        return await self._store.content(file) or b""

    async def delete_file(self, file: str, owner: str) -> None:
        """Delete a file. Raises what `file` raises."""
        await self.file(file, owner)
        await self._store.delete_file(file)

    async def _open(self) -> None:
        """Wait briefly if this router has only just started."""
        try:
            async with asyncio.timeout(_OPEN_WITHIN_S):
                await self._opened.wait()
        except TimeoutError:
            raise StoreUnavailable("the store of jobs cannot be used now; try again", 5.0) from None
