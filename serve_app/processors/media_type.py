"""Checks media types of requests."""

from __future__ import annotations

import re
from collections.abc import Collection

from serve_app.errors import InvalidRequest, UnsupportedMedia
from serve_app.payloads import Media, Texts

_SAYS_NOTHING = frozenset(
    # The third is the default of curl --data-binary.
    {
        "",
        "image/*",
        "audio/*",
        "application/octet-stream",
        "application/x-www-form-urlencoded",
        "binary/octet-stream",
        "*/*",
    }
)

_NOT_DECODED = (
    (b"....ftyp(heic|heix|hevc|heim|heis|mif1|msf1)", "HEIC"),
    (b"....ftyp(?!avi[fs])", "MP4 (M4A)"),
    (b"\x1aE\xdf\xa3", "WebM"),
    (b"\xff[\xf0\xf1\xf8\xf9]", "AAC"),
    (b"#!AMR", "AMR"),
    (b"0&\xb2u\x8ef\xcf\x11", "WMA"),
)
"""First bytes, as patterns, of formats that clients have and nothing here decodes."""


def expect_media(payload: Media | Texts, kind: str, also: Collection[str] = (), examples: str = "") -> Media:
    """Refuse a payload declared as another type than ``kind``. Does not look at the content.

    Args:
        kind: Top-level media type: ``image`` or ``audio``.
        also: Further accepted full media types.
        examples: The message's recommendation; default ``kind/*``.

    Raises:
        UnsupportedMedia: It is text, or declared as another type.
        InvalidRequest: It is empty.
    """
    examples = examples or f"{kind}/*"
    if not isinstance(payload, Media):
        raise UnsupportedMedia(f"this model takes {kind}, and got text: send {examples}")
    declared = payload.content_type
    if not (declared in _SAYS_NOTHING or declared.startswith(f"{kind}/") or declared in also):
        raise UnsupportedMedia(f"this model takes {kind}, and got {declared[:80]}: send {examples}")
    if not payload.content:
        raise InvalidRequest(f"the {kind} is empty: 0 bytes came")
    return payload


def unreadable(payload: Media, kind: str, known: Collection[str], examples: str) -> InvalidRequest:
    """The error for content that no decoder recognizes.

    Args:
        kind: Expected top-level media type.
        known: Supported full media types.
        examples: The message's recommendation.

    Returns:
        `UnsupportedMedia` if the declared type, or else the content, is unsupported; `InvalidRequest` otherwise.
    """
    declared = payload.content_type
    if declared not in _SAYS_NOTHING and declared not in known:
        return UnsupportedMedia(f"{declared[:80]} cannot be decoded here: send {examples}")
    for pattern, name in _NOT_DECODED:
        if re.match(pattern, payload.content, re.DOTALL):
            return UnsupportedMedia(f"{name} cannot be decoded here: send {examples}")
    came = f", though the request calls it {declared}" if declared in known else ""
    return InvalidRequest(
        f"the content ({len(payload.content)} bytes) cannot be decoded as {kind}{came}; send {examples}"
    )
