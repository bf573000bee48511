"""Statements for cleanup, in small steps, and counts."""

from __future__ import annotations

import json
import sqlite3
from typing import Final

from serve_app.jobs.records import Census
from serve_app.jobs.sqlite.files import delete_file
from serve_app.jobs.sqlite.job_statements import end_overdue
from serve_app.jobs.sqlite.rows import only, used_bytes
from serve_app.jobs.sqlite.schema import STATES
from serve_app.jobs.sqlite.sessions import end_session

_FREED_PAGES: Final = 256
"""Pages that one step gives back to the file system."""


def sweep(database: sqlite3.Connection, now: float, limit: int) -> int:
    """Implement `Store.sweep`."""
    for (session,) in database.execute("SELECT id FROM sessions WHERE until < ?", (now,)).fetchall():
        end_session(database, session, 1)
    swept = len(end_overdue(database, now, limit))
    old = database.execute(
        "SELECT seq FROM jobs WHERE kept_until < ? ORDER BY kept_until LIMIT ?", (now, max(0, limit - swept))
    ).fetchall()
    for (seq,) in old:
        if swept >= limit:
            break
        items = json.dumps([row[0] for row in _some_items(database, seq, limit - swept)])
        for table, column in (("results", "item"), ("bodies", "item"), ("items", "id")):
            database.execute(
                f"DELETE FROM {table} WHERE {column} IN (SELECT value FROM json_each(?))",  # noqa: S608
                (items,),
            )
        swept += items.count(",") + (items != "[]")
        if not _some_items(database, seq, 1):
            database.execute("DELETE FROM jobs WHERE seq = ?", (seq,))
            swept += 1
    files = database.execute("SELECT id FROM files WHERE expires < ? LIMIT ?", (now, max(0, limit - swept))).fetchall()
    for (file,) in files:
        delete_file(database, file)
    return swept + len(files)


def _some_items(database: sqlite3.Connection, seq: int, limit: int) -> list[tuple[int]]:
    return database.execute("SELECT id FROM items WHERE job = ? LIMIT ?", (seq, limit)).fetchall()


def give_back(database: sqlite3.Connection) -> None:
    """Return some free pages to the file system."""
    if only(database.execute("PRAGMA freelist_count").fetchone()) > _FREED_PAGES:
        database.execute(f"PRAGMA incremental_vacuum({_FREED_PAGES})").fetchall()


def take_census(database: sqlite3.Connection) -> Census:
    """Implement `Store.census`."""
    states = dict(database.execute("SELECT state, count(*) FROM jobs GROUP BY state").fetchall())
    return Census(
        jobs={state.value: states.get(number, 0) for number, state in enumerate(STATES)},
        backlog=dict(database.execute("SELECT model, sum(pending) FROM backlogs GROUP BY model").fetchall()),
        in_flight=only(database.execute("SELECT count(*) FROM items WHERE session IS NOT NULL").fetchone()),
        nbytes=used_bytes(database),
    )
