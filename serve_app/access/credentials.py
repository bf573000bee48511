"""Reads a request's key: from ``X-API-Key``, or the token of ``Authorization: Bearer`` (RFC 6750)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from serve_app.errors import Unauthenticated

LONGEST: Final = 256
"""Most bytes of a key. Longer ones are refused without a look at them."""

_TOKEN: Final = re.compile(rb"[A-Za-z0-9._~+/-]+=*")
_HOW: Final = "send Authorization: Bearer <key>, or X-API-Key: <key>"


def credential_from(headers: Mapping[bytes, bytes]) -> bytes | None:
    """The key in these headers (or gRPC metadata), if any.

    ``X-API-Key`` takes precedence: a proxy or a client may need ``Authorization`` for itself.

    Args:
        headers: By lower-case name.

    Raises:
        Unauthenticated: The value cannot be a key. The message does not repeat it.
    """
    key = headers.get(b"x-api-key")
    if key is None:
        authorization = headers.get(b"authorization")
        if authorization is None:
            return None
        scheme, _, key = authorization.strip().partition(b" ")
        if scheme.lower() != b"bearer":
            raise Unauthenticated(f"Authorization: only the Bearer scheme is supported; {_HOW}")
    key = key.strip()
    if len(key) > LONGEST or not _TOKEN.fullmatch(key):
        raise Unauthenticated(f"malformed API key; {_HOW}")
    return key


def missing_key() -> Unauthenticated:
    """The error for a request without a key."""
    return Unauthenticated(f"an API key is required: {_HOW}")
