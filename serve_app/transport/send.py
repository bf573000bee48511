"""The interface between the dispatcher and transports, with the error for a lost replica.

A callback delivers the result. A waiting task would wake up one round of the event loop later, which takes milliseconds
in an overload.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeAlias

from serve_app.payloads import Bundle, BundleResult


class ReplicaLost(Exception):
    """The replica died or is unreachable.

    Attributes:
        reached: Whether the bundle may have run; ``False`` if it was never sent.
    """

    def __init__(self, message: str, *, reached: bool = True) -> None:
        super().__init__(message)
        self.reached = reached


Done: TypeAlias = Callable[[BundleResult | BaseException], None]
"""Takes a bundle's result. Instead of one: `ReplicaLost`, a `ServeAppError` that concerns every entry, or
`asyncio.CancelledError` where the call was cancelled. Raises nothing."""

Send: TypeAlias = Callable[[str, Bundle, str | None, int, Done], Callable[[], object] | None]
"""``send(model, bundle, replica, nbytes, done)`` calls ``done`` once, and not before it returns. Gives what ends the
call early, where something can."""

Call: TypeAlias = Callable[[str, Bundle, str | None, int], Awaitable[BundleResult]]
"""``call(model, bundle, replica, nbytes)`` sends a bundle to a replica (``None``: to any). It is awaited for the
result, and raises what `Done` names. ``nbytes``: of the bundle's payloads."""

Recall: TypeAlias = Callable[[Bundle, str | None, Sequence[int]], None]
"""``recall(bundle, replica, positions)`` asks for entries of a bundle back that was sent: what still waits there is not
run. Where nobody can ask it does nothing."""


def awaiting(call: Call) -> Send:
    """Make a transport of a function whose results are awaited in tasks."""
    tasks: set[asyncio.Task[BundleResult]] = set()
    # An empty context: Serve would otherwise tie the bundle to the request whose turn it happens to be and cancel
    # everybody's bundle when that one client leaves.
    empty = contextvars.Context()

    async def carry(model: str, bundle: Bundle, replica: str | None, nbytes: int) -> BundleResult:
        return await call(model, bundle, replica, nbytes)

    def send(model: str, bundle: Bundle, replica: str | None, nbytes: int, done: Done) -> Callable[[], object]:
        work, context = carry(model, bundle, replica, nbytes), empty.copy()
        tasks.add(task := asyncio.get_running_loop().create_task(work, context=context))
        task.add_done_callback(tasks.discard)
        task.add_done_callback(partial(_deliver_end, done), context=context)
        return task.cancel

    return send


def _deliver_end(done: Done, task: asyncio.Task[BundleResult]) -> None:
    """Deliver the end of a task, also of one cancelled before it began."""
    if task.cancelled():
        done(asyncio.CancelledError())
    else:
        done(task.exception() or task.result())
