"""Answers in parts, by both clients."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

import numpy as np
import orjson
import pytest
from api.protocol_service import NumpyService
from client.both_clients import EitherClient
from client.scripted_server import Hangup, Reply, Silence, refusal, scripted

from serve_app.errors import InferenceFailed as ServersInferenceFailed
from serve_app_client import (
    AsyncClient,
    Client,
    ConnectionFailed,
    DeadlineExceeded,
    InferenceFailed,
    InvalidAnswer,
    InvalidRequest,
    ModelNotFound,
    QueueFull,
    Retry,
    StreamPart,
    deadline,
)

Connect = Callable[..., EitherClient]
FOUR = {"x": np.array([1, 2, 3, 4], np.float32)}
Y = [2.0, 4.0, 6.0, 8.0]
EVENTS = {"content-type": "text/event-stream; charset=utf-8"}


async def parts_of(client: EitherClient, *args: Any, **kwargs: Any) -> AsyncGenerator[StreamPart, None]:
    """The parts, by whichever client."""
    if isinstance(client.client, AsyncClient):
        async with contextlib.aclosing(client.client.stream(*args, **kwargs)) as parts:
            async for part in parts:
                yield part
        return
    with contextlib.closing(client.client.stream(*args, **kwargs)) as blocking:
        while (found := await asyncio.to_thread(_next, blocking)) is not None:
            yield found


def _next(parts: Generator[StreamPart, None, None]) -> StreamPart | None:
    return next(parts, None)


async def all_of(client: EitherClient, *args: Any, **kwargs: Any) -> list[StreamPart]:
    """All parts."""
    return [part async for part in parts_of(client, *args, **kwargs)]


def event(**members: Any) -> bytes:
    """One event."""
    return b"data: " + orjson.dumps(members) + b"\n\n"


@pytest.mark.parametrize("parts", [0, 1, 5])
async def test_parts(connect: Connect, url: str, service: NumpyService, parts: int) -> None:
    """Each with its outputs, and who made it."""
    service.parts = parts
    async with connect(url) as client:
        found = await all_of(client, "double", FOUR, version="1", request_id="mine", priority="high")
    assert [part["y"] for part in found] == parts * [Y]
    assert {(part.model, part.version) for part in found} <= {("double", "1")}
    assert {(part.served.priority, part.served.request_id) for part in found} <= {("high", "mine")}


async def test_a_part_comes_before_the_next_is_made(connect: Connect, url: str, service: NumpyService) -> None:
    """And who closes the iterator ends the work."""
    service.parts = 2
    service.step.clear()
    async with connect(url) as client:
        async with contextlib.aclosing(parts_of(client, "double", FOUR)) as parts:
            assert (await anext(parts))["y"] == Y
        await service.cancelled.wait()


async def test_times_are_told_to_the_server(connect: Connect, url: str, service: NumpyService) -> None:
    """Both of them; a scope bounds both."""
    async with connect(url) as client:
        await all_of(client, "double", FOUR, timeout=5.0, stream_timeout=9.0)
        with deadline(3.0):
            await all_of(client, "double", FOUR, timeout=5.0, stream_timeout=9.0)
        await all_of(client, "double", FOUR)
    times = [(options.timeout_s, options.stream_timeout_s) for *_, options in service.calls]
    for (first, whole), most in zip(times, [(5.0, 9.0), (3.0, 3.0)], strict=False):
        assert first is not None
        assert whole is not None
        assert (0 < first <= most[0], 0 < whole <= most[1]) == (True, True)
    assert times[2] == (None, None)


@pytest.mark.parametrize(
    ("inputs", "error"), [({"x": [1, 2, 3]}, InvalidRequest), ({}, InvalidRequest), ({"x": "a"}, InvalidRequest)]
)
async def test_requests_that_are_wrong(connect: Connect, url: str, inputs: Any, error: type[Exception]) -> None:
    """As for other calls."""
    async with connect(url) as client:
        with pytest.raises(error):
            await all_of(client, "double", inputs)
        with pytest.raises(ModelNotFound):
            await all_of(client, "nothing", FOUR)


def test_inputs_without_json_are_refused_at_once() -> None:
    """Where the call stands, not where its parts are asked for."""
    with Client("http://127.0.0.1:1") as client, pytest.raises(TypeError):
        client.stream("m", {"x": b"bytes"})
    with Client("http://127.0.0.1:1") as client, pytest.raises(ValueError, match="timeout"):
        client.stream("m", {"x": 1}, stream_timeout=-1.0)


async def test_an_error_between_parts(connect: Connect, url: str, service: NumpyService) -> None:
    """The parts before it have come; it is not tried again."""
    service.parts, service.fail, service.fail_after = 3, ServersInferenceFailed("it broke"), 2
    found = []
    async with connect(url) as client:
        with pytest.raises(InferenceFailed, match="it broke") as caught:  # noqa: PT012 - what came before counts
            async for part in parts_of(client, "double", FOUR, request_id="mine"):
                found.append(part)  # noqa: PERF401 - they are wanted though it raises
    assert (len(found), caught.value.code, caught.value.request_id) == (2, "inference_failed", "mine")
    assert len(service.calls) == 1


async def test_refusals_are_tried_again(connect: Connect) -> None:
    """Before the first part."""
    good = Reply(200, EVENTS, event(model_name="m", model_version="1", y=1) + event(model_name="m", y=[]))
    async with scripted(refusal(429, "queue_full"), Hangup(), good) as server:
        async with connect(server.url, retry=Retry(attempts=3, first_s=0.0)) as client:
            assert [part["y"] for part in await all_of(client, "m", {"x": 1})] == [1, []]
        assert [request.body for request in server.received] == 3 * [b'{"x":1}']
        assert {request.line for request in server.received} == {"POST /v2/models/m/generate_stream HTTP/1.1"}
    async with scripted(refusal(429, "queue_full")) as server, connect(server.url, retry=None) as client:
        with pytest.raises(QueueFull):
            await all_of(client, "m", {"x": 1})


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (Reply(200, EVENTS, event(model_name="m", y=1), cut=1), ConnectionFailed),
        (Reply(200, EVENTS, event(model_name="m", y=1)[:-2]), InvalidAnswer),
        (Reply(200, EVENTS, b"data: {\n\n"), InvalidAnswer),
        (Reply(200, EVENTS, b"data: []\n\n"), InvalidAnswer),
        (Reply(200, EVENTS, b'data: {"a": 1}\n\n'), InvalidAnswer),
        (Reply(200, {}, b'{"model_name": "m"}'), InvalidAnswer),
    ],
)
async def test_answers_that_are_none(connect: Connect, reply: Reply, error: type[Exception]) -> None:
    """They are errors of this package, too."""
    async with scripted(reply) as server, connect(server.url, retry=None) as client:
        with pytest.raises(error):
            await all_of(client, "m", {"x": 1})


async def test_what_is_no_data_is_ignored(connect: Connect) -> None:
    """Comments and other fields, as the format has them."""
    body = b": hello\n\nevent: part\nid: 7\n" + event(model_name="m", error="an output")
    async with scripted(Reply(200, EVENTS, body)) as server, connect(server.url) as client:
        (part,) = await all_of(client, "m", {"x": 1})
    assert part.outputs == {"error": "an output"}


async def test_silence_ends_at_the_deadline(connect: Connect) -> None:
    """Whichever comes first."""
    for times in ({"timeout": 0.2}, {"stream_timeout": 0.2}):
        async with scripted(Silence()) as server, connect(server.url, retry=None) as client:
            with pytest.raises(DeadlineExceeded):
                await all_of(client, "m", {"x": 1}, **times)


async def test_a_stream_that_stops_ends_at_its_time(connect: Connect, url: str, service: NumpyService) -> None:
    """The server's word is waited for, but not for ever."""
    service.parts = 2
    service.step.clear()
    async with connect(url) as client:
        with pytest.raises(DeadlineExceeded):
            await all_of(client, "double", FOUR, stream_timeout=0.3)
    await service.cancelled.wait()
