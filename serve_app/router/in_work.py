"""Counts requests being answered, so that a stopping router can wait for their end."""

from __future__ import annotations

import asyncio
import contextlib

from serve_app.errors import ModelUnavailable


class InWork:
    """Counts requests. Callers use the attributes directly: method calls would slow down every request.

    Attributes:
        count: The caller that decrements it to 0 calls `none_left`.
        closed: Whether new requests are refused by `shutting_down`.
    """

    __slots__ = ("_finished", "closed", "count")

    def __init__(self) -> None:
        self.count = 0
        self.closed = False
        self._finished = asyncio.Event()

    def none_left(self) -> None:
        """Wake `finish`: the last request is answered."""
        self._finished.set()

    async def finish(self, limit_s: float) -> int:
        """Refuse new requests, and wait at most ``limit_s`` for those accepted.

        Returns:
            Number of requests left.
        """
        self.closed = True
        self._finished.clear()
        if self.count:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await self._finished.wait()
        return self.count


def shutting_down() -> ModelUnavailable:
    """The error of requests refused during shutdown."""
    return ModelUnavailable("the server is shutting down; retry, or use another server", 1.0)
