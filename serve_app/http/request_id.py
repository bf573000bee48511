"""The id that joins a client's report to a line in the log."""

from __future__ import annotations

import itertools
import re
import secrets

_GIVEN = re.compile(rb"[\x21-\x7e]{1,128}")


class RequestIds:
    """Gives requests their ids: the client's own where it is usable, otherwise one that nothing else here has."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._prefix = secrets.token_hex(8)

    def __call__(self, given: bytes | None) -> bytes:
        """The id of one request.

        Args:
            given: X-Request-Id of the request, where it has one.
        """
        if given is not None and _GIVEN.fullmatch(given):
            return given
        return f"{self._prefix}-{next(self._numbers):x}".encode()
