"""Requests that are being answered, and how a router that stops waits for their end."""

from __future__ import annotations

import asyncio
import contextlib

from serve_app.errors import ModelUnavailable


class InWork:
    """Counts them. Whoever answers them looks at the attributes itself: a call each would be felt by every request.

    Attributes:
        count: How many there are. Whoever takes the last one away calls `none_left`.
        closed: Whether no more are taken: instead, `shutting_down` is raised.
    """

    __slots__ = ("_finished", "closed", "count")

    def __init__(self) -> None:
        self.count = 0
        self.closed = False
        self._finished = asyncio.Event()

    def none_left(self) -> None:
        """The last one is answered."""
        self._finished.set()

    async def finish(self, limit_s: float) -> int:
        """Refuse what comes from now on, and wait until what was taken is answered.

        Args:
            limit_s: For how long at most, seconds.

        Returns:
            How many requests are left then.
        """
        self.closed = True
        self._finished.clear()
        if self.count:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await self._finished.wait()
        return self.count


def shutting_down() -> ModelUnavailable:
    """The error of a request that is not taken any more."""
    return ModelUnavailable("the server is shutting down; retry, or use another server", 1.0)
