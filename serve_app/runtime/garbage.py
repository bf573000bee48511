"""Python's collector of cycles, set for a process that makes dozens of objects per request and hardly a cycle."""

from __future__ import annotations

import gc

_THRESHOLDS = (20_000, 20, 50)
"""With Python's own 700 for the first, the requests in flight are looked through hundreds of times a second."""


def collect_seldom() -> None:
    """Leave what is there now out of collections for good, and look through the rest far less often than by default.

    To be called once a process has loaded all that it needs. Cycles, such as those of exceptions, may wait for some
    thousand requests then: they hold a few megabytes at most, since bodies are counted and bounded while they live.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
