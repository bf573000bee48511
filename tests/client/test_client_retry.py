"""Retries and their budget under a virtual clock."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import tenacity
from hypothesis import given
from hypothesis import strategies as st

from serve_app_client import (
    ConnectionFailed,
    DeadlineExceeded,
    InvalidRequest,
    ModelUnavailable,
    QueueFull,
    Refused,
    Retry,
    ServeAppClientError,
    ServerFault,
    Unavailable,
)
from serve_app_client.deadline import Deadline
from serve_app_client.retry import RETRYABLE, RetryBudget, retry_arguments

PLENTY = Retry(attempts=10, reserve=100.0)


class VirtualTime:
    """A clock that only sleeping and calls move."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def run(
    retry: Retry,
    deadline_s: float,
    failures: list[ServeAppClientError],
    *,
    attempt_s: float = 0.0,
    budget: RetryBudget | None = None,
) -> tuple[VirtualTime, list[float], ServeAppClientError | None]:
    """Make one call that fails so often. Returns the time, when the attempts began, and what was raised."""
    time = VirtualTime()
    began: list[float] = []

    def call() -> None:
        began.append(time.now)
        time.now += attempt_s
        if len(began) <= len(failures):
            raise failures[len(began) - 1]

    arguments = retry_arguments(
        retry, budget or RetryBudget(retry, 0.0), Deadline(deadline_s, announced=True), time.clock
    )
    try:
        tenacity.Retrying(sleep=time.sleep, **arguments)(call)
    except ServeAppClientError as error:
        return time, began, error
    return time, began, None


_FAILURES = st.sampled_from([ConnectionFailed, QueueFull, ModelUnavailable, Unavailable, Refused])


@given(
    kinds=st.lists(_FAILURES, max_size=8),
    hints=st.lists(st.none() | st.floats(0.0, 2.0), min_size=8, max_size=8),
    attempts=st.integers(1, 6),
    deadline_s=st.floats(0.01, 10.0),
    attempt_s=st.floats(0.0, 0.5),
    first_s=st.floats(0.0, 1.0),
)
def test_attempts_stay_within_every_bound(
    kinds: list[type[ServeAppClientError]],
    hints: list[float | None],
    attempts: int,
    deadline_s: float,
    attempt_s: float,
    first_s: float,
) -> None:
    """No attempt begins after the deadline, none is one too many, and no wait is longer or shorter than promised."""
    retry = Retry(attempts=attempts, first_s=first_s, most_s=1.0, reserve=100.0)
    failures = [kind("scripted", retry_after=hint) for kind, hint in zip(kinds, hints, strict=False)]
    time, began, error = run(retry, deadline_s, failures, attempt_s=attempt_s)
    assert len(began) <= attempts
    assert all(moment < deadline_s for moment in began[1:])
    for index, slept in enumerate(time.slept):
        hint = hints[index] or 0.0
        assert hint <= slept <= hint + min(1.0, first_s * 2**index) + 1e-9
    if error is None:
        assert len(began) == len(failures) + 1
    else:
        assert error is failures[len(began) - 1]


@given(st.lists(st.tuples(st.sampled_from(["call", "retry"]), st.floats(0.0, 5.0)), max_size=200))
def test_budget_bounds_the_extra_load(steps: list[tuple[str, float]]) -> None:
    """Retries never exceed the reserve, a part of the calls, and a rate; and what is saved up is bounded."""
    retry = Retry(ratio=0.1, reserve=3.0, per_s=0.01)
    budget = RetryBudget(retry, 0.0)
    now, calls, granted, since = 0.0, 0, 0, 0
    for step, passed in steps:
        now += passed
        if step == "call":
            calls += 1
            budget.deposit(now)
            since = 0
        elif budget.withdraw(now):
            granted += 1
            since += 1
        assert granted <= 3.0 + 0.1 * calls + 0.01 * now + 1e-6
        assert since <= 4


def test_a_failing_server_sees_hardly_more_than_the_calls() -> None:
    """With everything failing, a thousand calls make little more than a thousand attempts, not three thousand."""
    retry = Retry(attempts=3)
    budget = RetryBudget(retry, 0.0)
    made = 0
    for _ in range(1000):
        budget.deposit(0.0)
        made += len(run(retry, 60.0, [Unavailable("down")] * 3, budget=budget)[1])
    assert 1100 <= made <= 1000 + 100 + 10 + 120  # 0.1 per second of backoff comes on top


def test_budget_ignores_a_clock_that_goes_back() -> None:
    """Threads read the clock before they come to the budget: an older reading counts nothing twice."""
    budget = RetryBudget(Retry(reserve=1.0, per_s=1.0), 0.0)
    assert budget.withdraw(10.0)
    assert not budget.withdraw(9.0)
    assert not budget.withdraw(10.0)
    assert budget.withdraw(11.0)


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(InvalidRequest("x", 400), id="invalid"),
        pytest.param(ServerFault("x", 500), id="fault"),
        pytest.param(DeadlineExceeded("x", 504), id="deadline"),
    ],
)
def test_what_cannot_be_mended_is_raised_at_once(error: ServeAppClientError) -> None:
    """Another attempt would end the same."""
    _, began, raised = run(PLENTY, 60.0, [error])
    assert (began, raised) == ([0.0], error)


def test_a_hint_beyond_the_deadline_ends_the_call_at_once() -> None:
    """It is known already that no attempt can begin in time."""
    time, began, raised = run(PLENTY, 1.0, [QueueFull("full", 429, retry_after=5.0)])
    assert (began, time.slept) == ([0.0], [])
    assert isinstance(raised, QueueFull)


def test_waits_grow() -> None:
    """Over many calls, the longest wait of each round comes near its bound, which doubles."""
    retry = Retry(attempts=4, first_s=0.1, most_s=100.0, reserve=1e6)
    rounds = zip(*(run(retry, 1e9, [Unavailable("x")] * 3)[0].slept for _ in range(200)), strict=True)
    longest = [max(waits) for waits in rounds]
    assert all(later > earlier for earlier, later in pairwise(longest))


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: Retry(attempts=0), id="attempts"),
        pytest.param(lambda: Retry(first_s=-1.0), id="negative"),
        pytest.param(lambda: Retry(ratio=float("nan")), id="nan"),
    ],
)
def test_nonsense_settings_are_refused(make: Callable[[], Retry]) -> None:
    """Where they are written, and not when the first call fails."""
    with pytest.raises(ValueError, match="expected"):
        make()


def test_what_is_retryable() -> None:
    """Deadlines are not: time is up."""
    assert not issubclass(DeadlineExceeded, RETRYABLE)
    assert issubclass(QueueFull, RETRYABLE)
    assert issubclass(ModelUnavailable, RETRYABLE)
