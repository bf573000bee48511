"""A process that makes jobs and runs items until it is killed; it says what the store has acknowledged."""

from __future__ import annotations

import asyncio
import sys

from jobs.stores import LEASE_S, PLENTY, answered, made, new_items, new_job, opened, stores_of

from serve_app.jobs.records import Outcome
from serve_app.jobs.store import Store

ITEMS = 7


async def _work(store: Store, run: str) -> None:
    """Whoever had a session before is dead by now: its items are taken at once."""
    now = 1e6 * int(run)
    await store.sweep(now, 100)
    session = await store.begin_session(now, LEASE_S)
    outcomes: list[Outcome] = []
    for number in range(10_000):
        if number % 3 == 0:
            job = await made(store, new_job(expires=1e12, keep_s=1e12, name=f"job_{run}_{number}"), new_items(ITEMS))
            print(f"made {job.id}", flush=True)
        got = await store.exchange(session, outcomes, {"digits": 5}, 0, PLENTY, now, LEASE_S)
        for outcome in outcomes:
            print(f"done {outcome.item}", flush=True)
        outcomes = [answered(lease.item, f"{lease.job} {lease.index}".encode()) for lease in got.leases]


async def _main(kind: str, place: str, run: str) -> None:
    async with opened(stores_of(kind, place)) as store:
        await _work(store, run)


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
