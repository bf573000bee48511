"""Answers that come in parts, over real connections."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import numpy as np
import pytest

from api.conftest import LIMITS
from api.listener.raw_client import Client, post, serving, until
from api.protocol_service import NumpyService, both
from serve_app.api.http_app import create_app
from serve_app.errors import DeadlineExceeded, InferenceFailed, QueueFull
from serve_app.http.http1 import Limits

STREAM = "/v2/models/double/generate_stream"
FOUR = {"x": [1, 2, 3, 4]}
PART = {"model_name": "double", "model_version": "1", "y": [2.0, 4.0, 6.0, 8.0]}
ASK = post(json.dumps(FOUR).encode(), path=STREAM)


@pytest.fixture
def service() -> NumpyService:
    """What is served."""
    return NumpyService()


@pytest.fixture
async def port(service: NumpyService) -> AsyncIterator[int]:
    """Where it is served."""
    async with serving(create_app(*both(service), LIMITS)) as (_, port):
        yield port


def events_of(body: bytes) -> list[dict[str, Any]]:
    """What the events of an answer hold."""
    *events, end = body.split(b"\n\n")
    assert end == b""
    assert all(event.startswith(b"data: ") for event in events)
    return [json.loads(event.removeprefix(b"data: ")) for event in events]


async def chunk(client: Client) -> bytes:
    """The next piece of a chunked body."""
    size = int(await client.reader.readline(), 16)
    return (await client.reader.readexactly(size + 2))[:-2]


@pytest.mark.parametrize("parts", [0, 1, 3, 100])
async def test_every_part_is_an_event(service: NumpyService, port: int, parts: int) -> None:
    """As many as there are; the connection lives on."""
    service.parts = parts
    client = await Client.connect(port)
    for _ in range(2):
        await client.send(ASK)
        status, headers, body = await client.answer()
        assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        assert (headers.get("transfer-encoding"), headers.get("content-length")) == (
            ("chunked", None) if parts else (None, "0")
        )
        assert headers["cache-control"] == "no-store"
        assert headers.get("x-priority") == ("normal" if parts else None)
        assert headers["x-request-id"]
        assert events_of(body) == parts * [PART]


async def test_old_clients_see_the_end_of_the_connection(service: NumpyService, port: int) -> None:
    """HTTP/1.0 knows no chunks."""
    service.parts = 3
    client = await Client.connect(port)
    await client.send(post(json.dumps(FOUR).encode(), version="1.0", path=STREAM))
    _, headers, body = await client.answer()
    assert headers["connection"] == "close"
    assert events_of(body) == 3 * [PART]


async def test_a_part_is_sent_before_there_is_another(service: NumpyService, port: int) -> None:
    """Even where the client would take them compressed."""
    service.parts = 2
    service.step.clear()
    client = await Client.connect(port)
    await client.send(post(json.dumps(FOUR).encode(), "Accept-Encoding: gzip", path=STREAM))
    status, headers, _ = await client.answer(head_only=True)
    assert (status, "content-encoding" in headers) == (200, False)
    assert events_of(await chunk(client)) == [PART]
    service.step.set()
    assert events_of(await chunk(client)) == [PART]
    assert await chunk(client) == b""


async def test_an_error_before_the_first_part_has_its_status(service: NumpyService, port: int) -> None:
    """And is an object, as all errors are."""
    service.fail = DeadlineExceeded("too late")
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        reply = await client.post(STREAM, json=FOUR)
        assert (reply.status_code, reply.json()) == (504, {"error": "too late", "code": "deadline_exceeded"})
        service.fail = RuntimeError("a secret")
        reply = await client.post(STREAM, json=FOUR, headers={"X-Request-Id": "mine"})
        assert (reply.status_code, reply.json()["error"]) == (500, "internal error (request id mine)")
        service.fail, service.refuse = None, QueueFull("no room", 1.0)
        assert (await client.post(STREAM, json=FOUR)).status_code == 429


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (InferenceFailed("it broke"), {"error": "it broke", "code": "inference_failed"}),
        (RuntimeError("a secret"), {"error": "internal error (request id mine)", "code": "internal"}),
    ],
)
async def test_an_error_after_it_is_the_last_event(
    service: NumpyService, port: int, error: Exception, told: dict[str, str]
) -> None:
    """The answer ends well, and the connection lives on."""
    service.parts, service.fail, service.fail_after = 5, error, 2
    client = await Client.connect(port)
    await client.send(post(json.dumps(FOUR).encode(), "X-Request-Id: mine", path=STREAM))
    status, _, body = await client.answer()
    assert (status, events_of(body)) == (200, [PART, PART, told])
    assert [code for _, code in service.refusals] == ([] if told["code"] == "inference_failed" else ["internal"])
    service.fail = None
    await client.send(ASK)
    assert len(events_of((await client.answer())[2])) == 5


@pytest.mark.parametrize("when", ["before the first part", "between parts"])
async def test_a_client_that_leaves_ends_the_work(service: NumpyService, port: int, when: str) -> None:
    """At once, whatever is waited for."""
    service.parts = 2
    (service.gate if when == "before the first part" else service.step).clear()
    client = await Client.connect(port)
    await client.send(ASK)
    if when == "before the first part":
        await service.waiting.wait()
    else:
        await client.answer(head_only=True)
        await chunk(client)
    client.leave()
    await service.cancelled.wait()


WIDE = post(json.dumps({"x": [0.5] * 4000}).encode(), "Connection: close", path="/v2/models/wide/generate_stream")


async def test_a_client_that_does_not_read_gets_no_more_made(service: NumpyService, port: int) -> None:
    """What fits into the connection is all that is made ahead of it; when it reads, it gets the rest."""
    service.parts = 1000  # of 16 KiB each, more than sockets hold
    client = await Client.connect(port)
    await client.send(WIDE)
    await service.waiting.wait()
    taken = -1
    while taken != service.taken:  # until none is made for a while
        taken = service.taken
        for _ in range(1000):
            await asyncio.sleep(0)
    assert taken < service.parts
    assert (await client.ended()).count(b"data: ") == service.parts
    assert service.taken == service.parts


async def test_a_client_that_never_reads_is_cut(service: NumpyService) -> None:
    """Its work ends with it."""
    service.parts = 10_000
    async with serving(create_app(*both(service), LIMITS), Limits(stall_s=0.1)) as (_, port):
        client = await Client.connect(port)
        await client.send(WIDE)
        async with asyncio.timeout(30):
            await service.cancelled.wait()
        client.leave()


async def test_the_server_that_closes_ends_streams(service: NumpyService) -> None:
    """A stream gets no more than what others get: the time to drain."""
    service.parts = 2
    service.step.clear()
    async with serving(create_app(*both(service), LIMITS)) as (listener, port):
        client = await Client.connect(port)
        await client.send(ASK)
        await client.answer(head_only=True)
        await listener.close(0.0)
        await service.cancelled.wait()
        with contextlib.suppress(ConnectionResetError):
            assert not (await client.ended()).endswith(b"0\r\n\r\n")  # nobody takes it for a whole answer


async def test_two_streams_run_side_by_side(service: NumpyService, port: int) -> None:
    """Each on its connection."""
    service.parts = 2
    service.step.clear()
    clients = [await Client.connect(port) for _ in range(2)]
    for client in clients:
        await client.send(ASK)
    for client in clients:
        await client.answer(head_only=True)
        await chunk(client)
    await until(lambda: service.taken == 2)
    service.step.set()
    for client in clients:
        assert events_of(await chunk(client)) == [PART]


async def test_parts_too_large_for_the_event_loop(service: NumpyService, port: int) -> None:
    """They are written in a thread, and are the same."""
    service.parts = 2
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        reply = await client.post("/v2/models/wide/generate_stream", json={"x": [0.25] * 12_000})
    assert [len(event["y"]) for event in events_of(reply.content)] == [12_000, 12_000]
    assert np.unique([event["y"] for event in events_of(reply.content)]).tolist() == [0.5]
