"""Python's collector of cycles, set for a process that makes dozens of objects per request and hardly a cycle."""

from __future__ import annotations

import gc

_THRESHOLDS = (20_000, 20, 50)
"""With Python's own 700 for the first, the requests in flight are looked through hundreds of times a second."""


def leave_out_what_is_there() -> None:
    """Leave what is there now out of collections for good, so that they take milliseconds."""
    gc.collect()
    gc.freeze()


def tune_garbage_collection() -> None:
    """Leave what is there now out of collections for good, and look through the rest far less often than by default.

    To be called once a process has loaded all that it needs. Cycles may wait for some thousand requests then. None may
    hold a body: where an error is kept beside the frames that it has passed through, one of the two has to let go.
    """
    leave_out_what_is_there()
    gc.set_threshold(*_THRESHOLDS)
