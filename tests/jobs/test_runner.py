"""Runs items of a real store; what runs them is scripted."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jobs.stores import BOUNDS, MakeStore, all_items, kept_state, made, new_items, new_job, opened, stores_of

from serve_app.access.guard import wall_clock
from serve_app.errors import (
    DeadlineExceeded,
    InferenceFailed,
    InvalidRequest,
    ModelNotFound,
    ModelUnavailable,
    QueueFull,
)
from serve_app.jobs.job_service import Jobs
from serve_app.jobs.records import JOB, Exchanged, Job, Lease, StoredFile
from serve_app.jobs.runner import ItemReply, JobRunner
from serve_app.jobs.settings import JobSettings
from serve_app.jobs.sqlite.store import SqliteStore
from serve_app.jobs.states import JobState
from serve_app.jobs.store import Store

SETTINGS = JobSettings(lease_s=1000.0, max_result=100)
Answer = Callable[[Lease], Coroutine[Any, Any, ItemReply]]


class Running:
    """A runner over a store, and what it says has ended."""

    def __init__(
        self, store: Store, room: Mapping[str, int], settings: JobSettings, now: Callable[[], float] = wall_clock
    ) -> None:
        self.ended: asyncio.Queue[str] = asyncio.Queue()
        self.store = store
        self.runner = JobRunner(store, lambda: room, settings, now, self._on_ended)

    def _on_ended(self, jobs: tuple[str, ...]) -> None:
        for job in jobs:
            self.ended.put_nowait(job)

    async def submit(self, number: int, model: str = "digits", nbytes: int = 3) -> Job:
        """A job of so many items that has ten hours."""
        items = new_items(number, model, nbytes)
        job = await made(self.store, new_job(created=wall_clock(), expires=wall_clock() + 36_000), items)
        self.runner.wake()
        return job

    async def end_of(self, job: Job) -> Job:
        """It, when it has ended."""
        assert await self.ended.get() == job.id
        found = await self.store.job(job.id)
        assert found is not None
        return found


@asynccontextmanager
async def running(
    make: MakeStore,
    answer: Answer,
    room: int | Mapping[str, int] = 4,
    settings: JobSettings = SETTINGS,
    now: Callable[[], float] = wall_clock,
) -> AsyncIterator[Running]:
    """A runner that works, with room for a model or several."""
    async with opened(make) as store:
        found = Running(store, {"digits": room} if isinstance(room, int) else room, settings, now)
        found.runner.start(answer)
        try:
            yield found
        finally:
            await found.runner.close()


async def _yes(lease: Lease) -> ItemReply:
    return ItemReply(200, lease.request.body, {"content-type": "x/y"})


async def test_every_item_is_answered(make_store: MakeStore) -> None:
    """With its own answer."""
    async with running(make_store, _yes) as jobs:
        job = await jobs.submit(20)
        assert (await jobs.end_of(job)).state is JobState.COMPLETED
        assert [item.body[0] for item in await all_items(jobs.store, job.id)] == list(range(20))
        assert jobs.runner.counts.ended == {"COMPLETED": 20}
        assert not jobs.runner.in_flight


async def test_no_more_are_in_flight_than_there_is_room(make_store: MakeStore) -> None:
    """However many wait."""
    now, most = 0, 0

    async def answer(lease: Lease) -> ItemReply:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        now -= 1
        return await _yes(lease)

    async with running(make_store, answer, room=3) as jobs:
        await jobs.end_of(await jobs.submit(30))
    assert most == 3


async def test_bytes_in_flight_are_bounded(make_store: MakeStore) -> None:
    """However often the runner asks for more while these run."""
    now, most = 0, 0
    settings = replace(SETTINGS, max_bytes_in_flight=2000, max_result=2000)

    async def answer(lease: Lease) -> ItemReply:
        nonlocal now, most
        now += lease.request.nbytes
        most = max(most, now)
        began = jobs.runner.counts.exchanges
        while jobs.runner.counts.exchanges < began + 3:
            jobs.runner.wake()
            await asyncio.sleep(0.001)
        now -= lease.request.nbytes
        return await _yes(lease)

    async with running(make_store, answer, room=40, settings=settings) as jobs:
        assert (await jobs.end_of(await jobs.submit(10, nbytes=1000))).completed == 10
    assert 2000 <= most < 4000, most  # an item more than fits, and what names it


@pytest.mark.parametrize("refused", [True, False])
async def test_a_model_that_is_down_leaves_room_for_others(make_store: MakeStore, *, refused: bool) -> None:
    """Its items have taken all the bytes that one model may have: they are tried again, or wait for a replica."""
    seen: set[str] = set()
    full = asyncio.Event()

    async def answer(lease: Lease) -> ItemReply:
        if lease.request.model == "digits":
            return await _yes(lease)
        seen.add(lease.item)
        if len(seen) == 3:
            full.set()
        if refused:
            raise ModelUnavailable("it is down", 30.0)
        await asyncio.Event().wait()
        raise AssertionError

    settings = replace(SETTINGS, max_bytes_in_flight=3000, max_result=1000)
    async with running(make_store, answer, {"words": 40, "digits": 40}, settings) as jobs:
        await jobs.submit(10, "words", nbytes=1000)
        await full.wait()
        assert (await jobs.end_of(await jobs.submit(5, nbytes=1000))).completed == 5
        assert jobs.runner.in_flight == {"words": 3}


async def test_bytes_of_many_models_are_bounded_together(make_store: MakeStore) -> None:
    """None of them is answered: the first ones leave some for each that comes later, and all have less than twice."""

    async def never(_: Lease) -> ItemReply:
        await asyncio.Event().wait()
        raise AssertionError

    models, most = [f"model {n}" for n in range(5)], 50_000
    settings = replace(SETTINGS, max_bytes_in_flight=most)
    async with running(make_store, never, dict.fromkeys(models, 100), settings) as jobs:
        for model in models:
            await jobs.submit(100, model, nbytes=1000)
            before = jobs.runner.counts.exchanges
            while jobs.runner.counts.exchanges < before + 10:
                jobs.runner.wake()
                await asyncio.sleep(0.001)
        held = jobs.runner.in_flight
        assert set(held) == set(models), held
        assert held[models[0]] * 1000 >= 0.9 * most, held
        assert held.total() * 1000 < 2 * most, held


async def test_a_store_that_is_full_runs_nothing(make_store: MakeStore, caplog: pytest.LogCaptureFixture) -> None:
    """Answers would come on top of what it has."""

    async def tell(*_: Any) -> int:
        return 200

    async with opened(make_store) as other:
        job = await made(other, new_job(created=wall_clock(), expires=wall_clock() + 36_000), new_items(3))
        for most, paused in ((1000, True), (2**40, False)):
            jobs = Jobs(make_store(), replace(SETTINGS, max_bytes=most), lambda: {"digits": 4}, tell, wall_clock)
            jobs.start(_yes)
            try:
                found = await jobs.find(job.id, "ann", JOB)
                assert jobs.status()["paused"] is paused
                if paused:
                    while jobs.runner.counts.exchanges < 2:
                        jobs.runner.wake()
                        found = await jobs.find(job.id, "ann", JOB)
                else:
                    found = await jobs.wait(job.id, "ann", JOB, 60.0)
                assert found.completed == (0 if paused else 3)
            finally:
                await jobs.close()
    assert caplog.text.count("max_bytes") == 1


async def test_files_come_and_go(make_store: MakeStore) -> None:
    """A file that comes ahead of the store is kept once that is open; one that has expired is removed."""

    async def tell(*_: Any) -> int:
        return 200

    async with opened(make_store) as other:
        old = StoredFile("file-old", "ann", "in.jsonl", "batch", 2, wall_clock() - 10, wall_clock() - 1)
        await other.add_file(old, b"{}", BOUNDS)
        jobs = Jobs(make_store(), SETTINGS, dict, tell, wall_clock)
        adding = asyncio.create_task(jobs.add_file("ann", "in.jsonl", "batch", b"{}"))
        await asyncio.sleep(0)  # it has begun
        jobs.start(_yes)
        try:
            file = await adding
            while await jobs.files("ann", "", 10) != [file]:
                assert await other.file(file.id) == file
        finally:
            await jobs.close()


async def test_what_is_refused_for_now_is_tried_again(make_store: MakeStore) -> None:
    """A full queue and a model without a replica say nothing of an item."""
    refusals = [QueueFull("full", 0.001), ModelUnavailable("none", 0.001)]

    async def answer(lease: Lease) -> ItemReply:
        if refusals:
            raise refusals.pop()
        return await _yes(lease)

    async with running(make_store, answer) as jobs:
        assert (await jobs.end_of(await jobs.submit(3))).completed == 3
        assert jobs.runner.counts.retried == 2


async def test_a_model_that_is_away_for_a_while_fails_nothing(make_store: MakeStore) -> None:
    """Its items wait in the store; those of a model that is served, for which something lacks, do not."""
    room, tries, tried = {"words": 4}, 0, asyncio.Event()

    async def answer(lease: Lease) -> ItemReply:
        nonlocal tries
        tries += 1
        if tries == 1:  # it is unloaded while its items run
            del room["words"]
        if tries == 3:
            tried.set()
        if lease.index == 2 and lease.request.model not in room:
            raise ModelUnavailable("it is being unloaded", 9.0)
        if lease.index == 1 or lease.request.model not in room:
            raise ModelNotFound("no model")
        return await _yes(lease)

    # As many bytes as the items of that model have.
    async with running(make_store, answer, room, replace(SETTINGS, max_bytes_in_flight=3000, max_result=1000)) as jobs:
        absent, away = await jobs.submit(1), await jobs.submit(3, "words", nbytes=1000)
        await tried.wait()
        room["texts"] = 4
        assert (await jobs.end_of(await jobs.submit(3, "texts", nbytes=1000))).completed == 2
        assert (tries, jobs.runner.counts.retried, jobs.runner.counts.ended.total()) == (6, 3, 3)
        room["words"] = 4
        jobs.runner.wake()
        found = await jobs.end_of(away)
        assert (found.completed, found.failed) == (2, 1)
        room["digits"] = 4
        jobs.runner.wake()
        assert (await jobs.end_of(absent)).completed == 1


@pytest.mark.parametrize(("late_s", "code"), [(0.0, ""), (1.5, "deadline_exceeded")])
async def test_an_item_is_tried_until_its_deadline(make_store: MakeStore, late_s: float, code: str) -> None:
    """A model that is to be asked again only later may be there before that: only time that has passed is over."""
    began, passed_s = wall_clock(), 0.0

    async def answer(lease: Lease) -> ItemReply:
        nonlocal passed_s
        if not jobs.runner.counts.retried:
            passed_s = late_s
            raise ModelUnavailable("it is away", 20.0)
        return await _yes(lease)

    async with running(make_store, answer, now=lambda: began + passed_s) as jobs:
        job = await made(jobs.store, new_job(created=began, expires=began + 1.0), new_items(1))
        jobs.runner.wake()
        await jobs.end_of(job)
        (item,) = await all_items(jobs.store, job.id)
        assert item.code == code


@pytest.mark.parametrize(("left_s", "code"), [(0.3, "deadline_exceeded"), (1000.0, "")])
async def test_a_job_whose_items_are_given_up_ahead_of_its_deadline_ends_with_that(
    make_store: MakeStore, left_s: float, code: str
) -> None:
    """The scheduler knows before what cannot be in time any more: the job is as late as one whose items waited.

    An item that was late for another time, long before that, has failed and does not keep its place.
    """

    async def give_up(_: Lease) -> ItemReply:
        raise DeadlineExceeded("not even alone in time")

    async with running(make_store, give_up) as jobs:
        expires = wall_clock() + left_s
        job = await made(jobs.store, new_job(created=wall_clock(), expires=expires), new_items(2))
        jobs.runner.wake()
        ended = await jobs.end_of(job)
        assert (ended.code, ended.failed) == (code, 2)
        assert ended.ended is not None
        assert (ended.ended >= expires) == (code != "")


@pytest.mark.parametrize(("after_s", "state"), [(1.0, JobState.COMPLETED), (100.0, JobState.ERROR)])
async def test_a_model_that_only_the_request_names_is_waited_for_a_few_seconds(
    make_store: MakeStore, after_s: float, state: JobState
) -> None:
    """It may be away for a while, or may never have been there: such items must not hold their places for long."""
    late_s = 0.0

    async def answer(lease: Lease) -> ItemReply:
        nonlocal late_s
        if not late_s:
            late_s = after_s
            raise ModelNotFound("no model")
        return await _yes(lease)

    async with running(make_store, answer, now=lambda: wall_clock() + late_s) as jobs:
        assert (await jobs.end_of(await jobs.submit(1, ""))).state is state


async def test_an_item_whose_work_was_cancelled_is_run_again(make_store: MakeStore) -> None:
    """Nobody gave the item up: something that it waited for was cancelled."""
    cancelled = False

    async def answer(lease: Lease) -> ItemReply:
        nonlocal cancelled
        if not cancelled:
            cancelled = True
            raise asyncio.CancelledError
        return await _yes(lease)

    async with running(make_store, answer) as jobs:
        assert (await jobs.end_of(await jobs.submit(1))).completed == 1
        assert jobs.runner.counts.retried == 1


@pytest.mark.parametrize(("times", "state"), [(1, JobState.COMPLETED), (2, JobState.ERROR)])
async def test_an_item_at_which_replicas_died_has_one_more_try(
    make_store: MakeStore, times: int, state: JobState
) -> None:
    """They may have died of something else; if it happens again, they did not."""
    left = times

    async def answer(lease: Lease) -> ItemReply:
        nonlocal left
        if left:
            left -= 1
            error = InferenceFailed("two replicas failed")
            error.outcome = "poisoned"
            raise error
        return await _yes(lease)

    async with running(make_store, answer) as jobs:
        assert (await jobs.end_of(await jobs.submit(1))).state is state


async def test_an_item_that_cannot_be_answered_fails_alone(make_store: MakeStore) -> None:
    """Its error is kept; a bug's message stays in the log, and an answer that is too large is refused."""

    async def answer(lease: Lease) -> ItemReply:
        match lease.index:
            case 0:
                raise InvalidRequest("it is wrong")
            case 1:
                raise RuntimeError("secret")
            case 2:
                return ItemReply(200, b"x" * 101, {})
            case _:
                return await _yes(lease)

    async with running(make_store, answer) as jobs:
        job = await jobs.submit(4)
        assert (await jobs.end_of(job)).state is JobState.ERROR
        items = await all_items(jobs.store, job.id)
        assert [(item.state, item.code) for item in items] == [
            (JobState.ERROR, "invalid_request"),
            (JobState.ERROR, "internal"),
            (JobState.ERROR, "payload_too_large"),
            (JobState.COMPLETED, ""),
        ]
        assert [items[0].message, "secret" in items[1].message] == ["it is wrong", False]


async def test_work_for_a_cancelled_job_stops(make_store: MakeStore) -> None:
    """Also where another router cancelled it."""
    began, stopped = asyncio.Event(), asyncio.Event()

    async def answer(_: Lease) -> ItemReply:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        raise AssertionError

    async with running(make_store, answer) as jobs:
        job = await jobs.submit(1)
        await began.wait()
        await jobs.store.cancel(job.id, wall_clock())
        jobs.runner.wake()
        await stopped.wait()
        found = await jobs.store.job(job.id)
        assert found is not None
        assert found.state is JobState.CANCELLED


async def test_a_runner_that_stops_leaves_its_items_to_others(make_store: MakeStore) -> None:
    """They wait again at once, not only when a lease is over."""
    began = asyncio.Event()

    async def never(_: Lease) -> ItemReply:
        began.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with running(make_store, never) as first:
        job = await first.submit(2)
        await began.wait()
    async with running(make_store, _yes) as second:
        assert (await second.end_of(job)).completed == 2


async def test_a_runner_that_was_taken_for_dead_begins_anew(make_store: MakeStore) -> None:
    """What it had is run again, and ends once."""
    began, go_on = asyncio.Event(), asyncio.Event()

    async def answer(lease: Lease) -> ItemReply:
        began.set()
        await go_on.wait()
        return await _yes(lease)

    async with running(make_store, answer) as jobs, opened(make_store) as other:
        job = await jobs.submit(2)
        await began.wait()
        await other.sweep(wall_clock() + 2000, 10)  # long after its lease, and before the job's deadline
        go_on.set()
        assert (await jobs.end_of(job)).completed == 2
        assert jobs.runner.counts.sessions_lost == 1


async def test_an_item_whose_outcome_the_store_lost_is_run_again(kind_and_place: tuple[str, str]) -> None:
    """What still runs is not."""
    tries: Counter[int] = Counter()
    both, last = asyncio.Event(), asyncio.Event()
    first = asyncio.Event()

    async def answer(lease: Lease) -> ItemReply:
        tries[lease.index] += 1
        if len(tries) == 2:
            both.set()
        await (last if lease.index else first).wait()
        return await _yes(lease)

    async with running(stores_of(*kind_and_place), answer) as jobs, asyncio.timeout(60):
        job = await jobs.submit(2)
        await both.wait()
        put_back = kept_state(*kind_and_place)
        first.set()
        while not (await all_items(jobs.store, job.id, frozenset({"COMPLETED"}))):
            pass
        put_back()
        jobs.runner.wake()
        while tries[0] < 2:
            await jobs.store.job(job.id)
        last.set()
        assert (await jobs.end_of(job)).completed == 2
        assert tries == {0: 2, 1: 1}


async def test_an_item_whose_lease_the_store_lost_is_not_run_twice_here(kind_and_place: tuple[str, str]) -> None:
    """It is leased again, to the router that runs it."""
    tries, room = 0, {"digits": 0}
    began, go_on = asyncio.Event(), asyncio.Event()

    async def answer(lease: Lease) -> ItemReply:
        nonlocal tries
        tries += 1
        began.set()
        await go_on.wait()
        return await _yes(lease)

    async with running(stores_of(*kind_and_place), answer, room) as jobs, asyncio.timeout(60):
        job = await jobs.submit(1)
        while not jobs.runner.counts.exchanges:
            await jobs.store.job(job.id)
        put_back = kept_state(*kind_and_place)
        room["digits"] = 4
        jobs.runner.wake()
        await began.wait()
        put_back()
        assert (await jobs.store.census()).in_flight == 0
        jobs.runner.wake()
        while not (await jobs.store.census()).in_flight:
            pass
        go_on.set()
        assert (await jobs.end_of(job)).completed == 1
        assert (tries, jobs.runner.counts.discarded) == (1, 0)


class LeasesAgain(SqliteStore):
    """Lets an item end while the exchange that leases it again is under way."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.leased = 0
        self.go_on, self.answered = asyncio.Event(), asyncio.Event()

    async def exchange(self, *args: Any, **kwargs: Any) -> Exchanged:
        """As the store's."""
        found = await super().exchange(*args, **kwargs)
        self.leased += len(found.leases)
        if self.leased == 2:
            self.go_on.set()
            await self.answered.wait()
        return found


async def test_an_item_that_ends_while_it_is_leased_again_is_not_run_twice_here(tmp_path: Path) -> None:
    """Its outcome is told by the next exchange."""
    store = LeasesAgain(tmp_path / "jobs.sqlite")
    tries, room = 0, {"digits": 0}
    began = asyncio.Event()

    async def answer(lease: Lease) -> ItemReply:
        nonlocal tries
        tries += 1
        began.set()
        await store.go_on.wait()
        store.answered.set()
        return await _yes(lease)

    async with running(lambda: store, answer, room) as jobs, asyncio.timeout(60):
        job = await jobs.submit(1)
        while not jobs.runner.counts.exchanges:
            await jobs.store.job(job.id)
        put_back = kept_state("sqlite", str(tmp_path))
        room["digits"] = 4
        jobs.runner.wake()
        await began.wait()
        put_back()
        jobs.runner.wake()
        assert (await jobs.end_of(job)).completed == 1
        assert (tries, jobs.runner.counts.discarded) == (1, 0)


async def test_an_item_whose_routers_die_is_given_up(make_store: MakeStore) -> None:
    """Five of them: it may be the reason."""
    async with opened(make_store) as store:
        job = await made(store, new_job(created=0.0, expires=1e12), new_items(1))
        for now in range(0, 5000, 1000):
            session = await store.begin_session(now, 10.0)
            assert len((await store.exchange(session, [], {"digits": 1}, 0, 10, now, 10.0)).leases) == 1
            await store.sweep(now + 500.0, 10)
    async with running(make_store, _yes) as jobs:
        assert (await jobs.end_of(job)).failed == 1
        (item,) = await all_items(jobs.store, job.id)
        assert (item.code, "given up" in item.message) == ("model_unavailable", True)


class Asked(SqliteStore):
    """Tells when it is asked whether anything waits."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.asked: asyncio.Queue[None] = asyncio.Queue()

    async def has_waiting(self, models: Collection[str]) -> bool:
        """As the store's."""
        self.asked.put_nowait(None)
        return await super().has_waiting(models)


async def test_a_backlog_that_cannot_be_run_here_is_left_alone(tmp_path: Path) -> None:
    """The store is not written to for it, again and again."""
    store = Asked(tmp_path / "jobs.sqlite")
    async with running(lambda: store, _yes, {"words": 4}) as jobs:
        await jobs.submit(3)
        await jobs.end_of(await jobs.submit(1, "words"))
        await store.asked.get()
        before = jobs.runner.counts.exchanges
        await store.asked.get()
        assert jobs.runner.counts.exchanges == before


@pytest.mark.parametrize("items", [1, 3])
async def test_items_that_came_by_another_router_are_found(make_store: MakeStore, items: int) -> None:
    """Nothing tells a router of them; it looks."""
    async with running(make_store, _yes) as jobs, opened(make_store) as other:
        job, _ = await other.create(new_job(created=0.0, expires=1e12), new_items(items), BOUNDS)
        assert (await jobs.end_of(job)).completed == items
