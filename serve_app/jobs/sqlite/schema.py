"""The tables of `serve_app.jobs.sqlite.store`."""

from __future__ import annotations

from typing import Final

from serve_app.jobs.states import JobState

VERSION: Final = 1
"""Of the tables; kept in the file."""

STATES: Final = (JobState.PENDING, JobState.PROCESSING, JobState.COMPLETED, JobState.ERROR, JobState.CANCELLED)
"""States by the number that stands for them in the tables."""
NUMBER: Final = {state: number for number, state in enumerate(STATES)}

TABLES: Final = """
CREATE TABLE jobs (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL,
    owner TEXT NOT NULL,
    state INTEGER NOT NULL,
    created REAL NOT NULL,
    expires REAL NOT NULL,
    started REAL,
    ended REAL,
    keep_s REAL NOT NULL,
    kept_until REAL,
    total INTEGER NOT NULL,
    completed INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    headers TEXT NOT NULL,
    meta BLOB NOT NULL,
    code TEXT NOT NULL DEFAULT '',
    idempotency_key TEXT NOT NULL,
    digest BLOB NOT NULL,
    callback TEXT NOT NULL,
    told TEXT NOT NULL DEFAULT '',
    told_attempts INTEGER NOT NULL DEFAULT 0,
    told_due REAL NOT NULL DEFAULT 0
);
CREATE INDEX jobs_of ON jobs (owner, kind, seq);
CREATE INDEX jobs_in ON jobs (state);
CREATE INDEX jobs_live ON jobs (owner) WHERE state < 2;
CREATE UNIQUE INDEX jobs_named ON jobs (owner, idempotency_key) WHERE idempotency_key != '';
CREATE INDEX jobs_overdue ON jobs (expires) WHERE state < 2;
CREATE INDEX jobs_old ON jobs (kept_until) WHERE kept_until IS NOT NULL;
CREATE INDEX jobs_untold ON jobs (told_due) WHERE told = 'pending';

-- Bodies and answers are apart: a row is written anew whenever something of it changes.
CREATE TABLE items (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    job INTEGER NOT NULL,
    n INTEGER NOT NULL,
    state INTEGER NOT NULL,
    session INTEGER,
    losses INTEGER NOT NULL DEFAULT 0,
    model TEXT NOT NULL,
    url TEXT NOT NULL,
    headers TEXT,
    custom_id TEXT NOT NULL
);
CREATE UNIQUE INDEX items_of ON items (job, n);
CREATE INDEX items_ready ON items (job, model, n) WHERE state = 0;
CREATE INDEX items_held ON items (session) WHERE session IS NOT NULL;
CREATE TABLE bodies (item INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE results (
    item INTEGER PRIMARY KEY,
    ended REAL NOT NULL,
    status INTEGER NOT NULL,
    headers TEXT,
    body BLOB NOT NULL,
    code TEXT NOT NULL,
    message TEXT NOT NULL
);

-- What of a job waits for one model. A row that counts nothing is not there.
CREATE TABLE backlogs (
    job INTEGER NOT NULL,
    model TEXT NOT NULL,
    owner TEXT NOT NULL,
    pending INTEGER NOT NULL,
    turn REAL NOT NULL,
    PRIMARY KEY (job, model)
) WITHOUT ROWID;

CREATE TABLE sessions (id INTEGER PRIMARY KEY, until REAL NOT NULL);

CREATE TABLE files (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    name TEXT NOT NULL,
    purpose TEXT NOT NULL,
    nbytes INTEGER NOT NULL,
    created REAL NOT NULL,
    expires REAL NOT NULL
);
CREATE INDEX files_of ON files (owner, seq);
CREATE INDEX files_old ON files (expires);
CREATE TABLE contents (file INTEGER PRIMARY KEY, content BLOB NOT NULL);
"""
