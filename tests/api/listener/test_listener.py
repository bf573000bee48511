"""Limits of a listener, sharing a port, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket

import pytest
from prometheus_client import CollectorRegistry
from starlette.types import Message, Receive, Scope, Send

from api.listener.raw_client import LARGE, Client, Gated, echo, post, serving, until, until_refused
from api.protocol_service import NumpyService, both
from serve_app.api.http_app import create_app
from serve_app.http.http1 import Limits
from serve_app.http.listener import Listener, bind
from serve_app.telemetry.connection_metrics import CONNECTIONS
from serve_app.telemetry.readings import Readings


@pytest.mark.parametrize("path", ["/echo", "/v1/models/words/predict", "/v1/embeddings"])
async def test_requests_beyond_the_limit_are_refused_and_their_connection_lives_on(path: str) -> None:
    """With the code of a full queue, so that clients come again; in OpenAI's words on OpenAI's routes."""
    app, errors_of = Gated(), create_app(*both(NumpyService())).errors_of
    async with serving(app, Limits(requests=1), errors_of=errors_of) as (_, port):
        first, second = await Client.connect(port), await Client.connect(port)
        await first.send(post(b"x"))
        await app.started.wait()
        await second.send(post(b"x", path=path))
        status, headers, body = await second.answer()
        answer = json.loads(body)
        code = answer["error"]["code"] if path == "/v1/embeddings" else answer["code"]
        assert (status, headers["retry-after"], code) == (429, "1", "queue_full")
        app.let.set()
        assert (await first.answer())[2] == b"done"
        await second.send(post(b"x"))
        assert (await second.answer())[2] == b"done"


async def test_connections_beyond_the_limit_are_told_so() -> None:
    """And closed, where all others have requests in work."""
    app = Gated()
    async with serving(app, Limits(connections=1)) as (_, port):
        first = await Client.connect(port)
        await first.send(post(b"x"))
        await app.started.wait()
        second = await Client.connect(port)
        status, headers, _ = await second.answer()
        assert (status, headers["connection"]) == (503, "close")
        app.let.set()
        assert (await first.answer())[2] == b"done"


async def test_connections_that_ask_nothing_make_room() -> None:
    """Those that never asked go first, and those with a request in work stay."""
    app = Gated()
    async with serving(app, Limits(connections=3)) as (listener, port):
        busy, silent, half = [await Client.connect(port) for _ in range(3)]
        await busy.send(post(b"x"))
        await app.started.wait()
        await half.send(post(b"body")[:-1])
        newcomer = await Client.connect(port)
        assert await silent.ended() == b""
        another = await Client.connect(port)
        assert await half.ended() == b""
        await until(lambda: listener.connections == 3)
        app.let.set()
        for client in (newcomer, another):
            await client.send(post(b"x"))
            assert (await client.answer())[0] == 200
        assert (await busy.answer())[0] == 200


async def test_an_address_may_have_so_many_connections() -> None:
    """More are told so; when one is closed there is room again."""
    async with serving(echo, Limits(connections_per_client=1)) as (listener, port):
        first = await Client.connect(port)
        assert (await (await first.send(post(b"x"))).answer())[0] == 200
        status, _, body = await (await Client.connect(port)).answer()
        assert (status, "more than 1 connections" in json.loads(body)["error"]) == (503, True)
        first.leave()
        await until(lambda: listener.connections == 0)
        assert (await (await (await Client.connect(port)).send(post(b"y"))).answer())[0] == 200


async def test_who_went_and_who_was_not_let_in_is_counted() -> None:
    """For Prometheus: nobody who had to go is told why, and few of the others look."""
    app = Gated()
    async with serving(app, Limits(connections=2)) as (listener, port):
        registry = CollectorRegistry()
        registry.register(Readings(CONNECTIONS, lambda: listener))

        def counted() -> list[float | None]:
            return [registry.get_sample_value(f"serve_app_connections_{what}_total") for what in ("refused", "evicted")]

        assert counted() == [0, 0]
        first, silent = await Client.connect(port), await Client.connect(port)
        await first.send(post(b"x"))
        await app.started.wait()
        app.started.clear()
        second = await Client.connect(port)
        assert await silent.ended() == b""
        assert counted() == [0, 1]
        await second.send(post(b"x"))
        await app.started.wait()
        assert (await (await Client.connect(port)).answer())[0] == 503
        assert counted() == [1, 1]
        app.let.set()
        for client in (first, second):
            assert (await client.answer())[0] == 200


@pytest.mark.parametrize("before", [0, 1, 3], ids=["alone", "behind one", "behind several"])
async def test_bodies_that_arrive_leave_half_of_the_room_to_others(before: int) -> None:
    """However many clients send large bodies slowly, and whatever they ask before: small requests are answered."""
    async with serving(echo, Limits(requests=2)) as (listener, port):
        slow, slower = await Client.connect(port), await Client.connect(port)
        large = post(bytes(LARGE))
        await slow.send(post(b"small") * before + large[:-1])
        for _ in range(before):
            assert (await slow.answer())[2] == b"small"
        await until(lambda: listener.requests == 1)
        await slower.send(large[:-1])
        assert (await slower.answer())[0] == 429
        quick = await Client.connect(port)
        assert (await (await quick.send(post(b"x"))).answer())[2] == b"x"
        await slow.send(large[-1:])
        assert (await slow.answer())[2] == bytes(LARGE)
        await until(lambda: listener.requests == 0)


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHo"], ids=["idle", "half a head"])
async def test_connections_that_do_nothing_are_closed(sent: bytes) -> None:
    """Idle ones, and those whose request does not arrive."""
    async with serving(echo, Limits(head_s=0.01, idle_s=0.01)) as (listener, port):
        client = await Client.connect(port)
        await client.send(sent)
        assert await client.ended() == b""
        await until(lambda: listener.connections == 0)


async def test_a_body_that_does_not_arrive_is_given_up() -> None:
    """Without bothering the application, and with an answer."""
    app = Gated()
    async with serving(app, Limits(body_s=0.01)) as (_, port):
        client = await Client.connect(port)
        await client.send(post(b"body")[:-1])
        status, headers, body = await client.answer()
        assert (status, headers["connection"], json.loads(body)["code"]) == (504, "close", "deadline_exceeded")
        assert not app.started.is_set()


async def test_clients_that_ask_and_leave_at_once_are_not_counted_for_ever() -> None:
    """Their requests may be cancelled before they have begun."""
    app = Gated()
    async with serving(app) as (listener, port):
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(post(b"x"))
            await until(lambda: listener.connections == 1)
            await until(lambda: listener.connections == 0)
        assert listener.requests == 0


async def test_closing_answers_what_is_in_work_and_what_idle_clients_send_last() -> None:
    """Every answer says that the connection ends; new connections go elsewhere."""
    app = Gated()
    async with serving(app) as (listener, port):
        busy, idle = await Client.connect(port), await Client.connect(port)
        await busy.send(post(b"x"))
        await app.started.wait()
        closing = asyncio.create_task(listener.close(60.0, grace_s=60.0))
        await until_refused(port)
        await idle.send(post(b"x"))
        app.let.set()
        for client in (busy, idle):
            _, headers, body = await client.answer()
            assert (body, headers["connection"]) == (b"done", "close")
            assert await client.ended() == b""
            client.leave()
        await closing
        assert (listener.connections, listener.requests) == (0, 0)


async def test_closing_answers_what_was_pipelined_behind_a_request_in_work() -> None:
    """Only the last answer says that the connection ends, and what comes after it is dropped without a reset."""
    app = Gated()
    async with serving(app) as (listener, port):
        client = await Client.connect(port)
        await client.send(post(b"x"), post(b"x"), post(b"x"))
        await app.started.wait()
        closing = asyncio.create_task(listener.close(60.0, grace_s=60.0))
        await until_refused(port)
        app.let.set()
        answers = [await client.answer() for _ in range(3)]
        assert [body for _, _, body in answers] == [b"done"] * 3
        assert [headers.get("connection") for _, headers, _ in answers] == [None, None, "close"]
        await client.send(post(b"x"))
        assert await client.ended() == b""
        client.leave()
        await closing


async def test_connections_that_are_let_go_end_after_their_next_answer() -> None:
    """And no request that was sent before its client could know is lost, nor is one of another connection."""
    app = Gated()
    app.let.set()
    async with serving(app) as (listener, port):
        clients = [await Client.connect(port) for _ in range(4)]
        await until(lambda: listener.connections == 4)
        listener.let_go(0.5)
        for client in clients:
            await client.send(post(b"x"), post(b"x"))
        answers = [[await client.answer() for _ in range(2)] for client in clients]

        assert {body for each in answers for _, _, body in each} == {b"done"}
        assert {first[1].get("connection") for first, _ in answers} == {None}
        ended = [client for client, (_, last) in zip(clients, answers, strict=True) if "connection" in last[1]]
        assert len(ended) == 2
        for client in ended:
            assert await client.ended() == b""
            client.leave()
        await until(lambda: listener.connections == 2)


async def test_closing_ends_idle_connections_after_the_grace_and_all_at_the_limit() -> None:
    """An unanswered request is cancelled."""
    app = Gated()
    async with serving(app) as (listener, port):
        busy, idle = await Client.connect(port), await Client.connect(port)
        await busy.send(post(b"x"))
        await app.started.wait()
        await until(lambda: listener.connections == 2)
        await listener.close(0.0, grace_s=0.0)
        assert await idle.ended() == b""
        await app.cancelled.wait()
        with contextlib.suppress(ConnectionResetError):
            assert await busy.ended() == b""


async def test_closing_answers_requests_that_arrive_as_idle_connections_end() -> None:
    """One is sent in each round of the event loop, so that some come as late as a client can send them."""
    loop = asyncio.get_running_loop()
    async with serving(echo) as (listener, port):
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(64)]
        await until(lambda: listener.connections == len(clients))
        closing = asyncio.create_task(listener.close(60.0, grace_s=0.0))
        sent = []
        for client in clients:
            client.setblocking(False)
            with contextlib.suppress(BlockingIOError):  # else the server has ended the connection
                client.recv(1)
                break
            client.sendall(post(b"x"))
            sent.append(client)
            await asyncio.sleep(0)
        assert 0 < len(sent) < len(clients)
        answers = [await loop.sock_recv(client, 1024) for client in sent]
        for client in clients:
            client.close()
        await closing
    assert {(answer[:12], b"connection: close" in answer) for answer in answers} == {(b"HTTP/1.1 200", True)}


async def test_closing_ends_connections_that_were_answered_in_parts_meanwhile() -> None:
    """Their clients were told that they may go on: the head of the answer had left before."""
    app = Gated()

    async def in_parts(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        await app(scope, receive, _without_head(send))

    async with serving(in_parts) as (listener, port):
        client, idle = await Client.connect(port), await Client.connect(port)
        await client.send(post(b"x"))
        await app.started.wait()
        closing = asyncio.create_task(listener.close(600.0, grace_s=0.0))
        assert await idle.ended() == b""
        app.let.set()
        status, headers, body = await client.answer()
        assert (status, headers.get("connection"), body) == (200, None, b"xdone")
        assert await client.ended() == b""
        async with asyncio.timeout(10.0):
            await closing


def _without_head(send: Send) -> Send:
    async def body(message: Message) -> None:
        if message["type"] == "http.response.body":
            await send(message)

    return body


async def test_two_listeners_share_a_port() -> None:
    """And what had connected to the one that closes is answered by it."""
    first = Listener(echo, bind("127.0.0.1", 0))
    second = Listener(echo, bind("127.0.0.1", first.port))
    port = first.port
    await first.start()
    await second.start()
    try:
        clients = [await Client.connect(port) for _ in range(32)]
        closing = asyncio.create_task(first.close(60.0, grace_s=60.0))
        for client in clients:
            await client.send(post(b"x"))
            assert (await client.answer())[2] == b"x"
            client.leave()
        await closing
        client = await Client.connect(port)
        await client.send(post(b"y"))
        assert (await client.answer())[2] == b"y"
    finally:
        await second.close(0.0)
