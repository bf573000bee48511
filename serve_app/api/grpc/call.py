"""One gRPC call over any transport: its metadata, and how it fails."""

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
    REQUEST_HEADERS,
    QosHints,
    parse_qos_headers,
    version_of,
)
from serve_app.domain.priorities import PriorityLevels
from serve_app.errors import InvalidRequest, PayloadTooLarge, ServeAppError
from serve_app.http.body import BodyReader
from serve_app.http.errors import code_of, retry_after, status_of

_M = TypeVar("_M", bound=Message)

_HEADERS: Final = MappingProxyType({name: name.encode() for name in REQUEST_HEADERS})
"""Metadata that mean something here, as the HTTP headers of the same names do."""
_DIRECT: Final = b"direct-grpc"
_BY_SERVE: Final = b"grpc"
CONTROL_MESSAGE_BYTES: Final = 16 * 1024
"""Largest message of a call that takes no tensors. Calls that watch keep theirs for as long as they last."""
_LONGEST_DETAILS: Final = 2000
"""Characters: clients refuse a call whose end takes more than 8 KiB, percent signs included."""


class Context(Protocol):
    """The common part of `grpc.aio.ServicerContext` and Ray Serve's context."""

    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]] | None:
        """The call's metadata."""

    def peer(self) -> str:
        """The client's address, e.g. ``ipv4:127.0.0.1:4711``."""

    def set_code(self, code: grpc.StatusCode) -> None:
        """Set the call's status code."""

    def set_details(self, details: str) -> None:
        """Set the call's status message."""

    def set_trailing_metadata(self, trailing_metadata: Any) -> None:
        """Set the trailing metadata: pairs of names and values."""


class OwnContext(Context, Protocol):
    """The context on a port of the router's own."""

    def time_remaining(self) -> float | None:
        """Seconds to the call's deadline, if any."""


class MessageOperation(Protocol):
    """The reading part of an operation over gRPC."""

    def parsed_bytes(self, body: bytes) -> int:
        """Bytes that a message takes in addition once parsed. Raises `InvalidRequest` if too many."""


class GrpcCall:
    """One call, or one request of a stream; implements `serve_app.api.gateway.Call`.

    Args:
        message: The serialized request; empty for streams, which have several.

    Attributes:
        headers: The known metadata, by lower-case name.
        asked_model: The requested model; ``None`` for calls that run none.
        asked_id: The client's id in the message.
    """

    arrived: ClassVar[bool] = True
    waited_s: ClassVar[float] = 0.0
    scheduled: ClassVar[bool] = False
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
        # Unlike the own port's, Ray Serve's context knows no deadline.
        self.headers[LISTENER] = _DIRECT if hasattr(context, "time_remaining") else _BY_SERVE

    def again(self, message: bytes) -> GrpcCall:
        """Make the call of the stream's next request."""
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
        """The class and deadline from the metadata; the call's own deadline counts if tighter.

        Raises:
            InvalidRequest: The metadata name an invalid class or deadline.
        """
        priority, timeout_s = parse_qos_headers(self.headers, levels)
        # Ray Serve's context has none: through it, a client's deadline arrives as a cancellation.
        time_remaining = getattr(self._context, "time_remaining", None)
        left = None if time_remaining is None else time_remaining()
        if left is not None and left < (MAX_TIMEOUT_S if timeout_s is None else timeout_s):
            timeout_s = left
        return priority, timeout_s

    def tell(self, *metadata: tuple[str, str]) -> None:
        """Add trailing metadata."""
        self._context.set_trailing_metadata(list(metadata))  # Serve adds its own to a list

    @property
    def request_id(self) -> str:
        """The id for the client to quote, possibly empty."""
        return self.headers.get(b"x-request-id", b"").decode("latin-1")

    def fail(self, error: ServeAppError) -> None:
        """End the call with an error: status, message, and the code in the metadata."""
        metadata = [("code", code_of(error)), ("x-request-id", self.request_id)]
        seconds = retry_after(error)
        if seconds is not None:
            metadata.append(("retry-after", str(seconds)))
        self._context.set_code(grpc.StatusCode[status_of(error).grpc])
        self._context.set_details(shown(error))
        self._context.set_trailing_metadata(metadata)


def shown(error: ServeAppError) -> str:
    """The message of an error, fit for sending."""
    message = error.message.encode("utf-8", "replace").decode()
    return message if len(message) <= _LONGEST_DETAILS else f"{message[:_LONGEST_DETAILS]}..."


def parse(kind: type[_M], body: bytes, most_bytes: int = CONTROL_MESSAGE_BYTES) -> _M:
    """Read a message.

    Raises:
        PayloadTooLarge: It has more than ``most_bytes``.
        InvalidRequest: The message is malformed.
    """
    if len(body) > most_bytes:
        raise PayloadTooLarge(f"the message has {len(body)} bytes; {kind.DESCRIPTOR.name} may have {most_bytes}")
    try:
        return kind.FromString(body)
    except DecodeError:
        raise InvalidRequest(f"this is not a valid message {kind.DESCRIPTOR.full_name}") from None


def address_of(peer: str) -> str:
    """A peer's address without its port, in gRPC's notation; empty if it has none, e.g. a Unix socket."""
    kind, _, rest = peer.partition(":")
    if kind not in {"ipv4", "ipv6"}:
        return ""
    return unquote(rest.rpartition(":")[0]).strip("[]")
