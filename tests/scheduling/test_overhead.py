"""What comes on top of executions, and how early they end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.scheduling.batching.overhead import Overhead, QuantileWindow


def _overhead(*samples: float) -> Overhead:
    overhead = Overhead(0.002)
    for seconds in samples:
        overhead.observe(seconds)
    return overhead


def test_a_few_samples_are_not_enough() -> None:
    """Until four bundles were seen it is what was assumed."""
    assert _overhead().seconds == 0.002
    assert _overhead(0.03, 0.03, 0.03).seconds == 0.002
    assert _overhead(0.03, 0.03, 0.03, 0.03).seconds == pytest.approx(0.03)


def test_it_is_a_high_quantile_and_not_the_worst() -> None:
    """One stall in twenty changes nothing much."""
    assert _overhead(*[0.003] * 19, 2.0).seconds == pytest.approx(0.003)
    assert _overhead(*[0.003] * 16, *[0.009] * 4).seconds == pytest.approx(0.009)


def test_measurements_replace_the_assumption() -> None:
    """Also downwards, to a tenth of it: no call is free, and executions that end early say nothing of it."""
    assert _overhead(*[0.0005] * 20).seconds == pytest.approx(0.0005)
    assert _overhead(*[0.0] * 20).seconds == pytest.approx(0.0002)
    assert _overhead(*[-0.05] * 20).seconds == pytest.approx(0.0002)


def test_it_forgets() -> None:
    """32 bundles later the old ones do not count."""
    assert _overhead(*[0.5] * 50, *[0.003] * 32).seconds == pytest.approx(0.003)


def test_the_median_tells_what_is_usual() -> None:
    """However long a third of them took."""
    usual = Overhead(0.002, 0.5)
    for at in range(30):
        usual.observe(0.009 if at % 3 == 0 else 0.003)
    assert usual.seconds == pytest.approx(0.003)


@given(st.lists(st.floats(allow_nan=False) | st.sampled_from([0.0, 1.0, -0.0]), max_size=40), st.integers(1, 8))
def test_a_window_holds_the_latest_in_order(numbers: list[float], size: int) -> None:
    """As if they were sorted each time."""
    window = QuantileWindow(size)
    for count, number in enumerate(numbers, 1):
        assert sorted(numbers[max(0, count - size) : count]) == window.add(number)
