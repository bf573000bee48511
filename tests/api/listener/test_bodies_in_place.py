"""Bodies that are read straight into the memory of the application."""

from __future__ import annotations

import asyncio
import json
import weakref
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.http as triton
from starlette.types import Message, Receive, Scope, Send

from api.listener.raw_client import LARGE, Client, post, serving, until
from api.protocol_service import NumpyService, both
from serve_app.api.http_app import HttpSettings, create_app
from serve_app.http.body import BodyReader, BodyTooSlow


@pytest.mark.parametrize("sent", [100, 100_000])
async def test_a_client_that_leaves_amid_its_body_cancels_its_request(sent: int) -> None:
    """Whether the body is read into the application's memory or not."""
    outcome: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    bodies = BodyReader(max_body=2**20, max_held_bytes=2**20, offload_above=1000, decode_threads=1)
    started = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        started.set()
        try:
            await bodies.read_in_place(receive, dict(scope["headers"]), 60.0, 0)
        except BaseException as error:
            outcome.set_result(type(error).__name__)
            raise

    async with serving(app) as (_, port):
        client = await Client.connect(port)
        await client.send(post(b"x" * LARGE)[:sent])
        await started.wait()
        client.leave()
        assert await outcome == "CancelledError"
        assert bodies.held == 0


async def test_the_protocols_are_served_with_binary_tensors_in_place() -> None:
    """A large input becomes a view of the memory that it was read into, aligned, and the answer is right."""
    service = NumpyService()
    app = create_app(*both(service), HttpSettings(max_body=2**20))
    x = np.random.default_rng(7).normal(size=(2, 50_000)).astype(np.float32)
    tensor = triton.InferInput("x", x.shape, "FP32")
    tensor.set_data_from_numpy(x)
    body, json_size = triton.InferenceServerClient.generate_request_body([tensor])
    headers = {"Inference-Header-Content-Length": str(json_size)}
    async with serving(app) as (_, port), httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        for _ in range(2):
            reply = await client.post("/v2/models/wide/infer", content=body, headers=headers)
            length = int(reply.headers["inference-header-content-length"])
            result = triton.InferenceServerClient.parse_response_body(reply.content, header_length=length)
            assert np.array_equal(x * 2, result.as_numpy("y"))
            assert "x-request-id" in reply.headers
        missing = await client.get("/nowhere")
        assert (missing.status_code, missing.json()["code"]) == (404, "not_found")
    payload: Any = service.calls[0][1]
    assert (payload["x"].flags.writeable, payload["x"].ctypes.data % 64) == (False, 0)
    assert app.bodies.held == 0


async def test_a_body_that_takes_too_long_in_place_is_refused_and_forgotten() -> None:
    """The memory is written to no more."""
    given: list[memoryview] = []

    def allocate(nbytes: int, aligned_at: int) -> memoryview:
        assert (nbytes, aligned_at) == (LARGE, 5)
        given.append(memoryview(bytearray(nbytes)))
        return given[0]

    bodies = BodyReader(
        max_body=2**20,
        max_held_bytes=2**20,
        offload_above=1000,
        decode_threads=1,
        pause_timeout_s=0.01,
        allocate=allocate,
    )

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        with pytest.raises(BodyTooSlow):
            await bodies.read_in_place(receive, dict(scope["headers"]), 60.0, 5)
        assert bodies.held == 0
        message: Message = {"type": "http.response.start", "status": 504, "headers": [(b"content-length", b"0")]}
        await send(message)
        await send({"type": "http.response.body", "body": b""})

    async with serving(app) as (_, port):
        client = await Client.connect(port)
        request = post(b"x" * LARGE)
        await client.send(request[:200_000])
        status, headers, _ = await client.answer()
        assert (status, headers["connection"]) == (504, "close")
        before = bytes(given[0])
        await client.send(request[200_000:])
        client.writer.write_eof()
        assert await client.ended() == b""
        assert bytes(given[0]) == before


async def test_bodies_over_the_limit_of_the_process_are_refused_while_they_arrive() -> None:
    """What was counted is given back."""
    bodies = BodyReader(max_body=2**20, max_held_bytes=100_000, offload_above=1000, decode_threads=1)
    app = create_app(*both(NumpyService()), HttpSettings(), bodies)
    async with serving(app) as (_, port):
        client = await Client.connect(port)
        await client.send(
            post(b"x" * LARGE, "Inference-Header-Content-Length: 5", path="/v2/models/wide/infer"),
        )
        status, headers, body = await client.answer()
        assert (status, headers["connection"], json.loads(body)["code"]) == (429, "close", "queue_full")
        assert bodies.held == 0


@pytest.mark.usefixtures("collect_never")
@pytest.mark.parametrize("sent", [200_000, None], ids=["amid its body", "while it is in work"])
async def test_the_memory_of_a_client_that_leaves_is_free_at_once(sent: int | None) -> None:
    """Without the help of the garbage collector, which comes rarely."""
    given: list[weakref.ref[Any]] = []

    def allocate(nbytes: int, aligned_at: int) -> memoryview:
        block = np.empty(nbytes, np.uint8)
        given.append(weakref.ref(block))
        reading.set()
        return block.data

    bodies = BodyReader(
        max_body=2**20,
        max_held_bytes=2**24,
        offload_above=1000,
        decode_threads=1,
        pause_timeout_s=60.0,
        allocate=allocate,
    )
    reading, working = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body = await bodies.read_in_place(receive, dict(scope["headers"]), 60.0, 0)
        bodies.release(len(body))
        working.set()
        await asyncio.Event().wait()

    async with serving(app) as (listener, port):
        for _ in range(3):
            reading.clear()
            working.clear()
            client = await Client.connect(port)
            await client.send(post(b"x" * LARGE)[:sent])
            await (reading if sent else working).wait()
            client.leave()
            await until(lambda: listener.connections == listener.requests == 0)
        assert [block() is None for block in given] == [True] * 3


async def test_heads_alone_do_not_take_the_memory_for_bodies_in_place() -> None:
    """Beyond the bound, bodies arrive elsewhere; when others are complete or given up, there is room again."""
    given = asyncio.Queue[int]()

    def allocate(nbytes: int, aligned_at: int) -> memoryview:
        given.put_nowait(nbytes)
        return memoryview(bytearray(nbytes))

    bodies = BodyReader(
        max_body=2**20,
        max_held_bytes=2**24,
        offload_above=1000,
        decode_threads=1,
        allocate=allocate,
        in_place_bytes=2 * LARGE,
    )

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body = await bodies.read_in_place(receive, dict(scope["headers"]), 60.0, 0)
        bodies.release(len(body))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(body)})

    async with serving(app) as (listener, port):
        body = b"x" * LARGE
        request = post(body)
        slow = [await Client.connect(port) for _ in range(2)]
        for client in slow:
            await client.send(request[:-LARGE])
            assert await given.get() == LARGE
        other = await Client.connect(port)
        await other.send(request)
        assert (await other.answer())[2] == body
        assert given.empty()
        slow[0].leave()
        await until(lambda: listener.requests == 1)
        await slow[1].send(body)
        assert (await slow[1].answer())[2] == body
        for _ in range(3):
            await other.send(request)
            assert (await other.answer())[2] == body
            assert given.get_nowait() == LARGE
