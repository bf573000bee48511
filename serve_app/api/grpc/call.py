"""One gRPC call, whoever carries it: what its metadata ask for, and how it ends when it fails."""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType
from typing import Any, ClassVar, Final, Protocol, TypeVar
from urllib.parse import unquote

import grpc
from google.protobuf.message import DecodeError, Message

from serve_app.domain.options import (
    CACHE_CONTROL,
    CLIENT,
    LISTENER,
    MAX_TIMEOUT_S,
    QosHints,
    parse_qos_headers,
    version_of,
)
from serve_app.domain.priorities import PriorityLevels
from serve_app.errors import InvalidRequest, PayloadTooLarge, ServeAppError
from serve_app.http.body import BodyReader
from serve_app.http.errors import code_of, retry_after, status_of

_M = TypeVar("_M", bound=Message)

_HEADERS: Final = MappingProxyType(
    {
        name: name.encode()
        for name in (
            "x-priority",
            "x-timeout-ms",
            "x-stream-timeout-ms",
            "x-variant",
            "x-model-version",
            "x-fallback",
            "x-request-id",
            "traceparent",
            "tracestate",
            "cache-control",
            "authorization",
            "x-api-key",
        )
    }
)
"""Metadata that mean something here, as the HTTP headers of the same names do."""
_DIRECT: Final = b"direct-grpc"
_BY_SERVE: Final = b"grpc"
CONTROL_MESSAGE_BYTES: Final = 16 * 1024
"""Largest message of a call that takes no tensors. Calls that watch keep theirs for as long as they last."""
_LONGEST_DETAILS: Final = 2000
"""Characters: clients refuse a call whose end takes more than 8 KiB, percent signs included."""


class Context(Protocol):
    """The part of `grpc.aio.ServicerContext` that Ray Serve's own context has, too."""

    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]] | None:
        """What came with the call."""

    def peer(self) -> str:
        """Where it comes from, e.g. ``ipv4:127.0.0.1:4711``."""

    def set_code(self, code: grpc.StatusCode) -> None:
        """Say how the call ends."""

    def set_details(self, details: str) -> None:
        """Say why it ends like this."""

    def set_trailing_metadata(self, trailing_metadata: Any) -> None:
        """What goes with the end of the call: pairs of names and values."""


class OwnContext(Context, Protocol):
    """What the context of a port of the router's own has beyond that."""

    def time_remaining(self) -> float | None:
        """Seconds to the call's deadline; ``None`` where it has none."""


class MessageOperation(Protocol):
    """The part of an operation over gRPC that its message is read by."""

    def parsed_bytes(self, body: bytes) -> int:
        """Bytes that a message takes beside itself once it is parsed. Raises `InvalidRequest` where it has too many."""


class GrpcCall:
    """One call, or one request of a stream; implements `serve_app.api.gateway.GrpcCall`.

    Args:
        context: Of whoever carries it.
        message: The serialized request; empty for streams, which have several.

    Attributes:
        headers: The metadata that are understood here, by lower-case name.
        asked_model: The model that it asks for; ``None`` for calls that take no work.
        asked_id: The id that the client gave it in the message.
    """

    arrived: ClassVar[bool] = True
    waited_s: ClassVar[float] = 0.0
    __slots__ = ("_context", "_held", "_message", "asked_id", "asked_model", "headers", "model", "version")

    def __init__(self, context: Context, message: bytes = b"") -> None:
        self._context = context
        self._message = message
        self._held = 0
        self.model: str | None = None  # the message names it
        self.version: str | None
        self.asked_model: str | None = None
        self.asked_id = ""
        self.headers: dict[bytes, bytes] = {}
        for key, value in context.invocation_metadata() or ():
            name = _HEADERS.get(key)
            if name is not None:
                field = value if isinstance(value, bytes) else value.encode()
                if name == CACHE_CONTROL and name in self.headers:
                    field = self.headers[name] + b"," + field
                self.headers[name] = field
        self.version = version_of(self.headers)
        if address := address_of(context.peer()):
            self.headers[CLIENT] = address.encode()
        # Ray Serve's context knows no deadline, by which it is told apart.
        self.headers[LISTENER] = _DIRECT if hasattr(context, "time_remaining") else _BY_SERVE

    def again(self, message: bytes) -> GrpcCall:
        """The next request of the same stream."""
        call = GrpcCall.__new__(GrpcCall)
        call._context, call.headers = self._context, self.headers
        call._message, call._held = message, 0
        call.model = call.asked_model = None
        call.version = version_of(self.headers)
        call.asked_id = ""
        return call

    def declared_size(self, bodies: BodyReader) -> int:  # noqa: ARG002
        """Bytes of the message."""
        return len(self._message)

    async def read(self, operation: MessageOperation, bodies: BodyReader, limit_s: float) -> bytes:  # noqa: ARG002
        """The message, which has arrived."""
        message = self._message
        parsed = operation.parsed_bytes(message)
        bodies.hold(len(message), parsed)
        self._held, self._message = len(message) + parsed, b""
        return message

    def release(self, bodies: BodyReader) -> None:
        """Stop counting the message."""
        bodies.release(self._held)

    def qos(self, levels: PriorityLevels) -> QosHints:
        """The class and the deadline that the metadata name, and the client's own deadline where that is tighter.

        Args:
            levels: What the numbers of priorities mean.

        Raises:
            InvalidRequest: The metadata name none that there is.
        """
        priority, timeout_s = parse_qos_headers(self.headers, levels)
        # Ray Serve's context has none: through it, a client's deadline arrives as a cancellation.
        time_remaining = getattr(self._context, "time_remaining", None)
        left = None if time_remaining is None else time_remaining()
        if left is not None and left < (MAX_TIMEOUT_S if timeout_s is None else timeout_s):
            timeout_s = left
        return priority, timeout_s

    def tell(self, *metadata: tuple[str, str]) -> None:
        """Say something with the end of the call."""
        self._context.set_trailing_metadata(list(metadata))  # Serve adds its own to a list

    @property
    def request_id(self) -> str:
        """For the client to quote; empty where it was given none."""
        return self.headers.get(b"x-request-id", b"").decode("latin-1")

    def fail(self, error: ServeAppError) -> None:
        """End the call with an error: its status, its message, and its code among the metadata."""
        metadata = [("code", code_of(error)), ("x-request-id", self.request_id)]
        seconds = retry_after(error)
        if seconds is not None:
            metadata.append(("retry-after", str(seconds)))
        self._context.set_code(grpc.StatusCode[status_of(error).grpc])
        self._context.set_details(shown(error))
        self._context.set_trailing_metadata(metadata)


def shown(error: ServeAppError) -> str:
    """The message of an error as it may be sent."""
    message = error.message.encode("utf-8", "replace").decode()
    return message if len(message) <= _LONGEST_DETAILS else f"{message[:_LONGEST_DETAILS]}..."


def parse(kind: type[_M], body: bytes, most_bytes: int = CONTROL_MESSAGE_BYTES) -> _M:
    """Read a message.

    Raises:
        PayloadTooLarge: It has more than ``most_bytes``.
        InvalidRequest: It is no message of that kind.
    """
    if len(body) > most_bytes:
        raise PayloadTooLarge(f"the message has {len(body)} bytes; {kind.DESCRIPTOR.name} may have {most_bytes}")
    try:
        return kind.FromString(body)
    except DecodeError:
        raise InvalidRequest(f"this is not a valid message {kind.DESCRIPTOR.full_name}") from None


def address_of(peer: str) -> str:
    """The address of a peer without its port, as gRPC names peers; empty where it has none, e.g. a Unix socket."""
    kind, _, rest = peer.partition(":")
    if kind not in {"ipv4", "ipv6"}:
        return ""
    return unquote(rest.rpartition(":")[0]).strip("[]")
