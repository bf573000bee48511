"""Errors of calls, as exceptions that mirror the server's codes.

    ServeAppClientError
    ├── InvalidRequest            400  the request is malformed or does not fit the model
    │   ├── PayloadTooLarge       413  the body is over a limit
    │   └── UnsupportedMedia      415  the media format is not one that this model takes
    ├── Unauthenticated           401  the API key is missing or wrong
    ├── PermissionDenied          403  the API key may not use this model or class
    ├── NotFound                  404  nothing is served at this path
    │   ├── ModelNotFound         404  no such model or version
    │   └── JobNotFound           404  no such job, or it is another API key's
    ├── Conflict                  409  the same idempotency key came with another request
    ├── MethodNotAllowed          405  the path exists, the method does not
    ├── Unsupported               501  a part of the protocol that the server does not implement
    ├── Refused                   429  not accepted now; also from a gateway that limits rates
    │   ├── RateLimited           429  the API key was used more often than it may be
    │   └── QueueFull             429  no room in the class's queue
    ├── Unavailable          502, 503, 504  nobody could take the work; from a proxy in front of the server, too
    │   ├── ModelUnavailable      503  no replica of the model can take it
    │   └── StoreUnavailable      503  jobs cannot be kept now
    ├── DeadlineExceeded          504  the deadline passed before the answer was ready, at the server or here, or is
    │                                  shorter than the request takes on an idle server
    ├── ServerFault               500  a bug of the server; quote the request id
    │   └── InferenceFailed       500  the model's code failed on this input
    ├── InvalidAnswer              -   what came back is no answer of this protocol
    └── ConnectionFailed           -   no connection, or it broke before the answer was complete

`Refused`, `Unavailable` and `ConnectionFailed` can be retried: inference changes nothing at the server, so that a
request may run twice. `serve_app_client.retry` decides.
"""

from __future__ import annotations

import datetime
import email.utils
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import orjson

from serve_app_client.wire import X_REQUEST_ID

_QUOTED_CHARS: Final = 200


class ServeAppClientError(Exception):
    """Base of all errors of calls. Invalid arguments raise `ValueError` or `TypeError`.

    Args:
        message: The problem, in the server's words if available.
        status: The HTTP status; ``None`` without an answer.
        code: The server's stable code, possibly empty. Defaults to the class's.
        retry_after: Seconds until a retry may help, if given.
        request_id: Id in the server's log.
    """

    default_code: ClassVar[str] = ""

    def __init__(
        self,
        message: str,
        status: int | None = None,
        code: str | None = None,
        retry_after: float | None = None,
        request_id: str = "",
    ) -> None:
        super().__init__(message, status, code, retry_after, request_id)
        self.message = message
        self.status = status
        self.code = self.default_code if code is None else code
        self.retry_after = retry_after
        self.request_id = request_id

    def __str__(self) -> str:
        known = ", ".join(
            part
            for part in (
                "" if self.status is None else str(self.status),
                self.code,
                self.request_id and f"request {self.request_id}",
            )
            if part
        )
        return f"{self.message} ({known})" if known else self.message


class InvalidRequest(ServeAppClientError):
    """The request is malformed or does not fit the model."""

    default_code = "invalid_request"


class PayloadTooLarge(InvalidRequest):
    """The body is over a limit of the server."""

    default_code = "payload_too_large"


class UnsupportedMedia(InvalidRequest):
    """The media format is not one that this model takes."""

    default_code = "unsupported_media"


class Unauthenticated(ServeAppClientError):
    """The API key is missing or wrong."""

    default_code = "unauthenticated"


class PermissionDenied(ServeAppClientError):
    """The API key may not use this model or this class."""

    default_code = "permission_denied"


class NotFound(ServeAppClientError):
    """Nothing is served at this path."""

    default_code = "not_found"


class ModelNotFound(NotFound):
    """No model, or no version of it, has this name."""

    default_code = "model_not_found"


class JobNotFound(NotFound):
    """There is no such job, batch, item or file, or it belongs to another API key."""

    default_code = "job_not_found"


class Conflict(ServeAppClientError):
    """The same idempotency key came with another request, or an item has not ended."""

    default_code = "conflict"


class MethodNotAllowed(ServeAppClientError):
    """The path exists, but not with this method."""

    default_code = "method_not_allowed"


class Unsupported(ServeAppClientError):
    """A part of the protocol that the server does not implement."""

    default_code = "unsupported"


class Refused(ServeAppClientError):
    """The request was not accepted now."""


class RateLimited(Refused):
    """The API key was used more often than it may be."""

    default_code = "rate_limited"


class QueueFull(Refused):
    """The class's queue has no room left."""

    default_code = "queue_full"


class Unavailable(ServeAppClientError):
    """The server, or a proxy in front of it, cannot take the work."""


class ModelUnavailable(Unavailable):
    """No replica of the model can take the work now."""

    default_code = "model_unavailable"


class StoreUnavailable(Unavailable):
    """The server cannot keep jobs now."""

    default_code = "store_unavailable"


class DeadlineExceeded(ServeAppClientError):
    """The deadline passed before the answer was ready, or is too short in any case: a retry does not help."""

    default_code = "deadline_exceeded"


class SlowReader(ServeAppClientError):
    """The parts of an answer were read too slowly, and the model was released for other requests."""

    default_code = "slow_reader"


class ServerFault(ServeAppClientError):
    """The server failed unexpectedly."""

    default_code = "internal"


class InferenceFailed(ServerFault):
    """The model's code failed on this input."""

    default_code = "inference_failed"


class InvalidAnswer(ServeAppClientError):
    """The answer is not of this protocol: the address may be another server's."""


class ConnectionFailed(ServeAppClientError):
    """There is no connection, or it broke before the answer was complete."""


BY_CODE: Final[Mapping[str, type[ServeAppClientError]]] = {
    cls.default_code: cls
    for cls in (
        InvalidRequest,
        PayloadTooLarge,
        UnsupportedMedia,
        Unauthenticated,
        PermissionDenied,
        NotFound,
        ModelNotFound,
        JobNotFound,
        Conflict,
        MethodNotAllowed,
        Unsupported,
        RateLimited,
        QueueFull,
        ModelUnavailable,
        StoreUnavailable,
        DeadlineExceeded,
        SlowReader,
        ServerFault,
        InferenceFailed,
    )
}
"""The exception of every code of the server."""

# For answers without a code that is known here: of proxies, and of servers newer than this client.
_BY_STATUS: Final[Mapping[int, type[ServeAppClientError]]] = {
    401: Unauthenticated,
    403: PermissionDenied,
    404: NotFound,
    405: MethodNotAllowed,
    413: PayloadTooLarge,
    415: UnsupportedMedia,
    429: Refused,
    501: Unsupported,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
}


def error_of(status: int, headers: Mapping[str, str], body: bytes, request_id: str = "") -> ServeAppClientError:
    """Make the exception for an unsuccessful answer.

    Args:
        status: 300 or more.
        headers: By lower-case name.
        body: In any format: the server's, OpenAI's, or a proxy's page.
        request_id: As sent; the answer's own takes precedence.
    """
    message, code = _message(body)
    cls = BY_CODE.get(code) or _behind_serves_proxy(status, body) or _BY_STATUS.get(status) or _by_range(status)
    if not message:
        message = f"HTTP status {status}{_excerpt(body)}"
    return cls(message, status, code, retry_after_s(headers), headers.get(X_REQUEST_ID, request_id))


def error_in_stream(body: bytes, request_id: str) -> ServeAppClientError:
    """Make the exception for an error in place of a streamed part, after the status."""
    message, code = _message(body)
    return BY_CODE.get(code, ServerFault)(message, None, code, None, request_id)


def retry_after_s(headers: Mapping[str, str], now: datetime.datetime | None = None) -> float | None:
    """Seconds in Retry-After, a number or a date; ``None`` if missing or invalid.

    Args:
        headers: By lower-case name.
        now: For comparison with a date; default: the wall clock.
    """
    value = headers.get("retry-after")
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        return _seconds_until(value, now)
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _seconds_until(value: str, now: datetime.datetime | None) -> float | None:
    try:
        moment = email.utils.parsedate_to_datetime(value)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return max(0.0, (moment - (now or datetime.datetime.now(datetime.UTC))).total_seconds())


def _message(body: bytes) -> tuple[str, str]:
    """The server's message and code, possibly empty."""
    try:
        document: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return "", ""
    if not isinstance(document, dict):
        return "", ""
    error = document.get("error")
    if isinstance(error, dict):  # OpenAI's form
        document, error = error, error.get("message")
    code = document.get("code")
    return error if isinstance(error, str) else "", code if isinstance(code, str) else ""


def _behind_serves_proxy(status: int, body: bytes) -> type[ServeAppClientError] | None:
    """The error for a message of Ray Serve's HAProxy while it reaches or knows no router.

    It replaces 502, 503 and 504 with a 500 of two words, and unknown applications with a 404 in its own words.
    """
    if (status, body) == (500, b"Internal Server Error") or (status == 404 and b"/-/routes" in body):
        return Unavailable
    return None


def _by_range(status: int) -> type[ServeAppClientError]:
    if 400 <= status < 500:
        return InvalidRequest
    return ServerFault if status >= 500 else InvalidAnswer


def _excerpt(body: bytes) -> str:
    text = " ".join(body[:_QUOTED_CHARS].decode("utf-8", "replace").split())
    return f": {text}" if text else ""
