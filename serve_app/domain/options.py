"""A request's options: priority, deadline and variant, from the body and from headers.

The body beats the header for priority, variant and fallback; the tightest deadline wins.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

from msgspec.structs import replace

from serve_app.domain.priorities import DEFAULT_LEVELS, PriorityLevels
from serve_app.domain.priority import Priority
from serve_app.domain.service import ModelInfo, RequestOptions
from serve_app.domain.trace_context import parent_of
from serve_app.errors import DeadlineExceeded, InvalidRequest, ModelNotFound
from serve_app.payloads import RequestAttributes

MAX_TIMEOUT_S: Final = 24 * 3600.0
"""A deadline further away than this is a mistake of units."""

LISTENER: Final = b":listener"
"""Pseudo-header with the name of the port. Set by the listener: no client can send this name."""
CLIENT: Final = b":client"
"""Pseudo-header with the client's address, set likewise; missing if unknown."""
BACKGROUND: Final = b":background"
"""Pseudo-header of requests that ask for no more replicas, set by the server."""
CACHE_CONTROL: Final = b"cache-control"
STREAM_TIMEOUT: Final = b"x-stream-timeout-ms"
MODEL_VERSION: Final = b"x-model-version"
"""Names the version of a model, or an alias, if the path and the body name none."""
KEPT_HEADERS: Final = frozenset({"x-priority", "x-model-version", "x-variant", "x-fallback", CACHE_CONTROL.decode()})
"""Options of a request that is run later; its deadline and id are those of the job."""
REQUEST_HEADERS: Final = KEPT_HEADERS | {
    "x-timeout-ms",
    STREAM_TIMEOUT.decode(),
    "x-request-id",
    "traceparent",
    "tracestate",
    "authorization",
    "x-api-key",
}
"""Headers or metadata read besides the body's type. Other options are invisible over gRPC."""
_LONGEST_ID: Final = 128
_LONGEST_STATE: Final = 512

QosHints: TypeAlias = tuple[Priority | None, float | None]
"""A class, and seconds until the deadline, each ``None`` if not named."""


class BodyHints(Protocol):
    """Options in a body, beside its data."""

    @property
    def priority(self) -> int:
        """A number as of `PriorityLevels`; 0 for the default."""

    @property
    def timeout(self) -> int:
        """Microseconds, 0 for the default."""

    @property
    def variant(self) -> str:
        """Beats the header ``X-Variant``; empty for the exact model."""

    @property
    def fallback(self) -> bool | None:
        """Whether a fallback may answer. Beats the header ``X-Fallback``; ``None`` if absent."""

    @property
    def stream_timeout(self) -> int:
        """Microseconds for all parts of an answer, 0 for the default."""


class Hints(NamedTuple):
    """`BodyHints` for an API without a message for them."""

    priority: int = 0
    timeout: int = 0
    variant: str = ""
    fallback: bool | None = None
    stream_timeout: int = 0


NO_HINTS: Final = Hints()


def headers_of(fields: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Headers by name. Of repeated ones the last counts, except for Cache-Control, which is a list.

    Args:
        fields: Lower-case names and values.
    """
    headers = dict(fields)
    if CACHE_CONTROL in headers:
        headers[CACHE_CONTROL] = b",".join([value for name, value in fields if name == CACHE_CONTROL])
    return headers


def request_options(
    info: ModelInfo,
    headers: Mapping[bytes, bytes],
    nbytes: int,
    hints: BodyHints = NO_HINTS,
    qos: QosHints | None = None,
) -> RequestOptions:
    """Combine the options of body and headers.

    Args:
        headers: By lower-case name.
        nbytes: Bytes of the body in memory.
        qos: Result of `parse_qos_headers` for these headers, if known already.

    Raises:
        InvalidRequest: A value is invalid, a deadline is not in (0, 24 hours], or there is no such variant.
    """
    chosen, timeout_s = parse_qos_headers(headers, info.levels) if qos is None else qos
    if hints.priority:
        chosen = info.levels.of_number(hints.priority)
    if hints.timeout:
        timeout_s = _tighter(timeout_s, _microseconds("timeout", hints.timeout))
    variant, fallback = hints.variant, hints.fallback
    if not variant and (named := headers.get(b"x-variant")) is not None:
        variant = named.decode("latin-1")
    if variant and variant not in info.variants:
        raise InvalidRequest(
            f"parameters.variant: model {info.name!r} has no variant {variant[:64]!r};"
            f" it has {', '.join(info.variants) or 'none'}"
        )
    if fallback is None:
        word = headers.get(b"x-fallback")
        fallback = True if word is None else _header_fallback(word)
    options = RequestOptions(
        chosen,
        timeout_s,
        nbytes,
        variant,
        fallback,
        request_id=request_id_of(headers),
        listener=headers.get(LISTENER, b"").decode(),
        attributes=RequestAttributes(client_of(headers), background=BACKGROUND in headers),
        revision=info.revision,
    )
    if hints.stream_timeout or STREAM_TIMEOUT in headers:
        options = replace(options, stream_timeout_s=_stream_timeout(headers, hints.stream_timeout))
    if b"traceparent" in headers:
        options = _in_trace(options, headers)
    control = headers.get(CACHE_CONTROL)
    return options if control is None else _with_cache_control(options, control)


def version_of(headers: Mapping[bytes, bytes]) -> str | None:
    """The version in the headers, or ``None``."""
    named = headers.get(MODEL_VERSION)
    return named.decode("latin-1") if named else None


def client_of(headers: Mapping[bytes, bytes]) -> str:
    """The client's address; empty if unknown."""
    return headers.get(CLIENT, b"").decode("latin-1")


def request_id_of(headers: Mapping[bytes, bytes]) -> str:
    """The id of a request; empty if it has none."""
    return headers.get(b"x-request-id", b"")[:_LONGEST_ID].decode("latin-1")


def _in_trace(options: RequestOptions, headers: Mapping[bytes, bytes]) -> RequestOptions:
    parent = parent_of(headers[b"traceparent"])
    state = headers.get(b"tracestate", b"") if parent else b""
    return replace(options, trace_parent=parent, trace_state=state[:_LONGEST_STATE].decode("latin-1"))


def allowed_s(info: ModelInfo, options: RequestOptions) -> float:
    """Seconds for reading a request's body: its own deadline, or its class's default."""
    return header_timeout_s(info, (options.priority, options.timeout_s))


def header_timeout_s(info: ModelInfo, qos: QosHints) -> float:
    """Seconds for reading the body by the headers alone, since the body is not read yet."""
    priority, timeout_s = qos
    return info.default_timeout_s[priority or Priority.NORMAL] if timeout_s is None else timeout_s


def max_header_timeout_s(models: Iterable[ModelInfo], qos: QosHints) -> float:
    """Seconds for reading a body that names the model itself: until it is read, the most patient model counts.

    Raises:
        ModelNotFound: There is none.
    """
    if not (allowed := [header_timeout_s(info, qos) for info in models]):
        raise ModelNotFound("no model is available to this client")
    return max(allowed)


def remaining(options: RequestOptions, elapsed_s: float, nbytes: int | None = None) -> RequestOptions:
    """Charge the time for reading and decoding to the deadline.

    Without a deadline of their own only the service can: it must know the cost of the request.

    Args:
        elapsed_s: Since the request's arrival.
        nbytes: Bytes that it holds now; ``None``: as before.

    Raises:
        DeadlineExceeded: Nothing is left of it.
    """
    left = options.timeout_s
    if left is not None:
        left -= elapsed_s
        if left <= 0.0:
            raise DeadlineExceeded("the deadline passed while the request was read; allow more time")
    nbytes = options.nbytes if nbytes is None else nbytes
    whole = options.stream_timeout_s
    if whole is None:
        return replace(options, timeout_s=left, nbytes=nbytes, spent_s=elapsed_s)
    whole -= elapsed_s
    if whole <= 0.0:
        raise DeadlineExceeded("the time for the whole answer passed while the request was read; allow more time")
    return replace(options, timeout_s=left, nbytes=nbytes, spent_s=elapsed_s, stream_timeout_s=whole)


def levels_of(models: Iterable[ModelInfo]) -> PriorityLevels:
    """Meaning of priority numbers if the body names the model itself: the same for all models."""
    return next((info.levels for info in models), DEFAULT_LEVELS)


def parse_qos_headers(headers: Mapping[bytes, bytes], levels: PriorityLevels) -> QosHints:
    """The class and the deadline in the headers.

    Args:
        headers: By lower-case name.
        levels: Meaning of priority numbers.

    Raises:
        InvalidRequest: A header has an invalid value.
    """
    named = headers.get(b"x-priority")
    priority = None if named is None else levels.of_header(named)
    limit = headers.get(b"x-timeout-ms")
    return priority, None if limit is None else _header_timeout("X-Timeout-Ms", limit)


def _header_fallback(value: bytes) -> bool:
    word = value.strip().lower()
    if word not in {b"allow", b"never"}:
        raise InvalidRequest("X-Fallback: expected allow (the default) or never")
    return word == b"allow"


def _with_cache_control(options: RequestOptions, value: bytes) -> RequestOptions:
    """Apply Cache-Control as RFC 9111 requires. Unknown directives have to be ignored."""
    directives = {directive.strip().lower() for directive in value.split(b",")}
    return replace(
        options, cacheable=b"no-store" not in directives, fresh=not directives.isdisjoint({b"no-cache", b"max-age=0"})
    )


def _stream_timeout(headers: Mapping[bytes, bytes], microseconds: int) -> float | None:
    """Seconds for all parts of an answer: the tighter of body and headers."""
    limit = headers.get(STREAM_TIMEOUT)
    seconds = None if limit is None else _header_timeout("X-Stream-Timeout-Ms", limit)
    return _tighter(seconds, _microseconds("stream_timeout", microseconds)) if microseconds else seconds


def _tighter(seconds: float | None, other: float) -> float:
    return other if seconds is None else min(seconds, other)


def _microseconds(name: str, value: int) -> float:
    """Seconds of a non-zero parameter."""
    if not 0 < value <= MAX_TIMEOUT_S * 1e6:
        raise InvalidRequest(
            f"parameters.{name}: expected microseconds, from 1 to 86400000000 (24 hours), or 0 for the default"
        )
    return value / 1e6


def _header_timeout(name: str, value: bytes) -> float:
    try:
        # float() takes digit grouping, which no other HTTP software does.
        milliseconds = math.nan if b"_" in value else float(value)
    except ValueError:
        milliseconds = math.nan
    if not 0.0 < milliseconds <= MAX_TIMEOUT_S * 1e3:  # false for NaN
        raise InvalidRequest(f"{name}: expected milliseconds, more than 0 and at most 86400000 (24 hours)")
    return milliseconds / 1e3
