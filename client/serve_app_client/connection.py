"""The common part of both clients: settings, timeouts, and errors of the transport."""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Callable, Iterator, Mapping
from time import monotonic
from typing import Any, Final, Protocol, TypedDict, Unpack
from urllib.parse import urlsplit

import httpx
import tenacity

from serve_app_client.calls import Answer, Call, Calls, checked_priority, default_headers
from serve_app_client.deadline import checked_timeout
from serve_app_client.errors import ConnectionFailed, DeadlineExceeded, ServeAppClientError
from serve_app_client.retry import Retry, RetryBudget
from serve_app_client.wire import Priority

URL_VARIABLE: Final = "SERVE_APP_URL"
"""Environment variable with the address of the server, for clients that are given none."""

KEY_VARIABLE: Final = "SERVE_APP_API_KEY"
"""Environment variable with the API key, for clients that are given none."""

DEFAULT_URL: Final = "http://127.0.0.1:8000"

GRACE_S: Final = 0.25
"""How long the client waits beyond the deadline: the server's own word on it says more than silence."""

PROBE_TIMEOUT_S: Final = 5.0
"""How long a question for the server's health may take."""


class ClientSettings(TypedDict, total=False):
    """Settings of both clients.

    Attributes:
        api_key: Sent as ``Authorization: Bearer``. Default: the environment variable SERVE_APP_API_KEY; ``""`` for
            none.
        priority: Default class of calls. Default: the server's, ``normal``.
        timeout: Default seconds of a whole call outside a `deadline` scope. Default: none is sent, and the server's
            default for the class applies.
        patience: Seconds to wait for an answer without a deadline. Default: 60.
        retry: How failures are retried; ``None`` for never.
        connections: Most open connections. Default: 100.
        keep_alive: Seconds that an unused connection stays open. Default: 15, less than servers usually keep them.
        connect_timeout: Seconds that making a connection may take. Default: 5.
        headers: Further headers of every request.
        verify: How to check the server's certificate; false: not at all.
    """

    api_key: str | None
    priority: Priority | None
    timeout: float | None
    patience: float
    retry: Retry | None
    connections: int
    keep_alive: float
    connect_timeout: float
    headers: Mapping[str, str]
    verify: ssl.SSLContext | bool


class HttpArguments(TypedDict):
    """Common arguments of `httpx.Client` and `httpx.AsyncClient`."""

    base_url: str
    limits: httpx.Limits
    verify: ssl.SSLContext | bool


class Connection:
    """The part of a client that does not send.

    Args:
        url: Address of the server; default: `URL_VARIABLE`, or `DEFAULT_URL`.

    Attributes:
        url: Of the server.
        budget: Bounds second attempts.
        http: Arguments of its HTTP client.
    """

    def __init__(self, url: str | None, **settings: Unpack[ClientSettings]) -> None:
        self.url = checked_url(url or os.environ.get(URL_VARIABLE) or DEFAULT_URL)
        timeout, priority = settings.get("timeout"), settings.get("priority")
        api_key = settings.get("api_key")
        if api_key is None:
            api_key = os.environ.get(KEY_VARIABLE)
        self.calls = Calls(
            default_headers(api_key or None, settings.get("headers")),
            None if priority is None else checked_priority(priority),
            None if timeout is None else checked_timeout(timeout),
            checked_timeout(settings.get("patience", 60.0)),
        )
        retry = settings.get("retry", Retry())
        self.retry = Retry(attempts=1) if retry is None else retry
        self.budget = RetryBudget(self.retry, monotonic())
        self.connect_timeout = settings.get("connect_timeout", 5.0)
        connections = settings.get("connections", 100)
        self.http: HttpArguments = {
            "base_url": self.url,
            "limits": httpx.Limits(
                max_connections=connections,
                max_keepalive_connections=connections,
                keepalive_expiry=settings.get("keep_alive", 15.0),
            ),
            # Reading all certificates of the system takes longer than many a call: not where none is looked at.
            "verify": settings.get("verify", True) if self.url.startswith("https:") else False,
        }


class HttpClient(Protocol):
    """The common interface of httpx's clients for building requests."""

    def build_request(
        self, method: str, url: str, *, content: bytes, headers: Mapping[str, str], extensions: Any
    ) -> httpx.Request:
        """Make a request."""


class _TimeLeft(dict[str, float]):
    """The timeouts of one attempt, all until the same moment.

    httpx bounds each step separately: waiting for a connection, connecting, each read. Recomputed at each step, the
    remaining time bounds all together. httpx reads it once for all reads of a body.
    """

    def __init__(self, end: float, connect_timeout: float) -> None:
        super().__init__()
        self.end = end
        self._connect_timeout = connect_timeout

    def get(self, key: str, default: Any = None) -> Any:  # noqa: ARG002 - of dict
        left = max(self.end - monotonic(), 0.001)
        return min(left, self._connect_timeout) if key == "connect" else left


def request_of(call: Call[Any], http: HttpClient, connect_timeout: float) -> httpx.Request:
    """The request of an attempt starting now.

    Raises:
        DeadlineExceeded: No time remains.
    """
    headers = call.attempt_headers(monotonic())
    timeouts = _TimeLeft(call.deadline.at + GRACE_S, connect_timeout)
    return http.build_request(
        call.method, call.path, content=call.content, headers=headers, extensions={"timeout": timeouts}
    )


def read_for(response: httpx.Response, seconds: float) -> None:
    """Set the timeout of each read of a response body that has not begun."""
    response.request.extensions["timeout"].end = monotonic() + seconds


def answer_of(response: httpx.Response, body: bytes) -> Answer:
    """Convert a response."""
    return Answer(response.status_code, response.headers, body)


@contextlib.contextmanager
def attempt(call: Call[Any]) -> Iterator[None]:
    """Wrap one attempt: converts httpx's errors, and adds the request id to all.

    Raises:
        ConnectionFailed: There is no connection, or it broke.
        DeadlineExceeded: No answer in time.
    """
    try:
        yield
    except (httpx.TransportError, httpx.DecodingError, TimeoutError) as error:
        raise _failure(call, error) from error
    except ServeAppClientError as error:
        error.request_id = error.request_id or call.request_id
        raise


def _failure(call: Call[Any], error: Exception) -> ServeAppClientError:
    if isinstance(error, TimeoutError | httpx.TimeoutException) and monotonic() >= call.deadline.at:
        waited = "the deadline passed" if call.deadline.announced else "patience ended"
        return DeadlineExceeded(f"{waited} before an answer came", request_id=call.request_id)
    what = str(error) or type(error).__name__
    return ConnectionFailed(f"{call.method} {call.path}: {what}", request_id=call.request_id)


class WaitArguments(TypedDict):
    """Common arguments of `tenacity.Retrying` and `tenacity.AsyncRetrying`."""

    retry: tenacity.retry_if_result
    wait: tenacity.wait_random_exponential
    stop: Callable[[tenacity.RetryCallState], bool]
    retry_error_callback: Callable[[tenacity.RetryCallState], str]


def wait_arguments(timeout: float) -> WaitArguments:
    """Repeat until the result, a reason for not being ready, is empty.

    Only polling is possible: HTTP has no notification of readiness.
    """
    end = monotonic() + checked_timeout(timeout)
    reasons: list[str] = []

    def unready(reason: str) -> bool:
        # Near the end there is no time for an answer; what the server said before tells more.
        if monotonic() < end or not reasons:
            reasons[:] = [reason]
        return bool(reason)

    def give_up(_: tenacity.RetryCallState) -> str:
        raise DeadlineExceeded(f"not ready after {timeout:g} s: {reasons[0]}")

    return {
        "retry": tenacity.retry_if_result(unready),
        "wait": tenacity.wait_random_exponential(multiplier=0.05, max=1.0),
        "stop": lambda state: monotonic() + state.upcoming_sleep >= end,
        "retry_error_callback": give_up,
    }


def checked_url(url: str) -> str:
    """The address without trailing slashes; default scheme ``http://``.

    Raises:
        ValueError: It is no HTTP address.
    """
    full = url if "://" in url else f"http://{url}"
    parts = urlsplit(full)
    if parts.scheme not in {"http", "https"} or not parts.netloc:
        raise ValueError(f"url: expected an address like {DEFAULT_URL}, got {url!r}")
    return full.rstrip("/")
