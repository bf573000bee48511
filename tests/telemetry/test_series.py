"""Counters and histograms without locks, against those of Prometheus' own client."""

from __future__ import annotations

import prometheus_client
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.exposition import generate_latest

from serve_app.telemetry.series import Counter, Histogram

BUCKETS = (0.001, 0.5, 1, 30.0)
LABELS = st.tuples(st.sampled_from("ab"), st.text(max_size=3))


@pytest.fixture(scope="module", autouse=True)
def _without_times_of_creation() -> None:
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]


@given(st.lists(st.tuples(LABELS, st.sampled_from(BUCKETS) | st.floats(0.0, 1e6))))
def test_a_histogram_reads_as_prometheus_own(observed: list[tuple[tuple[str, str], float]]) -> None:
    """The page is the same, values on the bounds of buckets included."""
    registry, ours = (prometheus_client.CollectorRegistry() for _ in range(2))
    theirs = prometheus_client.Histogram("h", "Help.", ("x", "y"), buckets=BUCKETS, registry=registry)
    histogram = Histogram("h", "Help.", ("x", "y"), BUCKETS)
    ours.register(histogram)
    for labels, value in observed:
        theirs.labels(*labels).observe(value)
        histogram.of(*labels).observe(value)
    assert generate_latest(registry) == generate_latest(ours)


@given(st.lists(LABELS))
def test_a_counter_reads_as_prometheus_own(counted: list[tuple[str, str]]) -> None:
    """The page is the same, whatever the labels hold."""
    registry, ours = (prometheus_client.CollectorRegistry() for _ in range(2))
    theirs = prometheus_client.Counter("c", "Help.", ("x", "y"), registry=registry)
    counter = Counter("c", "Help.", ("x", "y"))
    ours.register(counter)
    for labels in counted:
        theirs.labels(*labels).inc()
        counter.of(*labels).value += 1
    assert generate_latest(registry) == generate_latest(ours)
