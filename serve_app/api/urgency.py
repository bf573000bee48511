"""How urgent a request is by its head alone, before anything of it is decoded."""

from __future__ import annotations

from collections.abc import Mapping

from serve_app.access.guard import Guard
from serve_app.domain.options import parse_qos_headers
from serve_app.domain.priorities import DEFAULT_LEVELS, PriorityLevels
from serve_app.errors import ServeAppError
from serve_app.http.turns import Urgency
from serve_app.scheduling.entry import Priority
from serve_app.scheduling.intake import Tenant

_LOOKS = frozenset({"GET", "HEAD"})
_HEALTH = ("/v2/health/", "/health")
_HEALTH_S = 1.0


class HeadUrgency:
    """Tells the class and the deadline that the headers of a request name.

    Health checks come with class ``high``, and so do other looks at the server as far as their key may use it. What
    will be refused for its key or its headers comes with ``low``: a class has to be allowed before it counts. What a
    body says of its class is not known yet; it counts from the scheduler on.

    Args:
        timeouts_s: Seconds that each class allows a request that names no deadline.
        levels: What the numbers of priorities mean.
        guard: Knows the keys; ``None``: there are none.
    """

    def __init__(
        self, timeouts_s: Mapping[Priority, float], levels: PriorityLevels = DEFAULT_LEVELS, guard: Guard | None = None
    ) -> None:
        self._timeouts_s = timeouts_s
        self._levels = levels
        self._guard = guard

    def __call__(self, method: str, path: str, headers: Mapping[bytes, bytes]) -> Urgency:
        """Tell it for one request."""
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
