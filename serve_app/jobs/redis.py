"""Jobs in a Redis server, or a compatible one, shared by routers of several machines.

The server must write to disk (``appendonly yes``): a job is accepted when the server acknowledges it. Atomic steps are
scripts; see `serve_app.jobs.redis_scripts` for them and for the keys.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from bisect import bisect_right
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from itertools import accumulate
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, cast

import msgspec
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from serve_app.domain.settings import RedisSettings
from serve_app.errors import StoreUnavailable
from serve_app.jobs import redis_scripts as scripts
from serve_app.jobs.records import (
    Callback,
    Census,
    Exchanged,
    Item,
    Job,
    JobBounds,
    NewItem,
    NewJob,
    Outcome,
    StoredFile,
)
from serve_app.jobs.redis_values import as_item, as_job, as_lease, job_fields, pack_item, pack_outcome
from serve_app.jobs.states import ENDED, JobState, unended
from serve_app.jobs.store import MOST_OVERDUE, SessionOver, check_room, other_request, too_many_files, too_many_jobs

logger = logging.getLogger(__name__)

_P = ParamSpec("_P")
_T = TypeVar("_T")

_TOGETHER: Final = 500
"""Items that are written, or looked at, in one go."""
_UNFINISHED_S: Final = 3600
"""What of a job was written before its end is forgotten then, where its router stopped in between."""
_LIMIT_S: Final = 20.0
"""How long one call may take."""
_SYNC_MS: Final = 5000
_CONNECTIONS: Final = 100
"""A job that is being taken holds one until it is on the server's disk, which may take a second."""


def _guarded(
    method: Callable[Concatenate[RedisStore, _P], Coroutine[Any, Any, _T]],
) -> Callable[Concatenate[RedisStore, _P], Coroutine[Any, Any, _T]]:
    """Convert errors of the server to the store's own."""

    async def call(self: RedisStore, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            async with asyncio.timeout(_LIMIT_S):
                return await method(self, *args, **kwargs)
        except TimeoutError:
            what = "no answer in time"
        except (RedisError, OSError) as error:
            what = type(error).__name__ + (": out of memory" if "OOM" in str(error) else "")
        raise StoreUnavailable(f"the store of jobs cannot be used now ({what}); try again", 5.0)

    return call


class RedisStore:
    """Implements `serve_app.jobs.store.Store`.

    Args:
        clock: The callers' clock, POSIX.
    """

    def __init__(self, settings: RedisSettings, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._prefix = f"{settings.prefix}jobs:"
        options: dict[str, Any] = {} if settings.ca_file is None else {"ssl_ca_certs": settings.ca_file}
        # Its types are those of clients that decode texts, too.
        self._redis: Any = Redis.from_pool(
            BlockingConnectionPool.from_url(
                settings.url,
                username=settings.username,
                password=settings.password,
                protocol=2,
                retry=Retry(NoBackoff(), 0),
                socket_connect_timeout=settings.write_s,
                socket_timeout=None,
                max_connections=_CONNECTIONS,
                timeout=None,  # who waits for one is bounded by `_LIMIT_S`, as a whole
                **options,
            )
        )
        self._scripts = {
            name: self._redis.register_script(getattr(scripts, name))
            for name in (
                "KNOWN",
                "CREATE",
                "CANCEL",
                "BEGIN_SESSION",
                "END_SESSION",
                "EXCHANGE",
                "SWEEP",
                "DUE",
                "TOLD",
            )
        }
        self._turns: dict[str, int] = {}
        self._syncs = False

    @_guarded
    async def open(self) -> None:
        """Implement `Store.open`."""
        try:
            found = {**await self._redis.config_get("appendonly"), **await self._redis.config_get("appendfsync")}
        except ResponseError:  # it does not say
            return
        said = {_text(name): _text(value) for name, value in found.items()}
        if said.get("appendonly") != "yes":
            logger.warning("Jobs are kept in a Redis server without appendonly: they are lost when it stops")
        elif said.get("appendfsync") == "no":
            logger.warning("Jobs are kept in a Redis server with appendfsync no: a power failure may lose some")
        else:
            self._syncs = await self._sync(self._redis) is not None

    async def _written(self, client: Any) -> None:
        """Raise `StoreUnavailable` if a connection's writes are not on the server's disk in time."""
        if self._syncs and not await self._sync(client):
            raise StoreUnavailable("the store of jobs does not write to its disk in time; try again", 5.0)

    async def _sync(self, client: Any) -> int | None:
        """Wait until writes are on the server's disk; ``None`` if it does not support that."""
        try:
            synced = await client.execute_command("WAITAOF", 1, 0, _SYNC_MS)
        except ResponseError:
            return None
        return int(synced[0])

    async def close(self) -> None:
        """Implement `Store.close`."""
        await asyncio.gather(self._redis.aclose(), return_exceptions=True)

    def _key(self, *parts: str) -> str:
        return self._prefix + ":".join(parts)

    def _ahead(self, now: float) -> float:
        """How far a time is ahead of the clock: about 0 if it was taken from there."""
        return now - self._clock()

    async def _run(self, script: str, *args: Any, client: Any = None) -> Any:
        return await self._scripts[script](args=[self._prefix, *args], client=client)

    async def _run_written(self, script: str, *args: Any) -> Any:
        """`_run` until its writes are on the server's disk: WAITAOF waits for those of its own connection."""
        async with self._redis.client() as client:
            result = await self._run(script, *args, client=client)
            await self._written(client)
        return result

    # ----------------------------------------------------------------- jobs

    @_guarded
    async def create(self, job: NewJob, items: Sequence[NewItem], bounds: JobBounds) -> tuple[Job, bool]:
        """Implement `Store.create`."""
        result, known = b"new", b""
        if job.idempotency_key:
            result, known = await self._run_written("KNOWN", job.owner, job.idempotency_key, job.digest)
        if result == b"new":
            check_room(await self._nbytes(), sum(item.nbytes for item in items), bounds)
            result, known = await self._create(job, items, bounds)
        if result == b"other":
            raise other_request()
        if result == b"many":
            raise too_many_jobs(bounds)
        found = await self._job(known.decode())
        assert found is not None
        return found, result == b"new"

    async def _create(self, job: NewJob, items: Sequence[NewItem], bounds: JobBounds) -> tuple[bytes, bytes]:
        """The script's result, and the id of the existing job."""
        backlogs: dict[str, list[int]] = {}
        for place, item in enumerate(items):
            backlogs.setdefault(item.model, []).append(place)
        await self._write_items(job.id, items, backlogs)
        fields = job_fields(job, len(items), list(backlogs))
        flat = [part for field in fields.items() for part in field]
        names = (job.id, job.owner, job.kind, job.idempotency_key, job.digest)
        result, known = await self._run_written("CREATE", *names, bounds.jobs, *flat)
        if result != b"new":
            await self._redis.unlink(*self._item_keys(job.id, backlogs))
        return result, known

    def _item_keys(self, job: str, backlogs: Mapping[str, object]) -> list[str]:
        return [
            self._key("bodies", job),
            self._key("names", job),
            *(self._key("backlog", job, each) for each in backlogs),
        ]

    async def _write_items(self, job: str, items: Sequence[NewItem], backlogs: Mapping[str, Sequence[int]]) -> None:
        """Write items, which are invisible until the job exists."""
        for start in range(0, len(items), _TOGETHER):
            pipeline = self._redis.pipeline(transaction=True)
            part = items[start : start + _TOGETHER]
            packed = {str(start + n): pack_item(item) for n, item in enumerate(part)}
            pipeline.hset(self._key("bodies", job), mapping=packed)
            if names := {str(start + n): item.custom_id for n, item in enumerate(part) if item.custom_id}:
                pipeline.hset(self._key("names", job), mapping=names)
            pipeline.expire(self._key("bodies", job), _UNFINISHED_S)
            pipeline.expire(self._key("names", job), _UNFINISHED_S)
            await pipeline.execute()
        for model, places in backlogs.items():
            for start in range(0, len(places), _TOGETHER):
                pipeline = self._redis.pipeline(transaction=True)
                pipeline.rpush(self._key("backlog", job, model), *map(str, places[start : start + _TOGETHER]))
                pipeline.expire(self._key("backlog", job, model), _UNFINISHED_S)
                await pipeline.execute()

    async def _nbytes(self) -> int:
        return int((await self._redis.info("memory"))["used_memory"])

    async def _job(self, job: str) -> Job | None:
        return as_job(await self._redis.hgetall(self._key("job", job)))

    @_guarded
    async def job(self, job: str) -> Job | None:
        """Implement `Store.job`."""
        return await self._job(job)

    @_guarded
    async def jobs(self, owner: str, kind: str, after: str, limit: int) -> list[Job]:
        """Implement `Store.jobs`."""
        names = await self._page(self._key("jobs", owner, kind), after, limit)
        pipeline = self._redis.pipeline(transaction=False)
        for name in names:
            pipeline.hgetall(self._key("job", name))
        return [job for found in await pipeline.execute() if (job := as_job(found)) is not None]

    async def _page(self, key: str, after: str, limit: int, *, oldest_first: bool = False) -> list[str]:
        last = await self._redis.zscore(key, after) if after else None
        behind = None if last is None else f"({last:.0f}"
        if oldest_first:
            names = await self._redis.zrangebyscore(key, behind or "-inf", "+inf", start=0, num=limit)
        else:
            names = await self._redis.zrevrangebyscore(key, behind or "+inf", "-inf", start=0, num=limit)
        return [name.decode() for name in names]

    @_guarded
    async def cancel(self, job: str, now: float) -> Job | None:
        """Implement `Store.cancel`."""
        return await self._job(job) if await self._run("CANCEL", job, repr(now)) else None

    @_guarded
    async def items(
        self, job: str, after: int, limit: int, nbytes: int, states: frozenset[str] = frozenset()
    ) -> list[Item]:
        """Implement `Store.items`."""
        found = await self._job(job)
        page = {} if found is None else await self._states(found, after, limit, states)
        if found is None or not page:
            return []
        names = dict(zip(page, await self._redis.hmget(self._key("names", job), [*page]), strict=True))
        answered = [n for n, state in page.items() if state in ENDED]
        pipeline = self._redis.pipeline(transaction=False)
        for n in answered:
            pipeline.hstrlen(self._key("results", job), str(n))
        sizes = dict(zip(answered, await pipeline.execute(), strict=True))
        items: list[Item] = []
        left = list(page)
        while left and nbytes >= 0:
            # No more answers are read than there is room for: together they may be many bytes.
            fitting = bisect_right([*accumulate(sizes.get(n, 0) for n in left)], nbytes)
            part, left = left[: max(1, fitting)], left[max(1, fitting) :]
            answers = await self._answers(job, [n for n in part if n in sizes])
            for n in part:
                item = as_item(n, unended(page[n], found.state), names[n], answers.get(n))
                nbytes -= len(item.body)
                if nbytes < 0 and items:
                    return items
                items.append(item)
        return items

    async def _states(self, job: Job, after: int, limit: int, states: frozenset[str]) -> dict[int, JobState]:
        """States of those items that `items` would show, by place."""
        held = await self._held(job.id) if job.state is JobState.PROCESSING else set()
        found: dict[int, JobState] = {}
        for start in range(after + 1, job.total, max(limit, _TOGETHER)):
            places = range(start, min(job.total, start + max(limit, _TOGETHER)))
            ended = await self._redis.hmget(self._key("ended", job.id), [*places])
            for n, name in zip(places, ended, strict=True):
                state = JobState(name.decode()) if name else JobState.PROCESSING if n in held else JobState.PENDING
                if not states or unended(state, job.state) in states:
                    found[n] = state
                if len(found) >= limit:
                    return found
        return found

    async def _held(self, job: str) -> set[int]:
        """Places of a job's items that sessions have."""
        held: set[int] = set()
        for session in await self._redis.zrange(self._key("sessions"), 0, -1):
            names = self._redis.hscan_iter(self._key("held", session.decode()), match=f"{job}/*", count=_TOGETHER)
            held |= {int(name.split(b"/")[1]) async for name, _ in names}
        return held

    async def _answers(self, job: str, places: Sequence[int]) -> dict[int, bytes]:
        if not places:
            return {}
        return dict(zip(places, await self._redis.hmget(self._key("results", job), [*places]), strict=True))

    # ------------------------------------------------------------- sessions

    @_guarded
    async def begin_session(self, now: float, lease_s: float) -> str:
        """Implement `Store.begin_session`."""
        session = secrets.token_hex(12)
        await self._run("BEGIN_SESSION", session, self._ahead(now), lease_s)
        self._turns[session] = 0
        return session

    async def exchange(
        self,
        session: str,
        outcomes: Sequence[Outcome],
        room: Mapping[str, int],
        others: int,
        nbytes: int,
        now: float,
        lease_s: float,
        running: Collection[str] | None = None,
    ) -> Exchanged:
        """Implement `Store.exchange`.

        If an answer is lost, the next exchange has the same number and gets the same items.
        """
        turn = self._turns.get(session, 0) + 1
        told = [part for each in outcomes for part in (each.item, each.state.value, pack_outcome(each, now))]
        exchanged = await self._exchanged(
            session,
            repr(now),
            json.dumps([self._ahead(now), lease_s]),
            turn,
            json.dumps(dict(room)),
            others,
            nbytes,
            json.dumps(None if running is None else list(running)),
            MOST_OVERDUE,
            *told,
        )
        if exchanged is None:
            self._turns.pop(session, None)
            raise SessionOver
        self._turns[session] = turn
        return exchanged

    @_guarded
    async def _exchanged(self, *args: Any) -> Exchanged | None:
        result, *found = await self._run("EXCHANGE", *args)
        if result != b"ok":
            return None
        discarded, ended, finished, leases = found
        return Exchanged(
            [as_lease(*lease) for lease in leases],
            discarded,
            frozenset(job.decode() for job in ended),
            tuple(job.decode() for job in finished),
        )

    @_guarded
    async def has_waiting(self, models: Collection[str]) -> bool:
        """Implement `Store.has_waiting`."""
        waiting = {name.decode() for name in await self._redis.smembers(self._key("models"))}
        return "" in waiting or not waiting.isdisjoint(models)

    @_guarded
    async def end_session(self, session: str) -> None:
        """Implement `Store.end_session`."""
        self._turns.pop(session, None)
        await self._run("END_SESSION", session)

    @_guarded
    async def sweep(self, now: float, limit: int) -> int:
        """Implement `Store.sweep`."""
        return int(await self._run("SWEEP", repr(now), limit, self._ahead(now)))

    @_guarded
    async def census(self) -> Census:
        """Implement `Store.census`."""
        states, backlog = await self._numbers("states"), await self._numbers("counts")
        pipeline = self._redis.pipeline(transaction=False)
        for session in await self._redis.zrange(self._key("sessions"), 0, -1):
            pipeline.hlen(self._key("held", session.decode()))
        return Census(
            jobs={state.value: states.get(state.value, 0) for state in JobState},
            backlog={model: number for model, number in backlog.items() if number},
            in_flight=sum(await pipeline.execute()),
            nbytes=await self._nbytes(),
        )

    async def _numbers(self, key: str) -> dict[str, int]:
        found = await self._redis.hgetall(self._key(key))
        return {name.decode(): int(number) for name, number in found.items()}

    # ------------------------------------------------------------ callbacks

    @_guarded
    async def due_callbacks(self, now: float, limit: int, lease_s: float) -> list[Callback]:
        """Implement `Store.due_callbacks`."""
        due = []
        for name in await self._run("DUE", repr(now), limit, repr(now + lease_s)):
            found = await self._redis.hgetall(self._key("job", name.decode()))
            if (job := as_job(found)) is not None:
                due.append(Callback(job, int(found[b"attempts"])))
        return due

    @_guarded
    async def told(self, job: str, told: str, attempts: int, due: float) -> None:
        """Implement `Store.told`."""
        await self._run("TOLD", job, told, attempts, repr(due))

    # ---------------------------------------------------------------- files

    @_guarded
    async def add_file(self, file: StoredFile, content: bytes, bounds: JobBounds) -> None:
        """Implement `Store.add_file`."""
        check_room(await self._nbytes(), len(content), bounds)
        if await self._redis.zcard(self._key("files", file.owner)) >= bounds.files:
            raise too_many_files(bounds)
        pipeline = self._redis.pipeline(transaction=True)
        pipeline.hset(self._key("file", file.id), mapping=msgspec.structs.asdict(file))
        pipeline.set(self._key("content", file.id), content)
        pipeline.zadd(self._key("oldfiles"), {file.id: file.expires})
        await pipeline.execute()
        async with self._redis.client() as client:  # its write is behind those of the pipeline's connection
            await client.zadd(self._key("files", file.owner), {file.id: await client.incr(self._key("seq"))})
            await self._written(client)

    @_guarded
    async def file(self, file: str) -> StoredFile | None:
        """Implement `Store.file`."""
        return await self._file(file)

    async def _file(self, file: str) -> StoredFile | None:
        return _as_file(await self._redis.hgetall(self._key("file", file)))

    @_guarded
    async def files(self, owner: str, after: str, limit: int, *, oldest_first: bool = False) -> list[StoredFile]:
        """Implement `Store.files`."""
        pipeline = self._redis.pipeline(transaction=False)
        for name in await self._page(self._key("files", owner), after, limit, oldest_first=oldest_first):
            pipeline.hgetall(self._key("file", name))
        return [file for found in await pipeline.execute() if (file := _as_file(found)) is not None]

    @_guarded
    async def content(self, file: str) -> bytes | None:
        """Implement `Store.content`."""
        return cast("bytes | None", await self._redis.get(self._key("content", file)))

    @_guarded
    async def delete_file(self, file: str) -> None:
        """Implement `Store.delete_file`."""
        if (found := await self._file(file)) is None:
            return
        pipeline = self._redis.pipeline(transaction=True)
        pipeline.zrem(self._key("files", found.owner), file)
        pipeline.zrem(self._key("oldfiles"), file)
        pipeline.unlink(self._key("file", file), self._key("content", file))
        await pipeline.execute()


def _as_file(found: Mapping[bytes, bytes]) -> StoredFile | None:
    text = {name.decode(): value.decode() for name, value in found.items()}
    return msgspec.convert(text, StoredFile, strict=False) if text else None


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode()
