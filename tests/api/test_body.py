"""Conversions in threads, whose requests may end before they do."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from typing import Final

import numpy as np
import pytest
from numpy.typing import NDArray
from starlette.types import Message

from serve_app.errors import InvalidRequest, PayloadTooLarge
from serve_app.http.body import BodyReader

NBYTES: Final = 5000
asker: Final[ContextVar[str]] = ContextVar("asker")


class Conversions:
    """Conversions that last until they are told to end, of requests that hold a body meanwhile."""

    def __init__(self) -> None:
        self.bodies = BodyReader(max_body=2**20, max_held_bytes=2**20, offload_above=1000, decode_threads=1)
        self.begun = asyncio.Event()
        self.ran: list[str] = []
        self._loop = asyncio.get_running_loop()
        self._end = threading.Event()

    def request(self, name: str) -> asyncio.Task[str]:
        """One that runs a conversion."""
        return asyncio.create_task(self._converted(name))

    def end(self) -> None:
        """Let them end, those that are still to begin too."""
        self._end.set()

    async def _converted(self, name: str) -> str:
        asker.set(name)
        self.bodies.hold(NBYTES)
        try:
            return await self.bodies.offload(self._convert, name, fails=name == "bad")
        finally:
            self.bodies.release(NBYTES)

    def _convert(self, name: str, *, fails: bool) -> str:
        self._loop.call_soon_threadsafe(self.begun.set)
        self._end.wait()
        self.ran.append(name)
        if fails:
            raise ValueError(name)
        return f"{name} for {asker.get()}"


@pytest.fixture
async def conversions() -> AsyncIterator[Conversions]:
    """None of them outlives its test."""
    conversions = Conversions()
    yield conversions
    conversions.end()


async def rounds() -> None:
    """Let the event loop do whatever it has to do."""
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.parametrize("name", ["good", "bad"])
async def test_what_a_thread_works_on_is_held_until_it_ends(conversions: Conversions, name: str) -> None:
    """Also when its request is cancelled, however often: memory and thread are free only then."""
    first = conversions.request(name)
    await conversions.begun.wait()
    second = conversions.request("second")
    for _ in range(3):
        first.cancel()
        await rounds()
    assert not first.done()
    assert conversions.bodies.held == 2 * NBYTES

    conversions.end()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert await second == "second for second"
    assert conversions.ran == [name, "second"]
    assert conversions.bodies.held == 0


async def test_what_has_not_begun_does_not(conversions: Conversions) -> None:
    """A cancelled request that still waits for a thread ends at once."""
    first = conversions.request("first")
    await conversions.begun.wait()
    second = conversions.request("second")
    await rounds()
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    assert conversions.bodies.held == NBYTES

    conversions.end()
    assert await first == "first for first"
    assert await conversions.request("third") == "third for third"
    assert conversions.ran == ["first", "third"]


async def test_faults_are_told(conversions: Conversions) -> None:
    """As they are."""
    conversions.end()
    with pytest.raises(ValueError, match="bad"):
        await conversions.request("bad")
    assert conversions.bodies.held == 0


@pytest.mark.usefixtures("collect_never")
async def test_what_failed_is_not_kept() -> None:
    """A body that expands to more than the limit would else wait, expanded, for the collector of cycles."""
    bodies = BodyReader(max_body=2**20, max_held_bytes=2**20, offload_above=1000, decode_threads=1)
    expanded: list[weakref.ref[NDArray[np.uint8]]] = []

    def expand() -> None:
        large = np.empty(2**20, np.uint8)
        expanded.append(weakref.ref(large))
        raise PayloadTooLarge("too large")

    with contextlib.suppress(PayloadTooLarge):
        await bodies.offload(expand)
    await rounds()
    assert [each() for each in expanded] == [None]


@pytest.mark.parametrize("in_place", [False, True])
async def test_what_is_given_up_amid_its_body_is_not_kept(in_place: bool) -> None:
    """What has come of it, and the task that read it."""
    bodies = BodyReader(max_body=2**20, max_held_bytes=2**20, offload_above=1000, decode_threads=1)
    reading = asyncio.Event()

    class Receive:
        """As the listener's, which can read into memory."""

        async def __call__(self) -> Message:
            if reading.is_set():
                await asyncio.Event().wait()
            reading.set()
            return {"type": "http.request", "body": b"x" * 500, "more_body": True}

        async def into(self, buffer: memoryview, progress: Callable[[int], None]) -> None:
            progress(500)
            reading.set()
            await asyncio.Event().wait()

    headers = {b"content-length": b"500000"}
    read = bodies.read_in_place(Receive(), headers, 30.0, 0) if in_place else bodies.read(Receive(), headers, 30.0)
    task = asyncio.ensure_future(read)
    await reading.wait()
    await rounds()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert bodies.held == 0


def test_members_of_gzip_data_are_counted() -> None:
    """A body may be of thousands, and not of a member for each 20 bytes."""
    bodies = BodyReader(max_body=2**20, max_held_bytes=2**20, offload_above=1000, decode_threads=1)

    assert bodies.expand(gzip.compress(b"a") * 10_000, b"gzip") == b"a" * 10_000
    with pytest.raises(InvalidRequest, match="more than 10000 members"):
        bodies.expand(gzip.compress(b"") * 10_001, b"gzip")


@pytest.mark.parametrize("nbytes", [0, 1, 16 * 1024, 100_000])
def test_members_of_any_length_are_joined(nbytes: int) -> None:
    """Whether their data ends where a piece of it that is read ends, or not."""
    bodies = BodyReader(max_body=2**20, max_held_bytes=2**20, offload_above=1000, decode_threads=1)
    parts = [np.random.default_rng(number).bytes(nbytes + number) for number in range(5)]

    body = b"".join(gzip.compress(part) + bytes(number) for number, part in enumerate(parts))

    assert bodies.expand(body, b"gzip") == b"".join(parts)
    with pytest.raises(InvalidRequest, match=r"cut off|not valid"):
        bodies.expand(body.rstrip(b"\0")[:-9], b"gzip")
    with pytest.raises(InvalidRequest, match="not valid"):
        bodies.expand(body + gzip.compress(b"x")[:-8] + bytes(8), b"gzip")
