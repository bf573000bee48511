"""Timers for moments on the monotonic clock, which event loops other than asyncio's do not go by.

uvloop's clock has whole milliseconds and stands still for a turn. A deadline or a queue time taken from it would be
wrong by as much, so everything that is measured or compared is `time.monotonic`'s.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from time import monotonic
from typing import TypeVarTuple

_Args = TypeVarTuple("_Args")


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
