"""What Prometheus is told of connections to the routers' own port for HTTP."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from serve_app.http.listener import Listener


class ConnectionsCollector(Collector):
    """Reads a listener's counts when Prometheus asks."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def collect(self) -> Iterator[Metric]:
        """Yield how many connections were turned away, and how many had to go for others."""
        yield CounterMetricFamily(
            "serve_app_connections_refused",
            "Connections to direct_port turned away: too many, in all or of one address.",
            value=self._listener.refused,
        )
        yield CounterMetricFamily(
            "serve_app_connections_evicted",
            "Connections to direct_port that asked nothing and were closed to make room for others.",
            value=self._listener.evicted,
        )
