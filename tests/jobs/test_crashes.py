"""Processes that write to a store are killed: what it has acknowledged is kept, and every item ends once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from jobs.crashing import ITEMS
from jobs.stores import LEASE_S, MakeStore, all_items, answered, exchanged, opened

from serve_app.jobs.records import JOB
from serve_app.jobs.states import State

_ROOT = Path(__file__).parents[2]
_LINES = (3, 29, 64, 101)
"""After so many acknowledgements a process is killed, in the middle of what it does then."""


def _killed(kind: str, place: str, run: int, lines: int) -> list[str]:
    """What a process was acknowledged before it was killed."""
    path = os.pathsep.join([str(_ROOT), str(_ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "jobs.crashing", kind, place, str(run)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}) as child:
        assert child.stdout is not None
        said = [child.stdout.readline().strip() for _ in range(lines)]
        child.kill()
        said += [line.strip() for line in child.stdout if line.endswith("\n")]
    return said


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
            assert (job.state, job.completed, job.total) == (State.COMPLETED, ITEMS, ITEMS)
            assert [item.body.decode() for item in await all_items(store, job.id)] == [
                f"{job.id} {n}" for n in range(ITEMS)
            ]
