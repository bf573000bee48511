"""How bundles travel: what the dispatcher asks of whoever carries them, and what it is told when a replica is lost.

What comes back is told by a call, and not to a task that waits for it: its wake-up costs a round of the event loop, and
in an overload a round takes milliseconds.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from serve_app.payloads import Bundle, BundleResult


class ReplicaLost(Exception):
    """The replica died or could not be reached.

    Attributes:
        reached: Whether the bundle may have run there; ``False`` when it was never sent.
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
"""``call(model, bundle, replica, nbytes)`` is awaited for the result, and raises what `Done` names."""

Recall: TypeAlias = Callable[[Bundle, str | None, Sequence[int]], None]
"""``recall(bundle, replica, positions)`` asks for entries of a bundle back that was sent: what still waits there is not
run. Where nobody can ask it does nothing."""


def awaiting(call: Call) -> Send:
    """A way of which each result is awaited by a task."""
    tasks: set[asyncio.Task[None]] = set()
    # An empty context: Serve would otherwise tie the bundle to the request whose turn it happens to be and cancel
    # everybody's bundle when that one client leaves.
    empty = contextvars.Context()

    async def carry(model: str, bundle: Bundle, replica: str | None, nbytes: int, done: Done) -> None:
        try:
            result = await call(model, bundle, replica, nbytes)
        except asyncio.CancelledError as error:
            done(error)
            raise
        except Exception as error:
            done(error)
        else:
            done(result)

    def send(model: str, bundle: Bundle, replica: str | None, nbytes: int, done: Done) -> Callable[[], object]:
        work = carry(model, bundle, replica, nbytes, done)
        tasks.add(task := asyncio.get_running_loop().create_task(work, context=empty.copy()))
        task.add_done_callback(tasks.discard)
        return task.cancel

    return send
