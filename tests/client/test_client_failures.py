"""Both clients against servers that break off, refuse, stay silent or answer without an end."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

import pytest
from client.both_clients import EitherClient
from client.scripted_server import Drip, Hangup, Reply, Silence, cancel_when_silent, refusal, scripted

from serve_app_client import (
    AsyncClient,
    ConnectionFailed,
    DeadlineExceeded,
    ModelUnavailable,
    QueueFull,
    Retry,
    Unavailable,
    deadline,
)

Connect = Callable[..., EitherClient]
QUICK = Retry(first_s=0.001)
OK = Reply(body=b'["ok"]')


@pytest.mark.parametrize(
    "failure",
    [
        pytest.param(Hangup(), id="hangs-up"),
        pytest.param(Reply(body=b"x" * 100, cut=50), id="half-an-answer"),
        pytest.param(refusal(429, "queue_full"), id="full"),
        pytest.param(refusal(503, "model_unavailable", retry_after="0"), id="no-replica"),
        pytest.param(Reply(503, body=b"<html>"), id="proxy-503"),
        pytest.param(Reply(502, body=b"<html>"), id="proxy-502"),
        pytest.param(Reply(504, body=b"<html>"), id="proxy-504"),
    ],
)
async def test_what_another_attempt_can_mend(connect: Connect, failure: Reply | Hangup) -> None:
    """Is attempted again, as the same request under the same id."""
    async with scripted(failure, OK) as server, connect(server.url, retry=QUICK) as client:
        result = await client.call("predict", "m", b"file", parameters={"top_k": 1})
    assert result.value == ["ok"]
    first, second = server.received
    assert first == second


async def test_a_server_that_comes_back(connect: Connect) -> None:
    """The connection kept open is dead, the port is closed for a moment, and then there is a server again."""
    async with scripted(OK, Hangup(), Hangup(), OK) as server, connect(server.url, retry=QUICK) as client:
        assert (await client.call("predict", "m", "x")).value == ["ok"]
        assert (await client.call("predict", "m", "x")).value == ["ok"]
    assert len(server.received) == 4


async def test_nobody_is_there(connect: Connect) -> None:
    """Says so, with what the system says."""
    async with connect("http://127.0.0.1:1", retry=QUICK) as client:
        with pytest.raises(ConnectionFailed, match=r"POST /v1/models/m/predict: .*") as caught:
            await client.call("predict", "m", "x")
    assert caught.value.request_id


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (refusal(429, "queue_full"), QueueFull),
        (refusal(503, "model_unavailable"), ModelUnavailable),
        (Reply(504, body=b"proxy"), Unavailable),
        (Hangup(), ConnectionFailed),
    ],
)
async def test_without_retries_the_first_failure_counts(
    connect: Connect, failure: Reply | Hangup, expected: type[Exception]
) -> None:
    """`retry=None` makes one attempt."""
    async with scripted(failure, OK) as server, connect(server.url, retry=None) as client:
        with pytest.raises(expected):
            await client.call("predict", "m", "x")
    assert len(server.received) == 1


async def test_our_own_504_is_not_repeated(connect: Connect) -> None:
    """The deadline has passed: another attempt has no time."""
    async with scripted(refusal(504, "deadline_exceeded"), OK) as server, connect(server.url, retry=QUICK) as client:
        with pytest.raises(DeadlineExceeded):
            await client.call("predict", "m", "x")
    assert len(server.received) == 1


async def test_a_hint_beyond_the_deadline(connect: Connect) -> None:
    """Waiting for it would be in vain: the refusal is raised at once."""
    async with scripted(refusal(429, "queue_full", retry_after="30")) as server, connect(server.url) as client:
        with pytest.raises(QueueFull) as caught:
            await client.call("predict", "m", "x", timeout=20.0)
    assert (len(server.received), caught.value.retry_after) == (1, 30.0)


async def test_every_attempt_tells_what_is_left(connect: Connect) -> None:
    """Each is given less than the one before, and the wait in between is charged."""
    refused = refusal(429, "queue_full", retry_after="0.05")
    async with scripted(refused, refused, OK) as server, connect(server.url, retry=QUICK) as client:
        await client.call("predict", "m", "x", timeout=20.0)
    told = [float(request.headers["x-timeout-ms"]) for request in server.received]
    assert 20_000 >= told[0] > told[1] + 50 > told[2] + 100 > 0


async def test_a_scope_bounds_all_calls_inside(connect: Connect) -> None:
    """Each later call has less, and its own longer timeout does not widen it."""
    async with scripted(OK) as server, connect(server.url) as client:
        with deadline(20.0):
            await client.call("predict", "m", "x")
            await client.call("predict", "m", "x", timeout=1000.0)
        await client.call("predict", "m", "x")
    first, second, outside = (request.headers.get("x-timeout-ms") for request in server.received)
    assert first is not None
    assert second is not None
    assert 20_000 >= float(first) > float(second)
    assert outside is None


@pytest.mark.parametrize("act", [pytest.param(Silence(), id="silence"), pytest.param(Drip(), id="no-end")])
async def test_nothing_outlasts_the_deadline(connect: Connect, act: Silence | Drip) -> None:
    """Neither silence nor an answer that comes byte by byte; the server sees the client leave."""
    async with scripted(act) as server, connect(server.url) as client:
        with pytest.raises(DeadlineExceeded, match="the deadline passed before an answer came"):
            await client.call("predict", "m", "x", timeout=0.3)
        await server.left.wait()
    assert len(server.received) == 1


async def test_patience_ends_without_a_deadline(connect: Connect) -> None:
    """Nothing waits for ever, and the server is told no deadline."""
    async with scripted(Silence()) as server, connect(server.url, patience=0.2) as client:
        with pytest.raises(DeadlineExceeded, match="patience ended before an answer came"):
            await client.call("predict", "m", "x")
    assert "x-timeout-ms" not in server.received[0].headers


async def test_a_scope_that_ended_sends_nothing(connect: Connect) -> None:
    """Calls in it fail without a request."""
    async with scripted(OK) as server, connect(server.url) as client:
        with deadline(0.001):
            ended = monotonic() + 0.001
            while monotonic() <= ended:
                pass
            with pytest.raises(DeadlineExceeded, match="before the request could be sent"):
                await client.call("predict", "m", "x")
    assert server.received == []


async def test_the_budget_is_shared_by_all_calls(connect: Connect) -> None:
    """When everything fails, retries soon stop, and calls fail with their first attempt."""
    retry = Retry(attempts=5, first_s=0.0, reserve=3.0, ratio=0.0, per_s=0.0)
    async with scripted(Hangup()) as server, connect(server.url, retry=retry) as client:
        for _ in range(4):
            with pytest.raises(ConnectionFailed):
                await client.call("predict", "m", "x")
    assert len(server.received) == 4 + 3


async def test_waiting_until_ready(connect: Connect) -> None:
    """Survives a server that is not there yet, one that starts, and a proxy in front of nothing."""
    routeless = Reply(404, body=b"Path '/v2/health/ready' not found. Ping http://.../-/routes for available routes.")
    starting = refusal(503, "model_unavailable")
    acts = (Hangup(), Reply(502), routeless, Reply(500, body=b"Internal Server Error"), starting, Reply(body=b"{}"))
    async with scripted(*acts) as server, connect(server.url) as client:
        await client.call("wait_until_ready", 30.0)
    assert len(server.received) == len(acts)


async def test_cancelling_a_call_closes_its_connection() -> None:
    """The server takes that as the request's end; the client goes on."""
    async with scripted(Silence(), OK) as server, AsyncClient(server.url) as client:
        await cancel_when_silent(server, client.predict("m", "x"))
        assert (await client.predict("m", "x")).value == ["ok"]
