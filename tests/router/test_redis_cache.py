"""Answers in a real Redis server: shared by routers, and never waited for when it is slow, full, wrong or gone."""

from __future__ import annotations

import asyncio
import functools
import logging
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from api.authority import Authority
from prometheus_client import CollectorRegistry
from redis import Redis
from runtime_harness import MODEL, Transport, make_dispatcher, serve, tensor

from benchmarks.redis_server import RedisServer
from serve_app.domain.service import Answer, ModelInfo, RequestOptions
from serve_app.domain.settings import CacheSettings, RedisSettings
from serve_app.payloads import ModelSignature
from serve_app.router.cache.metrics import RedisMetrics
from serve_app.router.cache.redis import RedisCache
from serve_app.router.cache.response_cache import ModelCacheSettings, ResponseCache
from serve_app.scheduling.entry import Priority

KEY = b"\x01" * 32
VALUE = {"y": np.arange(4, dtype="f4").reshape(2, 2)}
PATIENT: dict[str, Any] = {"read_s": 20.0, "write_s": 20.0, "retry_s": 0.01, "max_retry_s": 0.02}
"""So that a busy machine is no slow server."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server that asks for no password."""
    with RedisServer(tmp_path) as running:
        yield running


@asynccontextmanager
async def connected(server: RedisServer, *, up: bool = True, **changes: Any) -> AsyncIterator[RedisCache]:
    """A cache in this server."""
    cache = RedisCache(RedisSettings(server.url, **(PATIENT | changes)), RedisMetrics(CollectorRegistry()))
    cache.start()
    try:
        if up:
            await until(lambda: cache.up)
        yield cache
    finally:
        await cache.close()


async def until(holds: Callable[[], Any]) -> None:
    """Wait for what another process brings about, of which nothing tells."""
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.002)


async def stored(cache: RedisCache, server: RedisServer, key: bytes = KEY, ttl_s: float = 60.0) -> str:
    """Store `VALUE`, wait until it is there, and return its name."""
    cache.put(key, VALUE, 100, ttl_s)
    name = f"serve-app:{key.hex()}"
    with Redis.from_url(server.url) as redis:
        await until(lambda: redis.exists(name))
    return name


def errors(cache: RedisCache) -> dict[str, int]:
    """Failed calls by operation."""
    return {
        sample.labels["operation"]: int(sample.value)
        for family in cache._metrics._errors.collect()
        for sample in family.samples
        if sample.value
    }


async def test_what_one_stores_another_finds(server: RedisServer) -> None:
    """With what is left of its time; what nobody stored is not found."""
    async with connected(server) as one, connected(server) as other:
        await stored(one, server)
        found = await other.get(KEY, 20.0)
        assert found is not None
        assert found.value["y"].tolist() == [[0, 1], [2, 3]]
        assert 0 < found.ttl_s <= 60.0
        assert await other.get(b"\x02" * 32, 20.0) is None
        assert other.status() == {"url": server.url, "up": True, "unwritten_bytes": 0}


async def test_what_is_asked_together_is_answered_together(server: RedisServer) -> None:
    """Each with its own."""
    async with connected(server) as cache:
        keys = [bytes([n]) * 32 for n in range(100)]
        for key in keys[::2]:
            await stored(cache, server, key)
        found = await asyncio.gather(*(cache.get(key, 20.0) for key in keys))
        assert [each is not None for each in found] == [True, False] * 50


@pytest.mark.parametrize("damage", [b"", b"\x80\x04}.", b"\x01" + bytes(60)], ids=["empty", "pickle", "digest"])
async def test_a_damaged_value_is_a_miss(server: RedisServer, damage: bytes) -> None:
    """And is counted."""
    async with connected(server) as cache:
        name = await stored(cache, server)
        with Redis.from_url(server.url) as redis:
            redis.set(name, damage, px=60_000)
        assert await cache.get(KEY, 20.0) is None
        assert errors(cache) == {"value": 1}
        assert cache.up


async def test_a_value_of_another_kind_or_without_an_end_is_a_miss(server: RedisServer) -> None:
    """Other programs may use the same names."""
    async with connected(server) as cache:
        name = await stored(cache, server)
        with Redis.from_url(server.url) as redis:
            redis.persist(name)
            assert await cache.get(KEY, 20.0) is None
            redis.delete(name)
            redis.lpush(name, "x")
            assert await cache.get(KEY, 20.0) is None
        assert cache.up


async def test_a_server_that_dies_is_missed_and_found_again(server: RedisServer) -> None:
    """Nobody has to start anything anew."""
    async with connected(server) as cache:
        await stored(cache, server)
        server.kill()
        assert await cache.get(KEY, 20.0) is None
        assert not cache.up
        assert await cache.get(KEY, 20.0) is None
        cache.put(KEY, VALUE, 100, 60.0)
        server.start()
        await until(lambda: cache.up)
        assert await cache.get(KEY, 20.0) is None
        await stored(cache, server)
        assert await cache.get(KEY, 20.0) is not None


async def test_a_server_that_hangs_is_given_up_and_found_again(server: RedisServer) -> None:
    """The first request waits as long as it may, the next ones not at all; late answers answer nobody."""
    async with connected(server, read_s=0.2, write_s=0.2) as cache:
        await stored(cache, server)
        server.stop()
        answers = await asyncio.gather(*(cache.get(bytes([n]) * 32, 20.0) for n in range(5)))
        assert answers == [None] * 5
        await until(lambda: not cache.up)
        assert await cache.get(KEY, 20.0) is None
        assert cache.status()["fault"] == "TimeoutError: no answer in time"
        server.go_on()
        await until(lambda: cache.up)
        assert await cache.get(b"\x02" * 32, 20.0) is None
        assert await cache.get(KEY, 20.0) is not None


async def test_a_request_that_has_no_time_does_not_wait(server: RedisServer) -> None:
    """Its own deadline bounds its patience, and the server is not blamed for it."""
    async with connected(server) as cache:
        server.stop()
        assert await cache.get(KEY, 0.001) is None
        assert errors(cache) == {"late": 1}
        assert cache.up
        server.go_on()


async def test_a_wrong_password_is_told_without_telling_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Once, in the log and in the status; nothing is asked. The right one works."""
    with RedisServer(tmp_path, "--requirepass", "right-secret") as server:
        with caplog.at_level(logging.INFO, "serve_app"):
            async with connected(server, up=False, password="wrong-secret") as cache:
                await until(lambda: "username-password" in str(cache.status()))
                assert not cache.up
                assert await cache.get(KEY, 20.0) is None
                with Redis.from_url(server.url, password="right-secret") as redis:
                    await until(lambda: redis.info("stats")["total_connections_received"] > 5)
                shown = f"{cache.status()} {cache._settings!r}"
            async with connected(server, password="right-secret") as cache:
                cache.put(KEY, VALUE, 100, 60.0)
                await until(lambda: cache._unwritten_bytes == 0)
                assert await cache.get(KEY, 20.0) is not None
        warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
        assert len(warnings) == 1
        assert "secret" not in shown + caplog.text


@pytest.mark.parametrize("password", ["right-secret", "wrong-secret"])
async def test_it_closes_while_it_connects(tmp_path: Path, password: str) -> None:
    """At any step."""
    with RedisServer(tmp_path, "--requirepass", "right-secret") as server:
        for steps in range(200):
            async with asyncio.timeout(20), connected(server, up=False, password=password):
                for _ in range(steps):
                    await asyncio.sleep(0)


async def test_it_closes_while_it_reads_and_writes(server: RedisServer) -> None:
    """At any step."""
    for steps in range(100):
        async with asyncio.timeout(20), connected(server) as cache:
            cache.put(KEY, VALUE, 100, 60.0)
            asking = asyncio.create_task(cache.get(KEY, 20.0))
            for _ in range(steps):
                await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def test_a_server_behind_tls_is_used_and_left_without_a_goodbye(server: RedisServer, tmp_path: Path) -> None:
    """Where it hangs nobody waits for the end of the connection that TLS wants, beyond the limit of a write."""
    authority = Authority(tmp_path / "tls")
    with tls_proxy(server, authority) as (proxy, port):
        url, ca_file = f"rediss://localhost:{port}/0", str(authority.ca_file)
        cache = RedisCache(
            RedisSettings(url, ca_file=ca_file, **PATIENT | {"write_s": 1.0}), RedisMetrics(CollectorRegistry())
        )
        cache.start()
        await until(lambda: cache.up)
        await stored(cache, server)
        assert await cache.get(KEY, 20.0) is not None
        proxy.send_signal(signal.SIGSTOP)
        async with asyncio.timeout(20):
            await cache.close()


@contextmanager
def tls_proxy(server: RedisServer, authority: Authority) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that takes TLS and speaks to the server without, and its port."""
    files = authority.server()
    command = [sys.executable, "-c", _DOOR, str(files.certificate), str(files.key), str(server.port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as proxy:
        assert proxy.stdout is not None
        try:
            yield proxy, int(proxy.stdout.readline())
        finally:
            proxy.kill()


_DOOR = """
import asyncio, ssl, sys

async def carry(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()

async def accept(reader, writer):
    inside = await asyncio.open_connection("127.0.0.1", int(sys.argv[3]))
    await asyncio.gather(carry(reader, inside[1]), carry(inside[0], writer))

async def main():
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*sys.argv[1:3])
    proxy = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=context)
    print(proxy.sockets[0].getsockname()[1], flush=True)
    await proxy.serve_forever()

asyncio.run(main())
"""


async def test_a_full_server_is_read_all_the_same(tmp_path: Path) -> None:
    """What it refuses is counted."""
    with RedisServer(tmp_path) as server:
        async with connected(server) as cache:
            await stored(cache, server)
            with Redis.from_url(server.url) as redis:
                redis.config_set("maxmemory", "1mb")
            large = {"y": np.zeros((1024, 1024), "f4")}
            cache.put(b"\x02" * 32, large, 4 * 2**20, 60.0)
            await until(lambda: errors(cache))
            assert errors(cache) == {"write": 1}
            assert await cache.get(KEY, 20.0) is not None
            assert "maxmemory" in cache.status()["fault"]


async def test_writes_wait_within_bounds(server: RedisServer) -> None:
    """What finds no room is dropped, at once."""
    async with connected(server, write_bytes=250) as cache:
        for n in range(5):
            cache.put(bytes([n]) * 32, VALUE, 100, 60.0)
        assert errors(cache) == {"dropped": 3}
        await until(lambda: cache._unwritten_bytes == 0)


class Router:
    """A router with a cache in a server, whose model answers at once."""

    def __init__(self, server: RedisServer) -> None:
        self.transport = Transport()
        dispatcher, metrics = make_dispatcher(self.transport)
        settings = CacheSettings(redis=RedisSettings(server.url, **PATIENT))
        self.cache = ResponseCache(settings, dispatcher, metrics)
        info = ModelInfo(MODEL, "1", ("1",), "tensors", ModelSignature((), ()), 4, 8, dict.fromkeys(Priority, 30.0), ())
        kept = ModelCacheSettings(300.0, 10**6, {"": "a"})
        self.service = serve(info, dispatcher, metrics, cache=kept, caches=self.cache)

    async def ask(self, value: float) -> Answer:
        """Answer one request."""
        asking = asyncio.ensure_future(self.service.inference.submit(MODEL, tensor(value), RequestOptions()))
        arriving = asyncio.ensure_future(self.transport.next())
        await asyncio.wait((asking, arriving), return_when=asyncio.FIRST_COMPLETED)
        if arriving.done():
            arriving.result().succeed()
        else:
            arriving.cancel()
        return await asking


def _up(router: Router) -> Any:
    return router.cache.status()["redis"]["up"]


async def test_routers_answer_from_each_others_work(server: RedisServer) -> None:
    """And go on without the server."""
    one, other = Router(server), Router(server)
    for router in (one, other):
        router.cache.start()
        await until(functools.partial(_up, router))
    assert (await one.ask(1)).cache == "miss"
    with Redis.from_url(server.url) as redis:
        await until(lambda: redis.dbsize() == 1)
    hit = await other.ask(1)
    assert (hit.cache, hit.value["x"].tolist()) == ("hit", [[1.0]])
    server.kill()
    assert (await other.ask(1)).cache == "hit"  # it has it now itself
    assert (await other.ask(2)).cache == "miss"
    assert (await one.ask(2)).cache == "miss"
    assert not other.service.administration.status()["cache"]["redis"]["up"]
    for router in (one, other):
        await router.cache.close()
