"""Many clients that send half requests or wrong headers, or leave: `high` is begun a round later at most."""

from __future__ import annotations

import asyncio
import itertools
import json
import resource
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from time import monotonic

import pytest
from starlette.types import Receive, Scope, Send

from api.listener.raw_client import Client, post, serving, until
from api.protocol_service import NumpyService, both
from serve_app.access.guard import Guard
from serve_app.api.http_app import create_app
from serve_app.api.urgency import HeadUrgency
from serve_app.domain.keys import Key, digest_of
from serve_app.domain.priority import Priority
from serve_app.http.exchange import AWAITED_SINCE
from serve_app.http.http1 import Limits
from serve_app.http.listener import Listener
from serve_app.http.turns import BUSY, Turns, Urgency

TIMEOUTS_S = {Priority.HIGH: 10.0, Priority.NORMAL: 30.0, Priority.LOW: 60.0}
IMPATIENT_S = {**TIMEOUTS_S, Priority.LOW: 0.0}
"""What has to wait in class `low` is refused."""
MOST_AT_ONCE = 32
"""What may be begun in a round while nothing waits."""
A_ROUND = 16
"""What may be begun in a round while requests wait."""
HIGH = post(b"high", "X-Priority: high")
SPARE_FILES = 1024

WRONG = [
    ("X-Priority: urgent", "X-Priority: expected high, normal or low, "),
    ("X-Priority: ", "X-Priority: expected high, normal or low, "),
    ("X-Priority: 99999999999999999999", "X-Priority: expected high, normal or low, "),
    ("X-Timeout-Ms: 0", "X-Timeout-Ms: expected milliseconds, "),
    ("X-Timeout-Ms: -1", "X-Timeout-Ms: expected milliseconds, "),
    ("X-Timeout-Ms: NaN", "X-Timeout-Ms: expected milliseconds, "),
    ("X-Timeout-Ms: inf", "X-Timeout-Ms: expected milliseconds, "),
    ("X-Timeout-Ms: 1e308", "X-Timeout-Ms: expected milliseconds, "),
    ("X-Timeout-Ms: 86400001", "X-Timeout-Ms: expected milliseconds, "),
    ("X-Timeout-Ms: Thu, 01 Jan 1970 00:00:00 GMT", "X-Timeout-Ms: expected milliseconds, "),
    ("X-Timeout-Ms: " + "9" * 5000, "X-Timeout-Ms: expected milliseconds, "),
    ("X-Priority: high\r\nX-Timeout-Ms: 0", "X-Timeout-Ms: expected milliseconds, "),
]
"""Headers that name no class or no deadline, and how the answer to them begins."""


def by_head(timeouts_s: Mapping[Priority, float] = TIMEOUTS_S) -> Turns:
    """Turns by the headers of requests."""
    return Turns(asyncio.get_running_loop(), HeadUrgency(timeouts_s))


def room(wanted: int) -> int:
    """How many connections this process can have on both sides, as many as wanted at most."""
    return min(wanted, (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - SPARE_FILES) // 2)


async def connected(listener: Listener, number: int) -> list[Client]:
    """So many more clients, all of which have been accepted."""
    before = listener.connections
    clients: list[Client] = []
    while len(clients) < number:
        some = min(200, number - len(clients))
        clients += await asyncio.gather(*(Client.connect(listener.port) for _ in range(some)))
    await until(lambda: listener.connections == before + number)
    return clients


class Noted:
    """Answers with the whole body, and notes the scopes of what was begun."""

    def __init__(self) -> None:
        self.scopes: list[Scope] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        self.scopes.append(scope)
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return
            body += message["body"]
            more = message["more_body"]
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})

    @property
    def begun(self) -> int:
        """How many were begun."""
        return len(self.scopes)


class Watched(HeadUrgency):
    """Tells how urgent requests are, and notes when those of class `high` have come that have to wait.

    Args:
        app: Answers them.
        guard: Knows the keys.
    """

    def __init__(self, app: Noted, guard: Guard | None = None) -> None:
        super().__init__(TIMEOUTS_S, guard=guard)
        self._app = app
        self._came: list[int] = []

    def __call__(self, method: str, path: str, headers: Mapping[bytes, bytes]) -> Urgency:
        """Tell it for one request."""
        urgency = super().__call__(method, path, headers)
        if urgency[0] is Priority.HIGH:
            self._came.append(self._app.begun)
        return urgency

    def turns(self) -> Turns:
        """Turns by it."""
        return Turns(asyncio.get_running_loop(), self)

    def overtook(self) -> int:
        """How many were begun while the first of class `high` waited. It is begun by now."""
        urgent = [dict(scope["headers"]).get(b"x-priority") == b"high" for scope in self._app.scopes]
        return urgent.index(True) - self._came[0] if self._came else 0


async def asked(client: Client, request: bytes) -> tuple[int, bytes]:
    """Status and body of the answer to a request."""
    status, _, body = await (await client.send(request)).answer()
    return status, body


async def test_thousands_of_heads_without_a_body_keep_nobody_waiting() -> None:
    """The application never hears of them; `high` is begun when it comes."""
    app = Noted()
    async with serving(app, turns=by_head()) as (listener, _):
        hostile = await connected(listener, room(3000))
        for client in hostile:
            client.writer.write(post(b"body", "X-Priority: low")[:-4])
        (high,) = await connected(listener, 1)
        for _ in range(3):
            assert await asked(high, HIGH) == (200, b"high")
        assert [dict(scope["headers"])[b"x-priority"] for scope in app.scopes] == [b"high"] * 3
        assert listener.requests == 0
        await hostile[-1].send(b"body")
        assert (await hostile[-1].answer())[2] == b"body"


async def test_heads_of_large_bodies_wait_behind_what_is_more_urgent() -> None:
    """They are begun before their bodies arrive, up to half of what may be in work; the others are refused."""
    app = Noted()
    watched, most = Watched(app), 100
    async with serving(app, Limits(requests=most), turns=watched.turns()) as (listener, _):
        (high,) = await connected(listener, 1)
        hostile = await connected(listener, room(1500))
        for client in hostile:
            client.writer.write(post(bytes(100_000), "X-Priority: low")[:-100_000])
        await until(lambda: app.begun > 0)
        assert await asked(high, HIGH) == (200, b"high")
        assert watched.overtook() <= A_ROUND
        assert listener.requests <= most // 2
        answers = [asyncio.ensure_future(client.answer()) for client in hostile]  # begun ones wait for their bodies
        await until(lambda: sum(answer.done() for answer in answers) >= len(hostile) - most)
        refused = [answer.result() for answer in answers if answer.done()]
        messages = {json.loads(body)["error"] for status, _, body in refused if status == 429}
        assert {(status, headers["connection"]) for status, headers, _ in refused} == {(429, "close")}
        assert messages <= {BUSY.message, "too many large bodies are arriving; try again"}
        assert await asked(high, HIGH) == (200, b"high")
        for answer in answers:
            answer.cancel()


async def test_heads_that_come_byte_by_byte_keep_nobody_waiting() -> None:
    """Nothing of them is begun before the last byte; then they wait behind `high`."""
    app = Noted()
    watched, request = Watched(app), post(b"", "X-Priority: low")
    async with serving(app, turns=watched.turns()) as (listener, _):
        hostile = await connected(listener, 200)
        high, other = await connected(listener, 2)
        for byte in request[:-1]:
            for client in hostile:
                client.writer.write(bytes([byte]))
            assert await asked(high, HIGH) == (200, b"high")
        assert app.begun == len(request) - 1
        app.scopes.clear()
        for client in hostile:
            client.writer.write(request[-1:])
        assert await asked(other, HIGH) == (200, b"high")
        assert watched.overtook() <= MOST_AT_ONCE  # which were begun in the round in which it came
        assert {(await client.answer())[0] for client in hostile} <= {200, 429}


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([post(b"x", "X-Priority: low")], id="low"),
        pytest.param([post(b"x", "X-Priority: urgent")], id="unknown class"),
        pytest.param([post(b"x", "X-Timeout-Ms: 0")], id="deadline of 0"),
        pytest.param([post(b"x", "X-Timeout-Ms: NaN")], id="no number"),
        pytest.param([post(b"x", "X-Timeout-Ms: 1e99")], id="far away"),
        pytest.param([post(b"x", "X-Priority: low\r\nX-Timeout-Ms: 1e-99")], id="past"),
        pytest.param([post(b"x", "X-Timeout-Ms: 86400000")], id="huge"),
        pytest.param([post(b"x", "X-Priority: low", version="1.0")], id="old"),
        pytest.param([post(b"x", "X-Priority: low") * 3], id="pipelined"),
        pytest.param(
            [
                b"POST / HTTP/1.1\r\nHost: h\r\nX-Priority: low\r\nTransfer-Encoding: chunked\r\n\r\n2\r\na",
                b"b\r",
                b"\n1",
                b"\r\nc\r\n0\r\n\r\n",
            ],
            id="chunked",
        ),
        pytest.param([post(b"x", "X-Priority: low", "Expect: 100-continue")[:-1], b"x"], id="expects"),
    ],
)
async def test_what_is_urgent_is_begun_before_many_that_wait(pieces: list[bytes]) -> None:
    """After the round in which it comes. The others are answered, or refused, as ever."""
    app = Noted()
    watched = Watched(app)
    async with serving(app, turns=watched.turns()) as (listener, _):
        (high,) = await connected(listener, 1)
        hostile = await connected(listener, room(800))
        for client in hostile:
            client.writer.write(pieces[0])
        await until(lambda: app.begun > 0)
        await high.send(HIGH)
        for piece in pieces[1:]:
            for client in hostile:
                client.writer.write(piece)
            await asyncio.sleep(0)
        assert (await high.answer())[2] == b"high"
        assert watched.overtook() <= A_ROUND
        statuses = set()
        for client in hostile:
            status, _, body = await client.answer()
            while status == 100:
                status, _, body = await client.answer()
            statuses.add(status)
            assert status == 200 or json.loads(body) == {"error": BUSY.message, "code": "queue_full"}
        assert statuses <= {200, 429}


async def test_looks_without_a_key_wait_behind_what_is_urgent() -> None:
    """HEAD among them: the answer to one that is refused has no body."""
    app, secret = Noted(), b"sk-urgent"
    watched = Watched(app, Guard([Key(name="urgent", digest=digest_of(secret), highest=Priority.HIGH)]))
    async with serving(app, turns=watched.turns()) as (listener, _):
        (high,) = await connected(listener, 1)
        hostile = await connected(listener, room(800))
        for client in hostile:
            client.writer.write(b"HEAD /status HTTP/1.1\r\nHost: h\r\n\r\n")
        await until(lambda: app.begun > 0)
        request = post(b"high", "X-Priority: high", f"Authorization: Bearer {secret.decode()}")
        assert await asked(high, request) == (200, b"high")
        assert watched.overtook() <= A_ROUND
        assert {(await client.answer(head_only=True))[0] for client in hostile} <= {200, 429}
        for client in hostile:
            assert await asked(client, post(b"y")) in {(200, b"y"), (429, refusal())}


def refusal() -> bytes:
    """The body of a refusal."""
    return json.dumps({"error": BUSY.message, "code": "queue_full"}, separators=(",", ":")).encode()


def infer(*headers: str) -> bytes:
    """A request to a model."""
    tensor = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}
    body = json.dumps({"inputs": [tensor]}).encode()
    return post(body, "Content-Type: application/json", *headers, path="/v2/models/double/infer")


@pytest.mark.parametrize(("header", "message"), WRONG)
async def test_what_is_wrong_is_said_alone_and_beside_others(header: str, message: str) -> None:
    """As far as it is begun: what has to wait comes with class `low`, whatever it claims, and is refused as such."""
    service = NumpyService()
    app = create_app(*both(service))
    async with serving(app, turns=by_head(IMPATIENT_S), errors_of=app.errors_of) as (listener, _):
        (high,) = await connected(listener, 1)
        hostile = await connected(listener, 100)
        status, body = await asked(hostile[0], infer(header))
        assert (status, json.loads(body)["code"]) == (400, "invalid_request")
        assert json.loads(body)["error"].startswith(message)
        for client in hostile:
            client.writer.write(infer(header))
        await high.send(infer("X-Priority: high"))
        answers = [await client.answer() for client in hostile]
        assert (await high.answer())[0] == 200
        assert {status for status, _, _ in answers} == {400, 429}
        for status, headers, body in answers:
            answer = json.loads(body)
            assert answer["error"].startswith(message) if status == 400 else answer["error"] == BUSY.message
            assert (headers.get("retry-after"), "connection" in headers) == ("1" if status == 429 else None, False)
        assert [options.priority for _, _, options in service.calls] == [Priority.HIGH]


@pytest.mark.parametrize("length", ["0" * 5000 + "1", "9" * 400, "+1", "-1", "1_0", "0x1", "1 1", ""])
async def test_a_wrong_length_is_refused_and_counts_for_nothing(length: str) -> None:
    """In the words of the grammar; others are begun as if it had not come."""
    app = Noted()
    async with serving(app, turns=by_head()) as (listener, _):
        hostile, high = await connected(listener, 2)
        await hostile.send(f"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\nx".encode())
        status, headers, body = await hostile.answer()
        assert (status, headers["connection"], json.loads(body)["code"]) == (400, "close", "invalid_request")
        assert json.loads(body)["error"].startswith("this is not valid HTTP/1.1: ")
        assert await asked(high, HIGH) == (200, b"high")
        assert app.begun == 1


@pytest.fixture
def leaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wall clock jumps by decades, back and forth, whenever it is read."""
    moments = itertools.cycle((4e9, 0.0, 1e9))
    monkeypatch.setattr(time, "time", lambda: next(moments))


@pytest.mark.usefixtures("leaps")
async def test_the_wall_clock_does_not_matter() -> None:
    """Only dates are taken from it: what waits is begun or refused as ever, and has waited since it came."""
    service, app = NumpyService(), Noted()
    started = monotonic()
    async with serving(app, turns=by_head()) as (listener, _):
        clients = await connected(listener, 100)
        for number, client in enumerate(clients):
            client.writer.write(post(b"x", f"X-Priority: {('low', 'high')[number % 2]}", "X-Timeout-Ms: 60000"))
        answers = [await client.answer() for client in clients]
        assert {status for status, _, _ in answers} == {200}
        assert {parsedate_to_datetime(headers["date"]).year for _, headers, _ in answers} <= {1970, 2001, 2096}
        since = [scope[AWAITED_SINCE] for scope in app.scopes if AWAITED_SINCE in scope]
        assert len(since) == 100 - MOST_AT_ONCE
        assert all(started <= each <= monotonic() for each in since)
    async with serving(create_app(*both(service)), turns=by_head(IMPATIENT_S)) as (listener, _):
        clients = await connected(listener, 100)
        for number, client in enumerate(clients):
            client.writer.write(infer(f"X-Priority: {('low', 'normal')[number % 2]}", "X-Timeout-Ms: 60000"))
        assert {(await client.answer())[0] for client in clients} == {200}
        assert all(0.0 < options.timeout_s <= 60.0 for _, _, options in service.calls if options.timeout_s is not None)
        assert len(service.calls) == 100


async def test_behind_a_request_that_is_refused_an_urgent_one_is_begun() -> None:
    """On the same connection, in the order in which they were sent; and what is malformed after them is told last."""
    app = Noted()
    async with serving(app, turns=by_head(IMPATIENT_S)) as (listener, _):
        clients = await connected(listener, 100)
        for client in clients:
            client.writer.write(post(b"low", "X-Priority: low") + HIGH + post(b"low", "X-Priority: low") + b"no HTTP")
        statuses = []
        for client in clients:
            first, second, third, last = [await client.answer() for _ in range(4)]
            statuses += [first[0], third[0]]
            assert second[::2] == (200, b"high")
            assert (last[0], last[1]["connection"]) == (400, "close")
            assert await client.ended() == b""
        assert set(statuses) == {200, 429}


async def test_a_client_that_awaits_an_invitation_is_refused_instead() -> None:
    """Without being invited to send what will not be read; its connection ends, as its body may be on the way."""
    app = Noted()
    request = post(b"x", "X-Priority: low", "Expect: 100-continue")[:-1]
    async with serving(app, turns=by_head(IMPATIENT_S)) as (listener, _):
        clients = await connected(listener, 100)
        for client in clients:
            client.writer.write(request)
        invited = 0
        for client in clients:
            status, headers, body = await client.answer()
            if status == 100:
                invited += 1
                assert await asked(client, b"x") == (200, b"x")
            else:
                assert (status, headers["connection"], body) == (429, "close", refusal())
                assert await client.ended() == b""
        assert 0 < invited < 100


@pytest.mark.parametrize(
    "sent",
    [
        post(b"x", "X-Priority: low"),
        post(b"x", "X-Priority: low") * 5 + b"POST",
        post(b"x", "X-Priority: low", "Expect: 100-continue")[:-1],
        post(bytes(100_000), "X-Priority: low")[:1000],
        b"POST / HTTP/1.1\r\nHost: h\r\nX-Priority: low\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
    ],
    ids=["whole", "with more behind", "expecting", "with half a large body", "with half a chunk"],
)
@pytest.mark.parametrize("cut", [True, False])
async def test_clients_that_leave_while_they_wait(sent: bytes, *, cut: bool) -> None:
    """Nothing of them stays behind, and `high` is begun first whether it comes before they leave or after."""
    app = Noted()
    watched = Watched(app)
    async with serving(app, turns=watched.turns()) as (listener, _):
        early, late = await connected(listener, 2)
        hostile = await connected(listener, 300)
        for client in hostile:
            client.writer.write(sent)
        await until(lambda: app.begun > 0)
        await early.send(HIGH)
        for client in hostile:
            client.writer.transport.abort() if cut else client.leave()
        assert (await early.answer())[2] == b"high"
        assert watched.overtook() <= A_ROUND
        assert await asked(late, HIGH) == (200, b"high")
        await until(lambda: listener.connections == 2 and listener.requests == 0)


@pytest.mark.parametrize("blocked_s", [0.15, 1.0])
async def test_a_request_that_blocks_the_event_loop_refuses_no_other(blocked_s: float) -> None:
    """What waited meanwhile is begun, as its deadline is far away."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        until_s = monotonic() + blocked_s
        while len(noted.scopes) == MOST_AT_ONCE - 1 and monotonic() < until_s:
            pass
        await noted(scope, receive, send)

    noted = Noted()
    async with serving(app, turns=by_head()) as (listener, _):
        clients = await connected(listener, 100)
        for client in clients:
            client.writer.write(HIGH)
        assert {(await client.answer())[0] for client in clients} == {200}


async def test_room_is_made_for_an_urgent_client_where_all_connections_send_half_requests() -> None:
    """Those that never asked go, and their requests were never begun."""
    app = Noted()
    async with serving(app, Limits(connections=64), turns=by_head()) as (listener, port):
        hostile = await connected(listener, 64)
        for number, client in enumerate(hostile):
            client.writer.write(post(b"body", "X-Priority: low")[: (-4, -2, 10)[number % 3]])
        for _ in range(100):
            high = await Client.connect(port)
            assert await asked(high, HIGH) == (200, b"high")
        assert app.begun == 100
        assert listener.refused == 0
