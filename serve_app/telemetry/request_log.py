"""The request log: one line of JSON per refused, failed or slow request, and a sample of others.

Lines hold nothing of a client but request id and trace: no body, header value or key. Their rate is limited, so that a
flood of refusals cannot fill a disk. Omitted lines are counted and reported.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from serve_app.domain.options import LISTENER, request_id_of
from serve_app.domain.service import RequestOptions
from serve_app.domain.settings import LogSettings
from serve_app.domain.trace_context import child_of, parent_of, trace_and_span
from serve_app.http.errors import STATUSES, Status

OK: Final = "ok"
CANCELLED: Final = "cancelled"
GIVEN_UP: Final = "given_up"
POISONED: Final = "poisoned"
"""Outcomes that are no error codes, as in the metrics."""

_STATUSES: Final[Mapping[str, Status]] = {
    **STATUSES,
    OK: Status(200, "OK"),
    CANCELLED: Status(499, "CANCELLED"),
    GIVEN_UP: STATUSES["deadline_exceeded"],
    POISONED: STATUSES["inference_failed"],
}
_FAULTS: Final = frozenset({"internal", "inference_failed", POISONED})
"""Outcomes that are the server's fault, whatever was asked."""
_TELL_EVERY_S: Final = 1.0


class RequestLog:
    """Selects and formats requests' lines.

    Args:
        settings: Selection.
        write: Takes a complete line. Must not block.
        later: Schedules a call after seconds, like an event loop.
        clock: Seconds, monotonic.
        chance: Uniform in [0, 1).
    """

    def __init__(
        self,
        settings: LogSettings,
        write: Callable[[bytes], None],
        later: Callable[[float, Callable[[], None]], Any],
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._settings = settings
        self._write = write
        self._later = later
        self._clock = clock
        self._chance = chance
        self._room = settings.lines_per_s  # a token bucket
        self._room_at = clock()
        self._left_out: Counter[str] = Counter()

    def wants(self, total_s: float) -> bool:
        """Whether to log a request answered after this time."""
        settings = self._settings
        return total_s > settings.slow_s or (settings.sample > 0.0 and self._chance() < settings.sample)

    def refused(self, model: str, outcome: str, headers: Mapping[bytes, bytes], key: str = "") -> None:
        """Log a request that never became an entry.

        Args:
            model: Empty if no served model was named.
            outcome: The error's code.
            headers: Of the request, by lower-case name.
            key: Name of its API key; empty if unknown.
        """
        if self._has_room(outcome):
            listener = headers.get(LISTENER, b"").decode()
            parent = parent_of(headers.get(b"traceparent"))
            options = RequestOptions(
                request_id=request_id_of(headers), trace_parent=parent and child_of(parent), key=key, listener=listener
            )
            self._log_request(outcome, model, options, {})

    def ended(self, outcome: str, model: str, options: RequestOptions, facts: Mapping[str, Any]) -> None:
        """Log a request that was an entry.

        Args:
            outcome: As in metrics.
            options: Of the request; ``trace_parent`` names the router's span.
            facts: Further fields.
        """
        if self._has_room(outcome):
            self._log_request(outcome, model, options, facts)

    def _has_room(self, outcome: str) -> bool:
        now, most = self._clock(), self._settings.lines_per_s
        self._room = min(max(most, 1.0), self._room + (now - self._room_at) * most)
        self._room_at = now
        if self._room < 1.0:
            if not self._left_out:
                self._later(_TELL_EVERY_S, self._log_suppressed)
            self._left_out[outcome] += 1
            return False
        self._room -= 1.0
        return True

    def _log_suppressed(self) -> None:
        left_out, self._left_out = self._left_out, Counter()
        self._put({"time": _now(), "level": "warning", "suppressed": dict(left_out)})

    def _log_request(self, outcome: str, model: str, options: RequestOptions, facts: Mapping[str, Any]) -> None:
        status = _STATUSES.get(outcome, STATUSES["internal"])
        trace_id, span_id = trace_and_span(options.trace_parent)
        self._put(
            {
                "time": _now(),
                "level": "info" if outcome == OK else "error" if outcome in _FAULTS else "warning",
                "outcome": outcome,
                "status": status.grpc if "grpc" in options.listener else status.http,
                "model": model,
                "request_id": options.request_id,
                "trace_id": trace_id,
                "span_id": span_id,
                "key": options.key,
                "listener": options.listener,
                **facts,
            }
        )

    def _put(self, line: Mapping[str, Any]) -> None:
        self._write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
