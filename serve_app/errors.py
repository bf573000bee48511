"""The errors of serve_app, and where on a request's way each one belongs.

    bytes -> decoded -> admitted -> queued -> dispatched -> executed -> answered

    ServeAppError
    ├── InvalidRequest          decoded     what the client sent cannot be understood or does not fit the model
    │   ├── PayloadTooLarge     bytes       the body is over a limit
    │   └── UnsupportedMedia    bytes       the content type or media format is not served by this model
    ├── ModelNotFound           decoded     no such model or version
    ├── JobNotFound             decoded     no such job or file, or it is another key's
    ├── Conflict                decoded     the same idempotency key came with another request
    ├── MethodNotAllowed        decoded     the route exists, the method does not
    ├── Unsupported             decoded     part of the protocol that this server does not implement
    ├── Unauthenticated         bytes       missing or wrong API key
    ├── PermissionDenied        decoded     the key may not use this model or class
    ├── RateLimited             bytes       the key was used more often than it may be
    ├── QueueFull               admitted    no room in the class's queue, by count or by bytes
    ├── DeadlineExceeded        admitted... the deadline passed before the answer was ready, or is too short for it
    ├── ModelUnavailable        dispatched  no replica can take the work, or the one that gave an answer's parts is lost
    ├── StoreUnavailable        admitted    jobs cannot be kept now
    ├── SlowReader              answered    the parts of an answer are not read as fast as they come
    ├── InferenceFailed         executed    the model's code failed on this entry
    └── ConfigError             start-up    the configuration is wrong; one readable line per fault

Every class carries a stable ``code`` and a message that is safe to show to a client: it says what is wrong and what
to do, and never holds a traceback, a path of the server or another client's data. Protocol adapters map codes to
statuses (`serve_app.http.errors`); nothing here knows HTTP or gRPC.

Instances survive pickling: every argument is passed to ``super().__init__`` positionally.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Final

RETURNED: Final = "returned"
"""The code of an entry that a replica has not run, and that returns to its router."""
_SHOWN_NAMES: Final = 10


class ServeAppError(Exception):
    """Base of every error that serve_app raises on purpose.

    Args:
        message: What is wrong and what to do about it, safe to show to a client.
        retry_after_s: When trying again may help, in seconds; ``None`` when it will not or nobody knows.

    Attributes:
        counted: Whether the metrics hold the end of this request already; set by whoever counted it.
        logged: Whether the log has its line already, in the same way.
        outcome: What the metrics call that end, where it is not the code.
    """

    code: ClassVar[str] = "internal"
    counted: bool = False
    logged: bool = False
    outcome: str = ""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message, retry_after_s)
        self.message = message
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return self.message


class InvalidRequest(ServeAppError):
    """The request is malformed or does not fit the model's signature."""

    code = "invalid_request"


class PayloadTooLarge(InvalidRequest):
    """The body, or what it decompresses to, is over a limit."""

    code = "payload_too_large"


class UnsupportedMedia(InvalidRequest):
    """The content type or media format is not one that this model takes."""

    code = "unsupported_media"


class ModelNotFound(ServeAppError):
    """No model, or no version of it, has this name."""

    code = "model_not_found"


class JobNotFound(ServeAppError):
    """There is no such job, batch, item or file, or it belongs to another API key."""

    code = "job_not_found"


class Conflict(ServeAppError):
    """The same idempotency key came with another request, or an item has not ended."""

    code = "conflict"


class MethodNotAllowed(ServeAppError):
    """The route exists but not with this method."""

    code = "method_not_allowed"


class Unsupported(ServeAppError):
    """A part of the protocol that this server does not implement."""

    code = "unsupported"


class Unauthenticated(ServeAppError):
    """The API key is missing or wrong."""

    code = "unauthenticated"


class PermissionDenied(ServeAppError):
    """The API key may not use this model or this class."""

    code = "permission_denied"


class RateLimited(ServeAppError):
    """The API key was used more often than it may be."""

    code = "rate_limited"


class QueueFull(ServeAppError):
    """The class's queue has no room left, by entries or by bytes."""

    code = "queue_full"


class DeadlineExceeded(ServeAppError):
    """The deadline passed before the answer was ready, or not even an idle server could answer before it."""

    code = "deadline_exceeded"


class ModelUnavailable(ServeAppError):
    """No replica of the model can take the work now."""

    code = "model_unavailable"


class SlowReader(ServeAppError):
    """The client does not read the parts of an answer, so that too many of them wait for it."""

    code = "slow_reader"


class StoreUnavailable(ServeAppError):
    """Jobs cannot be kept or shown now; nothing of the request counts."""

    code = "store_unavailable"


class InferenceFailed(ServeAppError):
    """The model's code failed on this entry."""

    code = "inference_failed"


class ConfigError(ServeAppError):
    """The configuration is wrong. ``problems`` holds one readable line per fault."""

    code = "invalid_config"

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("\n".join(problems))
        self.args = (problems,)
        self.problems = problems


_BY_CODE: dict[str, type[ServeAppError]] = {
    cls.code: cls
    for cls in (
        InvalidRequest,
        PayloadTooLarge,
        UnsupportedMedia,
        ModelNotFound,
        JobNotFound,
        Conflict,
        MethodNotAllowed,
        Unsupported,
        Unauthenticated,
        PermissionDenied,
        RateLimited,
        QueueFull,
        DeadlineExceeded,
        ModelUnavailable,
        SlowReader,
        StoreUnavailable,
        InferenceFailed,
    )
}


def some_of(names: Iterable[str]) -> str:
    """Names as they may stand in a message: those of a thousand models are too many for a line."""
    known = list(names)
    more = len(known) - _SHOWN_NAMES
    return ", ".join(known) if more <= 1 else f"{', '.join(known[:_SHOWN_NAMES])} and {more:,} more"


def error_from_code(code: str, message: str, retry_after_s: float | None = None) -> ServeAppError:
    """Rebuild an error that crossed a process boundary as its code and message.

    An unknown code becomes `InferenceFailed`: it can only come from the model's side.
    """
    return _BY_CODE.get(code, InferenceFailed)(message, retry_after_s)
