"""An HTTP client of an application that serves a `NumpyService`."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from api.protocol_service import NumpyService, both
from serve_app.api.http_app import HttpSettings, create_app

LIMITS = HttpSettings(max_body=100_000, max_held_bytes=150_000, offload_above=10_000, open_administration=True)
"""Small, so that tests can exceed them."""


@pytest.fixture
def service() -> NumpyService:
    """What is served."""
    return NumpyService()


@pytest.fixture
async def client(service: NumpyService) -> AsyncIterator[httpx.AsyncClient]:
    """Talks to the application in this process; exceptions that escape it fail the test."""
    transport = httpx.ASGITransport(create_app(*both(service), LIMITS))
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        yield client
