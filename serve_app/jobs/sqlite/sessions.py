"""Statements for sessions: leases, outcomes, ends."""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from serve_app.jobs.records import Exchanged, Lease, NewItem, Outcome
from serve_app.jobs.sqlite.job_statements import end_job, end_overdue
from serve_app.jobs.sqlite.rows import dumped, insert, loaded, only
from serve_app.jobs.sqlite.schema import NUMBER, STATES
from serve_app.jobs.states import JobEvent, JobState, job_after
from serve_app.jobs.store import MOST_OVERDUE, SessionOver

_THESE: Final = "items.id IN (SELECT value FROM json_each(?))"


def begin_session(database: sqlite3.Connection, until: Callable[[], float]) -> str:
    """Begin a session; see `Store.begin_session`. ``until`` is the end of its lease.

    Its number is random: it must not equal that of a session in a previous file at this path.
    """
    session = secrets.randbits(62)
    database.execute("INSERT INTO sessions (id, until) VALUES (?, ?)", (session, until()))
    return str(session)


def exchange(
    database: sqlite3.Connection,
    session: int,
    outcomes: Sequence[Outcome],
    room: Mapping[str, int],
    others: int,
    nbytes: int,
    first: int,
    now: float,
    until: Callable[[], float],
    running: Collection[str] | None = None,
) -> Exchanged:
    """Exchange; see `Store.exchange`.

    Args:
        first: Any number; selects the model with the first turn.
        until: The end of a lease that begins now.
    """
    if database.execute("UPDATE sessions SET until = ? WHERE id = ?", (until(), session)).rowcount == 0:
        raise SessionOver
    counted, finished = _finish(database, session, outcomes, now) if outcomes else (0, [])
    late = end_overdue(database, now, MOST_OVERDUE)
    gone = only(
        database.execute(
            "SELECT json_group_array(DISTINCT jobs.id) FROM items JOIN jobs ON seq = job"
            " WHERE session = ? AND jobs.state > 1",
            (session,),
        ).fetchone()
    )
    ended = frozenset(json.loads(gone))
    if ended:
        database.execute(
            "UPDATE items SET session = NULL WHERE session = ? AND (SELECT state FROM jobs WHERE seq = job) > 1",
            (session,),
        )
    if running is not None:
        has = json.loads(
            only(database.execute("SELECT json_group_array(id) FROM items WHERE session = ?", (session,)).fetchone())
        )
        if forgotten := set(has).difference(map(int, running)):
            _wait_again(database, _THESE, json.dumps(list(forgotten)), 0)
    leases = _lease(database, session, room, others, nbytes, first, now) if len(late) < MOST_OVERDUE else []
    return Exchanged(leases, len(outcomes) - counted, ended, (*finished, *late))


def _finish(
    database: sqlite3.Connection, session: int, outcomes: Sequence[Outcome], now: float
) -> tuple[int, list[str]]:
    """Record outcomes; returns how many count, and the jobs that they end."""
    held: dict[int, int] = dict(
        json.loads(
            only(
                database.execute(
                    "SELECT json_group_array(json_array(items.id, job)) FROM items JOIN jobs ON seq = job"
                    " WHERE items.id IN (SELECT value FROM json_each(?))"
                    " AND session = ? AND items.state = 1 AND jobs.state < 2",
                    (json.dumps([int(outcome.item) for outcome in outcomes]), session),
                ).fetchone()
            )
        )
    )
    rows: dict[int, Outcome] = {}
    for outcome in outcomes:
        if int(outcome.item) in held:
            rows.setdefault(int(outcome.item), outcome)
    counted = len(rows)
    if given_back := [item for item, outcome in rows.items() if outcome.state is JobState.PENDING]:
        _wait_again(database, _THESE, json.dumps(given_back), 0)
        rows = {item: outcome for item, outcome in rows.items() if outcome.state is not JobState.PENDING}
    if not rows:
        return counted, []
    insert(
        database,
        "results (item, ended, status, headers, body, code, message)",
        7,
        [
            (item, now, each.status, dumped(each.headers), each.body, each.code, each.message)
            for item, each in rows.items()
        ],
    )
    progress: dict[int, list[int]] = {}
    for item, outcome in rows.items():
        progress.setdefault(held[item], [0, 0])[outcome.state is JobState.ERROR] += 1
    for state in (JobState.COMPLETED, JobState.ERROR):
        those = json.dumps([item for item, outcome in rows.items() if outcome.state is state])
        if those != "[]":
            database.execute(
                "UPDATE items SET state = ?, session = NULL WHERE id IN (SELECT value FROM json_each(?))",
                (NUMBER[state], those),
            )
    database.execute("DELETE FROM bodies WHERE item IN (SELECT value FROM json_each(?))", (json.dumps(list(rows)),))
    finished: list[str] = []
    for seq, (completed, failed) in progress.items():
        job, state, expires, total, all_completed, all_failed = database.execute(
            "UPDATE jobs SET completed = completed + ?, failed = failed + ? WHERE seq = ?"
            " RETURNING id, state, expires, total, completed, failed",
            (completed, failed, seq),
        ).fetchall()[0]
        if all_completed + all_failed == total:
            failure = JobEvent.EXPIRED if now >= expires else JobEvent.FAILED
            end_job(database, seq, state, failure if all_failed else JobEvent.DONE, now)
            finished.append(job)
    return counted, finished


def _lease(
    database: sqlite3.Connection,
    session: int,
    room: Mapping[str, int],
    others: int,
    nbytes: int,
    first: int,
    now: float,
) -> list[Lease]:
    waiting: list[str] = json.loads(
        only(database.execute("SELECT json_group_array(DISTINCT model) FROM backlogs").fetchone())
    )
    leases: list[Lease] = []
    begin = first % max(1, len(waiting))
    for model in waiting[begin:] + waiting[:begin]:
        left = room.get(model, 0) if model else others
        full = False
        while left > 0 and not full:
            # Owners take turns; of an owner's jobs the one whose turn was longest ago.
            turns = database.execute(
                "SELECT job, min(turn) AS last FROM backlogs WHERE model = ? GROUP BY owner ORDER BY last LIMIT ?",
                (model, left),
            ).fetchall()
            if not turns:
                break
            each = max(1, left // len(turns))
            for seq, _ in turns:
                taken = _lease_items(database, session, seq, model, min(each, left), nbytes, now, first=not leases)
                leases += taken
                left -= len(taken)
                nbytes -= sum(len(lease.request.body) for lease in taken)
                full = not taken  # what comes next has no room by bytes
                if full:
                    break
    return leases


def _lease_items(
    database: sqlite3.Connection, session: int, seq: int, model: str, most: int, nbytes: int, now: float, *, first: bool
) -> list[Lease]:
    """Lease items of one job for one model; none if the next exceeds the bytes."""
    job, owner, expires, state, shared = database.execute(
        "SELECT id, owner, expires, state, headers FROM jobs WHERE seq = ?", (seq,)
    ).fetchone()
    common = loaded(shared)
    leases: list[Lease] = []
    rows = database.execute(
        "SELECT items.id, n, losses, url, headers, custom_id, body FROM items JOIN bodies ON item = items.id"
        " WHERE job = ? AND model = ? AND state = 0 ORDER BY n LIMIT ?",
        (seq, model, most),
    )
    for item, n, losses, url, headers, custom_id, body in rows:
        nbytes -= len(body)
        if nbytes < 0 and (leases or not first):
            break
        request = NewItem(model, url, body, {**common, **loaded(headers)}, custom_id)
        leases.append(Lease(str(item), job, n, owner, expires, request, losses))
    rows.close()
    if not leases:
        return []
    database.execute(
        "UPDATE items SET state = 1, session = ? WHERE id IN (SELECT value FROM json_each(?))",
        (session, json.dumps([int(lease.item) for lease in leases])),
    )
    database.execute(
        "UPDATE backlogs SET pending = pending - ?, turn = ? WHERE job = ? AND model = ?",
        (len(leases), now, seq, model),
    )
    database.execute("DELETE FROM backlogs WHERE job = ? AND model = ? AND pending <= 0", (seq, model))
    if STATES[state] is JobState.PENDING:
        started = job_after(STATES[state], JobEvent.STARTED)
        database.execute("UPDATE jobs SET state = ?, started = ? WHERE seq = ?", (NUMBER[started], now, seq))
    return leases


def has_waiting(database: sqlite3.Connection, models: Collection[str]) -> bool:
    """Implement `Store.has_waiting`."""
    waiting = "SELECT 1 FROM backlogs WHERE model IN (SELECT value FROM json_each(?)) LIMIT 1"
    return database.execute(waiting, (json.dumps(["", *models]),)).fetchone() is not None


def end_session(database: sqlite3.Connection, session: int, lost: int) -> None:
    """End a session; ``lost`` is 1 if it expired."""
    _wait_again(database, "session = ?", session, lost)
    database.execute("DELETE FROM sessions WHERE id = ?", (session,))


def _wait_again(database: sqlite3.Connection, which: str, value: int | str, lost: int) -> None:
    """Release the items that match a condition."""
    database.execute(
        "INSERT INTO backlogs (job, model, owner, pending, turn) SELECT job, model, owner, count(*), 0 FROM items"  # noqa: S608
        f" JOIN jobs ON seq = job WHERE {which} AND jobs.state < 2 GROUP BY job, model"
        " ON CONFLICT DO UPDATE SET pending = pending + excluded.pending",
        (value,),
    )
    database.execute(
        f"UPDATE items SET state = 0, session = NULL, losses = losses + ? WHERE {which}",  # noqa: S608
        (lost, value),
    )
