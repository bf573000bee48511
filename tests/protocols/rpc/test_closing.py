"""Ports that close while clients ask without a pause."""

from __future__ import annotations

import asyncio
import socket

from steady_load import SteadyLoad

from protocols.protocol_service import NumpyService
from serve_app.protocols.body import BodyReader
from serve_app.protocols.grpc_app import GrpcApp
from serve_app.protocols.grpc_listener import GrpcListener


async def test_no_call_is_lost(bodies: BodyReader) -> None:
    """Calls are answered, or find the port closed. At any time some have arrived that the event loop has not taken."""
    for _ in range(5):
        listener = GrpcListener(GrpcApp(NumpyService(), bodies), "127.0.0.1", 0)
        await listener.start()
        load = SteadyLoad("double", 4, grpc_ports=[listener.port], clients=8, answer=lambda number: 2.0 * number)
        with load:
            await asyncio.to_thread(load.wait_for_answers)
            await listener.close(20.0)
            await asyncio.to_thread(load.end)
        assert set(load.outcomes()) <= {"OK", "refused"}, load.details


async def test_nobody_connects_to_a_port_that_is_about_to_close(bodies: BodyReader) -> None:
    """Clients that another process on this port sent away would have their calls cancelled."""
    first, second = (GrpcListener(GrpcApp(NumpyService(), bodies), "127.0.0.1", 0) for _ in range(2))
    shared = GrpcListener(GrpcApp(NumpyService(), bodies), "127.0.0.1", first.port)
    for listener in (first, second, shared):
        await listener.start()
    closing = asyncio.create_task(first.close(20.0))
    await asyncio.sleep(0)  # it waits for calls that have arrived
    taken = [connects(port) for port in [first.port] * 20 + [second.port]]
    also_closing = asyncio.create_task(shared.close(20.0))
    await asyncio.sleep(0)
    taken_now = connects(first.port)
    assert not (closing.done() and also_closing.done())
    await asyncio.gather(closing, also_closing, second.close(20.0))
    assert all(taken)
    assert not taken_now


def connects(port: int) -> bool:
    """Whether somebody listens."""
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0
