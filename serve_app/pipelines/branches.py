"""Tasks of one request that end together: the first failure cancels the others.

As `asyncio.TaskGroup`, whose errors and frames know each other: what a failed request held would stay until the next
garbage collection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class Branches:
    """Tasks that one of them, the last to end, waits for."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._error: BaseException | None = None

    def start(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Begin a task beside the others."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._on_done)
        return task

    async def join(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run what waits for the others, and end when it has ended.

        Raises:
            BaseException: What the first that failed has raised; the others are cancelled.
        """
        last = self.start(work)
        last.add_done_callback(self._end)
        try:
            await self._ended
        finally:  # also where whoever waits for this is cancelled
            await self._stop()
        if self._error is None:
            return last.result()
        error, self._error = self._error, None
        try:
            raise error
        finally:  # its traceback has this frame
            del error, last

    async def _stop(self) -> None:
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            if self._error is None:
                self._error = error
            self._end(task)

    def _end(self, _: asyncio.Task[Any]) -> None:
        if not self._ended.done():
            self._ended.set_result(None)
