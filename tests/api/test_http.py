"""The HTTP application: routing, limits, errors, and the V2 routes."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import socket
import subprocess
import zlib
from collections.abc import AsyncIterator
from time import monotonic
from typing import Any

import httpx
import numpy as np
import orjson
import pytest
import tritonclient.http as triton
import uvicorn
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message, Receive, Scope, Send

from api.protocol_service import EVERY_DATATYPE, NumpyService, both
from serve_app import __version__
from serve_app.api.http_app import HttpSettings, create_app
from serve_app.domain.priority import Priority
from serve_app.errors import DeadlineExceeded, InferenceFailed, ModelUnavailable, QueueFull
from serve_app.http.body import BodyReader
from serve_app.http.exchange import AWAITED_SINCE

INFER = "/v2/models/double/infer"
PREDICT = "/v1/models/sentences/predict"
REQUEST: dict[str, Any] = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}


async def test_infer_in_json(client: httpx.AsyncClient, service: NumpyService) -> None:
    """A request without any option."""
    reply = await client.post(INFER, json={**REQUEST, "id": "a"})

    assert reply.status_code == 200
    assert reply.json() == {
        "model_name": "double",
        "model_version": "1",
        "id": "a",
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 4], "data": [2.0, 4.0, 6.0, 8.0]}],
    }
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-priority"] == "normal"
    assert service.prechecks == [("double", None, int(reply.request.headers["content-length"]))]


OPEN = np.array([[1.0, np.nan, np.inf, -np.inf]], np.float32)


async def test_numbers_that_are_not_finite_come_back_as_they_were_sent(client: httpx.AsyncClient) -> None:
    """By NVIDIA's client, in JSON both ways."""
    tensor = triton.InferInput("x", OPEN.shape, "FP32")
    tensor.set_data_from_numpy(OPEN, binary_data=False)
    wanted = triton.InferRequestedOutput("y", binary_data=False)
    body, json_size = triton.InferenceServerClient.generate_request_body([tensor], [wanted])
    assert json_size is None
    reply = await client.post("/v2/models/double/infer", content=body)
    result = triton.InferenceServerClient.parse_response_body(reply.content)
    assert np.array_equal(result.as_numpy("y"), OPEN * 2, equal_nan=True)


@pytest.mark.parametrize("asked", [{}, {"non_finite": None}, {"non_finite": False}, {"non_finite": True}])
async def test_answers_have_words_only_for_who_asks(client: httpx.AsyncClient, asked: dict[str, Any]) -> None:
    """Others get JSON, and can send it back; they are told that infinite values are lost in it."""
    tensor = {"name": "x", "shape": [1, 4], "datatype": "FP32", "parameters": {"binary_data_size": 16}}
    head = json.dumps({"inputs": [tensor], "parameters": asked}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    reply = await client.post("/v2/models/double/infer", content=head + OPEN.tobytes(), headers=headers)
    if asked.get("non_finite"):
        assert reply.text.endswith('"data":[2.0,NaN,Infinity,-Infinity]}]}')
        return
    (output,) = orjson.loads(reply.content)["outputs"]  # which takes no such words
    assert (output["data"], output["parameters"]) == ([2.0, None, None, None], {"infinite": 2})
    again = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": output["data"]}
    back = (await client.post("/v2/models/double/infer", json={"inputs": [again]})).json()["outputs"][0]
    assert (back["data"], "parameters" in back) == ([4.0, None, None, None], False)


@pytest.mark.parametrize("algorithm", [None, "gzip", "deflate"])
@pytest.mark.parametrize("rows", [1, 16])
async def test_infer_as_tritonclient_does(client: httpx.AsyncClient, algorithm: str | None, rows: int) -> None:
    """Binary both ways, compressed or not, large or not."""
    x = np.random.default_rng(7).normal(size=(rows, 400)).astype(np.float32)
    tensor = triton.InferInput("x", x.shape, "FP32")
    tensor.set_data_from_numpy(x)
    body, json_size = triton.InferenceServerClient.generate_request_body([tensor], priority=1, timeout=500_000)
    headers = {"Inference-Header-Content-Length": str(json_size)}
    if algorithm is not None:
        body = gzip.compress(body) if algorithm == "gzip" else zlib.compress(body)
        headers["Content-Encoding"] = algorithm

    reply = await client.post("/v2/models/wide/versions/1/infer", content=body, headers=headers)

    length = int(reply.headers["inference-header-content-length"])
    result = triton.InferenceServerClient.parse_response_body(reply.content, header_length=length)
    assert np.array_equal(x * 2, result.as_numpy("y"))
    assert reply.headers["content-type"] == "application/octet-stream"
    assert reply.headers["x-priority"] == "high"


@pytest.mark.parametrize(
    ("headers", "parameters", "expected"),
    [
        ({}, {}, (None, None)),
        ({"X-Priority": "low"}, {}, (Priority.LOW, None)),
        ({"X-Priority": "low"}, {"priority": 1}, (Priority.HIGH, None)),
        ({"X-Priority": "1"}, {"priority": 7}, (Priority.LOW, None)),
        ({"X-Timeout-Ms": "60000"}, {"timeout": 70_000_000}, (None, 60.0)),
        ({"X-Timeout-Ms": "60000"}, {"timeout": 50_000_000}, (None, 50.0)),
    ],
)
async def test_infer_options(
    client: httpx.AsyncClient,
    service: NumpyService,
    headers: dict[str, str],
    parameters: dict[str, int],
    expected: tuple[Priority | None, float | None],
) -> None:
    """Priority and deadline reach the service, less the time that reading took; that is told where none is named."""
    await client.post(INFER, json={**REQUEST, "parameters": parameters}, headers=headers)

    ((_, _, options),) = service.calls
    assert expected[0] == options.priority
    assert service.prechecks[0][1] == expected[0]
    assert (options.timeout_s is None) == (expected[1] is None)
    assert 0.0 < (options.timeout_s or 5.0) <= (expected[1] or 5.0)
    assert options.spent_s > 0.0


@pytest.mark.parametrize(("awaited_s", "status"), [(1.0, 200), (6.0, 504)])
async def test_the_time_that_a_listener_awaited_the_body_counts(
    service: NumpyService, awaited_s: float, status: int
) -> None:
    """The deadline is that of the request, whose head came first."""
    app = create_app(*both(service))

    async def late(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, AWAITED_SINCE: monotonic() - awaited_s}, receive, send)

    async with httpx.AsyncClient(transport=httpx.ASGITransport(late), base_url="http://server") as client:
        reply = await client.post(INFER, json=REQUEST, headers={"X-Timeout-Ms": "5000"})

    assert reply.status_code == status
    assert [(options.timeout_s or 5.0) <= 4.0 for _, _, options in service.calls] == [True] * (status == 200)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (INFER, REQUEST),
        ("/v1/models/sentences/predict", {"inputs": "a"}),
        ("/", {"inputs": "a", "parameters": {"truncate": True}}),
        ("/v1/embeddings", {"model": "sentences", "input": "a"}),
    ],
)
async def test_cache_control_may_come_on_several_lines(
    client: httpx.AsyncClient, service: NumpyService, path: str, body: dict[str, Any]
) -> None:
    """As HTTP allows for every list."""
    lines = [("Cache-Control", value) for value in ("no-store", "x", "no-cache")]
    reply = await client.post(path, json=body, headers=lines)

    assert reply.status_code == 200
    ((_, _, options),) = service.calls
    assert (options.cacheable, options.fresh) == (False, True)


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("POST", "/v2/models/nothing/infer", 404, "model_not_found"),
        ("POST", "/v2/models/double/versions/2/infer", 404, "model_not_found"),
        ("POST", "/v2/models//infer", 404, "model_not_found"),
        ("POST", "/v2/models/a%2Fb/infer", 404, "not_found"),
        ("POST", "/v2/models/%ff/infer", 404, "model_not_found"),
        ("POST", "/v2/models/double/versions/infer", 405, "method_not_allowed"),
        ("POST", "/v2/models/infer", 405, "method_not_allowed"),
        ("GET", INFER, 405, "method_not_allowed"),
        ("GET", "/nowhere", 404, "not_found"),
        ("GET", "/v2/models/nothing", 404, "model_not_found"),
        ("POST", "/v2", 405, "method_not_allowed"),
        ("GET", "/v1/models/pictures/predict", 405, "method_not_allowed"),
        ("POST", "/v1/models/nothing/predict", 404, "model_not_found"),
        ("POST", "/v1/models/%ff/predict", 404, "model_not_found"),
        ("POST", "/v1/models//predict", 404, "model_not_found"),
        ("POST", "/v1/models/a%2Fb/predict", 404, "not_found"),
        ("POST", "/v2/repository/models/nothing/load", 404, "model_not_found"),
        ("POST", "/v2/models/double/generate", 400, "invalid_request"),
        ("GET", "/v2/models/double/generate_stream", 405, "method_not_allowed"),
        ("GET", "/v2/systemsharedmemory/region/r/status", 404, "not_found"),
        ("POST", "/v2/cudasharedmemory/region/r/register", 501, "unsupported"),
        ("POST", "/v2/models/double/infer", 400, "invalid_request"),
    ],
)
async def test_wrong_calls(client: httpx.AsyncClient, method: str, path: str, status: int, code: str) -> None:
    """All in the one form of error."""
    reply = await client.request(method, path)

    assert (status, code) == (reply.status_code, reply.json()["code"])
    assert isinstance(reply.json()["error"], str)
    assert reply.headers["content-type"] == "application/json"


@pytest.mark.parametrize(("path", "allow"), [(INFER, {"POST"}), (PREDICT, {"POST"}), ("/v2", {"GET", "HEAD"})])
async def test_405_names_the_methods(client: httpx.AsyncClient, path: str, allow: set[str]) -> None:
    """As HTTP asks."""
    reply = await client.delete(path)

    assert reply.status_code == 405
    assert allow == set(reply.headers["allow"].split(", "))


async def test_names_may_be_percent_encoded_and_slashes_trail(client: httpx.AsyncClient) -> None:
    """Both mean the same path."""
    for path in ("/v2/models/d%6fuble/infer", "/v2/models/double/infer/"):
        assert (await client.post(path, json=REQUEST)).status_code == 200
    for path in ("/v1/models/s%65ntences/predict", f"{PREDICT}/"):
        assert (await client.post(path, json={"inputs": "a text"})).status_code == 200
    assert (await client.get("/v2/health/live/")).status_code == 200


async def test_a_route_prefix_is_not_part_of_the_path(service: NumpyService) -> None:
    """The server in front may mount the application anywhere."""
    transport = httpx.ASGITransport(create_app(*both(service)), root_path="/apps/one")
    async with httpx.AsyncClient(transport=transport, base_url="http://server/apps/one") as client:
        assert (await client.post(INFER, json=REQUEST)).status_code == 200
        assert (await client.post(PREDICT, json={"inputs": "a text"})).status_code == 200
        assert (await client.get("/v2/health/live")).status_code == 200
        assert "http://server/apps/one/v2/models/double/infer" in (await client.get("/")).text


@pytest.mark.parametrize(
    ("failure", "status", "code", "retry_after"),
    [
        (QueueFull("full", 1.2), 429, "queue_full", "2"),
        (ModelUnavailable("down", 30.0), 503, "model_unavailable", "30"),
        (DeadlineExceeded("late"), 504, "deadline_exceeded", None),
        (InferenceFailed("broken"), 500, "inference_failed", None),
    ],
)
@pytest.mark.parametrize("path", [INFER, "/v1/models/pictures/predict", "/v1/embeddings"])
async def test_failures_of_the_service(
    client: httpx.AsyncClient,
    service: NumpyService,
    failure: Exception,
    status: int,
    code: str,
    retry_after: str | None,
    path: str,
) -> None:
    """Every route renders them by the one table."""
    service.fail = failure
    if path == "/v1/embeddings":
        reply = await client.post(path, json={"model": "sentences", "input": "a"})
        got = reply.json()["error"]["code"]
    else:
        reply = await client.post(path, content=json.dumps(REQUEST), headers={"Content-Type": "image/png"})
        got = reply.json()["code"]

    assert (status, code, retry_after) == (reply.status_code, got, reply.headers.get("retry-after"))


@pytest.mark.parametrize("path", [INFER, "/v1/models/pictures/predict"])
async def test_bugs_do_not_reach_the_client(
    client: httpx.AsyncClient, service: NumpyService, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A request id, and nothing else."""
    service.fail = ZeroDivisionError("secret")

    reply = await client.post(
        path, content=json.dumps(REQUEST), headers={"X-Request-Id": "my-id", "Content-Type": "image/png"}
    )

    assert reply.status_code == 500
    assert reply.json() == {"error": "internal error (request id my-id)", "code": "internal"}
    assert "ZeroDivisionError: secret" in caplog.text


async def test_early_refusal_comes_before_decoding(client: httpx.AsyncClient, service: NumpyService) -> None:
    """An overloaded server does not look at tensor data: this one could not be decoded."""
    service.refuse = QueueFull("full", 3.0)
    request = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": ["wrong"]}]}

    reply = await client.post(INFER, json=request, headers={"X-Priority": "low"})

    assert (reply.status_code, reply.headers["retry-after"]) == (429, "3")
    assert service.prechecks[0][1] is Priority.LOW
    assert service.calls == []


async def test_request_ids(client: httpx.AsyncClient) -> None:
    """A good one is echoed, a bad one replaced, a missing one made."""
    echoed = await client.post(INFER, json=REQUEST, headers={"X-Request-Id": "abc-1"})
    replaced = await client.post(INFER, json=REQUEST, headers={"X-Request-Id": "a b"})
    made = await client.get("/v2")

    assert echoed.headers["x-request-id"] == "abc-1"
    assert replaced.headers["x-request-id"] not in {"a b", made.headers["x-request-id"]}


async def test_request_ids_can_be_left_to_the_server_in_front(service: NumpyService) -> None:
    """Ray Serve adds the header by itself; twice would be wrong."""
    transport = httpx.ASGITransport(create_app(*both(service), HttpSettings(send_request_id=False)))
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        assert "x-request-id" not in (await client.post(INFER, json=REQUEST)).headers


@pytest.mark.parametrize("sends", [True, False])
async def test_request_ids_that_are_not_visible_ascii_go_no_further(service: NumpyService, sends: bool) -> None:
    """Whoever answers with them: they are in the log, where they could pass for something else."""
    transport = httpx.ASGITransport(create_app(*both(service), HttpSettings(send_request_id=sends)))
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        for given in (b"abc-1", b'a b \x9b31m "x" c', b"x" * 129):
            await client.post(INFER, json=REQUEST, headers={b"X-Request-Id": given})
    taken, *made = [options.request_id for _, _, options in service.calls]
    assert taken == "abc-1"
    assert all(each.isascii() and each.isprintable() and not set(each) & set(' x"') for each in made)
    assert len(set(made)) == 2


class Conversation:
    """One ASGI call whose messages the test sends itself."""

    def __init__(self, service: NumpyService, settings: HttpSettings, **headers: str) -> None:
        self.app = create_app(*both(service), settings)
        self.scope = {
            "type": "http",
            "method": "POST",
            "path": INFER,
            "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
            "query_string": b"",
        }
        self.incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.received = 0
        self.asked_again = asyncio.Event()
        self.sent: list[Any] = []

    def say(self, body: bytes, *, more: bool) -> None:
        """Queue a piece of the body."""
        self.incoming.put_nowait({"type": "http.request", "body": body, "more_body": more})

    async def run(self) -> None:
        """Call the application."""

        async def receive() -> dict[str, Any]:
            self.received += 1
            if self.received == 2:
                self.asked_again.set()
            return await self.incoming.get()

        async def send(message: Any) -> None:
            self.sent.append(message)

        await self.app(self.scope, receive, send)

    @property
    def status(self) -> int:
        """Of the response."""
        return int(self.sent[0]["status"])


LIMITS = HttpSettings(max_body=1000, max_held_bytes=1500, offload_above=100)


async def test_a_declared_body_over_the_limit_is_not_read(service: NumpyService) -> None:
    """413 before the first byte."""
    call = Conversation(service, LIMITS, content_length="1001")
    await call.run()

    assert (call.status, call.received) == (413, 0)


@pytest.mark.parametrize("length", ["ten", "-1", "9" * 5000])
async def test_a_strange_content_length_is_refused(service: NumpyService, length: str) -> None:
    """Whatever the server in front let through."""
    call = Conversation(service, LIMITS, content_length=length)
    await call.run()

    assert call.status in {400, 413}


async def test_a_chunked_body_over_the_limit_is_cut_off(service: NumpyService) -> None:
    """413 at the byte that is too many; the rest is not waited for."""
    call = Conversation(service, LIMITS)
    for _ in range(10):
        call.say(b"x" * 100, more=True)
    call.say(b"x", more=True)
    await call.run()

    assert (call.status, call.received) == (413, 11)


async def test_a_client_that_leaves_while_sending_is_forgotten(service: NumpyService) -> None:
    """Nothing is sent, nothing is run, nothing stays counted."""
    call = Conversation(service, LIMITS)
    call.say(b"x" * 500, more=True)
    call.incoming.put_nowait({"type": "http.disconnect"})
    await call.run()

    assert call.sent == []
    assert call.app.bodies.held == 0
    assert service.calls == []


@pytest.mark.parametrize("size", [900, 2**20])
async def test_a_body_that_stops_coming_is_given_up(service: NumpyService, size: int) -> None:
    """It would hold its share of the memory for bodies, and in the end everybody's, for as long as the client likes."""
    call = Conversation(service, HttpSettings(offload_above=100, pause_timeout_s=0.05), x_timeout_ms="60000")
    call.say(b"x" * size, more=True)
    await asyncio.wait_for(call.run(), 5)

    assert (call.status, json.loads(call.sent[1]["body"])["code"]) == (504, "deadline_exceeded")
    assert call.app.bodies.held == 0


@pytest.mark.parametrize("pieces", [[], [b"x" * 900]], ids=["nothing came", "a piece came"])
async def test_the_deadline_covers_reading(service: NumpyService, pieces: list[bytes]) -> None:
    """The request ends at its deadline, and its connection with it: what still comes is no new request."""
    call = Conversation(service, LIMITS, x_timeout_ms="20")
    for piece in pieces:
        call.say(piece, more=True)
    await asyncio.wait_for(call.run(), 5)

    assert (call.status, json.loads(call.sent[1]["body"])["code"]) == (504, "deadline_exceeded")
    assert (b"connection", b"close") in call.sent[0]["headers"]
    assert call.app.bodies.held == 0
    assert service.refusals == [("double", "deadline_exceeded")]


@pytest.mark.parametrize("path", ["/v1/models/pictures/predict", "/v1/embeddings"])
async def test_the_deadline_covers_reading_on_every_route(service: NumpyService, path: str) -> None:
    """Also where Starlette routes, and where only the body names the model."""
    call = Conversation(service, LIMITS, x_timeout_ms="20", content_type="image/png")
    call.scope["path"] = path
    await asyncio.wait_for(call.run(), 5)

    assert call.status == 504
    assert (b"connection", b"close") in call.sent[0]["headers"]


async def test_a_body_may_come_in_its_own_time_before_the_deadline(service: NumpyService) -> None:
    """Also when nothing of it was there at first."""
    body = json.dumps(REQUEST).encode()
    call = Conversation(service, LIMITS)
    task = asyncio.create_task(call.run())
    await asyncio.sleep(0)
    assert call.received == 1
    call.say(body[:50], more=True)
    await call.asked_again.wait()
    call.say(body[50:], more=False)
    await task

    assert call.status == 200


@pytest.mark.parametrize("pieces", [[], [b"x" * 900]], ids=["nothing came", "a piece came"])
async def test_cancelling_the_call_ends_reading(service: NumpyService, pieces: list[bytes]) -> None:
    """Whatever it waits for."""
    call = Conversation(service, LIMITS)
    for piece in pieces:
        call.say(piece, more=True)
    task = asyncio.create_task(call.run())
    await asyncio.sleep(0)
    assert call.received == len(pieces) + 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert call.sent == []
    assert call.app.bodies.held == 0


async def test_a_slow_upload_loses_its_connection(service: NumpyService) -> None:
    """Over a real socket: the answer comes at the deadline, then the end, though the body was never whole."""
    config = uvicorn.Config(create_app(*both(service)), lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = asyncio.create_task(server.serve([listening]))
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        writer.write(
            b"POST /v2/models/double/infer HTTP/1.1\r\nHost: server\r\nX-Timeout-Ms: 20\r\nContent-Length: 1000\r\n"
            b"\r\n{"
        )
        answer = await asyncio.wait_for(reader.read(), 10)  # until the server closes
        writer.close()
        server.should_exit = True
        await serving

    assert answer.startswith(b"HTTP/1.1 504 ")
    assert b'"code":"deadline_exceeded"' in answer


@pytest.mark.parametrize(
    ("path", "request_", "counted"),
    [
        (INFER, {"content": b"{"}, [("double", "invalid_request")]),
        (INFER, {"content": bytes(100_001)}, [("double", "payload_too_large")]),
        (INFER, {"json": REQUEST, "headers": {"X-Priority": "urgent"}}, [("double", "invalid_request")]),
        ("/v2/models/nothing/infer", {"json": REQUEST}, [("nothing", "model_not_found")]),
        ("/v1/models/nothing/predict", {"content": b"a"}, [("nothing", "model_not_found")]),
        (
            "/v1/models/pictures/predict",
            {"content": b"a", "headers": {"Content-Type": "text/plain"}},
            [("pictures", "unsupported_media")],
        ),
        ("/v1/embeddings", {"content": b"{"}, [("", "invalid_request")]),
        ("/v1/embeddings", {"json": {"model": "nothing", "input": "a"}}, [("nothing", "model_not_found")]),
        ("/v1/embeddings", {"json": {"model": "sentences", "input": []}}, [("sentences", "invalid_request")]),
        # Answered by the model, and counted so.
        ("/v1/embeddings", {"json": {"model": "sentences", "input": "a", "dimensions": 5}}, []),
        (INFER, {"json": REQUEST}, []),
        # No work for a model was asked for.
        ("/v2/models/nothing", {}, []),
        ("/nowhere", {}, []),
        ("/v2/repository/models/double/load", {}, []),
    ],
)
async def test_refusals_are_counted(
    client: httpx.AsyncClient, service: NumpyService, path: str, request_: dict[str, Any], counted: list[Any]
) -> None:
    """Once, by the model's name as it was asked for."""
    await client.post(path, **request_)

    assert counted == service.refusals


@pytest.mark.parametrize("path", [INFER, "/v1/models/sentences/predict"])
@pytest.mark.parametrize("early", [True, False])
async def test_what_the_service_counted_is_not_counted_again(
    client: httpx.AsyncClient, service: NumpyService, path: str, early: bool
) -> None:
    """Its errors say so."""
    if early:
        service.refuse = QueueFull("full", 1.0)
    else:
        service.fail = InferenceFailed("failed")
    body = REQUEST if path == INFER else {"inputs": "a"}
    reply = await client.post(path, json=body)

    assert (reply.status_code, service.refusals) == (429 if early else 500, [])


async def test_bugs_are_counted(client: httpx.AsyncClient, service: NumpyService) -> None:
    """As what the client sees of them."""
    service.fail = RuntimeError("bug")
    await client.post(INFER, json=REQUEST)

    assert service.refusals == [("double", "internal")]


async def test_large_bodies_are_bounded_together(service: NumpyService) -> None:
    """While two large bodies are being read the third is refused; small ones never; and it ends when they end."""
    body = json.dumps(REQUEST).encode().ljust(900)
    first = Conversation(service, LIMITS)
    first.say(body[:800], more=True)
    reading = asyncio.create_task(first.run())
    await first.asked_again.wait()

    second = Conversation(service, LIMITS)
    second.app = first.app
    second.say(body, more=False)
    await second.run()
    small = Conversation(service, LIMITS)
    small.app = first.app
    small.say(json.dumps(REQUEST, separators=(",", ":")).encode(), more=False)
    await small.run()
    first.say(body[800:], more=False)
    await reading

    assert (first.status, second.status, small.status) == (200, 429, 200)
    assert first.app.bodies.held == 0


async def test_cancelling_the_call_cancels_the_work(service: NumpyService) -> None:
    """Serve cancels the call of a client that left; the service must learn of it."""
    service.gate.clear()
    call = Conversation(service, LIMITS)
    call.say(json.dumps(REQUEST).encode(), more=False)
    task = asyncio.create_task(call.run())
    await service.waiting.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert service.cancelled.is_set()
    assert call.sent == []


MEMBERS = b"".join(gzip.compress(part, mtime=0) for part in re.findall(rb".{1,20}", json.dumps(REQUEST).encode()))
"""The request in many members of gzip data."""
BGZF_END = bytes.fromhex("1f8b08040000000000ff0600424302001b0003000000000000000000")
"""The empty block at the end of what bgzip writes."""


@pytest.mark.parametrize(
    ("encoding", "body", "status", "code"),
    [
        ("br", b"x", 415, "unsupported_media"),
        ("gzip", b"not gzip", 400, "invalid_request"),
        ("gzip", gzip.compress(json.dumps(REQUEST).encode(), mtime=0)[:-9], 400, "invalid_request"),
        ("gzip", gzip.compress(b"{}", mtime=0) + b"x", 400, "invalid_request"),
        ("gzip", gzip.compress(b"{}", mtime=0) + b"\0x", 400, "invalid_request"),
        ("gzip", MEMBERS, 200, None),
        ("gzip", MEMBERS + BGZF_END + bytes(512), 200, None),
        ("X-GZIP", gzip.compress(json.dumps(REQUEST).encode(), mtime=0), 200, None),
        ("gzip", MEMBERS[:-9], 400, "invalid_request"),
        ("gzip", MEMBERS[:-1], 400, "invalid_request"),
        ("gzip", MEMBERS + gzip.compress(b" ")[:5], 400, "invalid_request"),
        ("deflate", zlib.compress(b"{") + zlib.compress(b"}"), 400, "invalid_request"),
        ("gzip", gzip.compress(bytes(1_000)) * 9_000, 413, "payload_too_large"),
        ("gzip", MEMBERS + gzip.compress(bytes(10_000_000)), 413, "payload_too_large"),
        ("gzip", gzip.compress(bytes(10_000_000)), 413, "payload_too_large"),
        ("deflate", zlib.compress(bytes(10_000_000)), 413, "payload_too_large"),
        ("identity", json.dumps(REQUEST).encode(), 200, None),
    ],
)
async def test_content_encodings(
    client: httpx.AsyncClient, encoding: str, body: bytes, status: int, code: str | None
) -> None:
    """Bounded, and complete or refused."""
    reply = await client.post(INFER, content=body, headers={"Content-Encoding": encoding})

    assert (status, code) == (reply.status_code, reply.json().get("code"))


@pytest.mark.parametrize("headers", [{}, {"Content-Type": "application/json"}, {"Content-Encoding": "gzip"}])
async def test_a_byte_order_mark_before_json_is_ignored(client: httpx.AsyncClient, headers: dict[str, str]) -> None:
    """Editors write it."""
    content = b"\xef\xbb\xbf" + json.dumps(REQUEST).encode()
    body = gzip.compress(content) if "Content-Encoding" in headers else content

    assert (await client.post(INFER, content=body, headers=headers)).status_code == 200


async def test_a_byte_order_mark_is_not_counted() -> None:
    """Neither while the body is held nor behind that."""
    bodies = BodyReader(max_body=1000, max_held_bytes=1500, offload_above=100, decode_threads=2)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"\xef\xbb\xbf[" + b" " * 199, "more_body": False}

    body = await bodies.read(receive, {b"content-type": b"application/json"}, 60.0)
    assert (body, bodies.held) == (b"[" + b" " * 199, 200)
    bodies.release(len(body))
    assert bodies.held == 0


async def test_chunked_bodies_are_read(client: httpx.AsyncClient) -> None:
    """Without a Content-Length."""

    async def pieces() -> AsyncIterator[bytes]:
        for byte in json.dumps(REQUEST).encode():
            yield bytes([byte])

    assert (await client.post(INFER, content=pieces())).status_code == 200


async def test_long_decodes_leave_the_event_loop(client: httpx.AsyncClient) -> None:
    """JSON over the inline limit, both ways."""
    x = np.arange(16 * 400, dtype=np.float32).reshape(16, 400)
    request = {"inputs": [{"name": "x", "shape": [16, 400], "datatype": "FP32", "data": x.tolist()}]}

    reply = await client.post("/v2/models/wide/infer", json=request)

    assert reply.json()["outputs"][0]["data"] == (x * 2).reshape(-1).tolist()


async def test_server_metadata(client: httpx.AsyncClient) -> None:
    """Name, version and extensions, as clients read them."""
    metadata = (await client.get("/v2")).json()

    assert (metadata["name"], metadata["version"]) == ("serve-app", __version__)
    assert {"binary_tensor_data", "statistics", "model_configuration"} <= set(metadata["extensions"])


async def test_model_metadata_and_configuration(client: httpx.AsyncClient) -> None:
    """Metadata count rows as a dimension, the configuration does not."""
    metadata = (await client.get("/v2/models/double/versions/1")).json()
    config = (await client.get("/v2/models/double/config")).json()

    assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
    assert metadata["versions"] == ["1"]
    assert {"name": "x", "data_type": "TYPE_FP32", "dims": [4]}.items() <= config["input"][0].items()
    assert config["max_batch_size"] == 8
    assert "dynamic_batching" in config


async def test_statistics_and_index(client: httpx.AsyncClient, service: NumpyService) -> None:
    """For one model, and for all."""
    await client.post(INFER, json=REQUEST)
    one = (await client.get("/v2/models/double/stats")).json()["model_stats"]
    every = (await client.get("/v2/models/stats")).json()["model_stats"]
    index = (await client.post("/v2/repository/index")).json()

    assert one == await service.total_statistics(["double"])
    assert one[0]["inference_count"] == 1
    assert len(every) == len(service.models)
    assert index[0] == {"name": "double", "version": "1", "state": "READY", "reason": ""}


@pytest.mark.parametrize("path", ["/v2/health/live", "/v2/health/ready", "/v2/models/double/ready"])
async def test_health(client: httpx.AsyncClient, service: NumpyService, path: str) -> None:
    """200, or 503 with Retry-After."""
    good = await client.get(path)
    service.is_ready = False
    bad = await client.get(path)

    assert (good.status_code, bad.status_code) == (200, 503)
    assert bad.json()["code"] == "model_unavailable"
    assert bad.headers["retry-after"] == "1"


@pytest.mark.parametrize("path", ["/", "/v2", "/v2/health/live", "/v1/models", "/status", "/metrics"])
async def test_head_is_get_without_a_body(client: httpx.AsyncClient, path: str) -> None:
    """The same headers."""
    got, head = await client.get(path), await client.head(path)

    assert (head.status_code, head.content) == (200, b"")
    assert got.headers["content-length"] == head.headers["content-length"]


async def test_pages_for_people(client: httpx.AsyncClient) -> None:
    """What is served, with a curl line for each model; status and metrics from the service."""
    text = (await client.get("/")).text
    listed = (await client.get("/", headers={"Accept": "application/json"})).json()

    assert [model["name"] for model in listed["models"]][:2] == ["double", "mirror"]
    assert all(model["example"] in text for model in listed["models"])
    assert (await client.get("/status")).json() == {"calls": 0}
    metrics = await client.get("/metrics")
    assert metrics.text == "calls_total 0\n"
    assert metrics.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


async def test_the_examples_are_right(client: httpx.AsyncClient) -> None:
    """What a curl line for tensors would send is answered."""
    listed = (await client.get("/", headers={"Accept": "application/json"})).json()
    for model in listed["models"]:
        if model["task"] != "tensors":
            continue
        body = json.loads(model["example"].split(" -d ")[1].strip("'"))
        assert (await client.post(f"/v2/models/{model['name']}/infer", json=body)).status_code == 200


def test_long_examples_are_binary() -> None:
    """More values than fit in a line come from /dev/zero; the shell line makes exactly that body."""
    from api.protocol_service import model
    from serve_app.api.open_inference.codec import ModelCodec, parse
    from serve_app.api.overview import example
    from serve_app.payloads import TensorSpec

    info = model("big", inputs=(TensorSpec("x", "FP16", (-1, 3, 224, -1)),))
    line = example(info, "http://server")
    command, _, rest = line.partition(" | ")
    length = rest.split("Content-Length: ")[1].split("'")[0]
    body = subprocess.run(["/bin/sh", "-c", command], check=True, capture_output=True).stdout

    assert ModelCodec(info).decode(parse(body, length.encode()))["x"].shape == (1, 3, 224, 1)


async def test_websockets_are_closed(service: NumpyService) -> None:
    """Nothing here speaks them."""
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await create_app(*both(service))({"type": "websocket", "path": "/v2", "headers": []}, receive, send)

    assert [message["type"] for message in sent] == ["websocket.close"]


@given(
    path=st.sampled_from([INFER, "/v1/models/pictures/predict", "/v1/models/sentences/predict", "/v1/embeddings"]),
    content_type=st.sampled_from(
        ["", "application/json", "text/plain", "image/png", "multipart/form-data; boundary=b", "multipart/form-data"]
    ),
    body=st.binary(max_size=100)
    | st.text(max_size=20).map(lambda text: json.dumps({"model": "sentences", "inputs": text, "input": text}).encode())
    | st.binary(max_size=40).map(lambda part: b'--b\r\nContent-Disposition: form-data; name="file"' + part + b"--b--"),
    headers=st.dictionaries(
        st.sampled_from(["X-Priority", "X-Timeout-Ms", "X-Variant", "X-Fallback", "Content-Encoding", "X-Request-Id"])
        | st.sampled_from(["Accept-Encoding", "Inference-Header-Content-Length"]),
        st.binary(max_size=6).map(lambda value: value.replace(b"\r", b"").replace(b"\n", b"")),
        max_size=2,
    ),
)
def test_nothing_that_arrives_is_an_internal_error(
    path: str, content_type: str, body: bytes, headers: dict[str, bytes]
) -> None:
    """Whatever a client sends is answered or refused, never a 500 and never an escaped exception."""

    async def post() -> httpx.Response:
        transport = httpx.ASGITransport(create_app(*both(NumpyService())))
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            everything: dict[str, str | bytes] = {"Content-Type": content_type, **headers}
            return await client.post(path, content=body, headers=everything)  # type: ignore[arg-type]

    reply = asyncio.run(post())

    assert reply.status_code < 500 or reply.json().get("code") == "unsupported"
    reply.json()


async def test_expanded_bodies_are_bounded_together() -> None:
    """What a small compressed body becomes counts as much as a body that was sent so."""
    bodies = BodyReader(max_body=1000, max_held_bytes=1500, offload_above=100, decode_threads=2)
    compressed = gzip.compress(bytes(900))

    async def receive() -> Message:
        return {"type": "http.request", "body": compressed, "more_body": False}

    headers = {b"content-encoding": b"gzip"}
    first = await bodies.read(receive, headers, 60.0)
    assert (len(first), bodies.held) == (900, 900)
    with pytest.raises(QueueFull):
        await bodies.read(receive, headers, 60.0)
    bodies.release(len(first))
    assert bodies.held == 0
    assert await bodies.read(receive, headers, 60.0) == first


async def test_an_entry_counts_as_what_it_holds_in_memory(client: httpx.AsyncClient, service: NumpyService) -> None:
    """Short numbers take more room decoded than written."""
    body = {"inputs": [{"name": "x", "shape": [16, 4], "datatype": "FP32", "data": [0] * 64}]}
    content = json.dumps(body, separators=(",", ":")).encode()
    assert len(content) < 64 * 4
    assert (await client.post(INFER, content=content)).status_code == 200
    assert service.calls[-1][2].nbytes == 64 * 4


@pytest.mark.parametrize("length", [500, 6000], ids=["decoded in the event loop", "decoded in a thread"])
async def test_an_entry_counts_its_texts_beside_its_numbers(
    client: httpx.AsyncClient, service: NumpyService, length: int
) -> None:
    """Of a text, the array holds a reference alone."""
    data: dict[str, list[Any]] = {datatype: [0, 0] for datatype in EVERY_DATATYPE} | {
        "FP64": [0] * 1000,
        "BYTES": ["a" * length, ""],
    }
    data["BOOL"] = [False, True]
    inputs = [
        {"name": f"in_{datatype}", "shape": [1, len(values) // 2, 2], "datatype": datatype, "data": values}
        for datatype, values in data.items()
    ]
    reply = await client.post("/v2/models/mirror/infer", json={"inputs": inputs})
    assert reply.status_code == 200
    numbers = 2 * (1 + 2 * (1 + 2 + 4 + 8) + 2 + 4) + 8 * 1000
    assert service.calls[-1][2].nbytes == numbers + 2 * 8 + length


@pytest.mark.parametrize("url", [INFER, PREDICT])
async def test_the_address_is_the_tenant_where_there_are_no_keys(
    client: httpx.AsyncClient, service: NumpyService, url: str
) -> None:
    """And nobody can name another one."""
    content: dict[str, Any] = {"json": REQUEST} if url == INFER else {"json": {"inputs": "a text"}}
    await client.post(url, headers={":client": "elsewhere"}, **content)
    assert service.tenants == [("127.0.0.1", 1.0)]
    assert [options.attributes.tenant for _, _, options in service.calls] == ["127.0.0.1"]
