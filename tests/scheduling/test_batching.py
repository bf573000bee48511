"""How long a batch waits for more rows."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduling_builders import AFFINE

from serve_app.scheduling.batching.arrivals import ArrivalPattern
from serve_app.scheduling.batching.latency import LatencyModel
from serve_app.scheduling.batching.policy import PendingBatch, dispatch_at, target_s
from serve_app.scheduling.settings import ModelScheduling

_PROPORTIONAL = [(rows, 0, 0.002 * rows) for rows in (1, 2, 4, 8, 16, 32)]
"""A model without fixed cost."""
_AT_ONCE = 1e-9
"""The moment itself, up to rounding."""


def _settings(slo_s: float) -> ModelScheduling:
    return ModelScheduling("m", 32, slo_s)


def _arrivals(gaps: list[float], until: float) -> ArrivalPattern:
    """A pattern whose latest request came at ``until``."""
    pattern = ArrivalPattern()
    now = until - sum(gaps)
    pattern.observe(now)
    for gap in gaps:
        now += gap
        pattern.observe(now)
    return pattern


def _poisson(rate: float, until: float = 0.0) -> ArrivalPattern:
    source = random.Random(2)
    return _arrivals([source.expovariate(rate) for _ in range(2048)], until)


def _bursts(until: float = 0.0) -> ArrivalPattern:
    """In the middle of one of many bursts, in which requests come 0.5 ms apart on average; a burst every second."""
    source = random.Random(2)
    gaps = [source.expovariate(2000.0) if at % 16 else 1.0 for at in range(1024)]
    return _arrivals([*gaps, 1.0, 0.0005, 0.0005], until)


def _waiting(profile: list[tuple[int, int, float]] | None = None, **changes: Any) -> PendingBatch:
    """One row of a model of 5 ms and 1 ms per row at time 0, with 100 ms to go."""
    latency = LatencyModel()
    latency.seed(AFFINE if profile is None else profile)
    values: dict[str, Any] = {
        "now": 0.0,
        "rows": 1,
        "limit": 32,
        "head_rows": 1,
        "bucket": 0,
        "latest_end": 0.1,
        "latency": latency,
        "arrivals": ArrivalPattern(),
    }
    return PendingBatch(**(values | changes))


# ------------------------------------------------------------------ waiting


def test_a_full_batch_never_waits() -> None:
    """There is nothing to wait for: neither with all rows that are allowed nor with all that the head allows."""
    assert dispatch_at(_waiting(rows=32, arrivals=_bursts())) <= 0.0
    assert dispatch_at(_waiting(rows=7, limit=7, arrivals=_bursts())) <= 0.0


@given(
    rows=st.integers(1, 40),
    head_rows=st.integers(1, 4),
    limit=st.integers(1, 32),
    latest_end=st.floats(-0.1, 2.0),
    gaps=st.lists(st.floats(0.0, 0.5), max_size=100),
    proportional=st.booleans(),
)
def test_nothing_waits_until_the_head_could_bear_no_further_row(
    rows: int, head_rows: int, limit: int, latest_end: float, gaps: list[float], proportional: bool
) -> None:
    """After that waiting could only lose."""
    waiting = _waiting(
        _PROPORTIONAL if proportional else None,
        rows=rows,
        head_rows=head_rows,
        limit=limit,
        latest_end=latest_end,
        arrivals=_arrivals(gaps, 0.0),
    )
    latest = latest_end - waiting.latency.predict(rows + head_rows, 0)

    assert dispatch_at(waiting) <= max(0.0, latest) + 1e-12


@pytest.mark.parametrize("rate", [5.0, 20.0, 60.0])
def test_nothing_waits_for_poisson_arrivals_at_low_load(rate: float) -> None:
    """The next request is not due before waiting costs more than it saves."""
    assert dispatch_at(_waiting(arrivals=_poisson(rate))) <= _AT_ONCE


def test_nothing_waits_for_what_is_not_known() -> None:
    """Too few requests say nothing."""
    assert dispatch_at(_waiting()) <= _AT_ONCE


def test_a_batch_waits_within_a_burst_where_the_next_one_has_no_room_for_it() -> None:
    """One row now and nine after it are fewer than the fifteen that fit into one batch before the same deadline."""
    assert 0.001 < dispatch_at(_waiting(arrivals=_bursts(), latest_end=0.02, limit=15)) < 0.02


def test_a_batch_waits_for_what_would_be_alone() -> None:
    """Requests come in pairs: the second one would cost a run of its own."""
    source = random.Random(2)
    gaps = [1.0 if at % 2 else source.expovariate(2000.0) for at in range(1024)]

    assert 0.0005 < dispatch_at(_waiting(arrivals=_arrivals(gaps, 0.0))) < 0.006


def test_a_batch_does_not_wait_for_what_goes_with_the_next_one() -> None:
    """All of a burst that comes while the first batch runs fits into the second one, and costs no more there."""
    assert dispatch_at(_waiting(arrivals=_bursts())) <= _AT_ONCE


def test_a_batch_waits_for_the_burst_and_not_longer() -> None:
    """Some milliseconds after the last one the burst is over."""
    assert dispatch_at(_waiting(arrivals=_bursts(until=-0.02), latest_end=0.02, limit=15)) <= _AT_ONCE


def test_a_tight_head_goes_although_more_is_to_come() -> None:
    """It waits to the moment when another row would make it late."""
    assert dispatch_at(_waiting(arrivals=_bursts(), latest_end=0.0085)) == pytest.approx(0.0015)
    assert dispatch_at(_waiting(arrivals=_bursts(), latest_end=0.006)) <= _AT_ONCE


def test_nothing_waits_without_fixed_cost() -> None:
    """Batching saves nothing there, in a burst or not."""
    assert dispatch_at(_waiting(_PROPORTIONAL, arrivals=_bursts())) <= _AT_ONCE
    assert dispatch_at(_waiting(_PROPORTIONAL, arrivals=_poisson(2000.0))) <= _AT_ONCE


# ------------------------------------------------------------------ target


def test_target_is_the_tighter_of_deadline_and_latency_target() -> None:
    """As long as the head alone can keep it."""
    latency = _waiting().latency

    assert target_s(latency, _settings(0.1), 1, 0, 0.05) == 0.05
    assert target_s(latency, _settings(0.02), 1, 0, 0.05) == 0.02


def test_a_target_that_the_head_cannot_keep_is_given_up() -> None:
    """The latency target before the deadline; both when neither can be kept."""
    latency = _waiting().latency

    assert target_s(latency, _settings(0.001), 1, 0, 0.05) == 0.05
    assert target_s(latency, _settings(0.1), 1, 0, 0.005) == 0.1
    assert target_s(latency, _settings(0.001), 1, 0, 0.005) == float("inf")
