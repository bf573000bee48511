"""What is learned of the gaps between arrivals."""

from __future__ import annotations

import random
from math import exp, inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.scheduling.batching.arrivals import ArrivalPattern

_GAPS = st.lists(st.floats(0.0, 20.0), min_size=1, max_size=200)


def _observe(gaps: list[float], pattern: ArrivalPattern | None = None) -> ArrivalPattern:
    """A pattern that has seen a first request at 0 and one more after each gap."""
    pattern = pattern or ArrivalPattern()
    now = 0.0
    pattern.observe(now)
    for gap in gaps:
        now += gap
        pattern.observe(now)
    return pattern


def _poisson(rate: float, count: int = 4096) -> list[float]:
    source = random.Random(1)
    return [source.expovariate(rate) for _ in range(count)]


def _bursts(inside_s: float = 0.0005, between_s: float = 1.0, size: int = 8, count: int = 128) -> list[float]:
    """Bursts of ``size`` requests, with random gaps inside them."""
    source = random.Random(1)
    return [source.expovariate(1.0 / inside_s) if at % size else between_s for at in range(1, size * count + 1)]


def _last(pattern: ArrivalPattern) -> float:
    assert pattern.last is not None
    return pattern.last


def test_nothing_is_known_of_nothing() -> None:
    """No rate, no expectation."""
    pattern = ArrivalPattern()

    assert (pattern.last, pattern.rate, pattern.recent_rate(5.0)) == (None, 0.0, 0.0)
    assert pattern.worth_waiting_until(0.0, 1.0) == -inf
    assert pattern.probability_within(0.0, 0.1) == 0.0


def test_a_few_requests_are_not_enough() -> None:
    """Until 32 gaps were seen the hazard is not estimated, and the recent rate stands in."""
    pattern = _observe([0.001] * 31)

    assert (pattern.rate, pattern.worth_waiting_until(_last(pattern), 10.0)) == (0.0, -inf)
    rate = pattern.recent_rate(_last(pattern))
    assert pattern.probability_within(_last(pattern), 0.01) == pytest.approx(1 - exp(-0.01 * rate))


def test_the_mean_rate_of_poisson_arrivals() -> None:
    """200 requests per second."""
    assert _observe(_poisson(200.0)).rate == pytest.approx(200.0, rel=0.1)


@pytest.mark.parametrize("rate", [200.0, 500.0, 2000.0])
def test_the_hazard_of_poisson_arrivals_is_flat(rate: float) -> None:
    """Waiting is worth it as long as it saves more than a gap costs, however long ago the last one came."""
    pattern = _observe(_poisson(rate))
    last = _last(pattern)

    assert pattern.worth_waiting_until(last, 0.6 / rate) <= last + 0.1 / rate
    assert pattern.worth_waiting_until(last, 2.0 / rate) >= last + 1.0 / rate


@pytest.mark.parametrize("passed", [0.0, 0.005, 0.02])
@pytest.mark.parametrize("horizon", [0.002, 0.01, 0.05])
def test_poisson_arrivals_forget(passed: float, horizon: float) -> None:
    """However long ago the last one came, the next comes within the horizon with the same probability."""
    pattern = _observe(_poisson(50.0))

    expected = 1.0 - exp(-50.0 * horizon)
    assert pattern.probability_within(_last(pattern) + passed, horizon) == pytest.approx(expected, abs=0.08)


def test_the_hazard_of_bursts_is_high_at_first() -> None:
    """Within a burst the next one is due at 2,000 per second; once it has not come, it will not for long."""
    pattern = _observe(_bursts())
    until = pattern.worth_waiting_until(_last(pattern), 0.01)

    assert 0.0015 <= until - _last(pattern) < 0.01
    assert pattern.rate == pytest.approx(8 / 1.0035, rel=0.1)
    assert pattern.probability_within(_last(pattern), 0.004) == pytest.approx(7 / 8, abs=0.03)
    assert pattern.probability_within(_last(pattern) + 0.05, 0.1) < 0.01


def test_regular_arrivals_come_when_they_are_due() -> None:
    """Frames every 33 ms: not in the next ten, surely in the next fifty, and surely soon when the next is overdue."""
    pattern = _observe([0.033] * 200)
    last = _last(pattern)

    assert pattern.probability_within(last, 0.010) == pytest.approx(0.0, abs=1e-9)
    assert pattern.probability_within(last, 0.060) == pytest.approx(1.0)
    assert pattern.probability_within(last + 0.040, 0.020) == pytest.approx(1.0)


def test_an_unheard_of_silence_counts_as_the_mean_rate() -> None:
    """Nothing is known of gaps this long."""
    pattern = _observe([0.033] * 200)

    assert pattern.probability_within(_last(pattern) + 60.0, 0.003) == pytest.approx(0.003 / 0.033, rel=0.05)


def test_the_old_pattern_fades() -> None:
    """After some thousand arrivals at another rate the first one is forgotten."""
    pattern = _observe(_poisson(500.0))
    now = _last(pattern)
    for gap in _poisson(5.0):
        now += gap
        pattern.observe(now)

    assert pattern.rate == pytest.approx(5.0, rel=0.15)
    assert pattern.probability_within(now, 0.05) == pytest.approx(1.0 - exp(-0.25), abs=0.06)


def test_the_recent_rate_follows_and_fades() -> None:
    """Requests every 10 ms are 100 per second; a memory's length later e times fewer."""
    pattern = _observe([0.01] * 1000, ArrivalPattern(memory_s=0.5))
    last = _last(pattern)

    assert pattern.recent_rate(last) == pytest.approx(100.0, rel=0.02)
    assert pattern.recent_rate(last + 0.5) == pytest.approx(100.0 / exp(1.0), rel=0.02)


def test_what_comes_at_one_moment_tells_nothing_of_the_next() -> None:
    """One bundle brings many: they are no gaps of zero, so the pattern is that of the moments; all count as recent."""
    at_once, single = _observe([0.01, 0.0, 0.0, 0.0] * 100), _observe([0.01] * 100)
    last = _last(single)

    assert (at_once.last, at_once.rate) == (single.last, single.rate)
    assert at_once.probability_within(last, 0.005) == single.probability_within(last, 0.005)
    assert at_once.worth_waiting_until(last, 0.1) == single.worth_waiting_until(last, 0.1)
    assert at_once.recent_rate(last) == pytest.approx(4.0 * single.recent_rate(last), rel=0.05)


@given(gaps=_GAPS, passed=st.floats(0.0, 30.0), horizon=st.floats(0.0, 30.0), more=st.floats(0.0, 30.0))
def test_probabilities_are_probabilities(gaps: list[float], passed: float, horizon: float, more: float) -> None:
    """Between 0 and 1, and no smaller for a longer horizon."""
    pattern = _observe(gaps)
    now = _last(pattern) + passed
    probability = pattern.probability_within(now, horizon)

    assert 0.0 <= probability <= 1.0
    assert probability <= pattern.probability_within(now, horizon + more) + 1e-9


def test_gaps_that_never_occur_do_not_end_the_waiting() -> None:
    """A server reads requests one after the other: 0.15 ms apart or at one moment, and nothing between."""
    pattern = _observe([0.0, 0.00015, 0.00015, 0.00015, 0.3] * 100)
    last = _last(pattern)

    assert last + 0.00015 < pattern.worth_waiting_until(last, 0.02) < last + 0.02


@given(gaps=_GAPS, saves=st.floats(0.0, 10.0), more=st.floats(0.0, 10.0), passed=st.floats(0.0, 2.0))
def test_rates_are_never_negative_and_waiting_grows_with_what_it_saves(
    gaps: list[float], saves: float, more: float, passed: float
) -> None:
    """Nobody waits longer for what saves less, nor longer than the last bin's edge."""
    pattern = _observe(gaps)
    now = _last(pattern) + passed
    until = pattern.worth_waiting_until(now, saves)

    assert pattern.rate >= 0.0
    assert pattern.recent_rate(_last(pattern) + 1.0) >= 0.0
    assert until <= pattern.worth_waiting_until(now, saves + more) <= _last(pattern) + 1.64
    assert until == -inf or until > now
