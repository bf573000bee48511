"""The load generator first: where it shares the cores with what it measures, it must not be what is late."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_USUAL = os.getpriority(os.PRIO_PROCESS, 0)
_FIRST = -10
_SESSION = "/proc/{}/autogroup"
"""Linux shares the processor among sessions first and then, by niceness, inside them: autogroups, sched(7)."""


def go_first() -> bool:
    """Give this thread, and those that it starts, the processor before all others. False where only root may.

    Its session gets it, too, until this process ends: beside a server of ten busy processes, which has a session of its
    own, niceness alone left the load generator waiting for seconds. Where this process is killed its session, which may
    be a terminal's, keeps it.
    """
    try:
        os.setpriority(os.PRIO_PROCESS, 0, _FIRST)  # 0: on Linux the calling thread
    except PermissionError:
        return False
    before = session_first("self")
    if before:
        atexit.register(Path(_SESSION.format("self")).write_text, before)
    return True


def session_first(pid: int | str) -> str:
    """Give the session of a process the processor before others, where that may be. Returns what it had; empty: not."""
    with suppress(OSError):  # a kernel without autogroups, or one that lets nobody change this one
        session = Path(_SESSION.format(pid))
        found = session.read_text().split()
        if found:  # nothing is said of the group of who has no session of its own
            session.write_text(str(_FIRST))
            return found[-1]
    return ""


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
