"""Metrics of pipelines: requests and steps."""

from __future__ import annotations

from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry

from serve_app.domain.priority import Priority
from serve_app.domain.service import Answer
from serve_app.telemetry.metrics import LATENCY_BUCKETS, ModelStatistics
from serve_app.telemetry.series import Counter, Distribution, Family, histogram


@dataclass(slots=True)
class _PipelineAnswers:
    """Series of answered requests of one pipeline and class."""

    latency: Distribution = field(
        metadata=histogram(
            "serve_app_pipeline_seconds",
            "From the arrival at the first step to the last result, answered requests of pipelines.",
            ("pipeline", "priority"),
            LATENCY_BUCKETS,
        )
    )


@dataclass(slots=True)
class _Step:
    """Series of a step of one pipeline."""

    seconds: Distribution = field(
        metadata=histogram(
            "serve_app_pipeline_step_seconds",
            "One step of a pipeline that is a model: its queueing, its run, and of a map all parts.",
            ("pipeline", "step"),
            LATENCY_BUCKETS,
        )
    )


class PipelineMetrics:
    """Counts pipelines' events.

    Args:
        registry: Of the router's metrics.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "serve_app_pipeline_requests",
            "Requests to pipelines by how they ended: ok, cancelled, or the error's code.",
            ("pipeline", "priority", "outcome"),
        )
        self._steps = Counter(
            "serve_app_pipeline_steps",
            "Steps of pipelines that are models by how they ended: ok, cancelled, or the error's code.",
            ("pipeline", "step", "outcome"),
        )
        self._answered = Family(_PipelineAnswers)
        self._times = Family(_Step)
        self._statistics: dict[str, ModelStatistics] = {}
        for metric in (self._requests, self._steps, self._answered, self._times):
            registry.register(metric)

    def statistics(self, pipeline: str) -> ModelStatistics:
        """The cumulative numbers of one pipeline."""
        return self._statistics.setdefault(pipeline, ModelStatistics())

    def refused(self, pipeline: str, code: str) -> None:
        """Count a request that never began, of unknown class."""
        self._requests.of(pipeline, "unknown", code).value += 1
        self.statistics(pipeline).failed += 1

    def answered(self, pipeline: str, answer: Answer, arrival: float) -> None:
        """Count an answer.

        Args:
            answer: Its times are sums over the steps.
            arrival: On the dispatcher's clock.
        """
        label = answer.priority.label
        self._requests.of(pipeline, label, "ok").value += 1
        self._answered.of(pipeline, label).latency.observe(answer.total_s)
        statistics = self.statistics(pipeline)
        statistics.succeeded += 1
        statistics.succeeded_s += answer.total_s
        statistics.queue_s += answer.queue_s
        statistics.preprocess_s += answer.preprocess_s
        statistics.execute_s += answer.infer_s
        statistics.postprocess_s += answer.postprocess_s
        statistics.rows += 1
        statistics.last_arrival = arrival

    def failed(self, pipeline: str, priority: Priority, outcome: str, total_s: float) -> None:
        """Count a failed request."""
        self._requests.of(pipeline, priority.label, outcome).value += 1
        statistics = self.statistics(pipeline)
        statistics.failed += 1
        statistics.failed_s += total_s

    def step(self, pipeline: str, step: str, outcome: str, seconds: float) -> None:
        """Count the end of a step."""
        self._steps.of(pipeline, step, outcome).value += 1
        if outcome == "ok":
            self._times.of(pipeline, step).seconds.observe(seconds)
