"""What comes on top of executions, and how early they end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.scheduling.batching.arrivals import ArrivalPattern
from serve_app.scheduling.batching.overhead import Overhead, QuantileWindow, RoundTrip, TimerLateness


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


def test_a_round_trip_alone_is_the_least_of_lately() -> None:
    """Waiting for event loops is no part of the work; what was before 20 seconds does not count."""
    trip = RoundTrip(0.002)
    for at in range(10):
        trip.observe(0.001 if at == 3 else 0.05, 0.1 * at)
    assert trip.seconds == pytest.approx(0.05)
    assert trip.alone_s == pytest.approx(0.001)

    for at in range(10):
        trip.observe(0.004, 12.0 + at)
    assert trip.alone_s == pytest.approx(0.001)
    trip.observe(0.004, 23.0)
    assert trip.alone_s == pytest.approx(0.004)


def test_a_long_round_trip_is_not_expected_for_ever() -> None:
    """Where it is why nothing is sent, nothing would ever show that it has become short."""
    trip = RoundTrip(0.002)
    trip.observe(0.001, 0.0)
    for at in range(32):
        trip.observe(0.1, 1.0 + 0.01 * at)

    assert trip.at(1.32) == pytest.approx(0.1)
    assert trip.at(1.7) == pytest.approx(0.1)
    assert trip.at(1.8) == pytest.approx(0.001)


def test_without_observations_it_is_what_was_assumed() -> None:
    """Then as for everything on top of executions."""
    assert RoundTrip(0.002).at(5.0) == RoundTrip(0.002).alone_s == RoundTrip(0.002).seconds == 0.002


def _lateness(*times: float) -> TimerLateness:
    lateness = TimerLateness(0.002)
    for seconds in times:
        lateness.due = 5.0
        lateness.woken(5.0 + seconds)
    return lateness


def _arrivals(gap_s: float) -> ArrivalPattern:
    """Requests with equal gaps, the last at 5 s."""
    arrivals = ArrivalPattern()
    for number in range(100):
        arrivals.observe(5.0 - gap_s * (99 - number))
    return arrivals


def test_timers_are_as_late_as_they_were() -> None:
    """Until four were seen, what was assumed counts."""
    assert _lateness(0.009, 0.009, 0.009).margin_s(5.0, _arrivals(1.0)) == 0.002
    assert _lateness(*[0.009] * 4).margin_s(5.0, _arrivals(1.0)) == pytest.approx(0.009)


def test_the_margin_is_wide_where_few_requests_are_missed_for_it() -> None:
    """Half of the timers are late by 1 ms, the others by 9: no head is late, or five requests in ten fewer missed."""
    lateness = _lateness(*[0.001, 0.009] * 16)

    assert lateness.margin_s(5.0, _arrivals(1.0)) == pytest.approx(0.009)
    assert lateness.margin_s(5.0, _arrivals(0.001)) == pytest.approx(0.001)


@given(st.lists(st.floats(0.0, 10.0), min_size=4, max_size=40), st.sampled_from([0.0001, 0.01, 3.0]))
def test_a_margin_is_one_of_the_last_times(times: list[float], gap_s: float) -> None:
    """However requests arrive."""
    margin_s = _lateness(*times).margin_s(5.0, _arrivals(gap_s))

    assert any(margin_s == pytest.approx(late_s) for late_s in times[-32:])


def test_a_timer_that_was_not_due_says_nothing() -> None:
    """An arrival came first, or no timer was set."""
    lateness = _lateness(*[0.001] * 4)
    for due in (9.0, float("inf")):
        lateness.due = due
        lateness.woken(8.0)
        assert lateness.margin_s(8.0, _arrivals(1.0)) == pytest.approx(0.001)
        assert lateness.due == float("inf")


def test_lateness_is_measured_again_after_a_while() -> None:
    """What was late for a time does not keep timers from being set for ever."""
    lateness = _lateness(*[0.5] * 8)

    assert [lateness.margin_s(now, _arrivals(1.0)) for now in (6.0, 15.0, 16.0)] == [0.5, 0.5, 0.002]
