"""Stores for tests, and short ways to use them."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path

from redis import Redis

from serve_app.access.guard import wall_clock
from serve_app.domain.settings import RedisSettings
from serve_app.jobs.records import JOB, Exchanged, Item, Job, JobBounds, NewItem, NewJob, Outcome
from serve_app.jobs.redis import RedisStore
from serve_app.jobs.sqlite.store import SqliteStore
from serve_app.jobs.states import JobState
from serve_app.jobs.store import Store

BOUNDS = JobBounds(jobs=100, nbytes=2**40)
LEASE_S = 10.0
PLENTY = 2**30
_numbers = itertools.count()

MakeStore = Callable[[], Store]
"""Another store over the same jobs, as another process would have it."""


def stores_of(kind: str, place: str) -> MakeStore:
    """Stores of one kind: ``sqlite`` in a folder, or ``redis`` at a URL."""
    if kind == "redis":
        return lambda: RedisStore(RedisSettings(place), wall_clock)
    return lambda: SqliteStore(Path(place) / "jobs.sqlite")


def kept_state(kind: str, place: str) -> Callable[[], None]:
    """What is in a store now; calling it puts that back, as a server that lost what it was told last comes back."""
    file = Path(place) / "jobs.sqlite"

    def put_keys_back() -> None:
        with closing(Redis.from_url(place)) as client:
            client.flushdb()
            for key, value in keys.items():
                assert value is not None
                client.restore(key, 0, value)

    def put_rows_back() -> None:
        with closing(copy), closing(sqlite3.connect(file)) as database:
            copy.backup(database)

    if kind == "redis":
        with closing(Redis.from_url(place)) as client:
            keys = {key: client.dump(key) for key in client.scan_iter()}
        return put_keys_back
    copy = sqlite3.connect(":memory:")
    with closing(sqlite3.connect(file)) as database:
        database.backup(copy)
    return put_rows_back


@asynccontextmanager
async def opened(make: MakeStore) -> AsyncIterator[Store]:
    """A store that is open."""
    store = make()
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def new_job(
    *,
    owner: str = "ann",
    created: float = 0.0,
    expires: float = 1000.0,
    keep_s: float = 100.0,
    callback: str = "",
    key: str = "",
    digest: bytes = b"",
    kind: str = JOB,
    name: str = "",
) -> NewJob:
    """A job, by default under a new id."""
    return NewJob(
        id=name or f"job_{next(_numbers)}",
        kind=kind,
        owner=owner,
        created=created,
        expires=expires,
        keep_s=keep_s,
        headers={"x-priority": "normal"},
        callback=callback,
        meta=b'{"metadata":{"a":"b"}}',
        idempotency_key=key,
        digest=digest,
    )


def new_items(number: int, model: str = "digits", nbytes: int = 3) -> list[NewItem]:
    """Items with different bodies."""
    return [
        NewItem(model, f"/v2/models/{model}/infer", bytes([n % 256]) * nbytes, {"content-type": "x/y"}, f"item {n}")
        for n in range(number)
    ]


async def made(store: Store, job: NewJob, items: Sequence[NewItem]) -> Job:
    """A job that is kept."""
    return (await store.create(job, items, BOUNDS))[0]


async def exchanged(
    store: Store,
    session: str,
    outcomes: Sequence[Outcome] = (),
    room: int = 0,
    now: float = 1.0,
    model: str = "digits",
    nbytes: int = PLENTY,
    running: Collection[str] | None = None,
) -> Exchanged:
    """An exchange with room for one model."""
    return await store.exchange(session, outcomes, {model: room}, 0, nbytes, now, LEASE_S, running)


def answered(item: str, body: bytes = b"yes") -> Outcome:
    """An item was answered."""
    return Outcome(item, JobState.COMPLETED, 200, body, {"content-type": "text/plain"})


def failed(item: str) -> Outcome:
    """An item cannot be answered."""
    return Outcome(item, JobState.ERROR, 0, code="invalid_request", message="no")


async def all_items(store: Store, job: str, states: frozenset[str] = frozenset()) -> list[Item]:
    """Every item of a job, by small pages."""
    found: list[Item] = []
    while page := await store.items(job, found[-1].index if found else -1, 3, PLENTY, states):
        found += page
    return found
