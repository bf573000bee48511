"""Parts of answers that wait for their readers."""

from __future__ import annotations

import asyncio

import pytest

from serve_app.domain.priority import Priority
from serve_app.domain.service import Answer
from serve_app.errors import InferenceFailed, SlowReader
from serve_app.payloads import StreamLimits
from serve_app.router.parts import PartQueue, Streams

LIMITS = StreamLimits(seconds=10.0, parts=8, nbytes=800, reader_s=1.0)


def part(number: int) -> Answer:
    """One part."""
    return Answer(number, Priority.NORMAL, 0.0, 0.0)


async def rest(queue: PartQueue) -> list[int]:
    """What is still to be read."""
    found = []
    while (each := await queue.next()) is not None:
        found.append(each.value)
    return found


async def test_parts_are_read_in_order_before_the_end() -> None:
    """And nothing is held any more then."""
    streams = Streams(10_000)
    queue = PartQueue(streams, LIMITS)
    for number in range(5):
        queue.put(part(number), 100)
    assert (queue.count, queue.nbytes, streams.nbytes) == (5, 500, 500)
    queue.end()
    queue.put(part(5), 100)  # too late
    assert await rest(queue) == [0, 1, 2, 3, 4]
    assert (queue.count, queue.nbytes, streams.nbytes) == (5, 0, 0)


async def test_a_reader_waits_for_the_next_part() -> None:
    """And for the end."""
    queue = PartQueue(Streams(10_000), LIMITS)
    reading = asyncio.ensure_future(rest(queue))
    for number in range(3):
        await asyncio.sleep(0)
        queue.put(part(number), 1)
    await asyncio.sleep(0)
    queue.end()
    assert await reading == [0, 1, 2]


async def test_an_error_comes_after_what_was_there() -> None:
    """Once; the first end counts."""
    queue = PartQueue(Streams(10_000), LIMITS)
    queue.put(part(0), 1)
    queue.end(InferenceFailed("it broke"))
    queue.end()
    assert (await queue.next()).value == 0  # type: ignore[union-attr]
    with pytest.raises(InferenceFailed, match="it broke"):
        await queue.next()
    assert await queue.next() is None


async def test_what_a_slow_reader_has_not_read_is_dropped() -> None:
    """Nobody would read it in time."""
    streams = Streams(10_000)
    queue = PartQueue(streams, LIMITS)
    queue.put(part(0), 100)
    queue.end(SlowReader("too slow"))
    assert streams.nbytes == 0
    with pytest.raises(SlowReader):
        await queue.next()


@pytest.mark.parametrize(
    ("waiting", "nbytes", "told"),
    [
        pytest.param(8, 1, [2, 2, 2, 2], id="a fourth of the parts"),
        pytest.param(4, 200, [1, 1, 1, 1], id="a fourth of the bytes"),
        pytest.param(1, 1, [1], id="none waits any more"),
    ],
)
async def test_replicas_are_told_what_was_read(waiting: int, nbytes: int, told: list[int]) -> None:
    """Not of every part alone, but early enough that the next one is never held up by that."""
    queue = PartQueue(Streams(10_000), LIMITS)
    found: list[int] = []
    queue.taken = found.append
    for number in range(waiting):
        queue.put(part(number), nbytes)
    for _ in range(waiting):
        await queue.next()
    assert found == told


async def test_the_longest_queue_is_given_up_where_all_hold_too_much() -> None:
    """The others go on."""
    streams = Streams(1000)
    given_up: list[str] = []
    short, long = PartQueue(streams, LIMITS), PartQueue(streams, LIMITS)
    long.on_given_up = lambda error: given_up.append(error.code)
    for number in range(7):
        long.put(part(number), 100)
    for number in range(4):
        short.put(part(number), 100)
    assert given_up == ["slow_reader"]
    assert streams.nbytes == short.nbytes == 400
    with pytest.raises(SlowReader, match="all_streams_bytes"):
        await long.next()
    short.end()
    assert await rest(short) == [0, 1, 2, 3]


async def test_one_queue_alone_may_hold_a_large_part() -> None:
    """Larger than all of them may, else it could never be read; and one that is closed holds nothing."""
    streams = Streams(1000)
    queue = PartQueue(streams, LIMITS)
    queue.put(part(0), 5000)
    assert (await queue.next()).value == 0  # type: ignore[union-attr]
    queue.put(part(1), 5000)
    queue.close()
    assert streams.nbytes == 0
