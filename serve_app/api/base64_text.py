"""Decodes files in JSON from base64."""

from __future__ import annotations

import binascii
import re
from typing import Final

from serve_app.errors import InvalidRequest

_FOREIGN: Final = re.compile(r"[^A-Za-z0-9+/_ \t\r\n-]")
_USUAL: Final = bytes.maketrans(b"-_", b"+/")


def from_base64(text: str, wanted: str) -> bytes:
    """Decode base64, with or without padding and line breaks, in the standard or URL-safe alphabet (RFC 4648).

    Args:
        wanted: What was expected, and where, for the message.

    Raises:
        InvalidRequest: The text is no base64.
    """
    characters = text.encode("ascii", "replace").translate(_USUAL, b" \t\r\n")
    given = len(characters)
    characters = characters.rstrip(b"=")
    padding = b"=" * (-len(characters) % 4)
    try:
        if len(padding) < 3 and given - len(characters) in {0, len(padding)}:
            return binascii.a2b_base64(characters + padding, strict_mode=True)
    except ValueError:
        pass
    found = _FOREIGN.search(text.rstrip("= \t\r\n"))
    if found is None:
        reason = f"{given} characters, padding included, are no whole number of bytes"
    else:
        reason = f"character {found.start() + 1} is {found[0]!r}"
    raise InvalidRequest(f"{wanted}: {reason}") from None
