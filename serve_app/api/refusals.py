"""What is refused on the way to the scheduler is counted and logged here; from there on others do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from serve_app.access.guard import Guard
from serve_app.domain.service import InferenceService
from serve_app.errors import PermissionDenied, RateLimited, ServeAppError, Unauthenticated
from serve_app.http.errors import code_of
from serve_app.telemetry.request_log import RequestLog

_AT_THE_DOOR: Final = (Unauthenticated, RateLimited, PermissionDenied)
"""These are logged whatever was asked for, which may not be known yet."""


class Refusals:
    """Notes refusals, of all doors in the same way.

    Args:
        service: The server as a whole: who was refused need not be allowed to see it.
        guard: Knows who asks; ``None``: nobody does.
        log: Gets the lines; ``None`` for none.
    """

    def __init__(self, service: InferenceService, guard: Guard | None, log: RequestLog | None) -> None:
        self._service = service
        self._guard = guard
        self._log = log

    def note(self, error: Exception, model: str | None, headers: Mapping[bytes, bytes]) -> None:
        """Count and log the end of the current request, unless whoever raised the error has.

        Args:
            error: Why it ends.
            model: The model that it asks for; ``None`` where it takes no work, or nobody has looked.
            headers: What came with it, by lower-case name.
        """
        counted, logged = (error.counted, error.logged) if isinstance(error, ServeAppError) else (False, False)
        code = code_of(error)
        if model is not None and not counted:
            self._service.refused(model, code)
        if self._log is not None and not logged and (model is not None or isinstance(error, _AT_THE_DOOR)):
            named = model if model is not None and model in self._service.models else ""
            self._log.refused(named, code, headers, "" if self._guard is None else self._guard.name)
