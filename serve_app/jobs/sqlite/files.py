"""Statements for uploaded files."""

from __future__ import annotations

import sqlite3
from typing import Final

from serve_app.jobs.records import JobBounds, StoredFile
from serve_app.jobs.sqlite.rows import only, used_bytes
from serve_app.jobs.store import check_room, too_many_files

_FILE: Final = "id, owner, name, purpose, nbytes, created, expires"


def add_file(database: sqlite3.Connection, file: StoredFile, content: bytes, bounds: JobBounds) -> None:
    """Implement `Store.add_file`."""
    check_room(used_bytes(database), len(content), bounds)
    if only(database.execute("SELECT count(*) FROM files WHERE owner = ?", (file.owner,)).fetchone()) >= bounds.files:
        raise too_many_files(bounds)
    seq = database.execute(
        "INSERT INTO files (id, owner, name, purpose, nbytes, created, expires) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (file.id, file.owner, file.name, file.purpose, file.nbytes, file.created, file.expires),
    ).lastrowid
    database.execute("INSERT INTO contents VALUES (?, ?)", (seq, content))


def find_file(database: sqlite3.Connection, file: str) -> StoredFile | None:
    """Implement `Store.file`."""
    row = database.execute(f"SELECT {_FILE} FROM files WHERE id = ?", (file,)).fetchone()  # noqa: S608
    return None if row is None else StoredFile(*row)


def list_files(
    database: sqlite3.Connection, owner: str, after: str, limit: int, oldest_first: bool
) -> list[StoredFile]:
    """Implement `Store.files`."""
    side, end, order = (">", 0, "ASC") if oldest_first else ("<", 2**63 - 1, "DESC")
    rows = database.execute(
        f"SELECT {_FILE} FROM files WHERE owner = ?"  # noqa: S608
        f" AND seq {side} coalesce((SELECT seq FROM files WHERE id = ?), ?) ORDER BY seq {order} LIMIT ?",
        (owner, after, end, limit),
    )
    return [StoredFile(*row) for row in rows]


def find_content(database: sqlite3.Connection, file: str) -> bytes | None:
    """Implement `Store.content`."""
    found: bytes | None = only(
        database.execute("SELECT content FROM contents JOIN files ON seq = file WHERE id = ?", (file,)).fetchone()
    )
    return found


def delete_file(database: sqlite3.Connection, file: str) -> None:
    """Implement `Store.delete_file`."""
    database.execute("DELETE FROM contents WHERE file = (SELECT seq FROM files WHERE id = ?)", (file,))
    database.execute("DELETE FROM files WHERE id = ?", (file,))
