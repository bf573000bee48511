"""Jobs in an SQLite file, shared by the routers of one machine.

Writes are transactions of one connection, in one thread, and on disk on return (WAL, ``synchronous=FULL``); reads have
a connection of their own, and wait for no write. Statements process many items at once: between two of them the thread
must get the interpreter back from a busy event loop.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Concatenate, ParamSpec, TypeVar

from serve_app.jobs.records import (
    Callback,
    Census,
    Exchanged,
    Item,
    Job,
    JobBounds,
    NewItem,
    NewJob,
    Outcome,
    StoredFile,
)
from serve_app.jobs.sqlite.connection import SqliteConnection, transaction
from serve_app.jobs.sqlite.files import add_file, delete_file, find_content, find_file, list_files
from serve_app.jobs.sqlite.job_statements import (
    cancel_job,
    create_job,
    due_callbacks,
    find_job,
    is_due,
    list_items,
    list_jobs,
    note_told,
)
from serve_app.jobs.sqlite.rows import used_bytes
from serve_app.jobs.sqlite.sessions import begin_session, end_session, exchange, has_waiting
from serve_app.jobs.sqlite.upkeep import give_back, sweep, take_census

_P = ParamSpec("_P")
_T = TypeVar("_T")


class SqliteStore:
    """Implements `serve_app.jobs.store.Store`.

    Args:
        path: `open` creates it, with its folder.
        wait_s: How long a transaction waits for another router's, seconds: less than a session's lease, whose renewal
            queues behind it.
    """

    def __init__(self, path: Path, wait_s: float = 5.0) -> None:
        self._path = path
        self._wait_s = wait_s
        self._exchanges = 0
        self._writer: SqliteConnection | None = None
        self._reader: SqliteConnection | None = None

    async def open(self) -> None:
        """Implement `Store.open`."""
        self._writer, self._reader = (
            SqliteConnection(self._path, self._wait_s),
            SqliteConnection(self._path, self._wait_s),
        )
        for connection in (self._writer, self._reader):
            await connection.call(used_bytes)

    async def close(self) -> None:
        """Implement `Store.close`."""
        for connection in (self._writer, self._reader):
            if connection is not None:
                await connection.close()

    async def _write(
        self, work: Callable[Concatenate[sqlite3.Connection, _P], _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        assert self._writer is not None
        return await self._writer.call(transaction, lambda database: work(database, *args, **kwargs))

    async def _read(
        self, work: Callable[Concatenate[sqlite3.Connection, _P], _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        assert self._reader is not None
        return await self._reader.call(work, *args, **kwargs)

    # ----------------------------------------------------------------- jobs

    async def create(self, job: NewJob, items: Sequence[NewItem], bounds: JobBounds) -> tuple[Job, bool]:
        """Implement `Store.create`."""
        return await self._write(create_job, job, items, bounds)

    async def job(self, job: str) -> Job | None:
        """Implement `Store.job`."""
        return await self._read(find_job, job)

    async def jobs(self, owner: str, kind: str, after: str, limit: int) -> list[Job]:
        """Implement `Store.jobs`."""
        return await self._read(list_jobs, owner, kind, after, limit)

    async def cancel(self, job: str, now: float) -> Job | None:
        """Implement `Store.cancel`."""
        return await self._write(cancel_job, job, now)

    async def items(
        self, job: str, after: int, limit: int, nbytes: int, states: frozenset[str] = frozenset()
    ) -> list[Item]:
        """Implement `Store.items`."""
        return await self._read(list_items, job, after, limit, nbytes, states)

    # ------------------------------------------------------------- sessions

    async def begin_session(self, now: float, lease_s: float) -> str:
        """Implement `Store.begin_session`."""
        return await self._write(begin_session, _from_now(now, lease_s))

    async def exchange(
        self,
        session: str,
        outcomes: Sequence[Outcome],
        room: Mapping[str, int],
        others: int,
        nbytes: int,
        now: float,
        lease_s: float,
        running: Collection[str] | None = None,
    ) -> Exchanged:
        """Implement `Store.exchange`."""
        self._exchanges += 1
        until, turn = _from_now(now, lease_s), self._exchanges
        return await self._write(exchange, int(session), outcomes, room, others, nbytes, turn, now, until, running)

    async def has_waiting(self, models: Collection[str]) -> bool:
        """Implement `Store.has_waiting`."""
        return await self._read(has_waiting, models)

    async def end_session(self, session: str) -> None:
        """Implement `Store.end_session`."""
        await self._write(end_session, int(session), 0)

    async def sweep(self, now: float, limit: int) -> int:
        """Implement `Store.sweep`."""
        swept = await self._write(sweep, now, limit)
        if swept < limit:
            assert self._writer is not None
            await self._writer.call(give_back)
        return swept

    async def census(self) -> Census:
        """Implement `Store.census`."""
        return await self._read(take_census)

    # ------------------------------------------------------------ callbacks

    async def due_callbacks(self, now: float, limit: int, lease_s: float) -> list[Callback]:
        """Implement `Store.due_callbacks`."""
        return await self._write(due_callbacks, now, limit, lease_s) if await self._read(is_due, now) else []

    async def told(self, job: str, told: str, attempts: int, due: float) -> None:
        """Implement `Store.told`."""
        await self._write(note_told, job, told, attempts, due)

    # ---------------------------------------------------------------- files

    async def add_file(self, file: StoredFile, content: bytes, bounds: JobBounds) -> None:
        """Implement `Store.add_file`."""
        await self._write(add_file, file, content, bounds)

    async def file(self, file: str) -> StoredFile | None:
        """Implement `Store.file`."""
        return await self._read(find_file, file)

    async def files(self, owner: str, after: str, limit: int, *, oldest_first: bool = False) -> list[StoredFile]:
        """Implement `Store.files`."""
        return await self._read(list_files, owner, after, limit, oldest_first)

    async def content(self, file: str) -> bytes | None:
        """Implement `Store.content`."""
        return await self._read(find_content, file)

    async def delete_file(self, file: str) -> None:
        """Implement `Store.delete_file`."""
        await self._write(delete_file, file)


def _from_now(now: float, lease_s: float) -> Callable[[], float]:
    """The end of a lease that begins when this is called: it must not shrink while the work waits for its turn."""
    asked = monotonic()
    return lambda: now + monotonic() - asked + lease_s
