"""A connection to the file, in a thread of its own."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from serve_app.errors import StoreUnavailable
from serve_app.jobs.sqlite.schema import TABLES, VERSION

_P = ParamSpec("_P")
_T = TypeVar("_T")


class SqliteConnection:
    """A connection with its thread. Made anew if the file has been replaced.

    Args:
        wait_s: How long a transaction waits for another router's, seconds.
    """

    def __init__(self, path: Path, wait_s: float) -> None:
        self._path = path
        self._wait_s = wait_s
        self._thread = ThreadPoolExecutor(1, "jobs-store")
        self._database: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None

    async def call(
        self, work: Callable[Concatenate[sqlite3.Connection, _P], _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        """Run a function in the thread.

        A thread cannot be stopped, so work that has begun completes: a cancelled caller does not learn its result.

        Raises:
            StoreUnavailable: The database failed.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, partial(self._call, work, *args, **kwargs))

    def _call(self, work: Callable[Concatenate[sqlite3.Connection, _P], _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return work(self._connected(), *args, **kwargs)
        except (sqlite3.Error, OSError) as error:
            raise _unavailable(error) from error
        finally:
            if self._database is not None and self._database.in_transaction:  # it could not be rolled back
                self._close()

    def _connected(self) -> sqlite3.Connection:
        """The connection to the file now at the path: writes to a removed file would be lost.

        Creates the file only at the first open. A removed one may come back later, like a mounted disk.
        """
        if self._database is not None and self._file == _identity(self._path):
            return self._database
        self._close()
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # It holds what clients sent; SQLite's other files get the same mode.
            self._path.touch(mode=0o600, exist_ok=True)
        elif not self._path.exists():
            raise sqlite3.OperationalError("its file is gone")
        name = f"{self._path.absolute().as_uri()}?mode=rw"  # it is not made
        database = sqlite3.connect(name, timeout=self._wait_s, isolation_level=None, check_same_thread=False, uri=True)
        try:
            _prepare(database)
        except BaseException:
            database.close()
            raise
        self._database, self._file = database, _identity(self._path)
        return database

    async def close(self) -> None:
        """End the thread after its pending work."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown()

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _unavailable(error: Exception) -> StoreUnavailable:
    what = str(error) if isinstance(error, sqlite3.Error) else (getattr(error, "strerror", None) or "")
    return StoreUnavailable(f"the store of jobs cannot be used now ({what or type(error).__name__}); try again", 5.0)


def _prepare(database: sqlite3.Connection) -> None:
    """Configure a connection, and create missing tables."""
    database.execute("PRAGMA auto_vacuum = INCREMENTAL")
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    database.execute("PRAGMA journal_size_limit = 67108864")
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version not in (0, VERSION):
        raise sqlite3.OperationalError("its file is of another version of serve-app")
    if version == 0:
        transaction(database, _make_tables)


def _make_tables(database: sqlite3.Connection) -> None:
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version == 0:  # no other process has created the tables meanwhile
        for statement in TABLES.split(";"):
            database.execute(statement)
        database.execute(f"PRAGMA user_version = {VERSION}")


def transaction(database: sqlite3.Connection, work: Callable[[sqlite3.Connection], _T]) -> _T:
    """Run work in a transaction."""
    database.execute("BEGIN IMMEDIATE")
    try:
        result = work(database)
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise
    return result
