"""Statements for jobs, shown items, and callbacks."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any, Final

from serve_app.jobs.records import Callback, Item, Job, JobBounds, NewItem, NewJob
from serve_app.jobs.sqlite.rows import dumped, insert, loaded, only, used_bytes
from serve_app.jobs.sqlite.schema import NUMBER, STATES
from serve_app.jobs.states import ENDED, JobEvent, JobState, job_after, unended
from serve_app.jobs.store import check_room, other_request, too_many_jobs

_JOB: Final = (
    "id, kind, owner, state, created, expires, started, ended, kept_until, total, completed, failed, callback, meta,"
    " code, told"
)


def create_job(
    database: sqlite3.Connection, job: NewJob, items: Sequence[NewItem], bounds: JobBounds
) -> tuple[Job, bool]:
    """Implement `Store.create`."""
    if job.idempotency_key:
        found = database.execute(
            f"SELECT digest, {_JOB} FROM jobs WHERE owner = ? AND idempotency_key = ?",  # noqa: S608
            (job.owner, job.idempotency_key),
        ).fetchone()
        if found is not None:
            if found[0] != job.digest:
                raise other_request()
            return _as_job(found[1:]), False
    live = only(database.execute("SELECT count(*) FROM jobs WHERE owner = ? AND state < 2", (job.owner,)).fetchone())
    if live >= bounds.jobs:
        raise too_many_jobs(bounds)
    check_room(used_bytes(database), sum(item.nbytes for item in items), bounds)
    seq = database.execute(
        "INSERT INTO jobs (id, kind, owner, state, created, expires, keep_s, total, headers, meta, idempotency_key,"
        " digest, callback) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(job.id, job.kind, job.owner, NUMBER[JobState.PENDING], job.created, job.expires, job.keep_s, len(items)),
            *(json.dumps(dict(job.headers)), job.meta, job.idempotency_key, job.digest, job.callback),
        ),
    ).lastrowid
    # No number comes twice: an outcome that is very late must not count for another item.
    first = 1 + (only(database.execute("SELECT seq FROM sqlite_sequence WHERE name = 'items'").fetchone()) or 0)
    insert(
        database,
        "items (id, job, n, state, model, url, headers, custom_id)",
        8,
        [
            (first + n, seq, n, 0, item.model, item.url, dumped(item.headers), item.custom_id)
            for n, item in enumerate(items)
        ],
    )
    insert(database, "bodies", 2, [(first + n, item.body) for n, item in enumerate(items)])
    pending: dict[str, int] = {}
    for item in items:
        pending[item.model] = pending.get(item.model, 0) + 1
    insert(database, "backlogs", 5, [(seq, model, job.owner, number, 0.0) for model, number in pending.items()])
    made = find_job(database, job.id)
    assert made is not None
    return made, True


def _as_job(row: Sequence[Any]) -> Job:
    values = list(row)
    values[3] = STATES[values[3]]
    return Job(*values)


def find_job(database: sqlite3.Connection, job: str) -> Job | None:
    """Implement `Store.job`."""
    row = database.execute(f"SELECT {_JOB} FROM jobs WHERE id = ?", (job,)).fetchone()  # noqa: S608
    return None if row is None else _as_job(row)


def list_jobs(database: sqlite3.Connection, owner: str, kind: str, after: str, limit: int) -> list[Job]:
    """Implement `Store.jobs`."""
    rows = database.execute(
        f"SELECT {_JOB} FROM jobs WHERE owner = ? AND kind = ?"  # noqa: S608
        " AND seq < coalesce((SELECT seq FROM jobs WHERE id = ?), 9223372036854775807) ORDER BY seq DESC LIMIT ?",
        (owner, kind, after, limit),
    )
    return [_as_job(row) for row in rows]


def cancel_job(database: sqlite3.Connection, job: str, now: float) -> Job | None:
    """Implement `Store.cancel`."""
    found = database.execute("SELECT seq, state FROM jobs WHERE id = ?", (job,)).fetchone()
    if found is None:
        return None
    if STATES[found[1]] not in ENDED:
        end_job(database, found[0], found[1], JobEvent.CANCELLED, now)
    return find_job(database, job)


def end_job(database: sqlite3.Connection, seq: int, state: int, event: JobEvent, now: float) -> None:
    """End a job. Its items keep their states."""
    code = "deadline_exceeded" if event is JobEvent.EXPIRED else ""
    database.execute(
        "UPDATE jobs SET state = ?, ended = ?, kept_until = ? + keep_s, code = ?, told_due = ?,"
        " told = iif(callback = '', '', 'pending') WHERE seq = ?",
        (NUMBER[job_after(STATES[state], event)], now, now, code, now, seq),
    )
    database.execute("DELETE FROM backlogs WHERE job = ?", (seq,))


def end_overdue(database: sqlite3.Connection, now: float, limit: int) -> list[str]:
    """End jobs after their deadline; returns their ids."""
    overdue = database.execute(
        "SELECT seq, state, id FROM jobs WHERE state < 2 AND expires <= ? ORDER BY expires LIMIT ?", (now, limit)
    ).fetchall()
    for seq, state, _ in overdue:
        end_job(database, seq, state, JobEvent.EXPIRED, now)
    return [job for _, _, job in overdue]


def list_items(
    database: sqlite3.Connection, job: str, after: int, limit: int, nbytes: int, states: frozenset[str]
) -> list[Item]:
    """Implement `Store.items`."""
    found = database.execute("SELECT seq, state FROM jobs WHERE id = ?", (job,)).fetchone()
    if found is None:
        return []
    job_state = STATES[found[1]]
    wanted = [number for number, state in enumerate(STATES) if not states or unended(state, job_state) in states]
    items: list[Item] = []
    for n, state, custom_id, ended, status, headers, body, code, message in database.execute(
        "SELECT n, state, custom_id, ended, status, results.headers, body, code, message FROM items"
        " LEFT JOIN results ON results.item = items.id WHERE job = ? AND n > ?"
        " AND state IN (SELECT value FROM json_each(?)) ORDER BY n LIMIT ?",
        (found[0], after, json.dumps(wanted), limit),
    ):
        nbytes -= len(body or b"")
        if nbytes < 0 and items:
            break
        shown = unended(STATES[state], job_state)
        if ended is None:
            items.append(Item(n, shown, custom_id))
        else:
            items.append(Item(n, shown, custom_id, ended, status, body, loaded(headers), code, message))
    return items


def is_due(database: sqlite3.Connection, now: float) -> bool:
    """Whether any callback is due."""
    found = database.execute("SELECT 1 FROM jobs WHERE told = 'pending' AND told_due <= ? LIMIT 1", (now,)).fetchone()
    return found is not None


def due_callbacks(database: sqlite3.Connection, now: float, limit: int, lease_s: float) -> list[Callback]:
    """Implement `Store.due_callbacks`."""
    rows = database.execute(
        f"SELECT seq, told_attempts, {_JOB} FROM jobs WHERE told = 'pending' AND told_due <= ?"  # noqa: S608
        " ORDER BY told_due LIMIT ?",
        (now, limit),
    ).fetchall()
    database.execute(
        "UPDATE jobs SET told_due = ? WHERE seq IN (SELECT value FROM json_each(?))",
        (now + lease_s, json.dumps([row[0] for row in rows])),
    )
    return [Callback(_as_job(row[2:]), row[1]) for row in rows]


def note_told(database: sqlite3.Connection, job: str, told: str, attempts: int, due: float) -> None:
    """Implement `Store.told`."""
    database.execute(
        "UPDATE jobs SET told = ?, told_attempts = ?, told_due = ? WHERE id = ? AND told = 'pending'",
        (told, attempts, due, job),
    )
