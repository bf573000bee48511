"""Processes that write to a store are killed: what it has acknowledged is kept, and every item ends once."""

from __future__ import annotations

from jobs.crashing import ITEMS
from jobs.processes import started
from jobs.stores import LEASE_S, MakeStore, all_items, answered, exchanged, opened

from serve_app.jobs.records import JOB
from serve_app.jobs.states import JobState

_LINES = (3, 29, 64, 101)
"""After so many acknowledgements a process is killed, in the middle of what it does then."""


def _killed(kind: str, place: str, run: int, lines: int) -> list[str]:
    """What a process was acknowledged before it was killed."""
    with started("crashing", kind, place, str(run)) as (process, output):
        said = [output.readline().strip() for _ in range(lines)]
        process.kill()
        return said + [line.strip() for line in output if line.endswith("\n")]


async def test_what_was_acknowledged_outlives_processes(make_store: MakeStore, kind_and_place: tuple[str, str]) -> None:
    """Killed again and again, no job is lost, no item is lost, and none ends twice."""
    said: list[str] = []
    for run, lines in enumerate(_LINES, start=1):
        said += _killed(*kind_and_place, run, lines)
    made = {line.removeprefix("made ") for line in said if line.startswith("made ")}
    done = [line for line in said if line.startswith("done ")]
    assert len(made) >= len(_LINES)
    assert len(done) == len(set(done)) >= len(_LINES)
    async with opened(make_store) as store:
        now = 1e6 * (len(_LINES) + 1)
        await store.sweep(now, 1000)
        jobs = {job.id: job for job in await store.jobs("ann", JOB, "", 10_000)}
        assert made <= set(jobs)
        before = sum(job.completed for job in jobs.values())
        assert before >= len(done)
        session = await store.begin_session(now, LEASE_S)
        after = 0
        while leases := (await exchanged(store, session, room=50, now=now)).leases:
            outcomes = [answered(lease.item, f"{lease.job} {lease.index}".encode()) for lease in leases]
            assert (await exchanged(store, session, outcomes, now=now)).discarded == 0
            after += len(leases)
        assert before + after == ITEMS * len(jobs)
        for job in await store.jobs("ann", JOB, "", 10_000):
            assert (job.state, job.completed, job.total) == (JobState.COMPLETED, ITEMS, ITEMS)
            assert [item.body.decode() for item in await all_items(store, job.id)] == [
                f"{job.id} {n}" for n in range(ITEMS)
            ]
