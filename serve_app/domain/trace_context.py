"""W3C trace context: a request's trace, from the header ``traceparent``.

By https://www.w3.org/TR/trace-context-2/: malformed headers are ignored, and of later versions the fields of version 00
are read.
"""

from __future__ import annotations

import re
import secrets
from typing import Final

_FORM: Final = re.compile(rb"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_KNOWN_FLAGS: Final = 0x03  # sampled, and a random trace id
_LONGEST: Final = 512


def parent_of(given: bytes | None) -> str:
    """A request's ``traceparent`` in the form of version 00; empty if there is no valid one."""
    if given is None or len(given) > _LONGEST:
        return ""
    match = _FORM.fullmatch(given.strip())
    if match is None or (match[1] == b"00" and match[5] is not None):
        return ""
    return f"00-{match[2].decode()}-{match[3].decode()}-{int(match[4], 16) & _KNOWN_FLAGS:02x}"


def trace_and_span(parent: str) -> tuple[str, str]:
    """The ids of the trace and of the span in a valid ``traceparent``; both empty if it is."""
    return (parent[3:35], parent[36:52]) if parent else ("", "")


def child_of(parent: str) -> str:
    """The ``traceparent`` of a new span in the same trace."""
    return f"{parent[:36]}{secrets.token_hex(8)}{parent[52:]}"
