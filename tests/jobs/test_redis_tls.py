"""A store of jobs in a Redis server behind TLS: it is used if its certificate is right, and never otherwise."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from api.authority import Authority

from benchmarks.redis_server import RedisServer
from serve_app.access.guard import wall_clock
from serve_app.domain.settings import RedisSettings
from serve_app.errors import StoreUnavailable
from serve_app.jobs.redis import RedisStore


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


def store_at(url: str, **settings: Any) -> RedisStore:
    """A store in the server at this URL."""
    return RedisStore(RedisSettings(url, password="secret", write_s=20.0, **settings), wall_clock)


def context(authority: Authority, *names: str) -> ssl.SSLContext:
    """What a server with a certificate for these names shows."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.ca.issue_cert(*names).configure_cert(made)
    return made


async def test_a_store_is_used_over_tls(tmp_path: Path, authority: Authority) -> None:
    """With the authority named in the settings, and a password."""
    with RedisServer(tmp_path, "--requirepass", "secret") as server:
        async with behind_tls(server, context(authority, "127.0.0.1")) as url:
            store = store_at(url, ca_file=str(authority.ca_file))
            await store.open()
            assert await store.job("none") is None
            await store.close()


@pytest.mark.parametrize(
    ("name", "known"), [("127.0.0.1", False), ("jobs.example", True)], ids=["unknown-authority", "other-name"]
)
async def test_a_server_that_cannot_prove_who_it_is_gets_nothing(
    tmp_path: Path, authority: Authority, name: str, known: bool
) -> None:
    """Neither the password nor a question."""
    trusted = {"ca_file": str(authority.ca_file)} if known else {}
    with RedisServer(tmp_path, "--requirepass", "secret") as server:
        async with behind_tls(server, context(authority, name)) as url:
            store = store_at(url, **trusted)
            with pytest.raises(StoreUnavailable):
                await store.job("none")
            await store.close()
