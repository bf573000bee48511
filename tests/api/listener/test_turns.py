"""Which requests a listener begins first where more come at once than it can begin."""

from __future__ import annotations

import asyncio
import json

import pytest
from starlette.types import Receive, Scope, Send

from api.listener.raw_client import Client, Gated, echo, post, serving, until
from serve_app.access.guard import Guard
from serve_app.api.urgency import HeadUrgency
from serve_app.domain.keys import Key, digest_of
from serve_app.domain.priority import Priority
from serve_app.http.turns import Turns, Urgency
from serve_app.scheduling.intake import Tenant

TIMEOUTS_S = {Priority.HIGH: 10.0, Priority.NORMAL: 30.0, Priority.LOW: 60.0}


def by_head() -> Turns:
    """Turns by the headers of requests, without keys."""
    return Turns(asyncio.get_running_loop(), HeadUrgency(TIMEOUTS_S))


class Noted:
    """Answers with the body, and notes the classes of what was begun."""

    def __init__(self) -> None:
        self.begun: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        self.begun.append(dict(scope["headers"]).get(b"x-priority", b"normal").decode())
        message = await receive()
        if message["type"] == "http.request":
            body = message["body"]
            length = (b"content-length", b"%d" % len(body))
            await send({"type": "http.response.start", "status": 200, "headers": [length]})
            await send({"type": "http.response.body", "body": body})


async def test_of_what_comes_at_once_the_most_urgent_is_begun_first() -> None:
    """But for the first few, which are begun when they come."""
    app = Noted()
    async with serving(app, turns=by_head()) as (_, port):
        clients = [await Client.connect(port) for _ in range(100)]
        for number, client in enumerate(clients):
            client.writer.write(post(b"x", f"X-Priority: {('low', 'normal', 'high', 'low')[number % 4]}"))
        answers = [await client.answer() for client in clients]

        assert [status for status, _, _ in answers] == [200] * 100
        later = app.begun[-60:]
        assert later == sorted(later, key=["high", "normal", "low"].index)


async def test_what_cannot_be_in_time_is_answered_without_being_begun() -> None:
    """With the code of a full queue, in the words of its path, and the connection lives on."""
    app = Noted()
    turns = Turns(asyncio.get_running_loop(), lambda _method, _path, _headers: Urgency(Priority.NORMAL, 0.0))
    async with serving(app, turns=turns) as (_, port):
        clients = [await Client.connect(port) for _ in range(100)]
        for client in clients:
            client.writer.write(post(b"x"))
        answers = [await client.answer() for client in clients]
        refused = [(headers["retry-after"], json.loads(body)) for status, headers, body in answers if status == 429]

        assert refused
        assert len(refused) == 100 - len(app.begun) == turns.refused[Priority.NORMAL]
        assert refused[0][0] == "1"
        assert refused[0][1]["code"] == "queue_full"
        assert refused[0][1]["error"].startswith("the router is busy")
        for client in clients:
            await client.send(post(b"y"))
            assert (await client.answer())[2] in {b"y", answers[-1][2]}


async def test_a_client_that_leaves_while_it_waits_costs_nothing() -> None:
    """Its request is never begun."""
    app = Noted()
    async with serving(app, turns=by_head()) as (listener, port):
        clients = [await Client.connect(port) for _ in range(100)]
        for client in clients:
            client.writer.write(post(b"x", "X-Priority: low"))
            client.writer.transport.abort()
        await until(lambda: listener.connections == 0)

        last = await Client.connect(port)
        await last.send(post(b"z"))
        assert (await last.answer())[2] == b"z"
        assert len(app.begun) < 100


async def test_requests_in_one_piece_are_answered_in_their_order() -> None:
    """Each waits for the one before it, whatever its class."""
    async with serving(echo, turns=by_head()) as (_, port):
        client = await Client.connect(port)
        await client.send(*(post(b"%d" % n, f"X-Priority: {('low', 'high')[n % 2]}") for n in range(30)))

        assert [(await client.answer())[2] for _ in range(30)] == [b"%d" % n for n in range(30)]


async def test_a_large_body_is_read_when_its_turn_has_come() -> None:
    """It counts as several requests, and arrives whole."""
    async with serving(echo, turns=by_head()) as (_, port):
        clients = [await Client.connect(port) for _ in range(8)]
        bodies = [bytes([n]) * 200_000 for n in range(8)]
        answers = await asyncio.gather(*(ask(*each) for each in zip(clients, bodies, strict=True)))

        assert answers == bodies


async def ask(client: Client, body: bytes) -> bytes:
    """One request, read while it is sent."""
    sending = asyncio.ensure_future(client.send(post(body)))
    answer = await client.answer()
    await sending
    return answer[2]


async def test_the_end_waits_for_what_waits() -> None:
    """What has arrived is answered before a listener is closed."""
    app = Gated()
    async with serving(app, turns=by_head()) as (listener, port):
        clients = [await Client.connect(port) for _ in range(60)]
        for client in clients:
            client.writer.write(post(b"x"))
        await app.started.wait()
        closing = asyncio.ensure_future(listener.close(30.0))
        app.let.set()

        assert [(await client.answer())[2] for client in clients] == [b"done"] * 60
        await closing


def test_what_a_head_says_of_its_urgency() -> None:
    """Looks at the server are urgent; what will be refused is not."""
    urgency = HeadUrgency(TIMEOUTS_S)

    assert urgency("GET", "/status", {})[0] is Priority.HIGH
    assert urgency("POST", "/x", {})[:2] == (Priority.NORMAL, 30.0)
    assert urgency("POST", "/x", {b"x-priority": b"high"})[:2] == (Priority.HIGH, 10.0)
    assert urgency("POST", "/x", {b"x-priority": b"3", b"x-timeout-ms": b"250"})[:2] == (Priority.LOW, 0.25)
    assert urgency("POST", "/x", {b"x-priority": b"urgent"})[0] is Priority.LOW
    assert urgency("POST", "/x", {b"x-priority": b"high", b"x-timeout-ms": b"-1"})[0] is Priority.LOW


def test_a_class_counts_as_far_as_the_key_may_use_it() -> None:
    """Without a key that is known a request waits behind all that have one."""
    secret = b"sk-reports"
    key = Key(name="reports", digest=digest_of(secret), highest=Priority.NORMAL, weight=3.0)
    urgency = HeadUrgency(TIMEOUTS_S, guard=Guard([key]))
    known = {b"authorization": b"Bearer " + secret}

    assert urgency("GET", "/v2/health/live", {})[:2] == (Priority.HIGH, 1.0)
    assert urgency("GET", "/status", {})[0] is Priority.LOW
    assert urgency("GET", "/status", known)[0] is Priority.NORMAL
    assert urgency("POST", "/x", {b"x-priority": b"high"})[0] is Priority.LOW
    assert urgency("POST", "/x", {b"x-priority": b"high", **known})[0] is Priority.NORMAL
    assert urgency("POST", "/x", {b"x-priority": b"low", **known})[0] is Priority.LOW
    assert urgency("POST", "/x", known).tenant == Tenant("reports", 3.0)


async def test_a_task_that_is_cancelled_while_it_waits_stops_nobody() -> None:
    """Its turn passes to the next, also where it has not noticed yet."""
    turns = Turns(asyncio.get_running_loop())
    tasks = [asyncio.ensure_future(turns.turn({})) for _ in range(200)]
    await asyncio.sleep(0)
    for task in tasks[40:100]:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)

    assert [isinstance(each, asyncio.CancelledError) for each in results] == [40 <= n < 100 for n in range(200)]
    assert results[:40] + results[100:] == [None] * 140


@pytest.mark.parametrize("length", [b"0" * 5000, b"9" * 400, b"9" * 18, b"-1", b"\xb2", b"x", b""])
async def test_a_declared_length_that_is_no_number_of_bytes_stops_nobody(length: bytes) -> None:
    """The request gets its turn, and is refused when its body is read: the length may have thousands of digits."""
    turns = Turns(asyncio.get_running_loop())
    waiting = [turns.turn({b"content-length": length} if number % 2 else {}) for number in range(100)]

    assert await asyncio.gather(*waiting) == [None] * 100


async def test_a_refused_head_request_has_no_body() -> None:
    """Else its body would be taken for the next answer."""
    turns = Turns(asyncio.get_running_loop(), lambda _method, _path, _headers: Urgency(Priority.NORMAL, 0.0))
    async with serving(Noted(), turns=turns) as (_, port):
        clients = [await Client.connect(port) for _ in range(100)]
        for _ in range(2):
            for client in clients:
                client.writer.write(b"HEAD /x HTTP/1.1\r\nHost: h\r\n\r\n")
            statuses = [(await client.answer(head_only=True))[0] for client in clients]
        assert set(statuses) == {200, 429}
        for client in clients:
            await client.send(post(b"y"))
            status, _, body = await client.answer()
            assert body == b"y" if status == 200 else json.loads(body)["code"] == "queue_full"


async def test_a_client_that_leaves_with_more_behind_a_request_that_waits() -> None:
    """Neither is begun, and no other request waits longer for it."""
    app = Noted()
    async with serving(app, turns=by_head()) as (listener, port):
        first = await Client.connect(port)
        await first.send(post(b"x", "X-Priority: low"))
        assert (await first.answer())[2] == b"x"
        clients = [await Client.connect(port) for _ in range(100)]
        for client in clients:
            client.writer.write(post(b"x", "X-Priority: low"))
        for client in clients:
            client.writer.write(b"P")
            client.writer.transport.abort()
        await until(lambda: listener.connections == 1)
        await first.send(post(b"z"))
        assert (await first.answer())[2] == b"z"


async def test_the_end_reads_what_was_kept_back() -> None:
    """What clients have sent by then is answered."""
    turns = Turns(asyncio.get_running_loop(), lambda _method, _path, _headers: Urgency(Priority.NORMAL, 0.0))
    async with serving(echo, turns=turns) as (listener, port):
        clients = [await Client.connect(port) for _ in range(300)]
        for _ in range(10):
            for client in clients:
                client.writer.write(post(b"x"))
            for client in clients:
                assert (await client.answer())[0] in {200, 429}
        for client in clients:
            client.writer.write(post(b"y"))
        closing = asyncio.ensure_future(listener.close(30.0))
        assert {(await client.answer())[0] for client in clients} <= {200, 429}
        await closing
