"""How long a batch may block the class `high`."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduling_builders import AFFINE, HIGH, LOW, NORMAL, make_entry

from serve_app.scheduling.batching.blocking_limit import BlockingLimit
from serve_app.scheduling.batching.latency import LatencyModel
from serve_app.scheduling.settings import ModelScheduling

_UNKNOWN = LatencyModel()
_SETTINGS = ModelScheduling("m", 32, 0.1)


def _claim(
    blocking_limit: BlockingLimit,
    budget_s: float,
    now: float,
    part: float = 1.0,
    latency: LatencyModel = _UNKNOWN,
    waiting_rows: int = 1,
) -> None:
    """A request meets what is left of a batch, and is run; where executions are unknown, its budget is its slack."""
    entry = make_entry(HIGH, now + budget_s, arrival=now)
    blocking_limit.arrived(now)
    blocking_limit.observe(blocking_limit.tolerable_s(entry, waiting_rows, latency, _SETTINGS, now, part))


def _limit_of(budget_s: float, period_s: float, count: int) -> tuple[BlockingLimit, float]:
    """A regular stream of requests, and when the last one came."""
    blocking_limit = BlockingLimit()
    for at in range(count):
        _claim(blocking_limit, budget_s, at * period_s)
    return blocking_limit, (count - 1) * period_s


def test_nothing_asked_bounds_nothing() -> None:
    """Nobody is known to be in a hurry."""
    assert BlockingLimit().bound_s(0.0) == inf


def test_what_is_late_anyway_bounds_nothing() -> None:
    """No batch, however short, would save it."""
    blocking_limit = BlockingLimit()
    _claim(blocking_limit, 0.0, 0.0)
    _claim(blocking_limit, -0.2, 0.0)

    assert blocking_limit.bound_s(0.0) == inf


def test_the_own_execution_is_no_slack() -> None:
    """6 ms of 50 alone; the 37 ms of a full batch where 40 rows of its class wait; alone again where that is late."""
    latency = LatencyModel()
    latency.seed(AFFINE)
    for waiting_rows, budget_s, slack_s in ((1, 0.05, 0.044), (40, 0.05, 0.013), (40, 0.03, 0.024)):
        blocking_limit = BlockingLimit()
        for at in range(200):
            _claim(blocking_limit, budget_s, 0.01 * at, 1.0, latency, waiting_rows)
        assert blocking_limit.bound_s(1.999) == pytest.approx(slack_s, abs=1e-6)


def test_who_hardly_ever_comes_blocks_nobody() -> None:
    """A request in twenty seconds is not worth short batches all the time; right after one more may come, it is."""
    blocking_limit, now = _limit_of(0.03, 20.0, 40)

    assert blocking_limit.bound_s(now + 1.0) == inf


def test_the_protected_part_is_reached_if_batches_can_be_short_enough() -> None:
    """A batch of up to 10 ms is always tolerated, and a longer one by fewer requests the longer it is."""
    late = {}
    for protect in (0.9, 0.99):
        blocking_limit, now = BlockingLimit(protect), 0.0
        ends = []
        for at in range(20_000):
            now += 0.01
            blocking_limit.arrived(now)
            blocking_limit.observe(0.03)
            bound_s = blocking_limit.bound_s(now)
            ends.append((bound_s - 0.01) / 0.03 <= at * 0.618 % 1.0)
            blocking_limit.ended(in_time=ends[-1])
        late[protect] = 1.0 - sum(ends[5000:]) / 15_000

    assert late == {0.9: pytest.approx(0.1, abs=0.01), 0.99: pytest.approx(0.01, abs=0.003)}


@given(st.floats(0.5, 0.999), st.lists(st.booleans(), max_size=60))
def test_protection_only_shortens_batches(protect: float, ends: list[bool]) -> None:
    """It falls to a tenth of the largest cap at most, whatever happens to requests."""
    blocking_limit = BlockingLimit(protect)
    _claim(blocking_limit, 0.03, 0.0)
    for in_time in ends:
        blocking_limit.ended(in_time=in_time)

    assert 0.003 <= blocking_limit.bound_s(0.0) + 1e-12 <= 0.03 + 1e-9


def test_protection_holds_for_who_hardly_ever_comes() -> None:
    """One in twenty seconds; it ends a minute after the last one."""
    blocking_limit, now = BlockingLimit(0.99), 0.0
    for at in range(40):
        now = 20.0 * at
        _claim(blocking_limit, 0.03, now)

    assert [blocking_limit.bound_s(now + after) for after in (1.0, 59.0, 61.0)] == [pytest.approx(0.03)] * 2 + [inf]


@pytest.mark.parametrize(("part", "longest_s"), [(1.0, 0.03), (0.5, 0.06), (0.0, inf)])
def test_what_was_left_of_batches_counts(part: float, longest_s: float) -> None:
    """Where requests only ever meet the last half of a batch, batches may be twice as long; any, where none runs."""
    blocking_limit = BlockingLimit()
    for at in range(64):
        _claim(blocking_limit, 0.03, 0.01 * at, part)

    assert blocking_limit.bound_s(0.635) == pytest.approx(longest_s)


def test_what_another_replica_ran_was_not_blocked_here() -> None:
    """One in twelve counts, where all others tolerate any batch; one in thirty does not."""
    for every, longest_s in ((12, 0.03), (30, inf)):
        blocking_limit = BlockingLimit()
        for at in range(120):
            now = 0.01 * at
            blocking_limit.arrived(now)
            blocking_limit.observe(0.03 if at % every == 0 else inf)
        assert blocking_limit.bound_s(1.195) == pytest.approx(longest_s)


def test_one_tight_request_of_many_bounds_nothing() -> None:
    """A low quantile counts, not the least of them; where one in ten is tight it does."""
    for every, tight in ((60, False), (10, True)):
        blocking_limit = BlockingLimit()
        for at in range(120):
            _claim(blocking_limit, 0.01 if at % every == 0 else 1.0, 0.001 * at)
        assert (blocking_limit.bound_s(0.119) < 0.1) is tight


def test_what_was_asked_before_the_last_requests_is_forgotten() -> None:
    """Batches are short soon after somebody is in a hurry, and long again when nobody of the last many was."""
    blocking_limit, now = _limit_of(1.0, 0.001, 512)
    for at in range(27):
        _claim(blocking_limit, 0.01, now + 0.001 * at)
    assert blocking_limit.bound_s(now + 0.027) < 0.1
    for at in range(512):
        _claim(blocking_limit, 1.0, now + 0.027 + 0.001 * at)

    assert blocking_limit.bound_s(now + 0.54) == pytest.approx(1.0)


def test_limits_end_a_minute_after_the_last_request() -> None:
    """A class that asks no more blocks nobody."""
    blocking_limit, now = _limit_of(0.1, 0.1, 100)

    assert blocking_limit.bound_s(now + 59.9) < inf
    assert blocking_limit.bound_s(now + 60.1) == inf


def test_a_short_execution_blocks_nobody() -> None:
    """It ends within the slack of whatever comes."""
    blocking_limit, now = _limit_of(0.05, 0.1, 600)

    assert not blocking_limit.likely_blocks(LOW, 0.05, now + 0.09)
    assert not blocking_limit.likely_blocks(HIGH, 10.0, now)


def test_a_long_execution_blocks_the_next_request_when_that_is_due() -> None:
    """Right after one came the next is far; shortly before it is due, half a second is too long."""
    blocking_limit, now = _limit_of(0.1, 1.0, 60)

    assert not blocking_limit.likely_blocks(LOW, 0.5, now)
    assert blocking_limit.likely_blocks(LOW, 0.5, now + 0.9)
    assert blocking_limit.likely_blocks(NORMAL, 0.5, now + 0.9)


def test_until_a_class_is_known_the_recent_requests_count() -> None:
    """Few requests say that there is a hurry; with time it is forgotten."""
    blocking_limit, _ = _limit_of(0.05, 0.1, 3)

    assert blocking_limit.likely_blocks(LOW, 0.4, 0.25)
    assert not blocking_limit.likely_blocks(LOW, 0.4, 5.0)


@given(
    st.lists(
        st.tuples(st.floats(-1.0, 10.0), st.sampled_from([-500.0, -0.1, 0.0, 0.01, 40.0])), min_size=1, max_size=80
    )
)
def test_the_bound_is_never_less_than_what_somebody_asked(claimed: list[tuple[float, float]]) -> None:
    """A clock that goes back changes nothing of it."""
    blocking_limit = BlockingLimit()
    now, least = 0.0, inf
    for slack, gap in claimed:
        now += gap
        _claim(blocking_limit, slack, now)
        least = min(least, slack if slack > 0.0 else inf)
        assert blocking_limit.bound_s(now) >= least - 1e-9


def _answered_in(seconds: list[float], period_s: float = 0.05) -> tuple[BlockingLimit, float]:
    """A regular stream of requests that take so long, and when the last one came."""
    blocking_limit, now = BlockingLimit(), 0.0
    for at, took_s in enumerate(seconds):
        now = period_s * at
        blocking_limit.arrived(now)
        blocking_limit.answered(took_s)
    return blocking_limit, now


@pytest.mark.parametrize(("slowdown", "extra_s"), [(1.25, 0.006), (2.0, 0.015), (1.01, 0.001)])
def test_what_can_wait_adds_a_part_of_the_99th_percentile(slowdown: float, extra_s: float) -> None:
    """Half of the fifth of 60 ms for the batch before, half for the own one; nothing below a millisecond counts."""
    blocking_limit, now = _answered_in([0.06] * 20 + [0.01] * 480)

    assert blocking_limit.extra_s(replace(_SETTINGS, high_slowdown=slowdown), now) == pytest.approx(extra_s, rel=0.02)


def test_what_can_wait_adds_anything_while_no_request_of_high_is_likely() -> None:
    """None ever came; none for as long as a hundred came in; or one in ten seconds, and batches take a tenth of one."""
    often, now = _answered_in([0.06] * 100)
    rarely, later = _answered_in([0.06] * 100, 10.0)

    assert BlockingLimit().extra_s(_SETTINGS, 0.0) == inf
    assert often.extra_s(_SETTINGS, now + 4.9) < 0.01
    assert often.extra_s(_SETTINGS, now + 5.1) == inf
    assert rarely.extra_s(_SETTINGS, later + 1.0) == inf


def test_of_the_first_request_nothing_is_known() -> None:
    """It has come, and has not run: what can wait is kept as short as can be."""
    blocking_limit = BlockingLimit()
    blocking_limit.arrived(0.0)

    assert blocking_limit.extra_s(_SETTINGS, 0.0) == 0.001
