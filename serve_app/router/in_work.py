"""Requests that are being answered, and how a router that stops waits for their end."""

from __future__ import annotations

import asyncio
import contextlib

from serve_app.errors import ModelUnavailable


class InWork:
    """Counts them.

    Attributes:
        count: How many there are. Whoever adds one calls `left` at its end.
    """

    __slots__ = ("_finished", "count")

    def __init__(self) -> None:
        self.count = 0
        self._finished: asyncio.Event | None = None  # set when none is left; there since no more are taken

    def check_open(self) -> None:
        """Raise `ModelUnavailable` where no more are taken."""
        if self._finished is not None:
            raise ModelUnavailable("the server is shutting down; retry, or use another server", 1.0)

    def left(self) -> None:
        """One is answered."""
        self.count -= 1
        if self._finished is not None and not self.count:
            self._finished.set()

    async def finish(self, limit_s: float) -> int:
        """Refuse what comes from now on, and wait until what was taken is answered.

        Args:
            limit_s: For how long at most, seconds.

        Returns:
            How many requests are left then.
        """
        if self._finished is None:
            self._finished = asyncio.Event()
        if self.count:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await self._finished.wait()
        return self.count
