"""The V2 routes for logging and tracing, beyond what NVIDIA's client can send."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from api.protocol_service import NumpyService

LOGGER = logging.getLogger("serve_app")


@pytest.fixture(autouse=True)
def level() -> Iterator[None]:
    """Whatever a test does to the level ends with it."""
    before = LOGGER.level
    LOGGER.setLevel(logging.INFO)
    yield
    LOGGER.setLevel(before)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"log_verbose_level": 1}, logging.DEBUG),
        ({"log_verbose_level": 5}, logging.DEBUG),
        ({"log_verbose_level": 0}, logging.INFO),
        ({"log_info": False}, logging.WARNING),
        ({"log_info": None}, logging.INFO),
        ({"log_error": True, "log_format": "default"}, logging.INFO),
        ({}, logging.INFO),
    ],
)
async def test_the_amount_of_logging_can_be_changed(
    client: httpx.AsyncClient, changes: dict[str, Any], expected: int
) -> None:
    """At once, for this process."""
    reply = await client.post("/v2/logging", json=changes)

    assert reply.status_code == 200
    assert LOGGER.level == expected
    assert reply.json() == (await client.get("/v2/logging")).json()


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 200),
        (b'{"parameters": null}', 200),
        (b'{"parameters": {"unload_dependents": null, "config": null, "force": null}}', 200),
        (b'{"parameters": {"config": "{}"}}', 501),
        (b'{"parameters": {"force": true}}', 400),
    ],
)
@pytest.mark.parametrize("verb", ["load", "unload"])
async def test_null_says_nothing_of_a_load(client: httpx.AsyncClient, verb: str, content: bytes, status: int) -> None:
    """Neither do parameters that are null."""
    reply = await client.post(f"/v2/repository/models/double/{verb}", content=content)

    assert reply.status_code == status


async def test_verbose_messages_need_nothing_else(client: httpx.AsyncClient) -> None:
    """Informational ones are logged, too, also where they were off, and the answer says so."""
    await client.post("/v2/logging", json={"log_info": False})
    reply = await client.post("/v2/logging", json={"log_verbose_level": 1})

    assert (reply.status_code, LOGGER.level) == (200, logging.DEBUG)
    assert (reply.json()["log_info"], reply.json()["log_verbose_level"]) == (True, 1)


@pytest.mark.parametrize(
    ("path", "content", "status", "message"),
    [
        ("/v2/logging", b'{"log_error": false}', 501, "log_error cannot be changed"),
        ("/v2/logging", b'{"log_format": "ISO8601"}', 501, "log_format cannot be changed"),
        ("/v2/logging", b'{"log_info": 1}', 400, "log_info: expected true or false"),
        ("/v2/logging", b'{"log_verbose_level": -1}', 400, "log_verbose_level: expected 0 or more"),
        ("/v2/logging", b'{"log_info": false, "log_verbose_level": 1}', 400, "only where log_info is true"),
        ("/v2/logging", b'{"log_color": true}', 400, "'log_color' is no log setting; there are log_file"),
        ("/v2/logging", b"[]", 400, "the body: expected object, got array"),
        ("/v2/logging", b"", 400, "the body: not valid JSON"),
        ("/v2/trace/setting", b'{"trace_color": "red"}', 400, "'trace_color' is no trace setting"),
        ("/v2/trace/setting", b'{"trace_rate": "1"}', 501, "trace_rate: requests are not traced here"),
        ("/v2/models/nothing/trace/setting", b"{}", 404, "there is no model"),
    ],
)
async def test_other_changes_are_refused(
    client: httpx.AsyncClient, path: str, content: bytes, status: int, message: str
) -> None:
    """By name, and nothing is changed."""
    reply = await client.post(path, content=content)

    assert (reply.status_code, LOGGER.level) == (status, logging.INFO)
    assert message in reply.json()["error"]


@pytest.mark.parametrize(
    ("content", "ready", "found"),
    [
        (b"", False, True),
        (b"{}", False, True),
        (b'{"ready": false}', False, True),
        (b'{"ready": true}', False, False),
        (b'{"ready": true}', True, True),
    ],
)
async def test_the_index_can_be_of_ready_models_only(
    client: httpx.AsyncClient, service: NumpyService, content: bytes, ready: bool, found: bool
) -> None:
    """As the body says, which may be missing."""
    service.is_ready = ready

    reply = await client.post("/v2/repository/index", content=content)

    assert reply.status_code == 200
    assert {model["name"] for model in reply.json()} == (set(service.models) if found else set())


@pytest.mark.parametrize(
    ("content", "message"), [(b'{"ready": 1}', "ready: expected true or false"), (b"[]", "expected object")]
)
async def test_a_wrong_wish_for_the_index_is_refused(client: httpx.AsyncClient, content: bytes, message: str) -> None:
    """By name."""
    reply = await client.post("/v2/repository/index", content=content)

    assert reply.status_code == 400
    assert message in reply.json()["error"]


async def test_no_verbose_messages_without_information(client: httpx.AsyncClient) -> None:
    """Less logging is less of both."""
    await client.post("/v2/logging", json={"log_verbose_level": 1})
    reply = await client.post("/v2/logging", json={"log_info": False})

    assert (reply.json()["log_info"], reply.json()["log_verbose_level"]) == (False, 0)
    assert LOGGER.level == logging.WARNING
