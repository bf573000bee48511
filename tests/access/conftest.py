"""Keys, a guard that knows them, and clients of both protocols that show them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import orjson
import pytest
from api.conftest import LIMITS
from api.protocol_service import NumpyService, both
from api.rpc.conftest import Client

from serve_app.access.guard import Guard
from serve_app.api.grpc_app import GrpcApp
from serve_app.api.grpc_listener import GrpcListener
from serve_app.api.http_app import create_app
from serve_app.domain.keys import Key, Rate, digest_of
from serve_app.domain.priority import Priority
from serve_app.domain.settings import LogSettings
from serve_app.http.body import BodyReader
from serve_app.telemetry.request_log import RequestLog


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def key(name: str, **may: object) -> Key:
    """The key ``sa_<name>``."""
    return Key(name=name, digest=digest_of(f"sa_{name}".encode()), **may)  # type: ignore[arg-type]


KEYS = (
    key("all"),
    key("some", models=frozenset({"double", "sentences", "no-such-model"})),
    key("none", models=frozenset({"no-such-model"})),
    key("modest", highest=Priority.NORMAL),
    key("slow", highest=Priority.LOW),
    key("lowered", highest=Priority.NORMAL, lowers=True),
    key("rare", rate=Rate(per_second=0.5, burst=2)),
    key("admin", admin=True),
    key("heavy", weight=3.0),
    key("expiring", expires_at=1_000_060.0),
    key("disabled", disabled=True),
)


class Revoking(NumpyService):
    """Has all keys removed while it looks at a request: nobody may use its answer any more.

    Attributes:
        guard: Knows the keys.
    """

    guard: Guard

    def precheck(
        self, model: str, priority: Priority | None, nbytes: int, tenant: str = "", weight: float = 1.0
    ) -> None:
        """Allow the request, and nothing after it."""
        super().precheck(model, priority, nbytes, tenant, weight)
        self.guard.replace(())


def bearer(name: str) -> dict[str, str]:
    """The header for a key."""
    return {"Authorization": f"Bearer sa_{name}"}


@pytest.fixture
def clock() -> Clock:
    """Of the guard, both for rates and for the time of day."""
    return Clock()


@pytest.fixture
def service() -> NumpyService:
    """What is served."""
    return NumpyService()


@pytest.fixture
def guard(clock: Clock) -> Guard:
    """Knows `KEYS`."""
    return Guard(KEYS, now=clock, wall=clock)


@pytest.fixture
def lines() -> list[dict[str, Any]]:
    """What the request log says."""
    return []


@pytest.fixture
async def log(lines: list[dict[str, Any]]) -> RequestLog:
    """Writes to `lines`."""
    later = asyncio.get_running_loop().call_later
    return RequestLog(LogSettings(), lambda line: lines.append(orjson.loads(line)), later)


@pytest.fixture
async def client(service: NumpyService, guard: Guard, log: RequestLog) -> AsyncIterator[httpx.AsyncClient]:
    """Talks to the application in this process."""
    transport = httpx.ASGITransport(create_app(*both(service), LIMITS, guard=guard, log=log))
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        yield client


@pytest.fixture
async def rpc(service: NumpyService, guard: Guard, log: RequestLog) -> AsyncIterator[Client]:
    """Talks to a gRPC server over a connection."""
    bodies = BodyReader(max_body=100_000, max_held_bytes=150_000, offload_above=10_000, decode_threads=2)
    listener = GrpcListener(GrpcApp(*both(service), bodies, guard, log), "127.0.0.1", 0)
    await listener.start()
    client = Client(listener.port)
    yield client
    await client.channel.close()
    await listener.close(0.0)
