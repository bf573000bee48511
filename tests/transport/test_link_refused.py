"""Links that a replica refuses, cuts at once, or answers with nonsense: a router must not lose bundles in them."""

from __future__ import annotations

import asyncio
import logging
import pickle
import secrets
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from link_calls import ask

from serve_app.payloads import Bundle, WireEntry
from serve_app.transport.frames import PREFIX, _frame
from serve_app.transport.link_protocol import WELCOME, LinkError
from serve_app.transport.link_server import LinkServer
from serve_app.transport.links import Links
from serve_app.transport.replica_link import connect
from serve_app.transport.send import ReplicaLost
from serve_app.transport.ties import TieTable

pytestmark = pytest.mark.skipif(not LinkServer.supported(), reason="needs Linux's sockets and memory files")

HELLO_SIZE = 40

Meet = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def replica(meet: Meet) -> Any:
    """Listens as a replica would, and meets routers in its own way. Gives its address."""
    address = f"serve-app-test-{secrets.token_hex(8)}"

    async def met(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await meet(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_unix_server(met, "\0" + address)
    try:
        yield address
    finally:
        server.close()


async def test_a_link_is_up_only_when_the_replica_has_agreed(caplog: pytest.LogCaptureFixture) -> None:
    """One that hangs up, as on another version, is tried again, but never used, and one line says why."""
    caplog.set_level(logging.INFO, logger="serve_app")
    attempts: asyncio.Queue[None] = asyncio.Queue()

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(HELLO_SIZE)
        attempts.put_nowait(None)

    up: list[str] = []
    async with replica(refuse) as address:
        links = Links(TieTable(), None, lambda model, replica, linked: up.append(replica) if linked else None)
        links.update("m", {"r": address})
        for _ in range(4):
            await attempts.get()
            assert links.find("r") is None
        links.close()
    assert up == []
    assert len([record for record in caplog.records if "No link to replica r" in record.message]) == 1


async def test_a_replica_that_does_not_answer() -> None:
    """A wedged one is not waited for."""

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)  # until the router hangs up

    async with replica(silent) as address:
        with pytest.raises(LinkError, match="did not answer"):
            await connect(address, "r", TieTable(), None, lambda: None, timeout_s=0.01)


async def test_somebody_else_answers() -> None:
    """Not the welcome of a replica."""

    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read(-1)

    async with replica(other) as address:
        with pytest.raises(LinkError, match="something else"):
            await connect(address, "r", TieTable(), None, lambda: None)


async def test_links_that_end_at_once_are_made_ever_less_often() -> None:
    """That a link was up for a moment says nothing about the next."""
    attempts: asyncio.Queue[float] = asyncio.Queue()

    async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(HELLO_SIZE)
        attempts.put_nowait(asyncio.get_running_loop().time())
        writer.write(WELCOME)

    async with replica(leave) as address:
        links = Links(TieTable(), None, lambda model, replica, up: None)
        links.update("m", {"r": address})
        first, _, third, fourth = [await attempts.get() for _ in range(4)]
        links.close()
    # Each pause is twice the one before; a busy machine only makes them longer.
    assert third - first >= 0.25
    assert fourth - third >= 0.35


async def test_an_answer_that_cannot_be_read_ends_its_call() -> None:
    """And the link, for what else it brings cannot be trusted."""

    async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(HELLO_SIZE)
        writer.write(WELCOME)
        prefix = await reader.readexactly(PREFIX.size)
        await reader.readexactly(PREFIX.unpack(prefix)[2] - PREFIX.size)
        two_numbers = np.zeros(2, np.float32).view(np.uint8).data
        three_rows_of_two = ("y", "<f4", (2,), [3])
        header = pickle.dumps((1, 0, 1, [], [three_rows_of_two], [], 0.0, 0.0, 0.0, None))
        writer.writelines(_frame(header, [[two_numbers]]))
        await reader.read(-1)

    lost = asyncio.Event()
    async with replica(nonsense) as address:
        link = await connect(address, "r", TieTable(), None, lost.set)
        async with asyncio.timeout(30.0):
            with pytest.raises(ReplicaLost):
                await ask(link, Bundle([WireEntry(1, 1.0, 1, "", {"x": np.zeros((1, 2), np.float32)})]))
            await lost.wait()
