"""What Prometheus is told of tenants."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from serve_app.scheduling.scheduler import Scheduler


class TenantCollector(Collector):
    """Reads the scheduler's counts when Prometheus asks."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def collect(self) -> Iterator[Metric]:
        """Yield what tenants were given."""
        served = CounterMetricFamily(
            "serve_app_tenant_served_seconds",
            "Execution time of answered requests by tenant, each with its part of its batch.",
            labels=("priority", "tenant"),
        )
        for (priority, tenant), seconds in self._scheduler.served_s().items():
            served.add_metric((priority.label, tenant), seconds)
        yield served
