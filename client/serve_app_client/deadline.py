"""Deadlines: a call's whole budget, and scopes that calls inherit.

Within a process a deadline is a moment on the monotonic clock. Between processes clocks do not compare, so every
attempt tells the server what is left of the budget then.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from time import monotonic
from typing import NamedTuple

from serve_app_client.errors import DeadlineExceeded
from serve_app_client.wire import MAX_TIMEOUT_S

_scope: ContextVar[float | None] = ContextVar("serve_app_client_deadline", default=None)


class Deadline(NamedTuple):
    """Until when a call may take, retries included.

    Attributes:
        at: On the clock of `time.monotonic`, seconds.
        announced: Whether the server is told. Where nobody named a deadline, the server's default for the class is the
            deadline, and this is merely how long the client waits.
    """

    at: float
    announced: bool

    def left(self, now: float) -> float:
        """Seconds that are left.

        Raises:
            DeadlineExceeded: None are.
        """
        seconds = self.at - now
        if seconds <= 0.0:
            raise DeadlineExceeded("the deadline passed before the request could be sent")
        return seconds


@contextlib.contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """All calls inside, of any client, end within so many seconds together. The tightest of nested scopes counts.

    Works in threads and in asyncio tasks alike: a task inherits the scope that it was started in, a thread does not.
    """
    at = monotonic() + checked_timeout(seconds)
    outer = _scope.get()
    token = _scope.set(at if outer is None else min(at, outer))
    try:
        yield
    finally:
        _scope.reset(token)


def deadline_of(timeout: float | None, patience: float, now: float) -> Deadline:
    """The deadline of a call that starts now: the tighter of its own timeout and the scope it is made in.

    Args:
        timeout: What the call names, seconds.
        patience: How long to wait where neither names one, seconds.
        now: On the clock of `time.monotonic`.
    """
    moments = [_scope.get(), None if timeout is None else now + checked_timeout(timeout)]
    named = [moment for moment in moments if moment is not None]
    return Deadline(min(named), announced=True) if named else Deadline(now + patience, announced=False)


def checked_timeout(seconds: float) -> float:
    """The seconds, if a deadline can be that far away.

    Raises:
        ValueError: It cannot.
    """
    if not 0.0 < seconds <= MAX_TIMEOUT_S:  # false for NaN
        raise ValueError(f"timeout: expected seconds, more than 0 and at most {MAX_TIMEOUT_S:.0f} (24 hours)")
    return seconds
