"""How often a key may be used, on a virtual clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.access.rate_limiter import RateLimiter
from serve_app.domain.keys import Rate


def test_a_burst_and_then_the_rate() -> None:
    """Three at once, then one every half a second; what is refused costs nothing."""
    limiter = RateLimiter(Rate(per_second=2.0, burst=3))

    assert [limiter.take(10.0) for _ in range(3)] == [0.0, 0.0, 0.0]
    assert limiter.take(10.0) == pytest.approx(0.5)
    assert limiter.take(10.4) == pytest.approx(0.1)
    assert limiter.take(10.5) == 0.0
    assert limiter.take(10.5) == pytest.approx(0.5)
    assert [limiter.take(100.0) for _ in range(3)] == [0.0, 0.0, 0.0]


@given(
    per_second=st.floats(0.01, 1000.0),
    burst=st.integers(1, 50),
    parts=st.integers(1, 8),
    gaps=st.lists(st.floats(0.0, 10.0), max_size=200),
)
def test_never_more_than_the_rate_and_the_burst(per_second: float, burst: int, parts: int, gaps: list[float]) -> None:
    """In no stretch of time more than what the rate gives in it and one burst; waiting as told is enough."""
    limiter = RateLimiter(Rate(per_second, burst), parts)
    now, taken = 0.0, []
    for gap in gaps:
        now += gap
        wait_s = limiter.take(now)
        if wait_s == 0.0:
            taken.append(now)
        else:
            assert limiter.take(now + wait_s + 1e-6) == 0.0
            now += wait_s + 1e-6
            taken.append(now)
    at_once = max(burst / parts, 1.0)
    for first, start in enumerate(taken):
        for count, end in enumerate(taken[first:], 1):
            assert count <= (end - start) * per_second / parts * (1 + 1e-6) + at_once + 1e-3
