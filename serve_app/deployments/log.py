"""Where this package's log goes inside Ray Serve's processes."""

from __future__ import annotations

import logging
import logging.handlers
from pathlib import Path

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


def serve_log_file() -> Path | None:
    """Where Serve writes this process's log; ``None`` where it writes none."""
    for handler in logging.getLogger(_SERVE_LOGGER).handlers:
        target = handler.target if isinstance(handler, logging.handlers.MemoryHandler) else handler
        if isinstance(target, logging.FileHandler):
            return Path(target.baseFilename)
    return None
