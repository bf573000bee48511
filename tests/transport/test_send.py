"""A way whose results are awaited: each is handed over once, whatever becomes of its task."""

from __future__ import annotations

import asyncio
import contextvars

from serve_app.errors import InferenceFailed
from serve_app.payloads import Bundle, BundleResult
from serve_app.transport.send import awaiting

RESULT = BundleResult([], [], 0.0, 0.0, 0.0)
request = contextvars.ContextVar("request", default="none")


async def sent(*, fails: bool = False, cancelled: bool = False) -> list[BundleResult | BaseException]:
    """What one call hands over."""
    came: list[BundleResult | BaseException] = []
    ended = asyncio.Event()

    async def call(_model: str, _bundle: Bundle, _replica: str | None, _nbytes: int) -> BundleResult:
        assert request.get() == "none"
        if fails:
            raise InferenceFailed("no")
        return RESULT

    def done(result: BundleResult | BaseException) -> None:
        assert request.get() == "none"
        came.append(result)
        ended.set()

    request.set("mine")
    end_early = awaiting(call)("m", Bundle([]), None, 0, done)
    assert came == []
    assert end_early is not None
    if cancelled:
        end_early()
    await ended.wait()
    return came


async def test_a_result_or_its_error_is_handed_over() -> None:
    """After the call has returned, and outside of the request that happened to send the bundle."""
    assert await sent() == [RESULT]
    assert [str(error) for error in await sent(fails=True)] == ["no"]


async def test_a_call_that_is_cancelled_before_it_begins_is_handed_over_too() -> None:
    """Else a model that is removed while it is woken up would wait for it for ever."""
    (error,) = await sent(cancelled=True)
    assert isinstance(error, asyncio.CancelledError)
