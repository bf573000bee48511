"""The cleaning of expired jobs: how long the longest of its steps keeps others from the store."""

from __future__ import annotations

import secrets
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from serve_app.jobs.records import JOB, JobBounds, NewItem, NewJob
from serve_app.jobs.sqlite.store import SqliteStore

_MODEL = "digits"
_ITEMS = 10
"""Of each job."""
_STEP = 200
"""Rows of one step, as the server takes them."""


@dataclass(frozen=True, slots=True)
class Cleaning:
    """Expired jobs were forgotten.

    Attributes:
        jobs: How many.
        items: Theirs together.
        steps: How many it took.
        longest_ms: The longest of them.
        seconds: All together, without the pauses.
    """

    jobs: int
    items: int
    steps: int
    longest_ms: float
    seconds: float


async def measure_cleaning(jobs: int) -> Cleaning:
    """Clean up so many expired jobs, step by step."""
    with tempfile.TemporaryDirectory() as folder:
        store = SqliteStore(Path(folder) / "jobs.sqlite")
        await store.open()
        items = [NewItem(_MODEL, "/v1/models/digits/predict", b"x" * 512)] * _ITEMS
        for number in range(jobs):
            job = NewJob(f"job_{secrets.token_hex(8)}", JOB, "", float(number), number + 1.0, 1.0)
            await store.create(job, items, JobBounds(jobs + 1, 2**50))
            await store.cancel(job.id, float(number))
        took: list[float] = []
        swept = 1
        while swept:
            began = time.monotonic()
            swept = await store.sweep(jobs + 10.0, _STEP)
            took.append(time.monotonic() - began)
        await store.close()
    return Cleaning(jobs, jobs * _ITEMS, len(took), max(took) * 1e3, sum(took))
