"""One request over HTTP/1.1 or gRPC, and its whole answer as plain data."""

from __future__ import annotations

import gzip
import http.client
import socket
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import urlsplit

import grpc
import orjson

from serve_app.api.grpc_app import RPCS

Server: TypeAlias = Literal["open", "guarded"]
"""Whether the server that is asked has API keys."""

PATIENCE_S: Final = 60.0
HOST: Final = "wire.test"
"""In Host: what the server says about itself then holds no port."""
_SERVICES: Final = {rpc.name: rpc for rpc in RPCS}


@dataclass(frozen=True)
class Ask:
    """One request over HTTP.

    Attributes:
        route: Method and path of the route that it is for, as the route table has them; else any heading.
        name: What is special about it; its own among those of its route.
        method: Its method.
        target: Its path and query.
        headers: Beside Host and what frames the body.
        body: Its body. ``None``: it has none.
        declared: Bytes that Content-Length promises, of which none is sent; with ``None`` it tells the truth.
        chunked: Whether the body travels in chunks.
        server: Who is asked.
        key: Name of the API key that it carries.
        raw: All of it as it stands on the connection, in place of everything else.
    """

    route: str
    name: str
    method: str = "GET"
    target: str = "/"
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    declared: int | None = None
    chunked: bool = False
    server: Server = "open"
    key: str = ""
    raw: bytes = b""

    @property
    def title(self) -> str:
        """For people, and what goldens are found by."""
        return f"{self.route} | {self.name}"


@dataclass(frozen=True)
class GrpcAsk:
    """One call over gRPC.

    Attributes:
        rpc: Its name, as in `RPCS`, or a whole path that nothing is served at.
        name: What is special about it.
        messages: What it sends, serialized: one message, or those of a stream.
        metadata: What goes with it.
        server: Who is asked.
        key: Name of the API key that it carries.
        most: Answers of a stream that are read before the client leaves; ``None``: all.
    """

    rpc: str
    name: str
    messages: tuple[bytes, ...] = (b"",)
    metadata: tuple[tuple[str, str], ...] = ()
    server: Server = "open"
    key: str = ""
    most: int | None = None

    @property
    def title(self) -> str:
        """As that of `Ask`."""
        return f"{self.rpc} | {self.name}"


@dataclass(frozen=True)
class Answer:
    """What came back over HTTP.

    Attributes:
        status: The status.
        headers: Lower-case names with their values, sorted by name.
        body: The body, after decompression.
    """

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


@dataclass(frozen=True)
class GrpcAnswer:
    """What came back over gRPC.

    Attributes:
        code: Name of the status.
        details: Its message.
        trailing: Trailing metadata, sorted by name.
        messages: Serialized answers.
    """

    code: str
    details: str
    trailing: tuple[tuple[str, str], ...]
    messages: tuple[bytes, ...]


def ask(url: str, what: Ask, keys: Mapping[str, str]) -> Answer:
    """Send one request on a connection of its own.

    Args:
        url: Of the server.
        what: The request.
        keys: API keys by name.

    Raises:
        AssertionError: The answer is framed wrongly, or lacks what every answer has.
    """
    address = urlsplit(url)
    assert address.hostname is not None
    with socket.create_connection((address.hostname, address.port or 80), PATIENCE_S) as connection:
        connection.sendall(what.raw or _as_sent(what, keys))
        reply = http.client.HTTPResponse(connection, method=what.method)
        reply.begin()
        return _read(what, reply)


def _as_sent(what: Ask, keys: Mapping[str, str]) -> bytes:
    """The bytes of a request. They are sent at once: the server can answer before it has the end of a chunked body."""
    headers = [("Host", HOST), *what.headers]
    if what.key:
        headers.append(("Authorization", f"Bearer {keys[what.key]}"))
    body = what.body or b""
    if what.chunked:
        headers.append(("Transfer-Encoding", "chunked"))
        body = (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + b"0\r\n\r\n"
    elif what.declared is not None:
        headers.append(("Content-Length", str(what.declared)))
        body = b""
    elif what.body is not None:
        headers.append(("Content-Length", str(len(body))))
    fields = "".join(f"{name}: {value}\r\n" for name, value in headers)
    return f"{what.method} {what.target} HTTP/1.1\r\n{fields}\r\n".encode() + body


def _read(what: Ask, reply: http.client.HTTPResponse) -> Answer:
    body = reply.read()
    headers = sorted((name.lower(), value) for name, value in reply.getheaders())
    told = dict(headers)
    assert "date" in told, what.title
    bodiless = what.method == "HEAD" or reply.status in {204, 304}
    assert "transfer-encoding" in told or bodiless or int(told["content-length"]) == len(body), what.title
    match told.get("content-encoding"):
        case "gzip":
            body = gzip.decompress(body)
        case "deflate":
            body = zlib.decompress(body)
    return Answer(reply.status, tuple(headers), body)


def ask_grpc(channel: Any, what: GrpcAsk, keys: Mapping[str, str]) -> GrpcAnswer:
    """Make one call.

    Args:
        channel: A channel to the server.
        what: The call.
        keys: API keys by name.
    """
    metadata = [*what.metadata, *([("authorization", f"Bearer {keys[what.key]}")] if what.key else [])]
    rpc = _SERVICES.get(what.rpc)
    path = what.rpc if rpc is None else f"/{rpc.service}/{rpc.name}"
    options: dict[str, Any] = {"metadata": metadata, "timeout": PATIENCE_S}
    messages: list[bytes] = []
    if rpc is None or not rpc.streams:
        call = channel.unary_unary(path)
        try:
            message, ended = call.with_call(what.messages[0], **options)
        except grpc.RpcError as error:
            return _ended(error, messages)
        return _ended(ended, [message])
    sent: Sequence[bytes] | Iterable[bytes] = what.messages
    call = channel.stream_stream(path)(iter(sent), **options)
    try:
        for message in call:
            messages.append(message)
            if len(messages) == what.most:
                call.cancel()
                return GrpcAnswer("left by the client", "", (), tuple(messages))
    except grpc.RpcError as error:
        return _ended(error, messages)
    return _ended(call, messages)


def _ended(call: Any, messages: Sequence[bytes]) -> GrpcAnswer:
    trailing = sorted((str(name), str(value)) for name, value in call.trailing_metadata() or ())
    return GrpcAnswer(call.code().name, call.details() or "", tuple(trailing), tuple(messages))


def as_json(value: Any) -> bytes:
    """The body of a request."""
    return orjson.dumps(value)
