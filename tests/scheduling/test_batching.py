"""Batch policies: how long a bundle waits."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduling_builders import AFFINE, Policy, make_entry, make_gate

from serve_app.scheduling.arrivals import ArrivalPattern
from serve_app.scheduling.batching import Waiting, Window, batch_policy, target_s
from serve_app.scheduling.latency import LatencyModel
from serve_app.scheduling.settings import ModelScheduling

_PROPORTIONAL = [(rows, 0, 0.002 * rows) for rows in (1, 2, 4, 8, 16, 32)]
"""A model without fixed cost."""
_AT_ONCE = 1e-9
"""The moment itself, up to rounding."""
_POLICIES: list[Policy] = ["auto", "deferred", "eager", "window"]


def _settings(policy: Policy, *, max_rows: int = 32, slo_s: float = 0.1) -> ModelScheduling:
    return ModelScheduling("m", max_rows, slo_s, policy=policy)


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


def _waiting(profile: list[tuple[int, int, float]] | None = None, **changes: Any) -> Waiting:
    """One row of a model of 5 ms and 1 ms per row at time 0, with 100 ms to go; one idle replica."""
    latency = LatencyModel()
    latency.seed(AFFINE if profile is None else profile)
    values: dict[str, Any] = {
        "now": 0.0,
        "rows": 1,
        "limit": 32,
        "head_rows": 1,
        "bucket": 0,
        "oldest": 0.0,
        "latest_end": 0.1,
        "budget_s": 0.1,
        "idle": 1,
        "usable": 1,
        "latency": latency,
        "arrivals": ArrivalPattern(),
    }
    return Waiting(**(values | changes))


def _opens(policy: Policy, waiting: Waiting) -> float:
    return batch_policy(_settings(policy)).open_at(waiting)


# ------------------------------------------------------------------ all


def test_unknown_policy_is_named_with_those_there_are() -> None:
    """The message is for whoever wrote the configuration."""
    with pytest.raises(ValueError, match="unknown batch policy 'greedy'; there are: auto, deferred, eager, window"):
        batch_policy(_settings("greedy"))  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", _POLICIES)
def test_a_full_bundle_never_waits(policy: Policy) -> None:
    """There is nothing to wait for: neither with all rows that are allowed nor with all that the head can bear."""
    assert _opens(policy, _waiting(rows=32, arrivals=_bursts())) <= 0.0
    assert _opens(policy, _waiting(rows=7, limit=7, arrivals=_bursts())) <= 0.0


@given(
    policy=st.sampled_from(_POLICIES),
    rows=st.integers(1, 40),
    head_rows=st.integers(1, 4),
    limit=st.integers(1, 32),
    latest_end=st.floats(-0.1, 2.0),
    idle=st.integers(0, 3),
    gaps=st.lists(st.floats(0.0, 0.5), max_size=100),
    proportional=st.booleans(),
)
def test_nothing_waits_past_the_frontier(
    policy: Policy,
    rows: int,
    head_rows: int,
    limit: int,
    latest_end: float,
    idle: int,
    gaps: list[float],
    proportional: bool,
) -> None:
    """After it the head could bear no further row, so waiting could only lose."""
    waiting = _waiting(
        _PROPORTIONAL if proportional else None,
        rows=rows,
        head_rows=head_rows,
        limit=limit,
        latest_end=latest_end,
        idle=idle,
        usable=3,
        arrivals=_arrivals(gaps, 0.0),
    )

    assert _opens(policy, waiting) <= max(0.0, waiting.frontier()) + 1e-12


# ------------------------------------------------------------------ eager


def test_eager_never_waits() -> None:
    """Whatever comes."""
    assert _opens("eager", _waiting(arrivals=_bursts(), idle=0, usable=3)) == 0.0


# ------------------------------------------------------------------ window


def _window(slo_s: float = 0.1) -> Window:
    policy = batch_policy(_settings("window", slo_s=slo_s))
    assert isinstance(policy, Window)
    return policy


def _answer(policy: Window, latency_s: float, batches: int = 10) -> float:
    for _ in range(batches):
        policy.on_batch(4, latency_s)
    return policy.window_s


def test_window_counts_from_the_oldest_entry() -> None:
    """50 ms at first; the head's frontier ends it earlier."""
    policy = _window()

    assert policy.open_at(_waiting(now=0.02, oldest=0.01)) == pytest.approx(0.06)
    assert policy.open_at(_waiting(latest_end=0.03)) == pytest.approx(0.03 - 0.007)


def test_window_adapts_every_ten_batches() -> None:
    """And not between them."""
    policy = _window()

    assert _answer(policy, 1.0, batches=9) == 0.05
    assert _answer(policy, 1.0, batches=1) == pytest.approx(0.0375)
    assert _answer(policy, 1.0, batches=9) == pytest.approx(0.0375)


def test_window_stays_within_its_limits() -> None:
    """10 ms when batches are far too late, 100 ms when they are far earlier than necessary."""
    assert _answer(_window(), 5.0, batches=1000) == 0.01
    assert _answer(_window(), 0.001, batches=1000) == 0.1


@pytest.mark.parametrize("ratio", [0.82, 1.0, 1.18])
def test_window_does_not_swing_around_its_target(ratio: float) -> None:
    """Between 0.8 and 1.2 times the target nothing changes."""
    assert _answer(_window(), ratio * 0.1, batches=1000) == 0.05


def test_window_is_not_moved_by_one_stall() -> None:
    """Latencies are smoothed: a single batch that took three times the target is not 20% over it for long."""
    policy = _window()
    _answer(policy, 0.1, batches=5)
    policy.on_batch(4, 0.3)

    assert _answer(policy, 0.1, batches=4) == 0.05


@given(st.lists(st.floats(0.0, 10.0), max_size=200))
def test_window_never_leaves_its_limits(latencies: list[float]) -> None:
    """Whatever the latencies are."""
    policy = _window()
    for latency_s in latencies:
        policy.on_batch(1, latency_s)
        assert 0.01 <= policy.window_s <= 0.1


# ------------------------------------------------------------------ deferred


def test_deferred_waits_to_the_frontier() -> None:
    """Until d - L(b + 1): 100 ms less 7 ms with one row, less 15 ms with nine."""
    assert _opens("deferred", _waiting()) == pytest.approx(0.093)
    assert _opens("deferred", _waiting(rows=9)) == pytest.approx(0.085)


def test_deferred_goes_inside_symphony_s_window() -> None:
    """As rows come in the frontier moves to the front; the batch goes once it is reached, in time for its head."""
    gate = make_gate(policy="deferred")
    now, turn = 0.0, None
    while turn is None or not turn.entries:
        gate.add(make_entry(deadline=now + 0.1, arrival=now), now)
        turn = gate.next(now)
        if not turn.entries and turn.opens < now + 0.005:
            now = turn.opens
            turn = gate.next(now)
        now += 0.0 if turn.entries else 0.005

    assert turn.rows > 10
    assert 0.1 - (0.005 + 0.001 * (turn.rows + 1)) <= now + 1e-9
    assert now <= 0.1 - (0.005 + 0.001 * turn.rows) + 1e-9


# ------------------------------------------------------------------ auto


@pytest.mark.parametrize("rate", [5.0, 20.0, 60.0])
def test_auto_does_not_wait_for_poisson_arrivals_at_low_load(rate: float) -> None:
    """The next request is not due before waiting costs more than it saves."""
    assert _opens("auto", _waiting(arrivals=_poisson(rate))) <= _AT_ONCE


def test_auto_does_not_wait_for_what_it_does_not_know() -> None:
    """Too few requests say nothing."""
    assert _opens("auto", _waiting()) <= _AT_ONCE


def test_auto_waits_within_a_burst() -> None:
    """The next ones of it are due at 2,000 per second, so that waiting a little saves a run of its own."""
    assert 0.001 < _opens("auto", _waiting(arrivals=_bursts())) < 0.02


def test_auto_waits_for_the_burst_and_not_longer() -> None:
    """Some milliseconds after the last one the burst is over."""
    assert _opens("auto", _waiting(arrivals=_bursts(until=-0.02))) <= _AT_ONCE


def test_auto_never_waits_past_the_frontier() -> None:
    """A tight head goes although more is to come."""
    assert _opens("auto", _waiting(arrivals=_bursts(), latest_end=0.0085)) == pytest.approx(0.0015)
    assert _opens("auto", _waiting(arrivals=_bursts(), latest_end=0.006)) <= _AT_ONCE


def test_auto_never_waits_without_fixed_cost() -> None:
    """Batching saves nothing there, in a burst or with many replicas."""
    assert _opens("auto", _waiting(_PROPORTIONAL, arrivals=_bursts())) <= _AT_ONCE
    assert _opens("auto", _waiting(_PROPORTIONAL, arrivals=_poisson(2000.0), idle=1, usable=8)) <= _AT_ONCE


def test_auto_defers_when_few_of_several_replicas_are_idle() -> None:
    """At 1,500 requests per second, budgets that small batches would use up, and one of four replicas idle."""
    busy = _waiting(arrivals=_poisson(1500.0), idle=1, usable=4, latest_end=0.02, budget_s=0.02)

    assert _opens("auto", busy) > 0.001
    assert _opens("auto", busy._replace(idle=3)) <= _AT_ONCE, "most are idle"
    assert _opens("auto", busy._replace(budget_s=10.0)) <= _AT_ONCE, "there is time for small batches"
    assert _opens("auto", busy._replace(arrivals=_poisson(50.0))) <= _AT_ONCE, "the load is low"


def test_auto_defers_less_where_executions_scatter() -> None:
    """What waits to the very last moment would be the first to be late; without scatter that moment is exact."""
    busy = _waiting(arrivals=_poisson(1500.0), idle=1, usable=4, latest_end=0.010, budget_s=0.010)
    exact, scattered = _opens("auto", busy), _opens("auto", busy._replace(scatter=0.25))

    assert exact == pytest.approx(busy.frontier())
    assert scattered == pytest.approx(exact - 0.25 * busy.latency.predict(2, 0))


def test_one_replica_does_not_defer() -> None:
    """Nobody else goes on meanwhile: it would be idle."""
    assert _opens("auto", _waiting(arrivals=_poisson(1500.0), latest_end=0.02, budget_s=0.02)) <= 0.001


# ------------------------------------------------------------------ target


def test_target_is_the_tighter_of_slack_and_latency_target() -> None:
    """As long as the head alone can keep it."""
    latency = _waiting().latency

    assert target_s(latency, _settings("auto", slo_s=0.1), 1, 0, 0.05) == 0.05
    assert target_s(latency, _settings("auto", slo_s=0.02), 1, 0, 0.05) == 0.02


def test_a_target_that_the_head_cannot_keep_is_given_up() -> None:
    """The latency target before the deadline; both when neither can be kept."""
    latency = _waiting().latency

    assert target_s(latency, _settings("auto", slo_s=0.001), 1, 0, 0.05) == 0.05
    assert target_s(latency, _settings("auto", slo_s=0.1), 1, 0, 0.005) == 0.1
    assert target_s(latency, _settings("auto", slo_s=0.001), 1, 0, 0.005) == float("inf")
