"""A replica for a process of its own, which doubles numbers. It imports no more than it needs: many are started."""

from __future__ import annotations

import asyncio
import os
import signal
from multiprocessing.connection import Connection

from serve_app.payloads import Bundle, BundleResult, EntryResult, Execution, Success
from serve_app.transport.link_server import LinkServer

DEADLY = 13.0
"""The number that kills the process."""


async def _double(bundle: Bundle) -> BundleResult:
    """Answer twice what came; some numbers kill the process."""
    results: list[EntryResult] = []
    for entry in bundle.entries:
        assert isinstance(entry.payload, dict)
        if float(entry.payload["x"].ravel()[0]) == DEADLY:
            os.kill(os.getpid(), signal.SIGKILL)
        results.append(Success({"x": entry.payload["x"] * 2}))
    return BundleResult(results, [Execution(len(results), 0, 0.001)], 0.0, 0.0, 0.0)


def serve_doubles(connection: Connection) -> None:
    """Tell where it listens, and answer until the process ends."""

    async def main() -> None:
        connection.send(LinkServer("m", _double).address)
        await asyncio.Event().wait()

    asyncio.run(main())
