"""Derives a request's urgency from its head, before decoding."""

from __future__ import annotations

from collections.abc import Mapping

from serve_app.access.guard import Guard
from serve_app.domain.options import parse_qos_headers
from serve_app.domain.priorities import DEFAULT_LEVELS, PriorityLevels
from serve_app.domain.priority import Priority
from serve_app.errors import ServeAppError
from serve_app.http.turns import Urgency
from serve_app.scheduling.intake import Tenant

_LOOKS = frozenset({"GET", "HEAD"})
_HEALTH = ("/v2/health/", "/health")
_HEALTH_S = 1.0


class HeadUrgency:
    """The class and the deadline in a request's headers.

    Health checks count as class ``high``, and so do other server queries if their key allows that class. Requests that
    will be refused for their key or headers count as ``low``: a class must be allowed before it counts. A class in the
    body is unknown here and counts only in the scheduler.

    Args:
        timeouts_s: Default deadlines by class, seconds.
    """

    def __init__(
        self, timeouts_s: Mapping[Priority, float], levels: PriorityLevels = DEFAULT_LEVELS, guard: Guard | None = None
    ) -> None:
        self._timeouts_s = timeouts_s
        self._levels = levels
        self._guard = guard

    def __call__(self, method: str, path: str, headers: Mapping[bytes, bytes]) -> Urgency:
        """The urgency of one request."""
        if method in _LOOKS:
            if path.startswith(_HEALTH):
                return Urgency(Priority.HIGH, _HEALTH_S)
            return self._as_its_key_may(headers, Priority.HIGH, None)
        try:
            named, seconds = parse_qos_headers(headers, self._levels)
        except ServeAppError:
            return Urgency(Priority.LOW, self._timeouts_s[Priority.LOW])
        return self._as_its_key_may(headers, named or Priority.NORMAL, seconds)

    def _as_its_key_may(self, headers: Mapping[bytes, bytes], priority: Priority, seconds: float | None) -> Urgency:
        name, weight = "", 1.0
        if self._guard is not None:
            priority, name, weight = self._guard.waits_as(headers, priority)
        return Urgency(priority, self._timeouts_s[priority] if seconds is None else seconds, Tenant(name, weight))
