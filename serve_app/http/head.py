"""The head of an HTTP/1.1 request: further checks after the parser, and the ASGI scope.

The parser checks the grammar. This module knows no connections: bytes and values in, values out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

import httptools
from starlette.types import Scope

from serve_app.errors import InvalidRequest, MethodNotAllowed
from serve_app.http.errors import Headers, Rendered, render
from serve_app.http.exchange import OWN_PORT
from serve_app.http.turns import Urgency

MAX_HEAD: Final = 64 * 1024
"""Most bytes of a head."""

MAX_FIELDS: Final = 256
"""Most headers of a request."""

_LONGEST_KNOWN: Final = 2048
"""Most bytes of a head that is kept."""

Address = tuple[str, int]
"""Host and port."""

_ASGI: Final = {"version": "3.0", "spec_version": "2.3"}
_HOP_BY_HOP: Final = frozenset({b"upgrade", b"http2-settings", b"connection"})


def refusal(method: str, url: bytes, version: str, headers: Headers, fields: dict[bytes, bytes]) -> Rendered | None:
    """The answer to a head that the parser accepts but this server refuses, if so.

    Args:
        fields: The last value of each name.
    """
    whole = version == "1.1" and b"host" in fields
    if whole and len(fields) == len(headers) <= MAX_FIELDS and url.isascii() and method != "CONNECT":
        return None  # nearly always
    if version not in {"1.1", "1.0"}:
        return render(InvalidRequest("this server speaks HTTP/1.1"))
    if method == "CONNECT":
        return render(MethodNotAllowed("CONNECT is not supported: this server is not a proxy"))
    if version == "1.1" and b"host" not in fields:
        return render(InvalidRequest("the header Host is missing"))
    if version == "1.0" and b"transfer-encoding" in fields:
        return render(InvalidRequest("HTTP/1.0 has no Transfer-Encoding"))
    if len(headers) != len(fields) and sum(name == b"host" for name, _ in headers) > 1:
        return render(InvalidRequest("the header Host is given twice"))
    if not url.isascii():
        return render(InvalidRequest("the path holds bytes that must be percent-encoded"))
    if len(headers) > MAX_FIELDS:
        return too_long()
    return None


def too_long() -> Rendered:
    """The answer to a head beyond the limits."""
    reply = render(InvalidRequest(f"the head of a request may have {MAX_HEAD} bytes and {MAX_FIELDS} headers"))
    return reply._replace(status=431)


def without_upgrade(method: bytes, url: bytes, version: str, headers: Headers) -> bytes:
    """The head without the offer of another protocol."""
    lines = [b"%b: %b" % field for field in headers if field[0] not in _HOP_BY_HOP]
    if any(name == b"connection" and b"close" in value.lower() for name, value in headers):
        lines.append(b"connection: close")
    start = b"%b %b HTTP/%b" % (method, url, version.encode())
    return b"\r\n".join((start, *lines, b"", b""))


def scope_of(
    method: str,
    url: bytes,
    version: str,
    headers: Headers,
    server: Address | None,
    client: Address | None,
    scheme: str,
) -> Scope:
    """The ASGI scope of a request.

    Args:
        url: A path with or without a query, the form for proxies, or ``*``. ASCII.
        scheme: ``https`` for TLS.
    """
    raw_path, _, query = url.partition(b"?")
    if not raw_path.startswith(b"/"):  # the form for proxies, or `*`
        raw_path = httptools.parse_url(url).path or b"/" if b"://" in raw_path else b"/"
    path = raw_path.decode("ascii")
    return {
        "type": "http",
        "asgi": _ASGI,
        "http_version": version,
        "server": server,
        "client": client,
        "scheme": scheme,
        "method": method,
        "root_path": "",
        "path": unquote(path) if "%" in path else path,
        "raw_path": raw_path,
        "query_string": query,
        "headers": headers,
        OWN_PORT: True,
    }


@dataclass(slots=True)
class KnownHead:
    """A repeated head, byte for byte, of a request with a complete body.

    Attributes:
        scope: The ASGI scope without the connection's addresses.
        length: Bytes of its body.
        urgency: Of such a request, when last computed.
        urgency_until: Time to compute it again, seconds.
    """

    scope: Scope
    length: int
    urgency: Urgency | None = None
    urgency_until: float = 0.0


def end_of(data: bytes) -> int:
    """The end of the head at the start of these bytes; less than 4 if it is incomplete or too long to keep.

    A leading empty line would count as part of the head, but not for the parser.
    """
    return data.find(b"\r\n\r\n", 0, _LONGEST_KNOWN) + 4


class KnownHeads:
    """Recent heads. Most clients repeat the same head, which then need not be parsed.

    Only whole heads at the start of a message match: the parser would give the same result.
    """

    _MOST: Final = 512

    def __init__(self) -> None:
        self._heads: dict[bytes, KnownHead] = {}

    def of(self, data: bytes) -> tuple[KnownHead, int] | None:
        """Find the head of a whole request, and the start of its body.

        Args:
            data: Received bytes: one complete request, or unknown.
        """
        end = data.find(b"\r\n\r\n", 0, _LONGEST_KNOWN) + 4  # `end_of`, without a call for each request
        known = self._heads.get(data[:end])
        return (known, end) if known is not None and end + known.length == len(data) else None

    def learn(self, data: bytes, scope: Scope, length: int) -> None:
        """Keep the parsed head of a whole request.

        Args:
            length: Bytes of its body.
        """
        if len(self._heads) >= self._MOST:
            self._heads.clear()
        self._heads[data[: len(data) - length]] = KnownHead(scope, length)
