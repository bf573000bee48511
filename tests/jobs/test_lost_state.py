"""Stores that lost what they were told, and files that went away: nothing stays with a router that does not run it."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs.stores import (
    BOUNDS,
    LEASE_S,
    all_items,
    answered,
    exchanged,
    kept_state,
    made,
    new_items,
    new_job,
    opened,
    stores_of,
)

from benchmarks.redis_server import RedisServer
from serve_app.errors import StoreUnavailable
from serve_app.jobs.records import JOB
from serve_app.jobs.states import JobState
from serve_app.jobs.store import SessionOver


async def test_items_whose_outcomes_were_lost_are_run_again(kind_and_place: tuple[str, str]) -> None:
    """The store has them with a session that ran them before; what that still runs stays with it, and counts."""
    async with opened(stores_of(*kind_and_place)) as store:
        job = await made(store, new_job(), new_items(4))
        session = await store.begin_session(0.0, LEASE_S)
        leases = (await exchanged(store, session, room=3)).leases
        runs = leases[2].item
        put_back = kept_state(*kind_and_place)
        outcomes = [answered(lease.item, b"first") for lease in leases[:2]]
        assert (await exchanged(store, session, outcomes, running=[runs])).discarded == 0
        put_back()
        assert [item.state for item in await all_items(store, job.id)] == [*[JobState.PROCESSING] * 3, JobState.PENDING]
        again = (await exchanged(store, session, room=9, running=[runs])).leases
        assert sorted((lease.index, lease.losses) for lease in again) == [(0, 0), (1, 0), (3, 0)]
        done = await exchanged(store, session, [answered(lease.item) for lease in [*again, leases[2]]], running=[])
        assert (done.discarded, done.leases, done.finished) == (0, [], (job.id,))


async def test_what_a_session_runs_stays_with_it(kind_and_place: tuple[str, str]) -> None:
    """Whatever others say of theirs."""
    async with opened(stores_of(*kind_and_place)) as store:
        await made(store, new_job(), new_items(4))
        one, two = await store.begin_session(0.0, LEASE_S), await store.begin_session(0.0, LEASE_S)
        leases = (await exchanged(store, one, room=2, running=[])).leases
        assert len((await exchanged(store, two, room=9, running=[])).leases) == 2
        assert (await exchanged(store, two, room=9)).leases == []
        assert (await exchanged(store, one, room=9, running=[lease.item for lease in leases])).leases == []
        assert (await store.census()).in_flight == 4


async def test_an_exchange_that_comes_late_takes_nothing_away(tmp_path: Path) -> None:
    """A server may read one that was given up behind the next one. It does not know what that one leased."""
    with RedisServer(tmp_path) as server:
        make = stores_of("redis", server.url)
        async with opened(make) as store, opened(make) as late:
            await made(store, new_job(), new_items(2))
            session = await store.begin_session(0.0, LEASE_S)
            await exchanged(store, session, running=[])
            leases = (await exchanged(store, session, room=2, running=[])).leases
            assert (await exchanged(late, session, running=[])).leases == []  # its first one
            done = await exchanged(store, session, [answered(lease.item) for lease in leases], running=[])
            assert (len(leases), done.discarded) == (2, 0)


async def test_a_file_that_is_away_takes_nothing(tmp_path: Path) -> None:
    """A new one would take jobs that are gone when it comes back, as a disk does."""
    folder, away = tmp_path / "store", tmp_path / "away"
    async with opened(stores_of("sqlite", str(folder))) as store:
        session = await store.begin_session(0.0, LEASE_S)
        folder.rename(away)
        with pytest.raises(StoreUnavailable, match="its file is gone"):
            await store.create(new_job(), new_items(1), BOUNDS)
        with pytest.raises(StoreUnavailable, match="its file is gone"):
            await store.jobs("ann", JOB, "", 9)
        assert not folder.exists()
        away.rename(folder)
        job = await made(store, new_job(), new_items(1))
        assert [lease.job for lease in (await exchanged(store, session, room=1)).leases] == [job.id]


async def test_a_session_of_another_file_is_over(tmp_path: Path) -> None:
    """What it brings is not an answer to an item that has the same number there."""
    folder = tmp_path / "store"
    make = stores_of("sqlite", str(folder))
    async with opened(make) as store:
        await made(store, new_job(), new_items(1))
        old = await store.begin_session(0.0, LEASE_S)
        (lease,) = (await exchanged(store, old, room=1)).leases
        folder.rename(tmp_path / "deleted")
        async with opened(make) as another:
            job = await made(another, new_job(), new_items(1))
            session = await another.begin_session(0.0, LEASE_S)
            (its,) = (await exchanged(another, session, room=1)).leases
            with pytest.raises(SessionOver):
                await exchanged(store, old, [answered(lease.item, b"of another job")])
            assert (await exchanged(another, session, [answered(its.item)])).finished == (job.id,)
