"""Metrics of tenants."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from serve_app.domain.priority import Priority
from serve_app.payloads import Execution
from serve_app.scheduling.entry import Entry

OTHER: Final = "other"
"""Stands for all tenants that came when `MOST_NAMED` others had been counted."""
MOST_NAMED: Final = 256


class TenantCollector(Collector):
    """Counts executions of answered requests by tenant: each request's share of its batch by rows.

    At most `MOST_NAMED` tenants have their own names; the rest are `OTHER`.
    """

    def __init__(self) -> None:
        self._named: set[str] = set()
        self._seconds: dict[tuple[Priority, str], float] = {}

    def served(self, entries: Iterable[Entry], executions: Sequence[Execution]) -> None:
        """Count answered entries, and their runs."""
        rows, executed_s = 0, 0.0
        for execution in executions:
            rows += execution.rows
            executed_s += execution.seconds
        if not rows:
            return
        per_row_s = executed_s / rows
        seconds, named = self._seconds, self._named
        for entry in entries:
            tenant = entry.attributes.tenant
            key = entry.priority, tenant if tenant in named else self._name(tenant)
            seconds[key] = seconds.get(key, 0.0) + per_row_s * entry.rows

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        served = CounterMetricFamily(
            "serve_app_tenant_served_seconds",
            "Execution time of answered requests by tenant, each with its part of its batch.",
            labels=("priority", "tenant"),
        )
        for (priority, tenant), seconds in self._seconds.items():
            served.add_metric((priority.label, tenant), seconds)
        yield served

    def _name(self, tenant: str) -> str:
        """The name of a tenant without one so far."""
        if len(self._named) >= MOST_NAMED:
            return OTHER
        self._named.add(tenant)
        return tenant
