"""The router's metrics for Prometheus."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from serve_app.domain.priority import Priority
from serve_app.payloads import BundleResult
from serve_app.scheduling.entry import Entry
from serve_app.scheduling.view import SchedulerView
from serve_app.telemetry.breaker_metrics import BREAKERS
from serve_app.telemetry.model_names import ModelNames
from serve_app.telemetry.readings import Readings
from serve_app.telemetry.scheduler_metrics import SCHEDULER
from serve_app.telemetry.series import Count, Counter, Distribution, Family, Histogram, histogram
from serve_app.telemetry.tenant_metrics import TenantCollector

CONTENT_TYPE = CONTENT_TYPE_LATEST

LATENCY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_RECOVERY_BUCKETS = (0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)
_STREAM_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_ROWS_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
NAMED_MEMBERS: Final = 100
"""Members of pools that have series of their own, by default."""

_Metric = TypeVar("_Metric", Counter, Histogram, Family[Any])


@dataclass(slots=True)
class _Answered:
    """Series of answered requests of one model and class."""

    number: Count
    statistics: ModelStatistics
    latency: Distribution = field(
        metadata=histogram(
            "serve_app_request_seconds",
            "From the arrival at the scheduler to the answer, answered requests.",
            ("model", "priority"),
            LATENCY_BUCKETS,
        )
    )
    queue_time: Distribution = field(
        metadata=histogram(
            "serve_app_queue_seconds",
            "Queueing time of answered requests: in the router and at the replica's gate.",
            ("model", "priority"),
            LATENCY_BUCKETS,
        )
    )


@dataclass(slots=True)
class _Bundles:
    """Series of bundles of one model and their runs."""

    batch_rows: Distribution = field(
        metadata=histogram("serve_app_batch_rows", "Rows per run of the model.", ("model",), _ROWS_BUCKETS)
    )
    execution: Distribution = field(
        metadata=histogram("serve_app_execution_seconds", "One run of the model.", ("model",), LATENCY_BUCKETS)
    )
    entries: Distribution = field(
        metadata=histogram(
            "serve_app_bundle_entries", "Entries per call to a replica that were run.", ("model",), _ROWS_BUCKETS
        )
    )


class RouterMetrics:
    """An `Observer` that counts, with a registry of its own.

    Also keeps plain cumulative numbers per model for the V2 statistics extension.

    Args:
        scheduler: Read at each scrape.
        named_members: Most pool members with series of their own.
    """

    def __init__(self, scheduler: SchedulerView, named_members: int = NAMED_MEMBERS) -> None:
        self.registry = CollectorRegistry()
        self.names = ModelNames(named_members)
        self.registry.register(Readings(SCHEDULER, scheduler.snapshot, self.names))
        self.registry.register(Readings(BREAKERS, scheduler.breakers, self.names))
        self._tenants = TenantCollector()
        self.registry.register(self._tenants)
        self._of_models: list[Counter | Histogram | Family[Any]] = []
        counter, distribution = partial(Counter, names=self.names), partial(Histogram, names=self.names)
        self.requests = self.show(
            counter(
                "serve_app_requests",
                "Requests by how they ended: ok, cancelled, given_up (dropped unexecuted, since it could not be in time"
                " any more), poisoned (two replicas failed with it), or the error's code.",
                ("model", "priority", "outcome"),
            )
        )
        self._fallbacks = self.show(
            counter(
                "serve_app_fallback_answers",
                "Requests for the exact model that one of its fallbacks answered.",
                ("model", "priority", "variant"),
            )
        )
        self._lost = self.show(counter("serve_app_bundles_lost", "Bundles whose replica died.", ("model",)))
        self._silent = self.show(counter("serve_app_silences", "Times that a replica was unresponsive.", ("model",)))
        self._parts = self.show(counter("serve_app_stream_parts", "Parts of answers that came in parts.", ("model",)))
        self._streams = self.show(
            counter(
                "serve_app_streams",
                "Answers in parts, of which one has come at least, by how they ended: ok, cancelled, the error's code.",
                ("model", "outcome"),
            )
        )
        self._stream_times = self.show(
            distribution(
                "serve_app_stream_seconds",
                "From the arrival at the scheduler to the last part, of answers that came in parts.",
                ("model",),
                _STREAM_BUCKETS,
            )
        )
        self._recovery = self.show(
            distribution(
                "serve_app_recovery_seconds",
                "From the loss of a replica, dead or silent, until as many are usable as before.",
                ("model",),
                _RECOVERY_BUCKETS,
            )
        )
        self._answers = self.show(Family(_Answered, names=self.names))
        self._bundles = self.show(Family(_Bundles, names=self.names))
        self._answered: dict[tuple[str, Priority], _Answered] = {}
        self._per_model: dict[str, _Bundles] = {}
        self._statistics: dict[str, ModelStatistics] = {}

    def show(self, metric: _Metric) -> _Metric:
        """Register a metric, whose series are dropped with the model of their first label."""
        self.registry.register(metric)
        self._of_models.append(metric)
        return metric

    def forget(self, model: str) -> None:
        """Drop all series and numbers of a removed model without work in progress."""
        for metric in self._of_models:
            metric.forget(model)
        self._answered = {key: series for key, series in self._answered.items() if key[0] != model}
        self._per_model.pop(model, None)
        self._statistics.pop(model, None)

    def statistics(self, model: str) -> ModelStatistics:
        """The cumulative numbers of one model."""
        statistics = self._statistics.get(model)
        if statistics is None:
            statistics = self._statistics[model] = ModelStatistics()
        return statistics

    def rejected(self, model: str, priority: Priority, code: str) -> None:
        """Count a refusal."""
        self._outcome(model, priority, code)
        self.statistics(model).failed += 1

    def refused(self, model: str, code: str) -> None:
        """Count a request that never became an entry, of unknown class.

        Args:
            model: Empty if no served model was named.
            code: Of the error.
        """
        self.requests.of(model or "unknown", "unknown", code).value += 1
        if model:
            self.statistics(model).failed += 1

    def ended(self, entry: Entry, outcome: str, queue_s: float, total_s: float) -> None:
        """Count the end of an accepted entry."""
        if outcome != "ok":
            self._outcome(entry.model, entry.priority, outcome)
            statistics = self.statistics(entry.model)
            statistics.failed += 1
            statistics.failed_s += total_s
            return
        model, priority = entry.model, entry.priority
        answered = self._answered.get((model, priority)) or self._answered_by(model, priority)
        answered.number.value += 1
        answered.latency.observe(total_s)
        answered.queue_time.observe(queue_s)
        statistics = answered.statistics
        statistics.succeeded += 1
        statistics.succeeded_s += total_s
        statistics.queue_s += queue_s
        statistics.rows += entry.rows
        statistics.last_arrival = entry.arrival

    def answered_from_cache(
        self, model: str, priority: Priority, arrival: float, queue_s: float, total_s: float, *, hit: bool
    ) -> None:
        """Count an answer from another request's execution.

        Args:
            arrival: On the dispatcher's clock.
            queue_s: Wait for the other request, seconds.
            total_s: Total time, seconds.
            hit: Whether it was in the cache; otherwise the other request was in flight.
        """
        answered = self._answered_by(model, priority)
        answered.number.value += 1
        answered.latency.observe(total_s)
        answered.queue_time.observe(queue_s)
        statistics = answered.statistics
        if hit:
            statistics.hits += 1
            statistics.hits_s += total_s
        else:
            statistics.shared += 1
            statistics.shared_s += total_s
        statistics.last_arrival = arrival

    def cache_missed(self, model: str, seconds: float) -> None:
        """Count an executed and stored answer, with the time of lookup and storage."""
        statistics = self.statistics(model)
        statistics.misses += 1
        statistics.misses_s += seconds

    def part(self, model: str) -> None:
        """Count a part of an answer."""
        self._parts.of(model).value += 1

    def stream_ended(self, model: str, outcome: str, seconds: float) -> None:
        """Count the end of a streamed answer."""
        self._streams.of(model, outcome).value += 1
        if outcome == "ok":
            self._stream_times.of(model).observe(seconds)

    def fell_back(self, entry: Entry) -> None:
        """Count an answer of a fallback."""
        self._fallbacks.of(entry.model, entry.priority.label, entry.variant).value += 1

    def bundle_done(self, model: str, rows: int, entries: int, result: BundleResult) -> None:
        """Count a bundle and the runs that carried it."""
        bundles = self._per_model.get(model)
        if bundles is None:
            bundles = self._per_model[model] = self._bundles.of(model)
        bundles.entries.observe(entries)
        statistics = self._statistics.get(model) or self.statistics(model)
        statistics.preprocess_s += result.preprocess_s * entries
        statistics.postprocess_s += result.postprocess_s * entries
        for execution in result.executions:
            if result.counts:
                bundles.batch_rows.observe(execution.rows)
                bundles.execution.observe(execution.seconds)
            statistics.execute_s += execution.seconds * entries
            # A replica may run several bundles at once, and each of them tells of the run: together they count it once.
            part = min(1.0, rows / execution.rows)
            statistics.executions += part
            batch = statistics.batches.get(execution.rows)
            if batch is None:
                batch = statistics.batches[execution.rows] = BatchStatistics()
            batch.executions += part
            batch.preprocess_s += result.preprocess_s / len(result.executions)
            batch.execute_s += execution.seconds * part
            batch.postprocess_s += result.postprocess_s / len(result.executions)

    def served(self, entries: Sequence[Entry], result: BundleResult) -> None:
        """Count answered entries of a bundle."""
        self._tenants.served(entries, result.executions)

    def replica_lost(self, model: str) -> None:
        """Count a bundle whose replica died."""
        self._lost.of(model).value += 1

    def replica_unresponsive(self, model: str) -> None:
        """Count a replica that was unresponsive."""
        self._silent.of(model).value += 1

    def recovered(self, model: str, seconds: float) -> None:
        """Record how long a model had too few replicas."""
        self._recovery.of(model).observe(seconds)

    def render(self) -> str:
        """This router's page in Prometheus' text format."""
        self.names.settle(self._statistics)
        return generate_latest(self.registry).decode()

    def _outcome(self, model: str, priority: Priority, outcome: str) -> None:
        self.requests.of(model, priority.label, outcome).value += 1

    def _answered_by(self, model: str, priority: Priority) -> _Answered:
        answered = self._answered.get((model, priority))
        if answered is None:
            label = priority.label
            answered = self._answered[model, priority] = self._answers.of(
                model, label, number=self.requests.of(model, label, "ok"), statistics=self.statistics(model)
            )
        return answered


class BatchStatistics:
    """Cumulative numbers of a model's runs with one number of rows. Times are sums over runs, seconds."""

    __slots__ = ("execute_s", "executions", "postprocess_s", "preprocess_s")

    def __init__(self) -> None:
        self.executions = 0.0
        self.preprocess_s = 0.0
        self.execute_s = 0.0
        self.postprocess_s = 0.0


class ModelStatistics:
    """Cumulative numbers of one model in one router. Times are sums over requests, seconds.

    ``succeeded`` were executed; ``hits`` and ``shared`` were answered from others' executions, and ``misses`` are
    executed ones after a lookup. ``rows`` are those of executed requests, ``executions`` the runs (a part of those
    shared with other routers), also by rows in ``batches``, and ``last_arrival`` is on the dispatcher's clock.
    """

    __slots__ = (
        "batches",
        "execute_s",
        "executions",
        "failed",
        "failed_s",
        "hits",
        "hits_s",
        "last_arrival",
        "misses",
        "misses_s",
        "postprocess_s",
        "preprocess_s",
        "queue_s",
        "rows",
        "shared",
        "shared_s",
        "succeeded",
        "succeeded_s",
    )

    def __init__(self) -> None:
        self.succeeded = 0
        self.succeeded_s = 0.0
        self.failed = 0
        self.failed_s = 0.0
        self.hits = 0
        self.hits_s = 0.0
        self.misses = 0
        self.misses_s = 0.0
        self.shared = 0
        self.shared_s = 0.0
        self.queue_s = 0.0
        self.preprocess_s = 0.0
        self.execute_s = 0.0
        self.postprocess_s = 0.0
        self.executions = 0.0
        self.rows = 0
        self.batches: dict[int, BatchStatistics] = {}
        self.last_arrival: float | None = None


def merge_pages(pages: Iterable[tuple[str, str]]) -> str:
    """Merge several routers' pages, with the router as a label of each sample.

    Args:
        pages: Router name and page in Prometheus' text format.
    """
    families: dict[str, list[str]] = {}
    for router, page in pages:
        for family in text_string_to_metric_families(page):
            # The parser strips the suffix of a counter; in this format the declaration carries it.
            name = f"{family.name}_total" if family.type == "counter" else family.name
            lines = families.setdefault(name, [f"# HELP {name} {family.documentation}", f"# TYPE {name} {family.type}"])
            for sample in family.samples:
                labels = {**sample.labels, "router": router}
                rendered = ",".join(f'{key}="{_escape(value)}"' for key, value in labels.items())
                lines.append(f"{sample.name}{{{rendered}}} {sample.value}")
    return "".join(f"{line}\n" for lines in families.values() for line in lines)


def _escape(value: str) -> str:
    return re.sub(r'["\\\n]', lambda match: {'"': '\\"', "\\": "\\\\", "\n": "\\n"}[match.group()], value)
