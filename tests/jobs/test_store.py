"""What every store of jobs promises."""

from __future__ import annotations

import asyncio
import os
import resource
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from jobs.stores import (
    BOUNDS,
    LEASE_S,
    PLENTY,
    MakeStore,
    all_items,
    answered,
    exchanged,
    failed,
    made,
    new_items,
    new_job,
    opened,
    stores_of,
)
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from benchmarks.redis_server import RedisServer
from serve_app.access.guard import wall_clock
from serve_app.domain.settings import RedisSettings
from serve_app.errors import Conflict, QueueFull, StoreUnavailable
from serve_app.jobs.records import BATCH, JOB, Exchanged, JobBounds, NewItem, Outcome, StoredFile
from serve_app.jobs.redis import RedisStore
from serve_app.jobs.sqlite.connection import SqliteConnection, transaction
from serve_app.jobs.sqlite.sessions import begin_session
from serve_app.jobs.states import JobState
from serve_app.jobs.store import MOST_OVERDUE, SessionOver, Store


async def test_a_job_is_kept(make_store: MakeStore) -> None:
    """What was taken is there for the next process, with its items in order."""
    async with opened(make_store) as store:
        job = await made(store, new_job(callback="https://a"), new_items(7))
    async with opened(make_store) as store:
        assert await store.job(job.id) == job
        assert (job.state, job.total, job.completed, job.failed, job.callback) == (
            JobState.PENDING,
            7,
            0,
            0,
            "https://a",
        )
        assert [(item.index, item.state, item.custom_id) for item in await all_items(store, job.id)] == [
            (n, JobState.PENDING, f"item {n}") for n in range(7)
        ]
        assert await store.job("job_none") is None


async def test_an_item_runs_once(store: Store) -> None:
    """An item is leased to one session, ends once, and its job with the last one."""
    job = await made(store, new_job(), new_items(3))
    one, two = await store.begin_session(0.0, LEASE_S), await store.begin_session(0.0, LEASE_S)
    first = await exchanged(store, one, room=2)
    second = await exchanged(store, two, room=5)
    assert [lease.index for lease in first.leases] == [0, 1]
    assert [lease.index for lease in second.leases] == [2]
    lease = first.leases[1]
    assert (lease.job, lease.owner, lease.expires, lease.losses) == (job.id, "ann", 1000.0, 0)
    assert lease.request == NewItem(
        "digits",
        "/v2/models/digits/infer",
        b"\1\1\1",
        {"x-priority": "normal", "content-type": "x/y"},
        "item 1",
    )
    started = await store.job(job.id)
    assert started is not None
    assert (started.state, started.started) == (JobState.PROCESSING, 1.0)
    done = await exchanged(store, one, [answered(lease.item), answered(first.leases[0].item, b"first")], now=2.0)
    assert done == Exchanged([], 0, frozenset(), ())
    again = await exchanged(store, one, [answered(lease.item, b"again")], now=2.0)
    assert again.discarded == 1
    last = await exchanged(store, two, [failed(second.leases[0].item)], now=3.0)
    assert last.finished == (job.id,)
    ended = await store.job(job.id)
    assert ended is not None
    assert (ended.state, ended.completed, ended.failed, ended.ended, ended.kept_until) == (
        *(JobState.ERROR, 2, 1, 3.0, 103.0),
    )
    items = await all_items(store, job.id)
    assert [(item.state, item.body, item.code, item.ended) for item in items] == [
        (JobState.COMPLETED, b"first", "", 2.0),
        (JobState.COMPLETED, b"yes", "", 2.0),
        (JobState.ERROR, b"", "invalid_request", 3.0),
    ]
    assert items[0].headers == {"content-type": "text/plain"}
    assert [item.index for item in await all_items(store, job.id, frozenset({"ERROR"}))] == [2]


async def test_items_of_a_session_that_is_over_are_others(store: Store) -> None:
    """A session that was not heard of loses its items, and what it still brings counts for nothing."""
    job = await made(store, new_job(), new_items(2))
    slow, quick = await store.begin_session(0.0, LEASE_S), await store.begin_session(0.0, LEASE_S)
    (lease, _) = (await exchanged(store, slow, room=2, now=1.0)).leases
    await exchanged(store, quick, now=5.0)
    await store.sweep(5.0, 100)
    assert (await exchanged(store, quick, room=2, now=9.0)).leases == []
    await store.sweep(15.0, 100)
    taken = (await exchanged(store, quick, room=2, now=15.0)).leases
    assert [(each.index, each.losses) for each in taken] == [(0, 1), (1, 1)]
    with pytest.raises(SessionOver):
        await exchanged(store, slow, [answered(lease.item, b"late")], now=16.0)
    done = await exchanged(store, quick, [answered(each.item) for each in taken], now=16.0)
    assert (done.discarded, done.finished) == (0, (job.id,))
    assert [item.body for item in await all_items(store, job.id)] == [b"yes", b"yes"]


async def test_a_session_that_ends_gives_its_items_back(store: Store) -> None:
    """Items of a router that stops wait again, and nobody counts that against them."""
    await made(store, new_job(), new_items(2))
    one, two = await store.begin_session(0.0, LEASE_S), await store.begin_session(0.0, LEASE_S)
    assert len((await exchanged(store, one, room=2)).leases) == 2
    await store.end_session(one)
    assert [(each.index, each.losses) for each in (await exchanged(store, two, room=9)).leases] == [(0, 0), (1, 0)]
    with pytest.raises(SessionOver):
        await exchanged(store, one)


async def test_a_cancelled_job_ends_at_once(store: Store) -> None:
    """What waits is not run, what runs is told to stop, and what it brings counts for nothing."""
    job = await made(store, new_job(callback="https://a"), new_items(4))
    session = await store.begin_session(0.0, LEASE_S)
    leases = (await exchanged(store, session, room=2)).leases
    await exchanged(store, session, [answered(leases[0].item)])
    cancelled = await store.cancel(job.id, 2.0)
    assert cancelled is not None
    assert (cancelled.state, cancelled.completed, cancelled.ended, cancelled.told) == (
        *(JobState.CANCELLED, 1, 2.0, "pending"),
    )
    assert await store.cancel(job.id, 3.0) == cancelled
    late = await exchanged(store, session, [answered(leases[1].item)], room=9)
    assert late == Exchanged([], 1, frozenset({job.id}), ())
    assert (await exchanged(store, session, room=9)).ended == frozenset()
    assert [item.state for item in await all_items(store, job.id)] == [
        JobState.COMPLETED,
        *[JobState.CANCELLED] * 3,
    ]
    assert await store.cancel("job_none", 1.0) is None


async def test_a_job_that_is_too_late_ends(store: Store) -> None:
    """Past its deadline a job is an error, with what was done until then."""
    job = await made(store, new_job(expires=50.0), new_items(2))
    session = await store.begin_session(0.0, 100.0)
    (lease,) = (await store.exchange(session, [], {"digits": 1}, 0, PLENTY, 1.0, 100.0)).leases
    assert await store.sweep(49.0, 100) == 0
    assert await store.sweep(51.0, 100) == 1
    ended = await store.job(job.id)
    assert ended is not None
    assert (ended.state, ended.code, ended.ended) == (JobState.ERROR, "deadline_exceeded", 51.0)
    late = await store.exchange(session, [answered(lease.item)], {"digits": 9}, 0, PLENTY, 52.0, 100.0)
    assert (late.leases, late.discarded, late.ended) == ([], 1, frozenset({job.id}))
    assert [item.state for item in await all_items(store, job.id)] == [JobState.ERROR] * 2


async def test_nothing_more_is_run_of_a_job_that_is_too_late(store: Store) -> None:
    """The exchange at its deadline ends it, and gives others' items."""
    job = await made(store, new_job(expires=50.0, callback="https://a"), new_items(3))
    other = await made(store, new_job(owner="bob", expires=51.0), new_items(3))
    session = await store.begin_session(0.0, LEASE_S)
    leases = (await exchanged(store, session, room=2, now=1.0)).leases
    assert {lease.job for lease in leases} == {job.id, other.id}
    late = await exchanged(store, session, room=9, now=50.0)
    assert {lease.job for lease in late.leases} == {other.id}
    assert (late.finished, late.ended) == ((job.id,), frozenset({job.id}))
    ended = await store.job(job.id)
    assert ended is not None
    assert (ended.state, ended.code, ended.ended, ended.failed, ended.told) == (
        *(JobState.ERROR, "deadline_exceeded", 50.0, 0, "pending"),
    )
    assert (await store.census()).backlog == {}


async def test_a_job_whose_last_items_fail_at_its_deadline_is_too_late(store: Store) -> None:
    """It does not depend on who sees it first. One that was answered is not, nor one that failed before."""
    codes: list[tuple[JobState, str]] = []
    session = await store.begin_session(0.0, LEASE_S)
    for now, last in ((50.0, failed), (49.9, failed), (50.1, answered)):
        job = await made(store, new_job(expires=50.0), new_items(2))
        one, two = (await exchanged(store, session, room=2, now=1.0)).leases
        done = await exchanged(store, session, [answered(one.item), last(two.item)], now=now)
        assert done.finished == (job.id,)
        ended = await store.job(job.id)
        assert ended is not None
        codes.append((ended.state, ended.code))
    assert codes == [(JobState.ERROR, "deadline_exceeded"), (JobState.ERROR, ""), (JobState.COMPLETED, "")]


async def test_many_jobs_that_are_too_late_end_in_steps(store: Store) -> None:
    """An exchange ends a bounded number of them, and nothing of the others is leased meanwhile."""
    for n in range(MOST_OVERDUE + 1):
        await made(store, new_job(owner=f"owner {n % 2}", expires=50.0), new_items(1))
    job = await made(store, new_job(), new_items(1))
    session = await store.begin_session(0.0, LEASE_S)
    steps = [await exchanged(store, session, room=9, now=50.0) for _ in range(3)]
    assert [len(step.finished) for step in steps] == [MOST_OVERDUE, 1, 0]
    assert [[lease.job for lease in step.leases] for step in steps] == [[], [job.id], []]


async def test_an_idempotency_key_makes_one_job(store: Store) -> None:
    """The same request gives the same job, another one is refused, and keys of two owners are apart."""
    job = await made(store, new_job(key="k", digest=b"1"), new_items(1))
    assert await store.create(new_job(key="k", digest=b"1"), new_items(1), BOUNDS) == (job, False)
    with pytest.raises(Conflict, match="Idempotency-Key"):
        await store.create(new_job(key="k", digest=b"2"), new_items(2), BOUNDS)
    assert (await store.create(new_job(owner="bob", key="k", digest=b"2"), new_items(1), BOUNDS))[1]


async def test_a_store_that_is_full_knows_what_it_took(store: Store) -> None:
    """Who asks again for a job that was taken gets it, not an error."""
    job = await made(store, new_job(key="k", digest=b"1"), new_items(1))
    full = JobBounds(1, 1)
    assert await store.create(new_job(key="k", digest=b"1"), new_items(1), full) == (job, False)
    with pytest.raises(Conflict):
        await store.create(new_job(key="k", digest=b"2"), new_items(1), full)


async def test_bounds_refuse(store: Store) -> None:
    """An owner with too many jobs, and a store that is full, take no more."""
    job = await made(store, new_job(), new_items(1))
    with pytest.raises(QueueFull, match="max_jobs"):
        await store.create(new_job(), new_items(1), JobBounds(1, PLENTY))
    assert (await store.create(new_job(owner="bob"), new_items(1), JobBounds(1, PLENTY)))[1]
    await store.cancel(job.id, 1.0)
    assert (await store.create(new_job(), new_items(1), JobBounds(1, PLENTY)))[1]
    with pytest.raises(QueueFull, match="full"):
        await store.create(new_job(), new_items(1), JobBounds(100, 1))
    with pytest.raises(QueueFull, match="full"):
        await store.add_file(StoredFile("file-1", "ann", "a", "batch", 1, 0.0, 9.0), b"a", JobBounds(100, 1))


async def test_what_does_not_fit_is_refused(store: Store) -> None:
    """A job with more bytes than are left, and one file too many."""
    small = JobBounds(100, (await store.census()).nbytes + 2_000_000, files=1)
    with pytest.raises(QueueFull, match="full"):
        await store.create(new_job(), new_items(3, nbytes=1_000_000), small)
    assert (await store.create(new_job(), new_items(1, nbytes=50_000), small))[1]
    await store.add_file(StoredFile("file-1", "ann", "a", "batch", 1, 0.0, 9.0), b"a", small)
    with pytest.raises(QueueFull, match="max_files"):
        await store.add_file(StoredFile("file-2", "ann", "a", "batch", 1, 0.0, 9.0), b"a", small)
    await store.add_file(StoredFile("file-3", "bob", "a", "batch", 1, 0.0, 9.0), b"a", small)


async def test_owners_and_their_jobs_take_turns(store: Store) -> None:
    """A job behind a large one, of the same owner or another, does not wait for its end."""
    large = await made(store, new_job(), new_items(100))
    small = await made(store, new_job(), new_items(100))
    others = await made(store, new_job(owner="bob"), new_items(100))
    session = await store.begin_session(0.0, LEASE_S)
    seen: list[str] = []
    for now in (1.0, 2.0, 3.0, 4.0):
        seen += [lease.job for lease in (await exchanged(store, session, room=10, now=now)).leases]
    assert {job: seen.count(job) for job in (large.id, small.id, others.id)} == {
        large.id: 10,
        small.id: 10,
        others.id: 20,
    }


async def test_room_is_by_model_and_by_bytes(store: Store) -> None:
    """A session gets no more than it has room for; one item is always enough room."""
    await made(store, new_job(), [*new_items(3, "digits", 100), *new_items(3, "words", 100), *new_items(3, "")])
    session = await store.begin_session(0.0, LEASE_S)
    got = await store.exchange(session, [], {"digits": 1, "words": 2}, 1, PLENTY, 1.0, LEASE_S)
    assert sorted(lease.request.model for lease in got.leases) == ["", "digits", "words", "words"]
    assert len((await exchanged(store, session, room=9, nbytes=10)).leases) == 1
    assert len((await exchanged(store, session, room=9, nbytes=100)).leases) == 1


async def test_models_take_turns_at_the_bytes(store: Store) -> None:
    """None waits for the end of another's backlog; bytes that an item does not get are those of the next model."""
    await made(store, new_job(), [*new_items(9, "digits", 1000), *new_items(9, "words", 1000)])
    session = await store.begin_session(0.0, LEASE_S)
    room = {"digits": 9, "words": 9}
    answers = [await store.exchange(session, [], room, 0, 1500, 1.0, LEASE_S) for _ in range(4)]
    assert {lease.request.model for answer in answers for lease in answer.leases} == {"digits", "words"}
    await made(store, new_job(), new_items(9, "small", 10))
    for _ in range(3):
        got = (await store.exchange(session, [], {**room, "small": 3}, 0, 1500, 1.0, LEASE_S)).leases
        assert sorted(lease.request.model == "small" for lease in got) == [False, True, True, True]


async def test_a_model_without_room_waits(store: Store) -> None:
    """A session that does not serve a model gets none of its items."""
    await made(store, new_job(), [*new_items(3, "words"), *new_items(1, "")])
    session = await store.begin_session(0.0, LEASE_S)
    got = await store.exchange(session, [], {"digits": 9}, 9, PLENTY, 1.0, LEASE_S)
    assert [lease.request.model for lease in got.leases] == [""]
    assert len((await exchanged(store, session, room=9, model="words")).leases) == 3


async def test_pages_hold_as_many_bytes_as_asked(store: Store) -> None:
    """A page ends before its answers are too many, but never without an item."""
    job = await made(store, new_job(), new_items(4))
    session = await store.begin_session(0.0, LEASE_S)
    leases = (await exchanged(store, session, room=4)).leases
    await exchanged(store, session, [answered(lease.item, b"x" * 100) for lease in leases])
    assert [len(await store.items(job.id, -1, 9, nbytes)) for nbytes in (1, 100, 250, 400)] == [1, 1, 2, 4]


async def test_a_page_reads_no_more_answers_than_it_shows(tmp_path: Path) -> None:
    """They may be large: all of a page that ends by its bytes would be read again for the next one."""
    with RedisServer(tmp_path) as server, closing(Redis.from_url(server.url)) as client:

        def sent() -> int:
            return int(client.info("stats")["total_net_output_bytes"])

        async with opened(stores_of("redis", server.url)) as store:
            job = await made(store, new_job(), new_items(40))
            session = await store.begin_session(0.0, LEASE_S)
            leases = (await exchanged(store, session, room=40)).leases
            await exchanged(store, session, [answered(lease.item, b"x" * 100_000) for lease in leases[:30]])
            before = sent()
            assert [item.index for item in await store.items(job.id, 9, 40, 350_000)] == [10, 11, 12]
            assert sent() - before < 5 * 100_000
            assert [len(item.body) for item in await store.items(job.id, 28, 3, 0)] == [100_000]
            assert [item.state for item in await store.items(job.id, 29, 40, 0)] == [JobState.PROCESSING] * 10


async def test_items_that_run_are_shown_as_such(store: Store) -> None:
    """Until they end, wait again, or their job ends."""
    job = await made(store, new_job(), new_items(5))
    one, two = await store.begin_session(0.0, LEASE_S), await store.begin_session(0.0, LEASE_S)
    (first, second), (third, _) = [(await exchanged(store, each, room=2)).leases for each in (one, two)]
    processing = frozenset({"PROCESSING"})
    assert [item.index for item in await all_items(store, job.id, processing)] == [0, 1, 2, 3]
    await exchanged(store, one, [Outcome(first.item, JobState.PENDING, 0), answered(second.item)])
    await exchanged(store, two, [Outcome(third.item, JobState.PENDING, 0)])
    states = [JobState.PENDING, JobState.COMPLETED, JobState.PENDING, JobState.PROCESSING, JobState.PENDING]
    assert [item.state for item in await all_items(store, job.id)] == states
    assert [item.index for item in await all_items(store, job.id, processing)] == [3]
    await store.cancel(job.id, 2.0)
    assert await all_items(store, job.id, processing) == []


async def test_jobs_are_listed_by_pages(store: Store) -> None:
    """The newest first, of one owner and one kind."""
    mine = [await made(store, new_job(created=n), new_items(1)) for n in range(5)]
    await made(store, new_job(owner="bob"), new_items(1))
    batch = await made(store, new_job(kind=BATCH), new_items(1))
    first = await store.jobs("ann", JOB, "", 3)
    assert first == mine[:1:-1]
    assert await store.jobs("ann", JOB, first[-1].id, 3) == mine[1::-1]
    assert await store.jobs("ann", BATCH, "", 3) == [batch]


async def test_what_is_old_goes_in_small_steps(store: Store) -> None:
    """A step takes a bounded number of rows, and what is not old stays."""
    old = [await made(store, new_job(keep_s=10.0), new_items(25)) for _ in range(4)]
    young = await made(store, new_job(keep_s=10_000.0), new_items(5))
    for job in (*old, young):
        await store.cancel(job.id, 1.0)
    live = await made(store, new_job(), new_items(1))
    steps: list[int] = []
    while steps[-1:] != [0]:
        steps.append(await store.sweep(100.0, 10))
    assert max(steps) <= 10 + 1  # a job's own row may come on top
    assert sum(steps) == 4 * 26
    assert [job.id for job in await store.jobs("ann", JOB, "", 10)] == [live.id, young.id]
    assert [await store.items(job.id, -1, 9, PLENTY) for job in old] == [[]] * 4
    assert len(await all_items(store, young.id)) == 5
    assert (await store.census()).backlog == {"digits": 1}


async def test_a_census_counts(store: Store) -> None:
    """Jobs by state, what waits by model, what is under way."""
    job = await made(store, new_job(), [*new_items(5), *new_items(2, "words")])
    await made(store, new_job(), new_items(1))
    session = await store.begin_session(0.0, LEASE_S)
    await exchanged(store, session, room=2)
    await exchanged(store, session, room=1, model="words")
    census = await store.census()
    assert census.backlog == {"digits": 4, "words": 1}
    assert census.in_flight == 3
    assert {state: number for state, number in census.jobs.items() if number} in (
        {"PROCESSING": 1, "PENDING": 1},
        {"PROCESSING": 2},
    )
    await store.cancel(job.id, 2.0)
    assert (await store.census()).jobs["CANCELLED"] == 1


async def test_ends_are_told(store: Store) -> None:
    """The end of a job with a callback is due until somebody says what became of it; one asks at a time."""
    job = await made(store, new_job(callback="https://a"), new_items(1))
    await made(store, new_job(), new_items(1))
    assert await store.due_callbacks(1.0, 9, 30.0) == []
    await store.cancel(job.id, 2.0)
    (due,) = await store.due_callbacks(2.0, 9, 30.0)
    assert (due.job.id, due.attempts, due.job.told) == (job.id, 0, "pending")
    assert await store.due_callbacks(3.0, 9, 30.0) == []
    await store.told(job.id, "pending", 1, 40.0)
    assert await store.due_callbacks(39.0, 9, 30.0) == []
    assert [each.attempts for each in await store.due_callbacks(40.0, 9, 30.0)] == [1]
    await store.told(job.id, "delivered", 2, 0.0)
    assert await store.due_callbacks(99.0, 9, 30.0) == []
    told = await store.job(job.id)
    assert told is not None
    assert told.told == "delivered"


async def test_files_are_kept_until_they_expire(store: Store) -> None:
    """A file is read as it came, listed for its owner, and goes when it is deleted or old."""
    files = [StoredFile(f"file-{n}", "ann", f"{n}.jsonl", "batch", 4, float(n), 10.0 + n) for n in range(3)]
    for file in files:
        await store.add_file(file, f"no {file.name}".encode(), BOUNDS)
    await store.add_file(StoredFile("file-9", "bob", "b", "batch", 1, 0.0, 99.0), b"b", BOUNDS)
    assert await store.file("file-1") == files[1]
    assert await store.content("file-1") == b"no 1.jsonl"
    assert await store.files("ann", "", 2) == [files[2], files[1]]
    assert await store.files("ann", "file-1", 2) == [files[0]]
    assert await store.files("ann", "", 2, oldest_first=True) == files[:2]
    assert await store.files("ann", "file-1", 2, oldest_first=True) == [files[2]]
    await store.delete_file("file-1")
    assert (await store.file("file-1"), await store.content("file-1")) == (None, None)
    assert await store.sweep(11.0, 10) == 1
    assert await store.files("ann", "", 9) == [files[2]]


async def test_only_its_owner_reads_the_file(tmp_path: Path) -> None:
    """It holds what clients have sent."""
    async with opened(stores_of("sqlite", str(tmp_path))) as store:
        await made(store, new_job(), new_items(1))
        assert {os.stat(file).st_mode & 0o777 for file in os.scandir(tmp_path)} == {0o600}  # noqa: PTH116


async def test_a_transaction_that_cannot_be_rolled_back_is_the_last_of_its_connection(tmp_path: Path) -> None:
    """A new one goes on: the next transaction does not begin within it."""

    def broken(database: sqlite3.Connection) -> None:
        database.set_authorizer(lambda _, what, *__: sqlite3.SQLITE_DENY if what == "ROLLBACK" else sqlite3.SQLITE_OK)
        raise sqlite3.OperationalError("disk I/O error")

    connection = SqliteConnection(tmp_path / "jobs.sqlite", 1.0)
    try:
        with pytest.raises(StoreUnavailable):
            await connection.call(transaction, broken)
        await connection.call(transaction, lambda database: begin_session(database, lambda: 1.0))
    finally:
        await connection.close()


async def test_a_lease_that_waited_for_another_write_begins_behind_it(tmp_path: Path) -> None:
    """Otherwise it would be over before it was renewed, and a session that lives would lose its items."""
    async with opened(stores_of("sqlite", str(tmp_path))) as store:
        await made(store, new_job(), new_items(1))
        session = await store.begin_session(0.0, LEASE_S)
        with closing(sqlite3.connect(tmp_path / "jobs.sqlite", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            renewal = asyncio.create_task(exchanged(store, session, room=1, now=1.0))
            await asyncio.sleep(0.2)  # a large write takes so long
            other.execute("ROLLBACK")
        assert len((await renewal).leases) == 1
        await store.sweep(1.0 + LEASE_S + 0.1, 10)
        assert (await exchanged(store, session)).discarded == 0


async def test_items_are_given_back(store: Store) -> None:
    """Who cannot run them has no loss noted; others get them, at the front."""
    job = await made(store, new_job(), new_items(4))
    one, two = await store.begin_session(0.0, LEASE_S), await store.begin_session(0.0, LEASE_S)
    assert await store.has_waiting({"words", "digits"})
    leases = (await exchanged(store, one, room=4)).leases
    assert not await store.has_waiting({"words", "digits"})
    back = [Outcome(lease.item, JobState.PENDING, 0) for lease in leases[1:3]]
    told = await exchanged(store, one, [answered(leases[0].item), *back])
    assert (told.discarded, told.leases) == (0, [])
    assert not await store.has_waiting({"words"})
    assert await store.has_waiting({"digits"})
    assert (await exchanged(store, one, back)).discarded == 2
    census = await store.census()
    assert (census.backlog, census.in_flight) == ({"digits": 2}, 1)
    again = (await exchanged(store, two, room=9)).leases
    assert sorted((lease.index, lease.losses) for lease in again) == [(1, 0), (2, 0)]
    done = await exchanged(store, two, [answered(lease.item) for lease in again])
    assert done.finished == ()
    assert (await exchanged(store, one, [answered(leases[3].item)])).finished == (job.id,)


async def test_a_model_that_only_requests_name_always_waits_for_somebody(store: Store) -> None:
    """Whoever serves anything may serve it."""
    await made(store, new_job(), new_items(1, ""))
    assert await store.has_waiting({"words"})


async def test_calls_wait_for_a_connection(tmp_path: Path) -> None:
    """However many there are at once."""
    with RedisServer(tmp_path) as server:
        async with opened(stores_of("redis", server.url)) as store:
            job = await made(store, new_job(), new_items(1))
            assert set(await asyncio.gather(*[store.job(job.id) for _ in range(500)])) == {job}


async def test_sessions_are_over_by_the_clock_of_the_server(tmp_path: Path) -> None:
    """A router whose clock is fast does not end the sessions of others."""

    def fast_clock() -> float:
        return wall_clock() + 1000.0

    with RedisServer(tmp_path) as server:
        fast_store = RedisStore(RedisSettings(server.url), fast_clock)
        async with opened(stores_of("redis", server.url)) as store, opened(lambda: fast_store) as fast:
            session = await store.begin_session(wall_clock(), LEASE_S)
            await fast.sweep(fast_clock(), 10)
            assert (await exchanged(store, session)).discarded == 0


async def test_what_is_waited_for_was_written_by_the_same_connection(tmp_path: Path) -> None:
    """The server waits for the writes of the connection that asks it to, beside many others."""
    written: set[str] = set()
    waits = 0
    with RedisServer(tmp_path, "--appendonly", "yes", "--appendfsync", "always") as server:
        async with (
            opened(stores_of("redis", server.url)) as store,
            AsyncRedis.from_url(server.url) as client,
            client.monitor() as monitor,
        ):
            async with asyncio.TaskGroup() as tasks:
                for n in range(20):
                    file = StoredFile(f"file-{n}", "ann", "a", "batch", 1, 0.0, 9.0)
                    tasks.create_task(made(store, new_job(), new_items(1)))
                    tasks.create_task(store.add_file(file, b"a", BOUNDS))
            while waits < 40:
                said = await monitor.next_command()
                address, command = f"{said['client_address']}:{said['client_port']}", said["command"].split()[0]
                if command == "WAITAOF":
                    assert address in written
                    waits += 1
                written.discard(address)
                if command in {"EVALSHA", "ZADD"}:
                    written.add(address)


async def test_a_redis_server_that_is_full_goes_on(tmp_path: Path) -> None:
    """It takes nothing more; what it has ends, and makes room when it is old."""
    with RedisServer(tmp_path) as server, closing(Redis.from_url(server.url)) as client:
        async with opened(stores_of("redis", server.url)) as store:
            old = await made(store, new_job(keep_s=1.0), new_items(1))
            cancelled = await made(store, new_job(callback="https://a"), new_items(1))
            job = await made(store, new_job(), new_items(2))
            session, lost = await store.begin_session(0.0, 1000.0), await store.begin_session(0.0, LEASE_S)
            assert len((await exchanged(store, lost, room=2)).leases) == 2
            await store.cancel(old.id, 2.0)
            client.config_set("maxmemory", 1)
            with pytest.raises(StoreUnavailable, match="OutOfMemory"):
                await store.create(new_job(), new_items(1), BOUNDS)
            await store.cancel(cancelled.id, 2.0)
            assert [each.job.id for each in await store.due_callbacks(3.0, 9, 30.0)] == [cancelled.id]
            await store.told(cancelled.id, "pending", 1, 40.0)
            while await store.sweep(50.0, 10):
                pass
            assert await store.job(old.id) is None
            await store.end_session(session)
            session = await store.begin_session(50.0, LEASE_S)
            leases = (await exchanged(store, session, room=9, now=50.0)).leases
            done = await exchanged(store, session, [answered(lease.item) for lease in leases], now=50.0)
            assert done.finished == (job.id,)


async def test_a_disk_that_is_full(tmp_path: Path) -> None:
    """Nothing of what finds no room is kept, what was kept stays, and the error says why."""
    async with opened(stores_of("sqlite", str(tmp_path))) as store:
        job = await made(store, new_job(), new_items(2))
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, before[1]))  # as a full disk does, it refuses writes
        try:
            with pytest.raises(StoreUnavailable, match="cannot be used now"):
                await store.create(new_job(), new_items(50, nbytes=2**17), BOUNDS)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert await store.jobs("ann", JOB, "", 9) == [job]
        assert (await store.create(new_job(), new_items(50, nbytes=2**17), BOUNDS))[1]
