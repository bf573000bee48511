"""Generated arrivals: their rates, how they vary, and whose they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulation_builders import HIGH, LOW, NORMAL, make_model, make_scenario

from serve_app.domain.priority import Priority
from serve_app_simulator.scenario import Stream
from serve_app_simulator.workloads import Arrivals, generate


def _arrivals(*streams: Stream, seed: int = 1, duration_s: float = 1000.0, **more: Any) -> Arrivals:
    return generate(make_scenario(*streams, duration_s=duration_s, **more), seed)


def _cv(arrivals: Arrivals) -> float:
    gaps = np.diff(arrivals.arrival)
    return float(gaps.std() / gaps.mean())


def test_poisson_arrivals_have_their_rate_and_exponential_gaps() -> None:
    """The number and the gaps' variation are those of theory within their own scatter."""
    arrivals = _arrivals(Stream("poisson", "m", rate=50.0, timeout_s=0.2, rows=3, bucket=128))
    assert abs(len(arrivals) - 50_000) < 4 * np.sqrt(50_000)
    assert 1.0 == pytest.approx(_cv(arrivals), abs=0.03)
    assert np.allclose(arrivals.deadline - arrivals.arrival, 0.2)
    assert {3} == set(arrivals.rows)
    assert {128} == set(arrivals.bucket)
    assert {-1} == set(arrivals.stream)


@pytest.mark.parametrize("cv", [0.5, 1.0, 4.0, 8.0])
def test_gamma_arrivals_have_their_rate_and_variation(cv: float) -> None:
    """Over many seeds the mean count is the rate's, also for the burstiest, and the gaps vary as asked for."""
    counts = [
        len(_arrivals(Stream("gamma", "m", rate=100.0, cv=cv), seed=seed, duration_s=100.0)) for seed in range(40)
    ]
    spread = cv * np.sqrt(10_000)
    assert 10_000 == pytest.approx(np.mean(counts), abs=4 * spread / np.sqrt(40))
    assert cv == pytest.approx(_cv(_arrivals(Stream("gamma", "m", rate=100.0, cv=cv), duration_s=5_000.0)), rel=0.05)


def test_periodic_arrivals_have_equal_gaps_and_a_random_phase() -> None:
    """Also between a stream's own beginning and end."""
    stream = Stream("periodic", "m", rate=10.0, start_s=5.0, end_s=20.0)
    arrivals, others = _arrivals(stream), _arrivals(stream, seed=2)
    assert 150 == len(arrivals)
    assert np.allclose(np.diff(arrivals.arrival), 0.1)
    assert 5.0 <= arrivals.arrival[0] < 5.1
    assert arrivals.arrival[0] != others.arrival[0]


def test_a_flash_crowd_multiplies_the_rate_for_its_time() -> None:
    """And only then."""
    arrivals = _arrivals(Stream("flash_crowd", "m", rate=100.0, surge=3.0, surge_at_s=400.0, surge_s=60.0))
    within = (arrivals.arrival >= 400.0) & (arrivals.arrival < 460.0)
    assert 18_000 == pytest.approx(within.sum(), rel=0.03)
    assert 94_000 == pytest.approx((~within).sum(), rel=0.02)


def test_video_streams_send_a_frame_per_gap_each_at_its_phase() -> None:
    """Streams are numbered over the whole scenario."""
    streams = (Stream("video", "m", streams=3, fps=30.0), Stream("video", "m", streams=2, fps=10.0, jitter=0.5))
    arrivals = _arrivals(*streams, duration_s=100.0)
    assert {0, 1, 2, 3, 4} == set(arrivals.stream)
    starts = set()
    for number in range(5):
        times = arrivals.arrival[arrivals.stream == number]
        gap, jitter = (1 / 30, 0.0) if number < 3 else (0.1, 0.05)
        starts.add(round(float(times[0]), 6))
        assert 100.0 / gap == pytest.approx(len(times), abs=1.01)
        assert np.all(np.abs(np.diff(times) - gap) <= jitter + 1e-9)
        assert (float(np.diff(times).std()) > 0.005) is (jitter > 0.0)
    assert 5 == len(starts)


def test_a_long_tail_spreads_requests_by_zipfs_law() -> None:
    """The first model gets twice as many as the second and three times as many as the third."""
    models = tuple(make_model(f"m{number}") for number in range(3))
    arrivals = _arrivals(Stream("long_tail", rate=110.0, exponent=1.0), models=models)
    shares = np.bincount(arrivals.model) / len(arrivals)
    assert [6 / 11, 3 / 11, 2 / 11] == pytest.approx(shares.tolist(), abs=0.01)


def test_classes_have_their_shares_and_deadlines() -> None:
    """A class without a deadline of its own has the stream's."""
    share = {HIGH: 0.1, NORMAL: 0.3, LOW: 0.6}
    arrivals = _arrivals(
        Stream("poisson", "m", rate=50.0, timeout_s=1.0, share=share, timeouts_s={HIGH: 0.1, LOW: 5.0})
    )
    timeouts = arrivals.deadline - arrivals.arrival
    for priority, timeout_s in ((HIGH, 0.1), (NORMAL, 1.0), (LOW, 5.0)):
        group = arrivals.priority == priority
        assert share[priority] == pytest.approx(group.mean(), abs=0.01)
        assert np.allclose(timeouts[group], timeout_s)


def test_a_trace_is_taken_as_it_is_from_its_beginning_to_the_end_of_the_scenario(tmp_path: Path) -> None:
    """``start_s`` shifts it; what would arrive at the end or later is left out."""
    path = tmp_path / "trace.csv"
    path.write_text("arrival,model,class,rows,deadline\n0.5,m,high,2,0.25\n1.5,m,low,1,2\n2,m,low,1,2\n")
    arrivals = _arrivals(Stream("trace", path=str(path), start_s=1.0), duration_s=3.0)
    assert [1.5, 2.5] == arrivals.arrival.tolist()
    assert [1.75, 4.5] == arrivals.deadline.tolist()
    assert [1, 3] == arrivals.priority.tolist()
    assert [2, 1] == arrivals.rows.tolist()


def test_every_stream_draws_for_itself() -> None:
    """Another stream beside it, or another rate there, leaves a stream's arrivals as they are."""
    first = Stream("poisson", "m", rate=10.0, rows=1)
    alone = _arrivals(first)
    for rate in (5.0, 7.0):
        beside = _arrivals(first, Stream("gamma", "m", rate=rate, cv=3.0, rows=2))
        assert alone.arrival.tolist() == beside.arrival[beside.rows == 1].tolist()


_STREAMS = st.builds(
    Stream,
    st.sampled_from(["poisson", "gamma", "periodic", "flash_crowd", "video", "long_tail"]),
    st.just("m"),
    rate=st.floats(0.1, 50.0),
    cv=st.floats(0.2, 6.0),
    start_s=st.floats(0.0, 30.0),
    end_s=st.none() | st.floats(0.0, 30.0),
    surge_at_s=st.floats(0.0, 30.0),
    surge_s=st.floats(0.0, 30.0),
    streams=st.integers(1, 5),
    jitter=st.floats(0.0, 1.0),
    share=st.sampled_from([{}, {HIGH: 0.5, LOW: 0.5}]),
)


@given(st.lists(_STREAMS, max_size=4), st.integers(0, 2**31))
def test_arrivals_are_sorted_repeatable_and_within_the_scenario(streams: list[Stream], seed: int) -> None:
    """Whatever the streams are; requests carry what the columns say."""
    arrivals = _arrivals(*streams, seed=seed, duration_s=20.0)
    again = _arrivals(*streams, seed=seed, duration_s=20.0)
    assert np.all(np.diff(arrivals.arrival) >= 0.0)
    assert np.all((arrivals.arrival >= 0.0) & (arrivals.arrival < 20.0))
    assert np.all(arrivals.deadline > arrivals.arrival)
    assert arrivals.arrival.tolist() == again.arrival.tolist()
    requests = list(arrivals.requests())
    assert list(range(len(arrivals))) == [request.id for request in requests]
    assert arrivals.deadline.tolist() == [request.deadline for request in requests]
    assert arrivals.priority.tolist() == [int(request.priority) for request in requests]
    assert all(isinstance(request.priority, Priority) for request in requests)


def test_more_requests_than_a_chunk_keep_their_order() -> None:
    """Requests are made in chunks, without a seam."""
    arrivals = _arrivals(Stream("poisson", "m", rate=100.0))
    ids: Mapping[int, float] = {request.id: request.arrival for request in arrivals.requests()}
    assert arrivals.arrival.tolist() == [ids[number] for number in range(len(arrivals))]


def test_mmpp_arrivals_have_their_mean_rate_and_two_levels() -> None:
    """The mean over both states is the rate; counts per second are those of either, twenty times apart."""
    duration_s, surge_s, quiet_s = 20_000.0, 10.0, 30.0  # five hundred of both, and few seconds belong to two of them
    stream = Stream("mmpp", "m", rate=100.0, surge=20.0, surge_s=surge_s, quiet_s=quiet_s, timeout_s=0.1)
    arrivals = _arrivals(stream, duration_s=duration_s)
    assert 100.0 == pytest.approx(len(arrivals) / duration_s, rel=0.1)
    counts = np.bincount(arrivals.arrival.astype(np.int64))
    low = 100.0 * (surge_s + quiet_s) / (20.0 * surge_s + quiet_s)
    assert low == pytest.approx(np.quantile(counts, 0.4), rel=0.2)
    assert 20.0 * low == pytest.approx(np.quantile(counts, 0.9), rel=0.05)
    assert np.array_equal(arrivals.arrival, _arrivals(stream, duration_s=duration_s).arrival)


def test_requests_carry_their_tenant() -> None:
    """Two streams of one tenant count together; a stream without one is nobody's."""
    arrivals = _arrivals(
        Stream("periodic", "m", rate=1.0, tenant="a"),
        Stream("periodic", "m", rate=2.0, tenant="b"),
        Stream("periodic", "m", rate=3.0, tenant="a"),
        Stream("periodic", "m", rate=4.0),
        duration_s=10.0,
    )
    assert ("", "a", "b") == arrivals.tenants
    assert [40, 40, 20] == np.bincount(arrivals.tenant).tolist()
    assert {"": 40, "a": 40, "b": 20} == Counter(request.tenant for request in arrivals.requests())
