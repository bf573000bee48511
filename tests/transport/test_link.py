"""The link between a router and a replica: real sockets, and a real second process where that matters."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
from link_calls import ask

from serve_app.errors import InferenceFailed
from serve_app.payloads import Bundle, BundleResult, EntryResult, Execution, Failure, Success, WireEntry
from serve_app.transport.arena import Arena
from serve_app.transport.link_protocol import LinkError
from serve_app.transport.link_server import LinkServer
from serve_app.transport.links import Links
from serve_app.transport.replica_link import ReplicaLink, connect
from serve_app.transport.send import ReplicaLost
from serve_app.transport.ties import TieTable

pytestmark = pytest.mark.skipif(not LinkServer.supported(), reason="needs Linux's sockets and memory files")


async def double(bundle: Bundle) -> BundleResult:
    """What a worker does, in short."""
    results: list[EntryResult] = []
    for entry in bundle.entries:
        assert isinstance(entry.payload, dict)
        results.append(Success({"y": entry.payload["x"] * 2}))
    return BundleResult(results, [Execution(len(results), 0, 0.001)], 0.0, 0.0, 0.0)


def bundle_of(*arrays: np.ndarray[Any, Any]) -> Bundle:
    """Bundle of."""
    return Bundle([WireEntry(2, 1.0, len(array), "", {"x": array}) for array in arrays], "router")


def doubled(result: BundleResult, *arrays: np.ndarray[Any, Any]) -> bool:
    """Doubled."""
    return len(result.results) == len(arrays) and all(
        isinstance(answer, Success) and np.array_equal(answer.value["y"], array * 2)
        for answer, array in zip(result.results, arrays, strict=True)
    )


class Held:
    """Runs bundles when told to."""

    def __init__(self) -> None:
        self.started = asyncio.Semaphore(0)
        self.go = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def __call__(self, bundle: Bundle) -> BundleResult:
        self.started.release()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return await double(bundle)


async def linked(
    run: Callable[[Bundle], Awaitable[BundleResult]], arena: Arena | None = None
) -> tuple[LinkServer, ReplicaLink, asyncio.Event]:
    """Linked."""
    server, lost = LinkServer("m", run), asyncio.Event()
    return server, await connect(server.address, "r1", TieTable(), arena, lost.set), lost


SIZES = [(1, 64), (3, 2048), (1, 3, 224, 224), (5, 3, 224, 224)]
"""Three of the largest are more than the arena holds, and two are not."""


@pytest.mark.parametrize("shape", SIZES, ids=str)
@pytest.mark.parametrize("shared", [0, 256 * 1024, 8 * 1024**2], ids=["alone", "small arena", "arena"])
async def test_bundles_of_every_size(shape: tuple[int, ...], shared: int) -> None:
    """Bundles of every size."""
    arena = Arena(shared) if shared else None
    server, link, _ = await linked(double, arena)
    arrays = [np.full(shape, value, np.float32) for value in (1, 2, 3)]
    for _ in range(3):
        assert doubled(await ask(link, bundle_of(*arrays)), *arrays)
    link.close()
    server.close()


async def test_many_calls_at_once() -> None:
    """Many calls at once."""
    server, link, _ = await linked(double, Arena(4 * 1024**2))
    arrays = [np.full((1, size), size, np.float32) for size in (1, 7, 64, 5000, 20000, 80000) for _ in range(20)]
    results = await asyncio.gather(*(ask(link, bundle_of(array, array)) for array in arrays))
    assert all(doubled(result, array, array) for result, array in zip(results, arrays, strict=True))
    link.close()
    server.close()


async def test_a_block_is_kept_until_the_replica_has_answered() -> None:
    """A block is kept until the replica has answered."""
    held, arena = Held(), Arena(1024**2)
    server, link, _ = await linked(held, arena)
    call = asyncio.create_task(ask(link, bundle_of(np.zeros((1, 30000), np.float32))))
    await held.started.acquire()
    assert arena.held > 0
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    assert arena.held > 0  # nobody waits, but the replica may still read
    del call  # with the frames of its traceback
    held.go.set()
    arrays = [np.ones((1, 1), np.float32)]
    assert doubled(await ask(link, bundle_of(*arrays)), *arrays)
    assert arena.held == 0
    link.close()
    server.close()


async def test_a_bundle_that_fails_as_a_whole() -> None:
    """A bundle that fails as a whole."""

    async def broken(bundle: Bundle) -> BundleResult:
        raise ZeroDivisionError("secret")

    server, link, _ = await linked(broken)
    with pytest.raises(InferenceFailed) as raised:
        await ask(link, bundle_of(np.zeros((1, 2))))
    assert "secret" not in str(raised.value)
    link.close()
    server.close()


async def test_entries_fail_alone() -> None:
    """Entries fail alone."""

    async def first_fails(bundle: Bundle) -> BundleResult:
        result = await double(bundle)
        result.results[0] = Failure("invalid_request", "bad")
        return result

    server, link, _ = await linked(first_fails)
    one = np.ones((1, 2))
    result = await ask(link, bundle_of(one, one))
    assert result.results[0] == Failure("invalid_request", "bad")
    assert doubled(BundleResult(result.results[1:], [], 0, 0, 0), one)
    link.close()
    server.close()


async def test_the_replica_hangs_up() -> None:
    """The replica hangs up."""
    held = Held()
    server, link, lost = await linked(held)
    call = asyncio.create_task(ask(link, bundle_of(np.zeros((1, 2)))))
    await held.started.acquire()
    server.close()
    with pytest.raises(ReplicaLost) as raised:
        await call
    assert raised.value.reached
    await lost.wait()
    with pytest.raises(ReplicaLost) as raised:
        await ask(link, bundle_of(np.zeros((1, 2))))
    assert not raised.value.reached


async def test_what_is_not_written_any_more_has_not_reached_the_replica() -> None:
    """The connection is closed where the other end has hung up, and that is told a turn later."""
    server, link, lost = await linked(double)
    link.close()
    assert not link.lost
    with pytest.raises(ReplicaLost) as raised:
        await ask(link, bundle_of(np.ones((1, 4), np.float32)))
    assert not raised.value.reached
    await lost.wait()
    server.close()


async def test_bundles_of_a_router_that_left_are_cancelled() -> None:
    """Bundles of a router that left are cancelled."""
    held = Held()
    server, link, _ = await linked(held)
    call = asyncio.create_task(ask(link, bundle_of(np.zeros((1, 2)))))
    await held.started.acquire()
    link.close()
    await held.cancelled.wait()
    with pytest.raises(ReplicaLost):
        await call
    server.close()


async def test_draining_answers_what_runs() -> None:
    """Draining answers what runs."""
    held = Held()
    server, link, lost = await linked(held)
    one = np.ones((1, 2))
    call = asyncio.create_task(ask(link, bundle_of(one)))
    await held.started.acquire()
    draining = asyncio.create_task(server.drain(60.0))
    await asyncio.sleep(0)
    assert not draining.done()
    held.go.set()
    assert doubled(await call, one)
    await draining
    await lost.wait()
    with pytest.raises(LinkError):
        await connect(server.address, "r1", TieTable(), None, lambda: None)


async def test_draining_ends_in_any_case() -> None:
    """Draining ends in any case."""
    held = Held()
    server, link, _ = await linked(held)
    call = asyncio.create_task(ask(link, bundle_of(np.zeros((1, 2)))))
    await held.started.acquire()
    await server.drain(0.01)
    with pytest.raises(ReplicaLost):
        await call


async def test_retiring_waits_for_what_is_owed() -> None:
    """Retiring waits for what is in flight."""
    held = Held()
    server, link, lost = await linked(held)
    one = np.ones((1, 2))
    call = asyncio.create_task(ask(link, bundle_of(one)))
    await held.started.acquire()
    link.retire()
    held.go.set()
    assert doubled(await call, one)
    await lost.wait()
    server.close()


async def test_something_else_than_frames() -> None:
    """Something else than frames."""
    server, link, lost = await linked(double)
    assert link.transport is not None
    link.transport.write(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n" * 3)
    await lost.wait()
    server.close()


@pytest.mark.parametrize("hello", [struct.pack("<32sQ", b"0.0.0", 0), b"GET / HTTP/1.1\r\n\r\n"], ids=["old", "other"])
async def test_another_version_is_not_linked(hello: bytes) -> None:
    """Another version is not linked."""
    server = LinkServer("m", double)
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.setblocking(False)
        await loop.sock_connect(connection, "\0" + server.address)
        await loop.sock_sendall(connection, hello)
        assert await loop.sock_recv(connection, 1) == b""
    server.close()


async def test_nobody_listens() -> None:
    """Nobody listens."""
    with pytest.raises(LinkError):
        await connect("serve-app-nobody", "r1", TieTable(), None, lambda: None)


async def test_links_follow_the_replicas() -> None:
    """There is a link to every replica that is there, and to no other."""
    one, two = LinkServer("m", double), LinkServer("m", double)
    made: asyncio.Queue[str] = asyncio.Queue()
    links = Links(TieTable(), None, lambda model, replica, up: made.put_nowait(replica) if up else None)
    links.update("m", {"a": one.address, "b": two.address})
    assert {await made.get(), await made.get()} == {"a", "b"}
    assert links.find(None) is None
    assert links.find("c") is None
    links.update("m", {"b": two.address})
    assert links.find("a") is None
    kept = links.find("b")
    assert kept is not None
    assert doubled(await ask(kept, bundle_of(np.ones((1, 2)))), np.ones((1, 2)))
    links.close()
    one.close()
    two.close()


async def test_a_lost_link_is_made_again() -> None:
    """Serve says that the replica is there, so the link is tried again."""
    server = LinkServer("m", double)
    made: asyncio.Queue[str] = asyncio.Queue()
    links = Links(TieTable(), None, lambda model, replica, up: made.put_nowait(replica) if up else None)
    links.update("m", {"a": server.address})
    await made.get()
    first = links.find("a")
    assert first is not None
    first.cut()
    await made.get()
    assert links.find("a") not in {None, first}
    links.close()
    server.close()


def _serve(connection: multiprocessing.connection.Connection) -> None:
    async def main() -> None:
        async def run(bundle: Bundle) -> BundleResult:
            if len(bundle.entries) == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            return await double(bundle)

        server = LinkServer("m", run)
        connection.send(server.address)
        await asyncio.Event().wait()

    asyncio.run(main())


async def test_a_killed_replica_is_noticed_at_once() -> None:
    """A killed replica is noticed at once."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    address = await asyncio.to_thread(ours.recv)
    link = await connect(address, "r1", TieTable(), Arena(1024**2), lambda: None)
    large = np.ones((1, 50000), np.float32)
    assert doubled(await ask(link, bundle_of(large)), large)
    with pytest.raises(ReplicaLost):
        await ask(link, bundle_of(large, large))
    await asyncio.to_thread(process.join)
