"""Both clients against our own server over real sockets."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from api.protocol_service import NumpyService
from client.both_clients import EitherClient

from serve_app import payloads
from serve_app.domain.priority import Priority
from serve_app.errors import QueueFull as ServersQueueFull
from serve_app.errors import error_from_code
from serve_app.http.errors import STATUSES
from serve_app_client import (
    DeadlineExceeded,
    InvalidRequest,
    ModelNotFound,
    QueueFull,
    ServeAppClientError,
    TensorMetadata,
    UnsupportedMedia,
)
from serve_app_client.errors import BY_CODE

Connect = Callable[..., EitherClient]


async def test_tensors(url: str, service: NumpyService, connect: Connect) -> None:
    """Arrays go to the model and come back, with all options on the way."""
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    service.fallback = "int8"
    async with connect(url) as client:
        result = await client.call(
            "infer", "double", {"x": x}, outputs=["y"], version="1", priority="high", timeout=30.0, request_id="r-1"
        )
    assert np.array_equal(result["y"], 2 * x)
    assert (result.model, result.version) == ("double", "1")
    assert (result.served.priority, result.served.variant, result.served.request_id) == ("high", "int8", "r-1")
    options = service.calls[0][2]
    assert (options.priority, options.fallback) == (Priority.HIGH, True)
    assert options.timeout_s is not None
    assert 0.0 < options.timeout_s <= 30.0


async def test_media(url: str, service: NumpyService, connect: Connect) -> None:
    """Files, with and without parameters, and texts."""
    async with connect(url, priority="low") as client:
        picture = await client.call("predict", "pictures", b"content")
        await client.call("predict", "sounds", b"content", parameters={"top_k": 2})
        mood = await client.call("predict", "moods", "short", variant=None)
        moods = await client.call("predict", "moods", ["short", "not so short"])
        vectors = await client.call("predict", "sentences", ["a", "bc"])
    assert picture.labels[0].score == 7.0
    assert service.calls[1][1] == payloads.Media(b"content", "", {"top_k": 2})
    assert mood.labels == [("short", 1.0)]
    assert [labels[0].label for labels in moods.label_lists] == ["short", "long"]
    assert vectors.array[:, 0].tolist() == [1.0, 2.0]
    assert {options.priority for _, _, options in service.calls} == {Priority.LOW}


async def test_embeddings(url: str, connect: Connect) -> None:
    """One row per text, in float32."""
    async with connect(url) as client:
        several = await client.call("embed", ["a", "bc"], "sentences")
    assert (several.dtype, several.shape, several[:, 0].tolist()) == (np.float32, (2, 4), [1.0, 2.0])


async def test_what_is_served(url: str, connect: Connect) -> None:
    """Models, their tensors, counters and status."""
    async with connect(url) as client:
        models = await client.call("models")
        double = await client.call("model", "double", "1")
        statistics = await client.call("statistics", "double")
        status = await client.call("status")
    assert ("double", "1", "tensors", True) in models
    assert (double.name, double.versions) == ("double", ("1",))
    assert double.inputs == (TensorMetadata("x", "FP32", (-1, 4)),)
    assert statistics["name"] == "double"
    assert status == {"calls": 0}


async def test_health(url: str, service: NumpyService, connect: Connect) -> None:
    """Ready and live are what the server says, and no when nobody is there."""
    async with connect(url) as client, connect("http://127.0.0.1:1") as nobody:
        assert await client.call("live")
        assert await client.call("ready")
        await client.call("wait_until_ready", 30.0, "double")
        service.is_ready = False
        assert not await client.call("ready")
        assert not await client.call("ready", "double")
        assert not await client.call("live")
        assert not await nobody.call("ready")
        with pytest.raises(DeadlineExceeded, match=r"not ready after 1 s: not ready to take work for: double"):
            await client.call("wait_until_ready", 1.0)
        with pytest.raises(ModelNotFound):
            await client.call("ready", "nothing")


@pytest.mark.parametrize("code", sorted(set(STATUSES) - {"internal", "not_found"}))
async def test_every_error_of_the_server(url: str, service: NumpyService, connect: Connect, code: str) -> None:
    """Arrives as its exception, with the message and the request's id."""
    service.fail = error_from_code(code, "what is wrong")
    async with connect(url, retry=None) as client:
        for method, arguments in (("predict", ("moods", "x")), ("embed", ("x", "sentences"))):
            with pytest.raises(BY_CODE[code], match="what is wrong") as caught:
                await client.call(method, *arguments, request_id="r-1")
            assert (caught.value.code, caught.value.request_id) == (code, "r-1")


async def test_requests_that_do_not_fit(url: str, connect: Connect) -> None:
    """The server's words, which say what to do."""
    async with connect(url) as client:
        with pytest.raises(InvalidRequest, match=r"input 'x' has the shape \[rows, 4\]"):
            await client.call("infer", "double", {"x": np.zeros((1, 3), np.float32)})
        with pytest.raises(UnsupportedMedia, match="takes text"):
            await client.call("predict", "moods", b"\0")
        with pytest.raises(ModelNotFound, match="'nothing'"):
            await client.call("embed", "x", "nothing")


async def test_a_refusal_is_retried(url: str, service: NumpyService, connect: Connect) -> None:
    """All attempts that the settings allow, and then the server's own words."""
    service.refuse = ServersQueueFull("full", 0.0)
    async with connect(url, timeout=30.0) as client:
        with pytest.raises(QueueFull, match="full") as caught:
            await client.call("predict", "moods", "x")
    assert len(service.prechecks) == 3
    assert isinstance(caught.value, ServeAppClientError)
    assert (caught.value.status, caught.value.retry_after) == (429, 1.0)
