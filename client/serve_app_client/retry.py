"""Decides whether and when a failed attempt is repeated. Nothing here waits or sends; time is an argument.

An attempt is repeated if all of this holds:

- the failure is one that another attempt can mend: no connection, a connection that broke, 429, 503, or a proxy's 502
  or 504 (`RETRYABLE`). Inference changes nothing at the server, so that running a request twice does no harm;
- fewer than `Retry.attempts` were made;
- the wait ends before the deadline. It is drawn evenly from 0 to a bound that doubles each time ("full jitter",
  https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/), so that clients that failed together do
  not come back together. Where the server said Retry-After, that comes on top;
- the client's `RetryBudget` has something left. Retries bounded per call alone multiply the load of a server that
  fails everything by `Retry.attempts`. The budget bounds them over all calls of the client: each call pays in a
  fraction of a retry, as Finagle's RetryBudget does
  (https://twitter.github.io/finagle/guide/Clients.html#retries); 10 %, as "Site Reliability Engineering" (O'Reilly
  2016), chapter 21, "Handling Overload", advises.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, TypedDict

import tenacity

from serve_app_client.deadline import Deadline
from serve_app_client.errors import ConnectionFailed, Refused, ServeAppClientError, Unavailable

_log = logging.getLogger(__name__)

RETRYABLE: Final = (ConnectionFailed, Refused, Unavailable)
"""What another attempt can mend."""


@dataclass(frozen=True, slots=True)
class Retry:
    """How a client retries.

    Attributes:
        attempts: Most attempts of one call, including the first.
        first_s: Bound of the first wait, seconds; each further one is doubled.
        most_s: Largest bound, seconds.
        ratio: Retries that each call adds to the client's budget, i.e. the extra load in the long run.
        reserve: Retries in the budget at the start, and at most. A server that dies cuts all connections of a client at
            once: by default as many as the client may have.
        per_s: Retries added per second without calls, for clients with few calls.
    """

    attempts: int = 3
    first_s: float = 0.05
    most_s: float = 2.0
    ratio: float = 0.1
    reserve: float = 100.0
    per_s: float = 0.1

    def __post_init__(self) -> None:
        """Check the values."""
        if self.attempts < 1:
            raise ValueError("attempts: expected 1 or more")
        for name in ("first_s", "most_s", "ratio", "reserve", "per_s"):
            if not 0.0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name}: expected a number, 0 or more")


class RetryBudget:
    """Bounds the second attempts of all calls of a client: retries and hedges. Thread-safe.

    After ``n`` calls within ``t`` seconds, at most ``reserve + ratio * n + per_s * t`` were granted.

    Args:
        retry: For its ``ratio``, ``reserve`` and ``per_s``.
        now: Present time, seconds.
    """

    def __init__(self, retry: Retry, now: float) -> None:
        self._retry = retry
        self._tokens = retry.reserve
        self._at = now
        self._lock = threading.Lock()

    def deposit(self, now: float) -> None:
        """Add a call's share."""
        with self._lock:
            self._add(self._retry.ratio, now)

    def withdraw(self, now: float) -> bool:
        """Whether another attempt is allowed, which then counts."""
        with self._lock:
            self._add(0.0, now)
            if self._tokens < 1.0:
                return False
            self._tokens -= 1.0
            return True

    def _add(self, tokens: float, now: float) -> None:
        # Threads read the clock before they have the lock: time may seem to go back a little.
        passed = max(0.0, now - self._at)
        self._at += passed
        self._tokens = min(self._retry.reserve, self._tokens + tokens + passed * self._retry.per_s)


class RetryArguments(TypedDict):
    """Common arguments of `tenacity.Retrying` and `tenacity.AsyncRetrying`."""

    retry: Callable[[tenacity.RetryCallState], bool]
    wait: Callable[[tenacity.RetryCallState], float]
    stop: Callable[[tenacity.RetryCallState], bool]
    before_sleep: Callable[[tenacity.RetryCallState], None]
    reraise: bool


def retry_arguments(
    retry: Retry, budget: RetryBudget, deadline: Deadline, clock: Callable[[], float] = monotonic
) -> RetryArguments:
    """Decide about the attempts of one call; see the module's docstring.

    Args:
        clock: Of the deadline and the budget.
    """
    jitter = tenacity.wait_random_exponential(multiplier=retry.first_s, max=retry.most_s)

    def wait(state: tenacity.RetryCallState) -> float:
        return jitter(state) + (_failure(state).retry_after or 0.0)

    def stop(state: tenacity.RetryCallState) -> bool:
        now = clock()
        return (
            state.attempt_number >= retry.attempts
            or now + state.upcoming_sleep >= deadline.at
            or not budget.withdraw(now)  # last: it counts
        )

    return {
        "retry": tenacity.retry_if_exception_type(RETRYABLE),
        "wait": wait,
        "stop": stop,
        "before_sleep": _log_retry,
        "reraise": True,
    }


def _failure(state: tenacity.RetryCallState) -> ServeAppClientError:
    error: Any = state.outcome.exception() if state.outcome is not None else None
    assert isinstance(error, ServeAppClientError)
    return error


def _log_retry(state: tenacity.RetryCallState) -> None:
    _log.debug("attempt %d failed, again in %.3f s: %s", state.attempt_number, state.upcoming_sleep, _failure(state))
