"""Timers for moments on the monotonic clock, which event loops other than asyncio's do not go by.

uvloop's clock has whole milliseconds and stands still for a turn. A deadline or a queue time taken from it would be
wrong by as much, so everything that is measured or compared is `time.monotonic`'s.
"""

from __future__ import annotations

import asyncio
import ctypes
import math
import os
import sys
from collections.abc import Callable
from time import CLOCK_MONOTONIC, monotonic
from typing import TypeVarTuple

_Args = TypeVarTuple("_Args")
_TFD_TIMER_ABSTIME = 1
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None  # Python has timerfd from 3.13 on only


def call_at(
    loop: asyncio.AbstractEventLoop, when: float, callback: Callable[[*_Args], object], *args: *_Args
) -> asyncio.TimerHandle:
    """Have a callback called at a moment, or a millisecond before or after: whoever cannot be early has to look.

    The delay is rounded up to whole milliseconds. uvloop rounds to the nearest, and would call at once, over and over,
    whoever looks half a millisecond before the moment and sets the timer again.

    Args:
        loop: The running event loop.
        when: Finite, seconds on the clock of `time.monotonic`.
        callback: What to call.
        args: What to call it with.
    """
    return loop.call_later(math.ceil(1e3 * max(0.0, when - monotonic())) / 1e3, callback, *args)


class PreciseTimer:
    """A timer of the running event loop that is set again and again, usually late by 0.2 ms instead of 1 ms.

    Event loops round the time that they sleep up to whole milliseconds, so this is Linux' timerfd; elsewhere `call_at`.

    Args:
        callback: What to call, in the event loop.

    Attributes:
        due: When it is called next, seconds on the clock of `time.monotonic`; ``inf``: not at all.
    """

    def __init__(self, callback: Callable[[], object]) -> None:
        self.due = math.inf
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None
        self._fd = -1
        if LIBC is not None:
            self._fd = LIBC.timerfd_create(CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd >= 0:
            self._loop.add_reader(self._fd, self._read)

    def set(self, when: float) -> None:
        """Call the callback then, and not when it was to be called before."""
        self.due = when
        if self._fd >= 0:
            assert LIBC is not None
            seconds, part = divmod(max(when, 1e-6), 1.0)
            every_and_first = (ctypes.c_long * 4)(0, 0, int(seconds), int(1e9 * part))
            LIBC.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, every_and_first, None)
            return
        if self._handle is not None:
            self._handle.cancel()
        self._handle = call_at(self._loop, when, self._call)

    def close(self) -> None:
        """Never call again. In the event loop; idempotent."""
        self.due = math.inf
        if self._handle is not None:
            self._handle.cancel()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
        self.__del__()

    def __del__(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _read(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return  # it was set again
        self._call()

    def _call(self) -> None:
        self.due = math.inf
        self._callback()
