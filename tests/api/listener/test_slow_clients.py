"""Clients that do not take what is sent to them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from functools import partial
from typing import cast

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from api.listener.raw_client import Client, serving, until
from serve_app.http.http1 import Connection, Limits, ListenerState
from serve_app.http.listener import bind
from serve_app.http.turns import Turns

MIB = 2**20
GET = b"GET / HTTP/1.1\r\nHost: test\r\n\r\n"


class Answering:
    """Answers with so many bytes, all at once, and counts its answers."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.answers = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        length = (b"content-length", b"%d" % self.nbytes)
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": bytes(self.nbytes)})
        self.answers += 1


class Watched(Connection):
    """A connection whose transport can be looked at."""

    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by name
        super().connection_made(transport)


@contextlib.asynccontextmanager
async def meeting(app: ASGIApp, limits: Limits) -> AsyncIterator[tuple[Watched, socket.socket]]:
    """One connection and its client, with little room between them; nobody looks at the time."""
    loop = asyncio.get_running_loop()
    made: asyncio.Future[Watched] = loop.create_future()

    def connect() -> Watched:
        made.set_result(Watched(ListenerState(app, limits, loop, Turns(loop))))
        return made.result()

    with bind("127.0.0.1", 0) as listening, socket.socket() as client:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
        client.setblocking(False)
        server = await loop.create_server(connect, sock=listening.dup())
        await loop.sock_connect(client, listening.getsockname())
        connection = await made
        await until(lambda: hasattr(connection, "transport"))
        try:
            yield connection, client
        finally:
            connection.abort()
            server.close()
            await server.wait_closed()


async def test_requests_of_a_client_that_does_not_read_wait_outside() -> None:
    """What waits for it is one answer, however many it asks for; it gets all of them when it reads."""
    app = Answering(MIB)
    loop = asyncio.get_running_loop()
    async with meeting(app, Limits()) as (connection, client):

        def started(number: int) -> bool:
            return app.answers > number or not connection.transport.is_reading()

        for number in range(30):
            await loop.sock_sendall(client, GET)
            await until(partial(started, number))
        assert connection.transport.get_write_buffer_size() < 2 * MIB
        left = 30 * MIB
        while left > 0:
            left -= (await loop.sock_recv(client, MIB)).count(0)
        assert (left, app.answers) == (0, 30)


@pytest.mark.parametrize(("pace", "cut"), [(0.5, True), (2.0, False)])
async def test_a_client_that_takes_its_answer_too_slowly_is_cut_off(pace: float, cut: bool) -> None:
    """One that takes this many times 64 KiB in a second."""
    loop = asyncio.get_running_loop()
    async with meeting(Answering(16 * MIB), Limits(stall_s=30.0)) as (connection, client):
        await loop.sock_sendall(client, GET)
        transport = connection.transport
        await until(lambda: transport.get_write_buffer_size() > 0)
        now, waits = 1000.0, transport.get_write_buffer_size()
        connection.check(now)
        while waits > 4 * MIB and not transport.is_closing():
            before = waits
            while waits == before:
                await loop.sock_recv(client, 16 * 1024)
                waits = transport.get_write_buffer_size()
            now += (before - waits) / (64 * 1024 * pace)
            connection.check(now)
        assert transport.is_closing() == cut


async def test_a_client_that_takes_nothing_is_cut_off_while_more_is_written() -> None:
    """What is added is not taken for what the client took."""
    loop = asyncio.get_running_loop()
    async with meeting(Answering(8 * MIB), Limits(stall_s=30.0)) as (connection, client):
        await loop.sock_sendall(client, GET)
        await until(lambda: connection.transport.get_write_buffer_size() > 0)
        connection.check(1000.0)
        connection.write(bytes(MIB))
        connection.check(1029.0)
        assert not connection.transport.is_closing()
        connection.write(bytes(MIB))
        connection.check(1031.0)
        assert connection.transport.is_closing()


async def test_closing_answers_what_waits_behind_an_answer_that_is_not_taken() -> None:
    """A request that has arrived is not dropped when the idle connections are closed."""
    app = Answering(32 * MIB)
    async with serving(app) as (listener, port):
        idle, slow = await Client.connect(port), await Client.connect(port)
        await slow.send(GET * 2)
        await until(lambda: app.answers == 1 and listener.requests == 0 and listener.connections == 2)
        closing = asyncio.create_task(listener.close(60.0, grace_s=0.0))
        assert await idle.ended() == b""
        for kept in (True, False):
            _, headers, body = await slow.answer()
            assert (headers.get("connection"), len(body)) == (None if kept else "close", app.nbytes)
        await closing
