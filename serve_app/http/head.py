"""The head of an HTTP/1.1 request: what the parser lets pass and this server does not, and what applications get of it.

Its grammar is the parser's. Here is nothing of connections: bytes and values in, values out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

import httptools
from starlette.types import Scope

from serve_app.errors import InvalidRequest, MethodNotAllowed
from serve_app.http.errors import Headers, Rendered, render
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
    """The answer to a head that the parser lets pass and this server does not; ``None`` where nothing is wrong.

    Args:
        method: Of the request.
        url: Its target.
        version: Of HTTP.
        headers: All of them.
        fields: The last one of each name.
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
    """The answer to a head that exceeds the limits."""
    reply = render(InvalidRequest(f"the head of a request may have {MAX_HEAD} bytes and {MAX_FIELDS} headers"))
    return reply._replace(status=431)


def without_upgrade(method: bytes, url: bytes, version: str, headers: Headers) -> bytes:
    """The same head without the offer of another protocol."""
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
    """What ASGI applications are told of a request.

    Args:
        method: Of the request.
        url: Its target: a path with or without a query, the form for proxies, or ``*``. ASCII.
        version: Of HTTP.
        headers: All of them.
        server: Where it came in.
        client: Where it came from.
        scheme: ``https`` where it came by TLS.
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
    }


@dataclass(slots=True)
class KnownHead:
    """A head that came before, byte for byte, of a request that was complete with its body.

    Attributes:
        scope: What applications are told of it, less the addresses of the connection.
        length: Bytes of its body.
        urgency: Of such a request, when it was last looked at.
        urgency_until: When it is to be looked at again, seconds.
    """

    scope: Scope
    length: int
    urgency: Urgency | None = None
    urgency_until: float = 0.0


def end_of(data: bytes) -> int:
    """Where the head ends with which this begins; less than 4 where it does not, or is longer than heads that are kept.

    An empty line before the request would be a part of the head here, and of nothing to the parser.
    """
    return data.find(b"\r\n\r\n", 0, _LONGEST_KNOWN) + 4


class KnownHeads:
    """The heads that came lately. Most clients send the same head with every request, and it need not be parsed again.

    A head is taken from here where a message begins, and only as a whole: the parser would read the same from it.
    """

    _MOST: Final = 512

    def __init__(self) -> None:
        self._heads: dict[bytes, KnownHead] = {}

    def of(self, data: bytes) -> tuple[KnownHead, int] | None:
        """The head of a whole request, and where its body begins; ``None`` where it is not known.

        Args:
            data: What arrived. It is one request with its body, or unknown.
        """
        end = data.find(b"\r\n\r\n", 0, _LONGEST_KNOWN) + 4  # `end_of`, without a call for each request
        known = self._heads.get(data[:end])
        return (known, end) if known is not None and end + known.length == len(data) else None

    def learn(self, data: bytes, scope: Scope, length: int) -> None:
        """Keep the head of a whole request that the parser has read.

        Args:
            data: All of it.
            scope: What the parser read.
            length: Bytes of its body.
        """
        if len(self._heads) >= self._MOST:
            self._heads.clear()
        self._heads[data[: len(data) - length]] = KnownHead(scope, length)
