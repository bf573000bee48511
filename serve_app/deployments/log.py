"""Where this package's log goes inside Ray Serve's processes."""

from __future__ import annotations

import logging
import logging.handlers
import re
from collections.abc import Callable
from pathlib import Path

_SERVE_LOGGER = "ray.serve"
_NO_NAME = re.compile(r"[^\w.-]")


def join_serve_log() -> None:
    """Send what this package logs to the replica's own log, with Serve's format, level and rotation.

    Serve sets up the handlers of its own logger only; anything else would end in the worker's standard error, which
    Serve may discard. Where Serve keeps lines back until there are many (``RAY_SERVE_THROUGHPUT_OPTIMIZED``), those of
    this package are written at once: they are few, and an operator may wait for them. For the same reason what is only
    information, such as which requests share runs, is written where Serve writes no more than warnings. Call it in the
    replica, after Serve has set up logging. Idempotent.
    """
    serve, ours = logging.getLogger(_SERVE_LOGGER), logging.getLogger(__package__.partition(".")[0])
    ours.handlers = [_writing_at_once(handler) for handler in serve.handlers]
    level = serve.getEffectiveLevel()
    ours.setLevel(min(level, logging.INFO) if level <= logging.WARNING else level)
    ours.propagate = False


def _writing_at_once(handler: logging.Handler) -> logging.Handler:
    """What a handler does, without keeping lines back."""
    if not isinstance(handler, logging.handlers.MemoryHandler):
        return handler
    at_once = logging.handlers.MemoryHandler(1, target=handler.target)  # itself, since the filters are its own
    at_once.filters, at_once.level = handler.filters, handler.level
    return at_once


def request_log_file(folder: Path | None, router: Callable[[], str]) -> Path | None:
    """Where the log of requests goes, ``None`` where there is no place for it.

    Args:
        folder: The folder; ``None`` for that of Serve's log of this process.
        router: Says what to call the file by where Serve writes no log, whose name it follows otherwise.
    """
    beside = _serve_log_file()
    if beside is not None:
        return (folder or beside.parent) / f"requests_{beside.name.removeprefix('replica_')}"
    return None if folder is None else folder / f"requests_{_NO_NAME.sub('_', router())}.log"


def _serve_log_file() -> Path | None:
    """Where Serve writes this process's log; ``None`` where it writes none."""
    for handler in logging.getLogger(_SERVE_LOGGER).handlers:
        target = handler.target if isinstance(handler, logging.handlers.MemoryHandler) else handler
        if isinstance(target, logging.FileHandler):
            return Path(target.baseFilename)
    return None
