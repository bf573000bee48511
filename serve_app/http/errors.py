"""Maps error codes to statuses, and renders errors.

An error body is ``{"error": "<problem and remedy>", "code": "<stable_code>"}``; an API with another format has its own
function beside `render`, with the same message and code. Anything but a `ServeAppError` is a bug: it is logged with its
traceback, and the client gets only a request id.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

import orjson

from serve_app.errors import ServeAppError

_log = logging.getLogger(__name__)

Headers = list[tuple[bytes, bytes]]
"""Response headers as ASGI takes them: names in lower case."""


class Status(NamedTuple):
    """The HTTP status and gRPC status name of an error code."""

    http: int
    grpc: str


STATUSES: Final[Mapping[str, Status]] = MappingProxyType(
    {
        "invalid_request": Status(400, "INVALID_ARGUMENT"),
        "unauthenticated": Status(401, "UNAUTHENTICATED"),
        "permission_denied": Status(403, "PERMISSION_DENIED"),
        "model_not_found": Status(404, "NOT_FOUND"),
        "job_not_found": Status(404, "NOT_FOUND"),
        "not_found": Status(404, "UNIMPLEMENTED"),
        "method_not_allowed": Status(405, "UNIMPLEMENTED"),
        "slow_reader": Status(408, "RESOURCE_EXHAUSTED"),
        "conflict": Status(409, "ABORTED"),
        "payload_too_large": Status(413, "INVALID_ARGUMENT"),
        "unsupported_media": Status(415, "INVALID_ARGUMENT"),
        "rate_limited": Status(429, "RESOURCE_EXHAUSTED"),
        "queue_full": Status(429, "RESOURCE_EXHAUSTED"),
        "inference_failed": Status(500, "INTERNAL"),
        "internal": Status(500, "INTERNAL"),
        "unsupported": Status(501, "UNIMPLEMENTED"),
        "model_unavailable": Status(503, "UNAVAILABLE"),
        "store_unavailable": Status(503, "UNAVAILABLE"),
        "deadline_exceeded": Status(504, "DEADLINE_EXCEEDED"),
    }
)
"""Every code that a client can see. A code that is missing here is treated as ``internal``."""

_RETRYABLE: Final = frozenset({429, 503})
_MAX_RETRY_AFTER_S: Final = 3600.0


class RouteNotFound(ServeAppError):
    """No route matches this path."""

    code = "not_found"


def code_of(error: Exception) -> str:
    """The code for clients: ``internal`` for unlisted codes and foreign errors."""
    return error.code if isinstance(error, ServeAppError) and error.code in STATUSES else ServeAppError.code


def status_of(error: ServeAppError) -> Status:
    """The statuses of an error."""
    return STATUSES.get(error.code, STATUSES["internal"])


def retry_after(error: ServeAppError) -> int | None:
    """Whole seconds, at least 1, for the Retry-After header, if it applies.

    429 and 503 always have it: without a hint clients retry at once, and overload persists.
    """
    seconds = error.retry_after_s
    if seconds is None:
        return 1 if status_of(error).http in _RETRYABLE else None
    if not math.isfinite(seconds):
        return int(_MAX_RETRY_AFTER_S)
    return max(1, math.ceil(min(seconds, _MAX_RETRY_AFTER_S)))


def internal_error(error: BaseException, request_id: str, what: str) -> ServeAppError:
    """Log a bug with its traceback, and make the client's error.

    Args:
        request_id: Joins the client's report to the log line.
        what: The failed call, for the log only.
    """
    _log.error("request %s: %r failed", request_id, what, exc_info=error)
    return ServeAppError(f"internal error (request id {request_id})")


class Rendered(NamedTuple):
    """A complete HTTP response."""

    status: int
    headers: Headers
    body: bytes


def message_of(error: ServeAppError) -> str:
    """Its message, fit for encoding: a path can contain lone surrogates, which have no UTF-8 form."""
    return error.message.encode("utf-8", "replace").decode()


def render(error: ServeAppError) -> Rendered:
    """The HTTP response for an error, in the server's own format."""
    return rendered(error, {"error": message_of(error), "code": code_of(error)})


ErrorsOf: TypeAlias = Callable[[str], Callable[[ServeAppError], Rendered]]
"""The shape of errors at a path: a function like `render`."""


def rendered(error: ServeAppError, content: Mapping[str, object]) -> Rendered:
    """The HTTP response for an error, in an API's format.

    Args:
        content: The body's JSON.
    """
    status, body = status_of(error).http, orjson.dumps(content)
    headers: Headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    seconds = retry_after(error)
    if seconds is not None:
        headers.append((b"retry-after", b"%d" % seconds))
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return Rendered(status, headers, body)
