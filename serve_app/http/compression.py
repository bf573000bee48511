"""Compresses responses on request.

A request names one coding: ``Accept-Encoding: gzip`` or ``deflate``, as NVIDIA's client does on demand. Lists of
codings, which HTTP libraries send by default, do not count: compressing takes several times as long as making the
answer, and pays only on slow networks.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from serve_app.http.body import BodyReader
from serve_app.http.errors import Headers

_WORTH_IT: Final = 1024
"""Bytes from which a body is compressed."""

_ASIDE_ABOVE: Final = 16 * 1024
"""Bytes above which it is done in a thread: it takes about 1 ms per 32 KiB of numbers."""

_LEVEL: Final = 1
"""Of zlib: the fastest; the next ones take more than they save."""

# zlib's "window bits": 15 for zlib's own format, which HTTP calls deflate, plus 16 for gzip's.
_WINDOW_BITS: Final[Mapping[bytes, int]] = MappingProxyType({b"gzip": 15 + 16, b"deflate": 15})


def asked_coding(headers: Mapping[bytes, bytes]) -> bytes | None:
    """The requested Content-Encoding, if any.

    Args:
        headers: By lower-case name.
    """
    accepted = headers.get(b"accept-encoding")
    if accepted is None:
        return None
    coding, _, weight = accepted.partition(b";")
    coding = coding.strip().lower()
    refused = weight.replace(b" ", b"").rstrip(b"0.") == b"q="
    return coding if coding in _WINDOW_BITS and not refused else None


async def compress(body: bytes, headers: Headers, coding: bytes, bodies: BodyReader) -> bytes:
    """Compress a response body if worthwhile, and set its headers.

    Args:
        headers: Of the response; changed in place.
        coding: From `asked_coding`.
        bodies: Runs long conversions in threads.
    """
    if len(body) < _WORTH_IT:
        return body
    aside = len(body) > _ASIDE_ABOVE
    compressed = await bodies.offload(_compress, body, coding) if aside else _compress(body, coding)
    headers[:] = [pair for pair in headers if pair[0] != b"content-length"]
    headers += [
        (b"content-length", b"%d" % len(compressed)),
        (b"content-encoding", coding),
        (b"vary", b"accept-encoding"),
    ]
    return compressed


def _compress(body: bytes, coding: bytes) -> bytes:
    return zlib.compress(body, _LEVEL, _WINDOW_BITS[coding])
