"""Callbacks of ended jobs in a real store; what sends them is scripted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from jobs.stores import MakeStore, made, new_items, new_job, opened

from serve_app.access.guard import wall_clock
from serve_app.jobs.callbacks import Callbacks
from serve_app.jobs.settings import CallbackSettings
from serve_app.jobs.store import Store

SETTINGS = CallbackSettings(hosts=frozenset({"good", "hung"}), attempts=1, timeout_s=3600.0)
Send = Callable[[str, dict[str, str], bytes], Awaitable[int]]


async def ended(store: Store, host: str, number: int = 1) -> list[str]:
    """Jobs that have ended and have callbacks to a host."""
    names = []
    for _ in range(number):
        now = wall_clock()
        job = await made(store, new_job(created=now, expires=now + 3600, callback=f"https://{host}/"), new_items(1))
        await store.cancel(job.id, now)
        names.append(job.id)
    return names


async def told(store: Store, name: str) -> str:
    """What became of a callback, when that is known."""
    async with asyncio.timeout(120):
        while True:
            job = await store.job(name)
            assert job is not None
            if job.told != "pending":
                return job.told


@asynccontextmanager
async def sending(store: Store, send: Send) -> AsyncIterator[Callbacks]:
    """Callbacks that are sent."""
    callbacks = Callbacks(store, SETTINGS, send, wall_clock)
    callbacks.start()
    try:
        yield callbacks
    finally:
        await callbacks.close()


async def test_a_host_that_is_no_name_is_given_up(make_store: MakeStore) -> None:
    """As any other that cannot be reached."""

    async def send(url: str, headers: dict[str, str], body: bytes) -> int:
        return int("x".encode("idna").decode() + ("y" * 64).encode("idna").decode())

    async with opened(make_store) as store:
        (name,) = await ended(store, "good")
        async with sending(store, send) as callbacks:
            assert await told(store, name) == "given_up"
            assert callbacks.results == {"given_up": 1}


async def test_a_host_that_hangs_leaves_others_their_turn(make_store: MakeStore) -> None:
    """However many jobs it is to be told of; and nothing is sent any more when all is closed."""
    open_ends: set[str] = set()

    async def send(url: str, headers: dict[str, str], body: bytes) -> int:
        if "good" in url:
            return 204
        open_ends.add(headers["webhook-id"])
        try:
            await asyncio.Event().wait()
        finally:
            open_ends.remove(headers["webhook-id"])
        return 204

    async with opened(make_store) as store:
        await ended(store, "hung", 40)
        (name,) = await ended(store, "good")
        async with sending(store, send):
            assert await told(store, name) == "delivered"
            assert 0 < len(open_ends) < 40
        assert not open_ends


async def test_a_failure_lets_no_other_attempt_go(make_store: MakeStore) -> None:
    """What fails in a way that nobody knows is logged; the rest goes on, and ends when all is closed."""
    failing: set[str] = set()
    hanging: set[str] = set()
    failed = asyncio.Event()

    async def send(url: str, headers: dict[str, str], body: bytes) -> int:
        name = headers["webhook-id"]
        if name in failing:
            failed.set()
            raise RuntimeError("unknown")
        if "hung" in url:
            hanging.add(name)
            try:
                await asyncio.Event().wait()
            finally:
                hanging.remove(name)
        await failed.wait()
        return 204

    async with opened(make_store) as store:
        failing.update(await ended(store, "good"))
        await ended(store, "hung")
        (name,) = await ended(store, "good")
        async with sending(store, send) as callbacks:
            assert await told(store, name) == "delivered"
            assert callbacks.results == {"delivered": 1}
            assert hanging
        assert not hanging
