"""In which order the answers of a stream are sent, and what waits for what."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from serve_app.api.open_inference.answer_line import UNREAD_BYTES, AnswerLine


async def test_parts_wait_for_no_answer_that_waits_for_its_turn() -> None:
    """However large it is: the client cannot read it yet. No more requests are read meanwhile."""
    line = AnswerLine()
    slow, behind, in_parts = line.join(), line.join(), line.join()
    in_parts.overtake()
    behind.last(bytes(UNREAD_BYTES + 1))
    assert not line.mostly_read.is_set()

    async def send() -> None:
        for part in (b"1", b"2", b"3"):
            await in_parts.part(part)
        in_parts.last()

    sending = asyncio.create_task(send())
    async with asyncio.timeout(30), aclosing(line.messages()) as messages:
        assert [await anext(messages) for _ in range(4)] == [(b"1", False), (b"2", False), (b"3", False), (b"", True)]
        await sending
        assert not line.mostly_read.is_set()
        slow.last(b"slow")
        line.close()
        assert [(len(message), is_last) async for message, is_last in messages] == [(4, True), (UNREAD_BYTES + 1, True)]
    assert line.mostly_read.is_set()


async def test_parts_wait_for_answers_whose_turn_it_is() -> None:
    """The client could read them, and has not."""
    line = AnswerLine()
    large, in_parts = line.join(), line.join()
    in_parts.overtake()
    sending = asyncio.create_task(in_parts.part(b"1"))
    await asyncio.sleep(0)
    large.last(bytes(UNREAD_BYTES + 1))
    async with asyncio.timeout(30), aclosing(line.messages()) as messages:
        assert await anext(messages) == (b"1", False)
        await anext(messages)
        for _ in range(10):  # turns of the event loop: all of this is done in it
            await asyncio.sleep(0)
        assert not sending.done()
        in_parts.last()
        await anext(messages)
        await sending
