"""HTTP/1.1 as clients speak it, well and badly."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
from collections.abc import AsyncIterator
from time import monotonic
from typing import Any

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

from api.listener.raw_client import LARGE, Client, Gated, echo, post, serving, until
from serve_app.http.exchange import AWAITED_SINCE


async def test_the_scope_is_that_of_asgi() -> None:
    """Path decoded, query apart, names of headers in lower case."""
    async with serving(echo) as (_, port):
        client = await Client.connect(port)
        await client.send(b"GET /a%20b%C3%A9?c=%20d HTTP/1.1\r\nHost: test\r\nX-Thing: Value\r\n\r\n")
        status, headers, body = await client.answer()
        assert (status, headers["x-a"]) == (200, "b")
        assert json.loads(body) == {
            "method": "GET",
            "path": "/a bé",
            "raw_path": "/a%20b%C3%A9",
            "query_string": "c=%20d",
            "http_version": "1.1",
            "headers": {"host": "test", "x-thing": "Value"},
        }


@pytest.mark.parametrize("size", [1, 1000, 70_000, LARGE])
@pytest.mark.parametrize("chunked", [False, True])
async def test_bodies_of_all_sizes_on_one_connection(size: int, chunked: bool) -> None:
    """What was sent comes back, twice on the same connection."""

    async def pieces(body: bytes) -> AsyncIterator[bytes]:
        for start in range(0, len(body), 50_000):
            yield body[start : start + 50_000]

    async with serving(echo) as (listener, port), httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        for letter in (b"a", b"b"):
            body = letter * size
            reply = await client.post("/", content=pieces(body) if chunked else body)
            assert reply.content == body
        assert listener.connections == 1


async def test_requests_are_answered_in_their_order_when_they_come_at_once() -> None:
    """Pipelining, with bodies small and large; the connection lives on."""
    bodies = [b"first", b"second" * 20_000, b"third", b"fourth" * 50_000, b"fifth"]
    async with serving(echo) as (_, port):
        client = await Client.connect(port)
        sending = asyncio.create_task(client.send(*map(post, bodies)))
        assert [(await client.answer())[2] for _ in bodies] == bodies
        await sending
        await client.send(post(b"again"))
        assert (await client.answer())[2] == b"again"


async def test_requests_may_come_byte_by_byte() -> None:
    """The head and the body are put together."""
    async with serving(echo) as (_, port):
        client = await Client.connect(port)
        client.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in post(b"slow"):
            await client.send(bytes([byte]))
        assert (await client.answer())[2] == b"slow"


async def test_a_body_that_comes_later_is_awaited_since_its_head() -> None:
    """The application counts that time into the deadline."""
    scopes = []

    async def noting(scope: Scope, receive: Receive, send: Send) -> None:
        scopes.append(scope)
        await echo(scope, receive, send)

    async with serving(noting) as (_, port):
        client = await Client.connect(port)
        await client.send(post(b"whole") + post(b"late")[:-1])
        await client.answer()
        answered = monotonic()
        await client.send(b"e")
        assert (await client.answer())[2] == b"late"
    assert AWAITED_SINCE not in scopes[0]
    assert scopes[1][AWAITED_SINCE] <= answered


async def test_too_many_requests_at_once_end_the_connection() -> None:
    """So many are answered as may wait; the last answer says that the connection ends."""
    async with serving(echo) as (_, port):
        client = await Client.connect(port)
        await client.send(post(b"x") * 200)
        answers = [await client.answer()]
        while "connection" not in answers[-1][1]:
            answers.append(await client.answer())
        assert {answer[0] for answer in answers} == {200}
        assert len(answers) == 65
        assert await client.ended() == b""


@pytest.mark.parametrize(
    ("version", "header", "kept"),
    [
        ("1.1", "X: y", True),
        ("1.1", "Connection: close", False),
        ("1.0", "X: y", False),
        ("1.0", "Connection: keep-alive", True),
    ],
)
async def test_connections_are_kept_as_the_client_asks(version: str, header: str, kept: bool) -> None:
    """And the answer says so where the version of HTTP does not."""
    async with serving(echo) as (_, port):
        client = await Client.connect(port)
        await client.send(post(b"x", header, version=version))
        _, headers, body = await client.answer()
        said = {("1.1", True): None, ("1.0", True): "keep-alive"}.get((version, kept), "close")
        assert (body, headers.get("connection")) == (b"x", said)
        if kept:
            await client.send(post(b"y", "Connection: close", version=version))
            assert (await client.answer())[2] == b"y"
        assert await client.ended() == b""


async def test_head_has_the_headers_of_get_and_no_body() -> None:
    """The next answer is not taken for the body."""
    async with serving(echo) as (_, port):
        client = await Client.connect(port)
        await client.send(b"HEAD / HTTP/1.1\r\nHost: test\r\n\r\n", post(b"x"))
        status, headers, _ = await client.answer(head_only=True)
        assert (status, int(headers["content-length"]) > 0) == (200, True)
        assert (await client.answer())[2] == b"x"


@pytest.mark.parametrize("size", [5, LARGE])
async def test_a_client_that_waits_for_continue_gets_it(size: int) -> None:
    """Once, and only when the application asks for the body."""
    async with serving(echo) as (_, port):
        client = await Client.connect(port)
        request = post(b"x" * size, "Expect: 100-continue")
        await client.send(request[:-size])
        assert (await client.answer())[0] == 100
        await client.send(request[-size:])
        assert (await client.answer())[::2] == (200, b"x" * size)


async def test_trailers_stay_out_of_the_next_request() -> None:
    """What follows a chunked body is dropped."""
    async with serving(echo) as (_, port):
        client = await Client.connect(port)
        chunked = (
            b"POST / HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\nX-Evil: 1\r\n\r\n"
        )
        await client.send(chunked, b"GET / HTTP/1.1\r\nHost: test\r\n\r\n")
        assert (await client.answer())[2] == b"ab"
        assert json.loads((await client.answer())[2])["headers"] == {"host": "test"}


@pytest.mark.parametrize(
    "framing", ["Content-Length: 4\r\n\r\nbody", "Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n"]
)
async def test_offers_of_other_protocols_are_declined(framing: str) -> None:
    """Java's client offers HTTP/2 with every first request; its body belongs to HTTP/1.1."""
    offer = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAAA\r\n"
    async with serving(echo) as (_, port):
        client = await Client.connect(port)
        await client.send(f"POST / HTTP/1.1\r\nHost: test\r\n{offer}{framing}".encode(), post(b"next"))
        assert (await client.answer())[::2] == (200, b"body")
        assert (await client.answer())[::2] == (200, b"next")


async def test_an_offer_of_another_protocol_leaves_the_version_as_it_is() -> None:
    """A client of HTTP/1.0 is answered in it: nothing chunked, and the connection ends."""
    async with serving(echo) as (_, port):
        client = await Client.connect(port)
        await client.send(b"GET / HTTP/1.0\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
        status, headers, body = await client.answer()
        assert (status, headers["connection"], json.loads(body)["http_version"]) == (200, "close", "1.0")
        assert await client.ended() == b""


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\nHost: a\n\n", 400),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 405),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +3\r\n\r\nabc", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\nabc", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
    ],
)  # fmt: skip
async def test_what_is_malformed_or_ambiguous_is_refused(request_: bytes, status: int) -> None:
    """In JSON, after the answers before it; what follows is never taken for a request, and the connection ends."""
    async with serving(echo) as (_, port):
        client = await Client.connect(port)
        await client.send(post(b"before"), request_, post(b"smuggled"))
        assert (await client.answer())[2] == b"before"
        got, headers, body = await client.answer()
        assert (got, headers["connection"], headers["content-type"]) == (status, "close", "application/json")
        assert set(json.loads(body)) == {"error", "code"}
        client.writer.write_eof()
        assert await client.ended() == b""


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 70_000,
        b"GET /" + b"x" * 70_000,
        b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 300,
        b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 300 + b"\r\n",
    ],
    ids=["header", "path", "headers", "all headers"],
)
async def test_heads_that_are_too_long_are_refused(head: bytes) -> None:
    """Before more of them is kept."""
    async with serving(echo) as (_, port):
        client = await Client.connect(port)
        await client.send(head)
        status, headers, body = await client.answer()
        assert (status, headers["connection"], json.loads(body)["code"]) == (431, "close", "invalid_request")


async def test_a_body_that_breaks_off_into_nonsense_ends_the_work_on_it() -> None:
    """The application is cancelled where it waits for the rest, and the client is told."""
    async with serving(echo) as (listener, port):
        client = await Client.connect(port)
        await client.send(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n")
        await until(lambda: listener.requests == 1)
        await client.send(b"zz\r\n")
        assert (await client.answer())[0] == 400
        await until(lambda: listener.requests == 0)


async def test_a_client_that_leaves_cancels_its_request(caplog: pytest.LogCaptureFixture) -> None:
    """Quietly, and only its own."""
    app = Gated()
    with caplog.at_level(logging.DEBUG):
        async with serving(app) as (listener, port):
            client = await Client.connect(port)
            await client.send(post(b"x"))
            await app.started.wait()
            client.leave()
            await app.cancelled.wait()
            other = await Client.connect(port)
            app.let.set()
            await other.send(post(b"x"))
            assert (await other.answer())[2] == b"done"
            assert listener.requests == 0
    assert [record for record in caplog.records if record.levelno > logging.DEBUG] == []


async def test_answers_without_a_length_are_chunked() -> None:
    """HTTP/1.0 gets them to the end of the connection."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for piece in (b"one ", b"", b"two"):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async with serving(app) as (_, port):
        client = await Client.connect(port)
        await client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 2)
        for _ in range(2):
            assert (await client.answer())[2] == b"one two"
        old = await Client.connect(port)
        await old.send(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert (await old.answer())[2] == b"one two"


async def test_large_answers_wait_for_their_client() -> None:
    """No more is held in memory than the transport's limits while the client does not read."""
    sent = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal sent
        length = [(b"content-length", b"%d" % (64 * 2**20))]
        await send({"type": "http.response.start", "status": 200, "headers": length})
        for number in range(64):
            await send({"type": "http.response.body", "body": b"x" * 2**20, "more_body": number < 63})
            sent += 1

    async with serving(app) as (_, port):
        client = await Client.connect(port)
        await client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        await client.reader.readexactly(1000)
        assert sent < 60
        rest = await client.reader.readexactly(64 * 2**20 - 1000)
        assert len(rest) > 0


@pytest.mark.parametrize("headers", [[(b"x", b"a\r\nb: c")], [(b"content-length", b"1")], [(b"content-length", b"9")]])
async def test_faulty_answers_are_not_sent(headers: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Line breaks in headers, and bodies that are not as long as announced: the client gets 500, the log the reason."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"four"})

    async with serving(app) as (_, port):
        client = await Client.connect(port)
        await client.send(post(b"x"))
        answer = await client.reader.read()
        assert not answer.startswith(b"HTTP/1.1 200")
    assert len(caplog.records) == 1


async def test_the_error_for_a_faulty_head_is_framed_anew(caplog: pytest.LogCaptureFixture) -> None:
    """The answer that could not be begun was to be chunked; the 500 in its place has a length."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x", b"a\r\nb: c")]})
        await send({"type": "http.response.body", "body": b"one", "more_body": True})

    async with serving(app) as (_, port):
        client = await Client.connect(port)
        await client.send(post(b"x"))
        status, headers, body = await client.answer()
    assert (status, int(headers["content-length"]), headers.get("transfer-encoding")) == (500, len(body), None)
    assert "error" in json.loads(body)


_START: Message = {"type": "http.response.start", "status": 200, "headers": []}
_PIECE: Message = {"type": "http.response.body", "body": b"x", "more_body": True}
_LAST: Message = {"type": "http.response.body", "body": b"x"}


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ([_PIECE], "http.response.body before http.response.start"),
        ([_START, _START], "http.response.start twice"),
        ([_START, _PIECE, _START], "http.response.start twice"),
        ([_START, _LAST, _START], "http.response.start after the end of the response"),
        ([_START, _LAST, _PIECE], "http.response.body after the end of the response"),
    ],
)
async def test_messages_out_of_turn_are_the_applications_error(messages: list[Message], fault: str) -> None:
    """It is told which, and can still answer, or has answered."""
    told = ""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal told
        for message in messages[:-1]:
            await send(message)
        try:
            await send(messages[-1])
        except RuntimeError as error:
            told = str(error)
        if messages[-2:-1] != [_LAST]:
            for message in ([_START] if _START not in messages else []) + [_LAST]:
                await send(message)

    async with serving(app) as (_, port):
        client = await Client.connect(port)
        await client.send(post(b"x"))
        status, _, body = await client.answer()
    sent = [message for message in messages[:-1] if "body" in message]
    assert (told, status, body) == (fault, 200, b"x" * len(sent if _LAST in sent else [*sent, _LAST]))


async def test_an_application_without_an_answer_ends_the_connection() -> None:
    """The client is not left waiting."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        return

    async with serving(app) as (_, port):
        client = await Client.connect(port)
        await client.send(post(b"x"))
        with contextlib.suppress(ConnectionResetError):
            assert await client.ended() == b""


async def test_an_answer_reaches_a_client_that_still_sends() -> None:
    """The rest of the body is dropped, and the connection ends."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 413, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async with serving(app) as (_, port):
        client = await Client.connect(port)
        request = post(b"x" * 20 * 2**20)
        sending = asyncio.create_task(client.send(request))
        assert (await client.answer())[0] == 413
        await sending
        client.writer.write_eof()
        assert await client.ended() == b""
