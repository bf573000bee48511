"""A real server in this process, and both clients."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
from api.listener.raw_client import serving
from api.protocol_service import NumpyService
from client.both_clients import EitherClient

from serve_app.api.http_app import create_app
from serve_app_client import AsyncClient, Client


@pytest.fixture
def service() -> NumpyService:
    """What is served."""
    return NumpyService()


@pytest.fixture
async def url(service: NumpyService) -> AsyncIterator[str]:
    """Address of a server of that service: our own listener on a real socket."""
    async with serving(create_app(service, service)) as (_, port):
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(params=["sync", "async"])
def connect(request: pytest.FixtureRequest) -> Callable[..., EitherClient]:
    """Makes a client, of each kind in turn."""
    made: type[Client] | type[AsyncClient] = Client if request.param == "sync" else AsyncClient
    return lambda *args, **settings: EitherClient(made(*args, **settings))
