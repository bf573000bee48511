"""A port that closes while clients ask without a pause."""

from __future__ import annotations

import asyncio

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
