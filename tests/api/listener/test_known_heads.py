"""Heads that came before are not parsed again, and requests that have one are answered as all others."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send

from api.listener.raw_client import Client, echo, post, serving, until
from serve_app.http.head import KnownHeads
from serve_app.http.turns import Turns
from serve_app.scheduling.entry import Priority

HEAD = b"POST /v2 HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n"
SCOPE = {"type": "http", "path": "/v2"}


def test_a_head_is_known_where_the_same_bytes_come_with_the_whole_body() -> None:
    """And nothing else: another length, more than one request, or another head is the parser's."""
    heads = KnownHeads()
    heads.learn(HEAD + b"ab", SCOPE, 2)

    known = heads.of(HEAD + b"cd")
    assert known is not None
    assert known[0].scope == SCOPE
    assert (known[0].length, known[1]) == (2, len(HEAD))
    for other in (HEAD + b"c", HEAD + b"cde", HEAD, HEAD[:-4], HEAD.replace(b"/v2", b"/v3") + b"cd", b"", b"\r\n\r\n"):
        assert heads.of(other) is None


def test_an_empty_line_before_a_request_is_no_part_of_its_head() -> None:
    """The parser drops it; here it would stand for a head of its own."""
    heads = KnownHeads()
    heads.learn(b"\r\n\r\n" + HEAD + b"ab", SCOPE, 2)

    assert heads.of(b"\r\n\r\n") is None
    assert heads.of(b"\r\n\r\n" + HEAD + b"ab") is None


@given(st.integers(0, 3000), st.integers(0, 40))
def test_long_heads_and_very_many_are_not_kept(longest: int, number: int) -> None:
    """What is kept is bounded, whatever clients send."""
    heads = KnownHeads()
    for each in range(600 + number):
        head = b"GET / HTTP/1.1\r\nHost: h\r\nX-Number: %d\r\nX-Long: %b\r\n\r\n" % (each, b"x" * longest)
        heads.learn(head, SCOPE, 0)
    last = heads.of(head)

    assert (last is not None) == (len(head) <= 2048)


class Noted:
    """Answers with the body and notes scopes."""

    def __init__(self) -> None:
        self.scopes: list[Scope] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        self.scopes.append(scope)
        await echo(scope, receive, send)


async def test_applications_are_told_the_same() -> None:
    """But for the address of the client, which is each connection's own."""
    app = Noted()
    async with serving(app) as (_, port):
        clients = [await Client.connect(port) for _ in range(2)]
        for client in (*clients, clients[0]):
            assert (await (await client.send(post(b"same", "X-Some: thing"))).answer())[2] == b"same"
        first, other, again = app.scopes
        for scope in (other, again):
            scope.pop("serve_app.awaited_since")
        assert again == first
        assert other["client"] != first["client"]
        assert {**other, "client": None} == {**first, "client": None}


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 60)), min_size=1, max_size=12))
def test_it_does_not_matter_where_the_bytes_of_requests_are_cut(steps: list[tuple[int, int]]) -> None:
    """Each request is answered once and in its order, whether a piece is a request, a part of one, or several."""

    async def ask() -> None:
        async with serving(echo) as (_, port):
            client = await Client.connect(port)
            await client.send(post(b"0"))
            assert (await client.answer())[2] == b"0"
            for pieces, cut in steps:
                bodies = [b"%d" % n for n in range(pieces + 1)]
                data = b"".join(post(body) for body in bodies)
                await client.send(data[:cut])
                await asyncio.sleep(0)
                await client.send(data[cut:])
                assert [(await client.answer())[2] for _ in bodies] == bodies

    asyncio.run(ask())


@pytest.mark.parametrize("field", ["Connection: close", "Expect: 100-continue", "Upgrade: h2c\r\nConnection: upgrade"])
async def test_what_changes_the_connection_is_parsed_each_time(field: str) -> None:
    """The end of a connection, an invitation to send, and offers of other protocols."""
    async with serving(echo) as (listener, port):
        for _ in range(3):
            client = await Client.connect(port)
            await client.send(post(b"x", field))
            answer = await client.answer()
            while answer[0] == 100:
                answer = await client.answer()
            assert answer[2] == b"x"
            if field == "Connection: close":
                assert await client.reader.read() == b""
            client.writer.close()
        await until(lambda: listener.connections == 0)


async def test_more_may_come_behind_a_request_that_waits() -> None:
    """It is answered after it."""
    async with serving(echo, turns=busy(refuses=False)) as (_, port):
        clients = [await Client.connect(port) for _ in range(80)]
        for _ in range(3):
            for client in clients:
                client.writer.write(post(b"a"))
            await asyncio.gather(*(client.send(post(b"b"), post(b"c")) for client in clients))
            for client in clients:
                assert [(await client.answer())[2] for _ in range(3)] == [b"a", b"b", b"c"]


def busy(*, refuses: bool) -> Turns:
    """Turns of requests that all want an answer at once, or any time."""
    seconds = 0.0 if refuses else 60.0
    return Turns(asyncio.get_running_loop(), lambda _method, _headers: (Priority.NORMAL, seconds))


async def test_refusals_take_a_part_of_the_time_only() -> None:
    """Connections whose requests were refused are read later then: every request is answered all the same."""
    turns = busy(refuses=True)
    async with serving(echo, turns=turns) as (_, port):
        clients = [await Client.connect(port) for _ in range(300)]

        async def ask(client: Client) -> list[int]:
            return [(await (await client.send(post(b"x"))).answer())[0] for _ in range(20)]

        answers = [status for each in await asyncio.gather(*map(ask, clients)) for status in each]
        assert len(answers) == 6000
        assert set(answers) == {200, 429}
        assert turns.refused[Priority.NORMAL] == answers.count(429)
