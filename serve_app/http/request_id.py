"""Request ids, which join a client's report to the log."""

from __future__ import annotations

import itertools
import re
import secrets

_GIVEN = re.compile(rb"[\x21-\x7e]{1,128}")


class RequestIds:
    """Assigns request ids: the client's own if usable, otherwise a unique one."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._prefix = secrets.token_hex(8)

    def __call__(self, given: bytes | None) -> bytes:
        """The id of one request.

        Args:
            given: The request's X-Request-Id, if any.
        """
        if given is not None and _GIVEN.fullmatch(given):
            return given
        return f"{self._prefix}-{next(self._numbers):x}".encode()
