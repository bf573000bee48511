"""Heads that came before are not parsed again, and requests that have one are answered as all others."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send

from api.listener.raw_client import Client, echo, post, serving, until
from serve_app.domain.priority import Priority
from serve_app.http.head import KnownHeads, end_of
from serve_app.http.turns import Turns, Urgency

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


def test_the_end_of_a_head() -> None:
    """The first empty line. A long head has none here."""
    assert end_of(HEAD + b"a\r\n\r\n") == len(HEAD)
    assert end_of(b"\r\n\r\n" + HEAD) == 4
    for other in (b"", HEAD[:-1], HEAD[:-4] + b"\r\nX: " + b"x" * 2048 + b"\r\n\r\n"):
        assert end_of(other) < 4


def test_what_is_kept_is_bounded() -> None:
    """Whatever clients send."""
    heads = KnownHeads()
    kept = [HEAD.replace(b"h\r", b"%d\r" % number) for number in range(5000)]
    for head in kept:
        heads.learn(head + b"ab", SCOPE, 2)

    assert heads.of(kept[-1] + b"ab") is not None
    assert sum(heads.of(head + b"ab") is not None for head in kept) <= 512


async def test_the_first_letters_of_a_method_may_have_come_before() -> None:
    """With the end of the request before it: the bytes that follow look like a request, and are another one."""
    app = Noted()
    async with serving(app) as (_, port):
        asked = post(b"", path="/x").replace(b"POST", b"LOCK")
        for _ in range(2):  # what is known of such a head is what the parser reads from it
            client = await Client.connect(port)
            await client.send(post(b"x") + b"UN")
            assert (await client.answer())[2] == b"x"
            await client.send(asked)
            assert (await client.answer())[0] == 200
            other = await Client.connect(port)
            await other.send(asked)
            assert (await other.answer())[0] == 200

        assert [scope["method"] for scope in app.scopes] == ["POST", "UNLOCK", "LOCK"] * 2


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
    return Turns(asyncio.get_running_loop(), lambda _method, _path, _headers: Urgency(Priority.NORMAL, seconds))


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
