"""The load generator first: where it shares the cores with what it measures, it must not be what is late."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_USUAL = os.getpriority(os.PRIO_PROCESS, 0)
_FIRST = -10


def go_first() -> bool:
    """Give this thread, and those that it starts, the processor before all others. False where only root may."""
    try:
        os.setpriority(os.PRIO_PROCESS, 0, _FIRST)  # 0: on Linux the calling thread
    except PermissionError:
        return False
    return True


@contextmanager
def as_usual() -> Iterator[None]:
    """Processes that are started in this context get the niceness that this program was started with."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, max(_USUAL, before))
    try:
        yield
    finally:
        if before < _USUAL:
            os.setpriority(os.PRIO_PROCESS, 0, before)
