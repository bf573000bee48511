"""The one table from error codes to statuses, and how errors look on the wire.

An error body is ``{"error": "<what is wrong and what to do>", "code": "<stable_code>"}``; an API whose clients expect
another shape has its own function beside `render`, with the same message and code. What is no `ServeAppError` is a bug:
it is logged with its traceback and the client gets a request id to quote, nothing else.
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
    """What one error code becomes: the HTTP status, and the name of the gRPC status."""

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
    """Nothing is served at this path."""

    code = "not_found"


def code_of(error: Exception) -> str:
    """The code that a client sees: what is missing in the table, and what is no error of ours, is ``internal``."""
    return error.code if isinstance(error, ServeAppError) and error.code in STATUSES else ServeAppError.code


def status_of(error: ServeAppError) -> Status:
    """The statuses of an error."""
    return STATUSES.get(error.code, STATUSES["internal"])


def retry_after(error: ServeAppError) -> int | None:
    """Whole seconds, at least 1, for the Retry-After header; ``None`` where the header has no place.

    429 and 503 always carry it: a client that gets no hint retries at once, and that is how overload persists.
    """
    seconds = error.retry_after_s
    if seconds is None:
        return 1 if status_of(error).http in _RETRYABLE else None
    if not math.isfinite(seconds):
        return int(_MAX_RETRY_AFTER_S)
    return max(1, math.ceil(min(seconds, _MAX_RETRY_AFTER_S)))


def internal_error(error: BaseException, request_id: str, what: str) -> ServeAppError:
    """Log a bug with its traceback and make the error that the client may see.

    Args:
        error: The exception that nobody expected.
        request_id: Joins the client's report to the log line.
        what: The call that failed, for the log only.
    """
    _log.error("request %s: %r failed", request_id, what, exc_info=error)
    return ServeAppError(f"internal error (request id {request_id})")


class Rendered(NamedTuple):
    """A whole HTTP response."""

    status: int
    headers: Headers
    body: bytes


def message_of(error: ServeAppError) -> str:
    """Its message as it may be written. Lone surrogates can reach one through a path; they have no UTF-8 form."""
    return error.message.encode("utf-8", "replace").decode()


def render(error: ServeAppError) -> Rendered:
    """The HTTP response for an error, in our own shape."""
    return rendered(error, {"error": message_of(error), "code": code_of(error)})


ErrorsOf: TypeAlias = Callable[[str], Callable[[ServeAppError], Rendered]]
"""The shape of errors at a path: a function like `render`."""


def rendered(error: ServeAppError, content: Mapping[str, object]) -> Rendered:
    """The HTTP response for an error.

    Args:
        error: What happened.
        content: What an API's clients expect of it: JSON.
    """
    status, body = status_of(error).http, orjson.dumps(content)
    headers: Headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    seconds = retry_after(error)
    if seconds is not None:
        headers.append((b"retry-after", b"%d" % seconds))
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return Rendered(status, headers, body)
