"""How long a batch may block the classes above it."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduling_builders import HIGH, LOW, NORMAL

from serve_app.scheduling.claims import Claims
from serve_app.scheduling.entry import Priority


def _bounds(claims: Claims, now: float = 0.0) -> list[float]:
    return list(claims.bounds_s(now))


def test_nothing_asked_bounds_nothing() -> None:
    """No class is known to be in a hurry."""
    assert _bounds(Claims()) == [inf, inf, inf]


def test_the_tightest_slack_bounds_the_classes_below() -> None:
    """Never its own class, nor those above."""
    claims = Claims()
    claims.observe(NORMAL, 0.3, 0.0)
    claims.observe(HIGH, 0.5, 0.0)
    claims.observe(HIGH, 0.1, 0.1)
    claims.observe(HIGH, 0.4, 0.2)

    assert _bounds(claims, 0.2) == [inf, 0.1, 0.1]


def test_low_asks_for_nothing() -> None:
    """There is no class below it."""
    claims = Claims()
    claims.observe(LOW, 0.1, 0.0)

    assert _bounds(claims) == [inf, inf, inf]


def test_what_is_late_anyway_bounds_nothing() -> None:
    """No batch, however short, would save it."""
    claims = Claims()
    claims.observe(HIGH, 0.0, 0.0)
    claims.observe(HIGH, -0.2, 0.0)

    assert _bounds(claims) == [inf, inf, inf]


@pytest.mark.parametrize("asked_at", [0.0, 10.0, 29.9])
def test_a_claim_holds_for_half_to_a_whole_minute(asked_at: float) -> None:
    """After that nobody has asked for it lately, and longer batches are allowed again."""
    claims = Claims()
    claims.observe(HIGH, 1.0, 0.0)
    claims.observe(HIGH, 0.1, asked_at)
    for now in range(30, 120, 5):
        claims.observe(HIGH, 1.0, float(now))
        assert claims.bounds_s(float(now))[LOW - 1] == (0.1 if now < 60 else 1.0)


def test_claims_end_without_new_ones() -> None:
    """A class that asks no more blocks nobody."""
    claims = Claims()
    claims.observe(HIGH, 0.1, 0.0)

    assert claims.bounds_s(59.0)[LOW - 1] == 0.1
    assert claims.bounds_s(200.0)[LOW - 1] == inf


def _with_high_every(period_s: float, slack_s: float = 0.05, seconds: float = 60.0) -> tuple[Claims, float]:
    """Claims that know a regular stream of the class ``high``, and when the last request of it came."""
    claims = Claims()
    count = int(seconds / period_s)
    for at in range(count + 1):
        claims.observe(HIGH, slack_s, at * period_s)
    return claims, count * period_s


def test_a_short_execution_blocks_nobody() -> None:
    """It ends within the slack of whatever comes."""
    claims, now = _with_high_every(0.1)

    assert not claims.likely_blocks(LOW, 0.05, now + 0.09)
    assert not claims.likely_blocks(HIGH, 10.0, now)


def test_a_long_execution_blocks_the_next_request_when_that_is_due() -> None:
    """Right after one came the next is far; shortly before it is due, half a second is too long."""
    claims, now = _with_high_every(1.0, slack_s=0.1)

    assert not claims.likely_blocks(LOW, 0.5, now)
    assert claims.likely_blocks(LOW, 0.5, now + 0.9)
    assert claims.likely_blocks(NORMAL, 0.5, now + 0.9)


def test_until_a_class_is_known_the_recent_requests_count() -> None:
    """Few requests say that there is a hurry; with time it is forgotten."""
    claims = Claims()
    for now in (0.0, 0.1, 0.2):
        claims.observe(HIGH, 0.05, now)

    assert claims.likely_blocks(LOW, 0.4, 0.25)
    assert not claims.likely_blocks(LOW, 0.4, 5.0)


@given(
    claimed=st.lists(
        st.tuples(st.sampled_from(Priority), st.floats(-1.0, 10.0), st.floats(0.0, 40.0)), min_size=1, max_size=30
    )
)
def test_bounds_tighten_down_the_classes(claimed: list[tuple[Priority, float, float]]) -> None:
    """What a class may take, the classes above may take as well; what was asked right now is always respected."""
    claims = Claims()
    now = 0.0
    for priority, slack, gap in claimed:
        now += gap
        claims.observe(priority, slack, now)
        high, normal, low = _bounds(claims, now)
        assert high == inf
        assert normal >= low
        if slack > 0.0 and priority is not LOW:
            assert (normal if priority is HIGH else low) <= slack
