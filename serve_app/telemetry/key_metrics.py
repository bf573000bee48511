"""What Prometheus is told of API keys."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from serve_app.access.guard import Guard


class KeysCollector(Collector):
    """Reads a guard's counts when Prometheus asks."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    def collect(self) -> Iterator[Metric]:
        """Yield uses by key, and how reading the keys went."""
        guard = self._guard
        uses = CounterMetricFamily(
            "serve_app_key_requests",
            "Requests by the name of their API key: admitted, rate_limited, or unauthenticated (without a name).",
            labels=("key", "outcome"),
        )
        for labels, count in guard.counts.items():
            uses.add_metric(labels, count)
        reloads = CounterMetricFamily(
            "serve_app_key_reloads", "Attempts to read changed API keys: ok or failed.", labels=("outcome",)
        )
        for outcome, count in guard.reloads.items():
            reloads.add_metric((outcome,), count)
        yield from (uses, reloads)
        yield GaugeMetricFamily("serve_app_keys", "API keys that count.", value=guard.number)
        yield GaugeMetricFamily(
            "serve_app_keys_loaded_timestamp_seconds", "When the API keys that count were read.", value=guard.loaded_at
        )
