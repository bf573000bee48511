"""Every kind of store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from jobs.stores import MakeStore, opened, stores_of

from benchmarks.redis_server import RedisServer
from serve_app.jobs.store import Store


@pytest.fixture(params=["sqlite", "redis"])
def kind_and_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """A kind of store, and where it keeps jobs."""
    if request.param == "sqlite":
        yield "sqlite", str(tmp_path)
        return
    with RedisServer(tmp_path, "--appendonly", "yes", "--appendfsync", "always") as server:
        yield "redis", server.url


@pytest.fixture
def make_store(kind_and_place: tuple[str, str]) -> MakeStore:
    """Makes stores over the same jobs."""
    return stores_of(*kind_and_place)


@pytest.fixture
async def store(make_store: MakeStore) -> AsyncIterator[Store]:
    """An open store."""
    async with opened(make_store) as store:
        yield store
