"""A second attempt where the first takes long."""

from __future__ import annotations

import asyncio

import pytest
from client.scripted_server import Act, Hangup, Reply, Silence, cancel_when_silent, refusal, scripted

from serve_app_client import AsyncClient, ConnectionFailed, DeadlineExceeded, InvalidRequest, Percentile, Retry

OK = Reply(body=b'["ok"]')
SLOW_IS = 0.02
"""Seconds after which tests hedge: any is right, as the first attempt never answers there."""


async def test_the_first_answer_counts_and_the_other_attempt_ends() -> None:
    """The silent connection is closed, so that the server can drop the request."""
    async with scripted(Silence(), OK) as server, AsyncClient(server.url, hedge_after=SLOW_IS) as client:
        assert (await client.predict("m", "x", timeout=30.0)).value == ["ok"]
        await server.left.wait()
    first, second = server.received
    assert first.headers["x-request-id"] == second.headers["x-request-id"]
    assert float(first.headers["x-timeout-ms"]) > float(second.headers["x-timeout-ms"])


async def test_quick_answers_are_not_hedged() -> None:
    """Nor are calls that ask about the server."""
    async with scripted(OK) as server, AsyncClient(server.url, hedge_after=60.0) as client:
        await client.predict("m", "x")
    assert len(server.received) == 1


async def test_hedges_count_against_the_budget() -> None:
    """Without any left, the first attempt is waited for."""
    retry = Retry(reserve=0.0, ratio=0.0, per_s=0.0)
    async with scripted(Silence()) as server, AsyncClient(server.url, hedge_after=0.0, retry=retry) as client:
        with pytest.raises(DeadlineExceeded):
            await client.predict("m", "x", timeout=0.3)
    assert len(server.received) == 1


async def test_a_broken_hedge_leaves_the_first_attempt_to_answer() -> None:
    """What another attempt could mend is no answer, as long as one is under way."""
    async with (
        scripted(Silence(), Hangup()) as server,
        AsyncClient(server.url, hedge_after=SLOW_IS, retry=None) as client,
    ):
        with pytest.raises(DeadlineExceeded):  # of the first attempt, and not `ConnectionFailed` of the second
            await client.predict("m", "x", timeout=1.0)
    assert len(server.received) == 2


async def test_both_broken_is_a_failure() -> None:
    """When no attempt is left under way."""
    async with scripted(Hangup()) as server, AsyncClient(server.url, hedge_after=0.0, retry=None) as client:
        with pytest.raises(ConnectionFailed):
            await client.predict("m", "x")
    assert 1 <= len(server.received) <= 2


async def test_a_definite_no_ends_the_call() -> None:
    """An answer that no other attempt can change is the answer."""
    refused = refusal(400, "invalid_request")
    async with scripted(Silence(), refused) as server, AsyncClient(server.url, hedge_after=SLOW_IS) as client:
        with pytest.raises(InvalidRequest):
            await client.predict("m", "x")
        await server.left.wait()


async def test_a_percentile_needs_samples() -> None:
    """Until there are enough, nothing is hedged; then what has taken longer than the others is."""
    script: list[Act] = [*[OK] * 5, Silence(), OK]
    async with scripted(*script) as server, AsyncClient(server.url, hedge_after=Percentile(0.9, 5)) as client:
        for _ in range(6):
            assert (await client.predict("m", "x")).value == ["ok"]
        await server.left.wait()
    assert len(server.received) == 7


async def test_cancelling_a_hedged_call_ends_both_attempts() -> None:
    """No task stays behind."""
    async with scripted(Silence()) as server, AsyncClient(server.url, hedge_after=0.0) as client:
        before = asyncio.all_tasks()
        await cancel_when_silent(server, client.predict("m", "x"))
        assert {other for other in asyncio.all_tasks() - before if "_send" in repr(other.get_coro())} == set()
