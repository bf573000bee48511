"""A Redis server behind TLS: it is used if its certificate is right, and never otherwise."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from api.authority import Authority
from prometheus_client import CollectorRegistry

from benchmarks.redis_server import RedisServer
from serve_app.domain.settings import RedisSettings
from serve_app.router.cache.metrics import RedisMetrics
from serve_app.router.cache.redis import RedisCache

KEY = b"\x01" * 32
VALUE = {"y": np.arange(300_000, dtype="f4")}  # many TLS records


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Who gives the server its certificate."""
    return Authority(tmp_path / "authority")


@asynccontextmanager
async def behind_tls(server: RedisServer, certificate: ssl.SSLContext) -> AsyncIterator[str]:
    """End TLS in front of a server that speaks none, as a proxy beside it does. Yields where."""
    pumps: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind = await asyncio.open_connection("127.0.0.1", server.port)
        for pair in ((reader, behind[1]), (behind[0], writer)):
            pump = asyncio.ensure_future(_pump(*pair))
            pumps.add(pump)
            pump.add_done_callback(pumps.discard)

    listener = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=certificate)
    try:
        yield f"rediss://127.0.0.1:{listener.sockets[0].getsockname()[1]}/0"
    finally:
        listener.close()
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(2**16):
            writer.write(data)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def cache_in(url: str, **settings: Any) -> AsyncIterator[RedisCache]:
    """A cache in the server at this URL, as patient as a busy machine asks for."""
    given: dict[str, Any] = {"read_s": 20.0, "write_s": 20.0, "retry_s": 0.01, "max_retry_s": 0.02, **settings}
    cache = RedisCache(RedisSettings(url, **given), RedisMetrics(CollectorRegistry()))
    cache.start()
    try:
        yield cache
    finally:
        await cache.close()


async def until(cache: RedisCache, told: str) -> None:
    """Wait until its state says this."""
    async with asyncio.timeout(20):
        while told not in str(cache.status()):  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.002)


def context(authority: Authority, *names: str) -> ssl.SSLContext:
    """What a server with a certificate for these names shows."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.ca.issue_cert(*names).configure_cert(made)
    return made


async def test_answers_go_by_tls_and_come_back(tmp_path: Path, authority: Authority) -> None:
    """With the authority named in the settings, and a password."""
    trusted = {"ca_file": str(authority.ca_file), "password": "secret"}
    with RedisServer(tmp_path, "--requirepass", "secret") as server:
        async with behind_tls(server, context(authority, "127.0.0.1")) as url, cache_in(url, **trusted) as cache:
            await until(cache, "'up': True")
            cache.put(KEY, VALUE, VALUE["y"].nbytes, 60.0)
            await until(cache, "'unwritten_bytes': 0")
            found = await cache.get(KEY, 20.0)
            assert found is not None
            np.testing.assert_array_equal(found.value["y"], VALUE["y"])


@pytest.mark.parametrize(
    ("name", "known"), [("127.0.0.1", False), ("cache.example", True)], ids=["unknown-authority", "other-name"]
)
async def test_a_server_that_cannot_prove_who_it_is_gets_nothing(
    tmp_path: Path, authority: Authority, name: str, known: bool
) -> None:
    """Neither the password nor a question; the status says why."""
    trusted = {"ca_file": str(authority.ca_file)} if known else {}
    with RedisServer(tmp_path, "--requirepass", "secret") as server:
        async with (
            behind_tls(server, context(authority, name)) as url,
            cache_in(url, password="secret", **trusted) as cache,
        ):
            await until(cache, "certificate verify failed")
            assert not cache.up
            assert await cache.get(KEY, 20.0) is None
