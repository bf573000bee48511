"""Answers in a Redis server that several routers share. It may be slow, full, wrong or gone: no request notices.

- Only one connection reads, and one writes. What is asked for while an answer is on its way is asked for together.
- A request waits for the server as long as `RedisSettings.read_s`, and not at all while the server is *down*: since a
  call failed or took too long, until a call in the background has been answered. Nobody else connects.
- Writes are queued within bounds, and dropped beyond.
- What is found is checked (`serve_app.router.cache.value`). What does not check is a miss.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, Final, NamedTuple, TypeVar

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError

from serve_app.domain.settings import RedisSettings
from serve_app.router.cache.metrics import RedisMetrics
from serve_app.router.cache.value import dump, load

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_TOGETHER: Final = 64
"""Most keys that are asked for, and most values that are written, in one go."""
_ASIDE_ABOVE: Final = 256 * 1024
"""Values of more bytes are read and written in a thread, so that they do not hold up requests."""
_SHOWN: Final = 200


class Found(NamedTuple):
    """What the server had.

    Attributes:
        value: The answer.
        ttl_s: How long it may still be used, seconds.
    """

    value: Any
    ttl_s: float


class _Question(NamedTuple):
    key: bytes
    answer: asyncio.Future[Found | None]


class _Write(NamedTuple):
    key: bytes
    value: Any
    nbytes: int
    ttl_s: float


class RedisCache:
    """A cache behind that of the process.

    Args:
        settings: Of the server.
        metrics: Counts what happens.
    """

    def __init__(self, settings: RedisSettings, metrics: RedisMetrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._reads, self._writes = _client(settings), _client(settings)
        self._questions: asyncio.Queue[_Question] = asyncio.Queue()
        self._unwritten: asyncio.Queue[_Write] = asyncio.Queue()
        self._unwritten_bytes = 0
        self._up = False
        self._lost = asyncio.Event()
        self._fault = "not connected yet"
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Connect, in the background."""
        self._tasks = [asyncio.ensure_future(work()) for work in (self._watch, self._read, self._write)]

    async def close(self) -> None:
        """Disconnect. What has not been written is lost."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()  # their errors know this object
        self._forget_questions()
        # A server that does not say goodbye, as over TLS it should, is left without.
        await asyncio.gather(*(client.aclose() for client in (self._reads, self._writes)), return_exceptions=True)

    @property
    def up(self) -> bool:
        """Whether the server is asked."""
        return self._up

    def status(self) -> dict[str, Any]:
        """Where the server is and how it does, JSON-able and without secrets."""
        shown: dict[str, Any] = {"url": self._settings.place, "up": self._up, "unwritten_bytes": self._unwritten_bytes}
        if self._fault:
            shown["fault"] = self._fault
        return shown

    async def get(self, key: bytes, patience_s: float) -> Found | None:
        """Look a value up. Returns ``None`` where there is none, or it did not come in time.

        Args:
            key: Of the value.
            patience_s: How long to wait at most, whatever the settings say.
        """
        if not self._up:
            return None
        question = _Question(key, asyncio.get_running_loop().create_future())
        self._questions.put_nowait(question)
        try:
            async with asyncio.timeout(min(patience_s, self._settings.read_s)):
                return await question.answer
        except TimeoutError:
            self._metrics.late.value += 1
            return None

    def put(self, key: bytes, value: Any, nbytes: int, ttl_s: float) -> None:
        """Store a value soon, if the server is up and there is room in the queue of writes.

        Args:
            key: Of the value.
            value: Must not change any more.
            nbytes: Bytes that it takes, about.
            ttl_s: How long it may be used, seconds.
        """
        if not self._up:
            return
        if self._unwritten_bytes + nbytes > self._settings.write_bytes:
            self._metrics.dropped.value += 1
            return
        self._unwritten_bytes += nbytes
        self._unwritten.put_nowait(_Write(key, value, nbytes, ttl_s))

    async def _watch(self) -> None:
        """Find out when a server that is down is up again."""
        wait_s = self._settings.retry_s
        while True:
            try:
                async with asyncio.timeout(self._settings.write_s):
                    await self._reads.ping()
                    await self._writes.ping()
            except Exception as error:  # whatever a server answers and a client makes of it, requests go on
                self._is_down(error)
            else:
                self._is_up()
                await self._lost.wait()
                wait_s = self._settings.retry_s
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, self._settings.max_retry_s)

    async def _read(self) -> None:
        while True:
            questions = [q for q in await _drain(self._questions, _TOGETHER) if not q.answer.done()]
            if not questions:
                continue
            try:
                found = await self._timed(self._fetch([q.key for q in questions]), "read", self._settings.read_s)
            except Exception as error:  # as in `_watch`
                self._failed("read", error)
                found = [None] * len(questions)
            for question, value in zip(questions, found, strict=True):
                if not question.answer.done():
                    question.answer.set_result(value)
            if not self._up:
                self._forget_questions()
                await _disconnect(self._reads)

    async def _fetch(self, keys: Sequence[bytes]) -> list[Found | None]:
        pipeline = self._reads.pipeline(transaction=False)
        for key in keys:
            pipeline.get(self._name(key))
            pipeline.pttl(self._name(key))
        replies = await pipeline.execute(raise_on_error=False)
        return [await self._check(key, *replies[2 * n : 2 * n + 2]) for n, key in enumerate(keys)]

    async def _check(self, key: bytes, data: Any, left_ms: Any) -> Found | None:
        if isinstance(data, ResponseError):  # something else has this name, or it may not be read
            self._metrics.failed("value")
            self._note(data)
        if not isinstance(data, bytes) or not isinstance(left_ms, int) or left_ms <= 0:
            return None
        try:
            value = await asyncio.to_thread(load, key, data) if len(data) > _ASIDE_ABOVE else load(key, data)
        except ValueError as error:
            self._metrics.failed("value")
            logger.warning("A value in %s was ignored: %s", self._settings.place, error)
            return None
        return Found(value, left_ms / 1000)

    async def _write(self) -> None:
        while True:
            writes = await _drain(self._unwritten, _TOGETHER)
            try:
                if self._up:
                    await self._timed(self._store(writes), "write", self._settings.write_s)
            except Exception as error:  # as in `_watch`
                self._failed("write", error)
                await _disconnect(self._writes)
            finally:
                self._unwritten_bytes -= sum(write.nbytes for write in writes)

    async def _store(self, writes: Sequence[_Write]) -> None:
        pipeline = self._writes.pipeline(transaction=False)
        for write in writes:
            large = write.nbytes > _ASIDE_ABOVE
            data = await asyncio.to_thread(dump, write.key, write.value) if large else dump(write.key, write.value)
            if data is not None:
                pipeline.set(self._name(write.key), data, px=max(1, round(write.ttl_s * 1000)))
        for reply in await pipeline.execute(raise_on_error=False):
            if isinstance(reply, ResponseError):  # the server is full, or may not be written to: reading goes on
                self._metrics.failed("write")
                self._note(reply)
            elif isinstance(reply, Exception):
                try:
                    raise reply
                finally:
                    del reply  # its traceback has this frame

    async def _timed(self, call: Awaitable[_T], operation: str, limit_s: float) -> _T:
        began = monotonic()
        async with asyncio.timeout(limit_s):
            result = await call
        self._metrics.seconds.of(operation).observe(monotonic() - began)
        return result

    def _failed(self, operation: str, error: Exception) -> None:
        self._metrics.failed(operation)
        self._is_down(error)

    def _is_up(self) -> None:
        self._up, self._fault = True, ""
        self._lost.clear()
        self._metrics.up.value = 1
        logger.info("The cache in %s is in use", self._settings.place)

    def _is_down(self, error: Exception) -> None:
        self._note(error)
        self._up = False
        self._lost.set()
        self._metrics.up.value = 0

    def _note(self, error: Exception) -> None:
        """Log a fault once, until there is another."""
        said = str(error) or ("no answer in time" if isinstance(error, TimeoutError) else "")
        fault = f"{type(error).__name__}: {said}"[:_SHOWN] if said else type(error).__name__
        if fault != self._fault:
            self._fault = fault
            logger.warning("The cache in %s: %s", self._settings.place, fault)

    def _forget_questions(self) -> None:
        while not self._questions.empty():
            question = self._questions.get_nowait()
            if not question.answer.done():
                question.answer.set_result(None)

    def _name(self, key: bytes) -> str:
        return self._settings.prefix + key.hex()


async def _drain(queue: asyncio.Queue[_T], most: int) -> list[_T]:
    """Wait for something in a queue, and take what there is."""
    taken = [await queue.get()]
    while len(taken) < most and not queue.empty():
        taken.append(queue.get_nowait())
    return taken


async def _disconnect(client: Redis) -> None:
    """End the connection: what comes on it late is no answer to what is asked next."""
    with suppress(Exception):  # it is gone, however it went
        await client.connection_pool.disconnect()


def _client(settings: RedisSettings) -> Redis:
    """A client that bounds only how long connecting takes.

    Whoever calls it bounds the rest: redis bounds sending by `asyncio.wait_for`, which forgets before Python 3.12 that
    its task was cancelled if what it waits for is done (cpython issue 86296).
    """
    options: dict[str, Any] = {} if settings.ca_file is None else {"ssl_ca_certs": settings.ca_file}
    return Redis.from_url(
        settings.url,
        username=settings.username,
        password=settings.password,
        protocol=2,
        retry=Retry(NoBackoff(), 0),  # when to try again is decided here
        socket_connect_timeout=settings.write_s,
        socket_timeout=None,
        **options,
    )
