"""Helpers shared by all statements."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, Final

_ROWS: Final = 500
"""Rows of one statement that inserts many."""


def only(row: tuple[Any, ...] | None) -> Any:
    """The only value of a row, if there is a row."""
    return None if row is None else row[0]


def dumped(headers: Mapping[str, str]) -> str | None:
    """Encode headers."""
    return json.dumps(dict(headers)) if headers else None


def loaded(headers: str | None) -> dict[str, str]:
    """Decode headers."""
    found: dict[str, str] = json.loads(headers) if headers else {}
    return found


def insert(database: sqlite3.Connection, into: str, width: int, rows: Sequence[Sequence[Any]]) -> None:
    """Insert many rows with few statements."""
    one = f"({', '.join('?' * width)})"
    for start in range(0, len(rows), _ROWS):
        part = rows[start : start + _ROWS]
        database.execute(
            f"INSERT INTO {into} VALUES {', '.join([one] * len(part))}",  # noqa: S608 - names of tables
            [value for row in part for value in row],
        )


def used_bytes(database: sqlite3.Connection) -> int:
    """Bytes of the file without free pages."""
    pages, free, size = (
        only(database.execute(f"PRAGMA {name}").fetchone()) for name in ("page_count", "freelist_count", "page_size")
    )
    nbytes: int = (pages - free) * size
    return nbytes
