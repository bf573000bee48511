"""The one table from error codes to statuses, and how errors look on the wire.

Every error body is ``{"error": "<what is wrong and what to do>", "code": "<stable_code>"}``; the routes of OpenAI's
API wrap the same message and code in OpenAI's error object. What is no `ServeAppError` is a bug: it is logged with
its traceback and the client gets a request id to quote, nothing else.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

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
        "not_found": Status(404, "UNIMPLEMENTED"),
        "method_not_allowed": Status(405, "UNIMPLEMENTED"),
        "payload_too_large": Status(413, "INVALID_ARGUMENT"),
        "unsupported_media": Status(415, "INVALID_ARGUMENT"),
        "rate_limited": Status(429, "RESOURCE_EXHAUSTED"),
        "queue_full": Status(429, "RESOURCE_EXHAUSTED"),
        "inference_failed": Status(500, "INTERNAL"),
        "internal": Status(500, "INTERNAL"),
        "unsupported": Status(501, "UNIMPLEMENTED"),
        "model_unavailable": Status(503, "UNAVAILABLE"),
        "deadline_exceeded": Status(504, "DEADLINE_EXCEEDED"),
    }
)
"""Every code that a client can see. A code that is missing here is treated as ``internal``."""

_RETRYABLE: Final = frozenset({429, 503})
_MAX_RETRY_AFTER_S: Final = 3600.0

# OpenAI's clients branch on the status; the types are those that its documentation names.
_OPENAI_TYPES: Final[Mapping[int, str]] = MappingProxyType(
    {
        401: "authentication_error",
        403: "permission_error",
        429: "rate_limit_error",
        500: "server_error",
        501: "server_error",
        503: "server_error",
        504: "server_error",
    }
)


class RouteNotFound(ServeAppError):
    """Nothing is served at this path."""

    code = "not_found"


def is_openai(path: str) -> bool:
    """Whether clients of this path expect OpenAI's error object."""
    return path.startswith("/v1/") and not path.endswith("/predict")


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


def render(error: ServeAppError, *, openai: bool = False) -> Rendered:
    """Make the HTTP response for an error.

    Args:
        error: What happened.
        openai: Whether the client speaks OpenAI's API and expects its error object.
    """
    status = status_of(error).http
    code = code_of(error)
    # Lone surrogates can reach a message through a path; they have no UTF-8 form.
    message = error.message.encode("utf-8", "replace").decode()
    if openai:
        kind = _OPENAI_TYPES.get(status, "invalid_request_error")
        body = orjson.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}})
    else:
        body = orjson.dumps({"error": message, "code": code})
    headers: Headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    seconds = retry_after(error)
    if seconds is not None:
        headers.append((b"retry-after", b"%d" % seconds))
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return Rendered(status, headers, body)
