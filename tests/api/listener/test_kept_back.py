"""Connections that are not read for a while since refusals take too much time, and since when their requests wait."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from time import monotonic
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send

from api.authority import Authority
from api.listener.raw_client import Client, echo, post, serving, until
from serve_app.api.urgency import HeadUrgency
from serve_app.domain.priority import Priority
from serve_app.http.exchange import AWAITED_SINCE
from serve_app.http.http1 import Connection, Limits, ListenerState, unread_s
from serve_app.http.tls import Certificates
from serve_app.http.turns import BUSY, Turns, Urgency

needs_tcp_info = pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="the system does not tell")
LOW = post(b"low", "X-Priority: low")
HIGH = post(b"high", "X-Priority: high")
TIMEOUTS_S = {Priority.HIGH: 10.0, Priority.NORMAL: 30.0, Priority.LOW: 0.0}
"""What comes with class `low` and has to wait is refused."""
REFUSAL_S = 0.02
CLOCK_S = 0.03
"""The kernel's clock ticks a hundred times a second, or more often."""


class Watched(Connection):
    """A connection whose transport can be looked at."""

    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by name
        super().connection_made(transport)


class Endless:
    """A request that waits anew whenever it is begun: something always waits.

    Args:
        turns: Begin it.
    """

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.waits = False
        self.goes_on = True

    def begin(self) -> None:
        """Wait anew."""
        if self.goes_on:
            self.turns.wait(self, 0, Urgency(Priority.NORMAL, inf), monotonic())

    turn_down = begin


class Costly:
    """A request that is refused in each round, which takes long.

    Args:
        turns: Refuse it.
    """

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.waits = False
        self.goes_on = True

    def wait(self) -> None:
        """Wait anew, without any time."""
        if self.goes_on:
            self.turns.wait(self, 0, Urgency(Priority.NORMAL, 0.0), monotonic())

    def begin(self) -> None:
        """Wait anew: in the next round it is refused."""
        asyncio.get_running_loop().call_soon(self.wait)

    def turn_down(self) -> None:
        """Take time."""
        until_s = monotonic() + REFUSAL_S
        while monotonic() < until_s:
            pass
        self.begin()


@dataclass
class Meeting:
    """Connections and their clients, on a loop that has too much to do.

    Attributes:
        state: Of the listener.
        connections: On the server's side.
        clients: On the other.
        scopes: Of what was begun.
    """

    state: ListenerState
    connections: list[Watched] = field(default_factory=list)
    clients: list[Client] = field(default_factory=list)
    scopes: list[Scope] = field(default_factory=list)
    waiters: list[Endless | Costly] = field(default_factory=list)

    def let_go(self) -> None:
        """Let nothing wait any more, and no refusal take time."""
        for each in self.waiters:
            each.goes_on = False

    async def be_kept_back(self, number: int, *before: bytes) -> None:
        """Have requests of a client refused until its connection is not read.

        Args:
            number: Of the client.
            before: A request that is sent before each of them, and answered.
        """
        client, transport = self.clients[number], self.connections[number].transport
        while transport.is_reading():
            for request in (*before, LOW):
                await client.send(request)
                await client.answer()


@asynccontextmanager
async def meeting(clients: int, *, is_costly: bool = True) -> AsyncIterator[Meeting]:
    """So many connections; what comes with class `low` is refused, which takes long or not."""
    loop = asyncio.get_running_loop()
    turns = Turns(loop, HeadUrgency(TIMEOUTS_S))

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        met.scopes.append(scope)
        await echo(scope, receive, send)

    met = Meeting(ListenerState(app, Limits(), loop, turns))

    def connect() -> Watched:
        met.connections.append(Watched(met.state))
        return met.connections[-1]

    server = await loop.create_server(connect, "127.0.0.1", 0)
    try:
        for number in range(clients):
            met.clients.append(await Client.connect(server.sockets[0].getsockname()[1]))
            await until(lambda wanted=number + 1: len(met.state.connections) == wanted)  # type: ignore[misc]
        endless, costly = Endless(turns), Costly(turns)
        met.waiters += [endless, costly]
        endless.begin()
        if is_costly:
            costly.wait()
        yield met
    finally:
        met.let_go()
        for connection in met.connections:
            connection.abort()
        server.close()
        await server.wait_closed()


@needs_tcp_info
def test_how_long_bytes_have_been_there() -> None:
    """The last of them, whether or not they were read; to the tick of the kernel's clock."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as client,
    ):
        server, _ = listening.accept()
        with server:
            for read in (False, True, False):
                before = monotonic()
                client.send(b"x")
                after = monotonic()
                if read:
                    server.recv(100)
                while monotonic() < after + 3 * CLOCK_S:
                    pass
                earliest = monotonic()
                waited_s = unread_s(server)
                latest = monotonic()
                assert earliest - waited_s <= after + CLOCK_S
                assert latest - waited_s >= before - CLOCK_S


@needs_tcp_info
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("alone", [False, True])
async def test_what_was_sent_to_a_connection_that_is_not_read_waits_since_then(*, known: bool, alone: bool) -> None:
    """And not since it was read; with a head that came before or another one, beginning at once or in its turn."""
    async with meeting(1) as met:
        request = HIGH if known else post(b"high", "X-Priority: high", "X-New: yes")
        await met.be_kept_back(0, HIGH)
        sent = monotonic()
        await met.clients[0].send(request)
        if alone:
            while monotonic() < sent + 4 * CLOCK_S:
                pass
            met.let_go()
        transport = met.connections[0].transport
        await until(transport.is_reading)
        read = monotonic()
        met.scopes.clear()
        assert (await met.clients[0].answer())[2] == b"high"
        since = met.scopes[0][AWAITED_SINCE]
        assert since - sent < read - since  # nearer to when it was sent


async def test_connections_that_are_kept_back_are_read_again() -> None:
    """However long refusals take all the time: every request is answered, and the connection lives on."""
    async with meeting(4) as met:
        for number in range(4):
            await met.be_kept_back(number)
        for client in met.clients:
            client.writer.write(LOW)
        assert [(await client.answer())[0] for client in met.clients] == [429] * 4
        met.let_go()
        for client in met.clients:
            await client.send(post(b"again"))
            assert (await client.answer())[2] == b"again"


async def test_what_comes_by_other_connections_is_read_meanwhile() -> None:
    """Those that are kept back wait, and `high` does not."""
    async with meeting(4) as met:
        await met.be_kept_back(0)
        await met.clients[1].send(HIGH)
        assert (await met.clients[1].answer())[2] == b"high"


@pytest.mark.parametrize("cut", [True, False])
async def test_clients_that_leave_while_they_are_not_read(*, cut: bool) -> None:
    """Their connections end when they are read again, and others are read as ever."""
    async with meeting(4) as met:
        for number in range(3):
            await met.be_kept_back(number)
            transport = met.clients[number].writer.transport
            transport.abort() if cut else transport.close()
        await until(lambda: len(met.state.connections) == 1)
        await met.be_kept_back(3)
        await met.clients[3].send(HIGH)
        assert (await met.clients[3].answer())[2] == b"high"


class Reader:
    """A connection that notes when it is read again.

    Args:
        read: Where.
    """

    def __init__(self, read: list[Reader]) -> None:
        self._read = read

    def read_on(self) -> None:
        """Note it."""
        self._read.append(self)


async def test_what_carries_urgent_requests_is_read_first() -> None:
    """Even where another connection was kept back before it."""
    read: list[Reader] = []
    async with meeting(0) as met:
        turns, other, urgent = met.state.turns, Reader(read), Reader(read)
        while not (turns.keep_back(other, urgent=False) and turns.keep_back(urgent, urgent=True)):
            await asyncio.sleep(0)
            other, urgent = Reader(read), Reader(read)
        met.let_go()
        await until(lambda: {other, urgent} <= {*read})
        assert read.index(urgent) < read.index(other)


async def test_a_connection_is_kept_back_between_requests_only() -> None:
    """What is sent in one piece is answered in its order, whatever is refused of it."""
    async with meeting(1) as met:
        for _ in range(10):
            await met.clients[0].send((LOW + HIGH) * 5)
            answers = [await met.clients[0].answer() for _ in range(10)]
            assert [status for status, _, _ in answers] == [429, 200] * 5


async def test_connections_of_tls_are_kept_back_and_read_again(tmp_path: Path) -> None:
    """Their socket tells since when what was not read is there."""
    authority, scopes = Authority(tmp_path), []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scopes.append(scope)
        await echo(scope, receive, send)

    turns = Turns(asyncio.get_running_loop(), HeadUrgency(TIMEOUTS_S))
    endless, costly = Endless(turns), Costly(turns)
    async with serving(app, certificates=Certificates(authority.server()), turns=turns) as (_, port):
        clients = [await Client.connect(port, authority.client()) for _ in range(3)]
        endless.begin()
        costly.wait()
        for number in range(6):
            for client in clients:
                client.writer.write(LOW + post(b"high", "X-Priority: high", f"X-Number: {number // 2}"))
            for client in clients:
                assert [(await client.answer())[0] for _ in range(2)] == [429, 200]
        endless.goes_on = costly.goes_on = False
        assert len(scopes) == 18
        assert all(scope[AWAITED_SINCE] <= monotonic() for scope in scopes)


CHUNKED = post(b"", "X-Priority: high", "Transfer-Encoding: chunked").replace(b"Content-Length: 0\r\n", b"")
CHUNKED += b"1\r\na\r\n2\r\nbc\r\n0\r\n\r\n"
REQUESTS = {
    HIGH: (200, b"high"),
    post(b"", "X-Priority: low"): (429, None),
    LOW: (429, None),
    b"HEAD / HTTP/1.1\r\nHost: h\r\n\r\n": (200, b""),
    CHUNKED: (200, b"abc"),
}
"""Requests, and the status and body of their answers where something else waits; ``None``: that of a refusal."""


@given(
    st.lists(st.sampled_from(list(REQUESTS)), min_size=1, max_size=12),
    st.lists(st.integers(1, 200), max_size=12),
    st.booleans(),
)
def test_each_request_is_answered_once_wherever_its_bytes_are_cut(
    requests: list[bytes], cuts: list[int], is_costly: bool
) -> None:
    """In its order, begun or refused, whatever waits, and whether or not it is read at once."""

    async def ask() -> None:
        async with meeting(1, is_costly=is_costly) as met:
            (client,) = met.clients
            data = b"".join(requests)
            for cut in cuts:
                client.writer.write(data[:cut])
                data = data[cut:]
                await asyncio.sleep(0)
            client.writer.write(data)
            for request in requests:
                status, headers, body = await client.answer(head_only=request.startswith(b"HEAD"))
                expected, content = REQUESTS[request]
                assert (status, "connection" in headers) == (expected, False)
                assert body == content if content is not None else json.loads(body)["error"] == BUSY.message

    asyncio.run(ask())
