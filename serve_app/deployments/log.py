"""Where this package's log goes inside Ray Serve's processes."""

from __future__ import annotations

import logging

_SERVE_LOGGER = "ray.serve"


def join_serve_log() -> None:
    """Send what this package logs to the replica's own log, with Serve's format, level and rotation.

    Serve sets up the handlers of its own logger only; anything else would end in the worker's standard error, which
    Serve may discard. Call it in the replica, after Serve has set up logging. Idempotent.
    """
    serve, ours = logging.getLogger(_SERVE_LOGGER), logging.getLogger(__package__.partition(".")[0])
    ours.handlers = list(serve.handlers)
    ours.setLevel(serve.getEffectiveLevel())
    ours.propagate = False
