"""Logs changes of circuit breakers."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from serve_app.scheduling.decisions import Change
from serve_app.scheduling.health.breaker import State


def log_changes(logger: logging.Logger, changes: Iterable[Change]) -> None:
    """Log changes of circuit breakers."""
    for change in changes:
        build = f"{change.model}, variant {change.variant}" if change.variant else change.model
        if change.replica is not None:
            logger.warning(
                "Replica %s of %s is ejected for %.0f s: it fails while other replicas succeed",
                change.replica,
                build,
                change.for_s,
            )
        elif change.state == State.OPEN.value:
            logger.error("The circuit breaker of %s opens for %.0f s: %s", build, change.for_s, change.reason)
        else:
            logger.warning("The circuit breaker of %s is %s", build, change.state.replace("_", "-"))
