"""What the router counts, in Prometheus' terms."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from serve_app.payloads import BundleResult
from serve_app.scheduling.entry import Entry, Priority
from serve_app.scheduling.scheduler import Scheduler
from serve_app.telemetry.breaker_metrics import BreakerCollector
from serve_app.telemetry.series import Count, Counter, Distribution, Histogram
from serve_app.telemetry.tenant_metrics import TenantCollector

CONTENT_TYPE = CONTENT_TYPE_LATEST

_LATENCY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_RECOVERY_BUCKETS = (0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)
_ROWS_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class SchedulerCollector(Collector):
    """Reads the scheduler's state when Prometheus asks, so that the request path pays nothing for gauges."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def collect(self) -> Iterator[Metric]:
        """Yield queue, slot and replica gauges, and what hedges there were."""
        entries = GaugeMetricFamily(
            "serve_app_queue_entries", "Entries waiting in the router.", labels=("model", "priority")
        )
        rows = GaugeMetricFamily("serve_app_queue_rows", "Rows waiting in the router.", labels=("model", "priority"))
        nbytes = GaugeMetricFamily(
            "serve_app_queue_bytes", "Bytes waiting in the router.", labels=("model", "priority")
        )
        running = GaugeMetricFamily("serve_app_running_rows", "Rows sent to replicas.", labels=("model",))
        replicas = GaugeMetricFamily("serve_app_replicas", "Replicas within reach of the router.", labels=("model",))
        slots = GaugeMetricFamily("serve_app_slots_in_use", "Bundles in flight.", labels=("model",))
        held = GaugeMetricFamily(
            "serve_app_replicas_held",
            "Replicas without work for now: failed, overdue or silent.",
            labels=("model",),
        )
        silent = GaugeMetricFamily(
            "serve_app_replicas_silent", "Unresponsive replicas that have requests in flight.", labels=("model",)
        )
        hedges = CounterMetricFamily(
            "serve_app_hedges", "Requests also tried elsewhere, since their replica did not answer.", labels=("model",)
        )
        won = CounterMetricFamily(
            "serve_app_hedges_won", "Hedged requests that the other replica answered first.", labels=("model",)
        )
        duplicates = CounterMetricFamily(
            "serve_app_duplicates",
            "Requests answered while another replica had them, too.",
            labels=("model",),
        )
        wasted = CounterMetricFamily("serve_app_wasted_rows", "Rows executed for nobody.", labels=("model",))
        for model, state in self._scheduler.snapshot().items():
            for label, queue in state["queues"].items():
                entries.add_metric((model, label), queue["entries"])
                rows.add_metric((model, label), queue["rows"])
                nbytes.add_metric((model, label), queue["bytes"])
            running.add_metric((model,), state["running_rows"])
            replicas.add_metric((model,), len(state["replicas"]))
            slots.add_metric((model,), state["slots_in_use"])
            held.add_metric((model,), len(state["held_replicas"]))
            silent.add_metric((model,), len(state["silent_replicas"]))
            hedges.add_metric((model,), state["hedges"]["made"])
            won.add_metric((model,), state["hedges"]["won"])
            duplicates.add_metric((model,), state["hedges"]["duplicates"])
            wasted.add_metric((model,), state["wasted_rows"])
        yield from (entries, rows, nbytes, running, replicas, slots, held, silent, hedges, won, duplicates, wasted)
        yield from (_by_former_name("serve_app_rescues", hedges), _by_former_name("serve_app_rescues_won", won))


def _by_former_name(name: str, family: CounterMetricFamily) -> CounterMetricFamily:
    """The same series by the name that they had in version 0.1."""
    former = CounterMetricFamily(name, f"Former name of {family.name}_total, until version 0.2.", labels=("model",))
    for sample in family.samples:
        former.add_metric(tuple(sample.labels.values()), sample.value)
    return former


class TaskCollector(Collector):
    """Counts the asyncio tasks of the event loop that asks: what is never awaited to its end shows as growth."""

    def collect(self) -> Iterator[Metric]:
        """Yield the gauge; nothing outside an event loop."""
        try:
            count = len(asyncio.all_tasks())
        except RuntimeError:
            return
        yield GaugeMetricFamily("serve_app_tasks", "Tasks of the router's event loop.", count)


class RouterMetrics:
    """An `Observer` that counts, with a registry of its own.

    Also keeps plain cumulative numbers per model for the V2 statistics extension.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.requests = Counter(
            "serve_app_requests",
            "Requests by how they ended: ok, cancelled, given_up (dropped unexecuted, since it could not be in time any"
            " more), poisoned (two replicas failed with it), or the error's code.",
            ("model", "priority", "outcome"),
        )
        self.fallbacks = Counter(
            "serve_app_fallback_answers",
            "Requests for the exact model that one of its fallbacks answered.",
            ("model", "priority", "variant"),
        )
        self.latency = Histogram(
            "serve_app_request_seconds",
            "From the arrival at the scheduler to the answer, answered requests.",
            ("model", "priority"),
            _LATENCY_BUCKETS,
        )
        self.queue_time = Histogram(
            "serve_app_queue_seconds",
            "Waiting in the router, answered requests.",
            ("model", "priority"),
            _LATENCY_BUCKETS,
        )
        self.batch_rows = Histogram("serve_app_batch_rows", "Rows per run of the model.", ("model",), _ROWS_BUCKETS)
        self.execution = Histogram("serve_app_execution_seconds", "One run of the model.", ("model",), _LATENCY_BUCKETS)
        self.bundle_entries = Histogram(
            "serve_app_bundle_entries", "Entries per call to a replica that were run.", ("model",), _ROWS_BUCKETS
        )
        self.lost = Counter("serve_app_bundles_lost", "Bundles whose replica died.", ("model",))
        self.silent = Counter("serve_app_silences", "Times that a replica was unresponsive.", ("model",))
        self.recovery = Histogram(
            "serve_app_recovery_seconds",
            "From the loss of a replica, dead or silent, until as many are usable as before.",
            ("model",),
            _RECOVERY_BUCKETS,
        )
        self._of_models = (
            self.requests,
            self.fallbacks,
            self.latency,
            self.queue_time,
            self.batch_rows,
            self.execution,
            self.bundle_entries,
            self.lost,
            self.silent,
            self.recovery,
        )
        self._tenants = TenantCollector()
        self.registry = CollectorRegistry()
        for collector in (
            SchedulerCollector(scheduler),
            BreakerCollector(scheduler),
            self._tenants,
            TaskCollector(),
            *self._of_models,
        ):
            self.registry.register(collector)
        self._answered: dict[tuple[str, Priority], _Answered] = {}
        self._per_model: dict[str, tuple[Distribution, Distribution, Distribution]] = {}
        self._statistics: dict[str, ModelStatistics] = {}

    def forget(self, model: str) -> None:
        """Drop all series and numbers of a model that was removed and of which nothing is under way."""
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
        """Count a request that never became an entry: nobody knows its class.

        Args:
            model: Name of a model; empty for a request that named none that is served.
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
        """Count an answer that was executed for another request.

        Args:
            model: Name of the model.
            priority: The class.
            arrival: When the request came, on the dispatcher's clock.
            queue_s: How long it waited for the other request, seconds.
            total_s: How long it took in all, seconds.
            hit: Whether it was found in the cache; otherwise the other request was still in flight.
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
        """Count an answer that was looked up, executed and kept: what the first and the last took."""
        statistics = self.statistics(model)
        statistics.misses += 1
        statistics.misses_s += seconds

    def fell_back(self, entry: Entry) -> None:
        """Count an answer of a fallback."""
        self.fallbacks.of(entry.model, entry.priority.label, entry.variant).value += 1

    def bundle_done(self, model: str, rows: int, entries: int, result: BundleResult) -> None:
        """Count a bundle and the runs that carried it."""
        children = self._per_model.get(model)
        if children is None:
            children = self._per_model[model] = (
                self.bundle_entries.of(model),
                self.batch_rows.of(model),
                self.execution.of(model),
            )
        children[0].observe(entries)
        statistics = self._statistics.get(model) or self.statistics(model)
        statistics.preprocess_s += result.preprocess_s * entries
        statistics.postprocess_s += result.postprocess_s * entries
        for execution in result.executions:
            if result.counts:
                children[1].observe(execution.rows)
                children[2].observe(execution.seconds)
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
        """Count entries of a bundle that are answered by who asked for them."""
        self._tenants.served(entries, result.executions)

    def replica_lost(self, model: str) -> None:
        """Count a bundle whose replica died."""
        self.lost.of(model).value += 1

    def replica_silent(self, model: str) -> None:
        """Count a replica that was unresponsive."""
        self.silent.of(model).value += 1

    def recovered(self, model: str, seconds: float) -> None:
        """Note how long a model was short of replicas."""
        self.recovery.of(model).observe(seconds)

    def render(self) -> str:
        """This router's page in Prometheus' text format."""
        return generate_latest(self.registry).decode()

    def _outcome(self, model: str, priority: Priority, outcome: str) -> None:
        self.requests.of(model, priority.label, outcome).value += 1

    def _answered_by(self, model: str, priority: Priority) -> _Answered:
        answered = self._answered.get((model, priority))
        if answered is None:
            label = priority.label
            answered = self._answered[model, priority] = _Answered(
                self.requests.of(model, label, "ok"),
                self.latency.of(model, label),
                self.queue_time.of(model, label),
                self.statistics(model),
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

    ``succeeded`` are those that were executed; ``hits`` and ``shared`` were answered by what was executed for others,
    and ``misses`` are those of the executed that had been looked up.
    ``rows`` are those of executed requests, ``executions`` the runs (of those shared with other routers, a part), also
    by their rows in ``batches``, and ``last_arrival`` is on the dispatcher's clock.
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


class _Answered(NamedTuple):
    """What an answered request of one model and class adds to."""

    number: Count
    latency: Distribution
    queue_time: Distribution
    statistics: ModelStatistics


def merge_pages(pages: Iterable[tuple[str, str]]) -> str:
    """Merge the pages of several routers into one, each sample labelled with the router it came from.

    Args:
        pages: Pairs of router name and page in Prometheus' text format.
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
