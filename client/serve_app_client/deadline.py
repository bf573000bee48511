"""Deadlines: a call's total time, and scopes that calls inherit.

Within a process a deadline is a time on the monotonic clock. Clocks of processes are not comparable, so each attempt
sends the remaining time.
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
    """The deadline of a call, including retries.

    Attributes:
        at: On the clock of `time.monotonic`, seconds.
        announced: Whether it is sent to the server. Without an explicit deadline the server's default for the class
            applies, and this only bounds the client's wait.
    """

    at: float
    announced: bool

    def left(self, now: float) -> float:
        """Remaining seconds.

        Raises:
            DeadlineExceeded: No time remains.
        """
        seconds = self.at - now
        if seconds <= 0.0:
            raise DeadlineExceeded("the deadline passed before the request could be sent")
        return seconds


@contextlib.contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """All calls inside, of any client, end within this many seconds in total. The tightest of nested scopes applies.

    Works in threads and in asyncio tasks: a task inherits its creator's scope, a thread does not.
    """
    at = monotonic() + checked_timeout(seconds)
    outer = _scope.get()
    token = _scope.set(at if outer is None else min(at, outer))
    try:
        yield
    finally:
        _scope.reset(token)


def deadline_of(timeout: float | None, patience: float, now: float) -> Deadline:
    """The deadline of a call starting now: the tighter of its timeout and its scope.

    Args:
        timeout: Of the call, seconds.
        patience: Default wait, seconds.
        now: On the clock of `time.monotonic`.
    """
    moments = [_scope.get(), None if timeout is None else now + checked_timeout(timeout)]
    named = [moment for moment in moments if moment is not None]
    return Deadline(min(named), announced=True) if named else Deadline(now + patience, announced=False)


def checked_timeout(seconds: float) -> float:
    """Valid seconds until a deadline.

    Raises:
        ValueError: They are not valid.
    """
    if not 0.0 < seconds <= MAX_TIMEOUT_S:  # false for NaN
        raise ValueError(f"timeout: expected seconds, more than 0 and at most {MAX_TIMEOUT_S:.0f} (24 hours)")
    return seconds
