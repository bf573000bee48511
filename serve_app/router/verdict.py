"""What a replica's answer says of its model, and how changes of circuit breakers are told."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from serve_app.errors import InferenceFailed
from serve_app.payloads import BundleResult, Success
from serve_app.scheduling.breaker import State, Verdict
from serve_app.scheduling.decisions import Change

_FAILED = InferenceFailed.code


def verdict_of(result: BundleResult) -> Verdict:
    """Judge an answer: by whether any entry was answered, and otherwise by what failed and whether the model works."""
    failed = False
    for answer in result.results:
        if isinstance(answer, Success):
            return Verdict.ANSWERED
        failed = failed or answer.code == _FAILED
    if not failed:
        return Verdict.NEITHER
    return Verdict.FAULT if result.model_works is False else Verdict.SUSPECT


def verdict_of_error(code: str) -> Verdict:
    """Judge an error that a replica gave to a whole bundle: only the model's own failure is its fault."""
    return Verdict.FAULT if code == _FAILED else Verdict.NEITHER


def log_changes(logger: logging.Logger, changes: Iterable[Change]) -> None:
    """Tell operators what circuit breakers did."""
    for change in changes:
        build = f"{change.model}, variant {change.variant}" if change.variant else change.model
        if change.replica is not None:
            logger.warning("Replica %s of %s fails alone: no work for %.0f s", change.replica, build, change.for_s)
        elif change.state == State.OPEN.value:
            logger.error("The circuit breaker of %s opens for %.0f s: %s", build, change.for_s, change.reason)
        else:
            logger.warning("The circuit breaker of %s is %s", build, change.state.replace("_", "-"))
