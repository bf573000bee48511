"""Circuit breakers and ejections in Prometheus' terms, read when it asks."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from serve_app.scheduling.breaker import State
from serve_app.scheduling.scheduler import Scheduler

_LEVELS = {State.CLOSED: 0, State.HALF_OPEN: 1, State.OPEN: 2}


class BreakerCollector(Collector):
    """Reads the breakers of a scheduler's models. The label ``variant`` is empty for the exact model."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def collect(self) -> Iterator[Metric]:
        """Yield states, transitions, refusals and ejections."""
        state = GaugeMetricFamily(
            "serve_app_breaker_state", "Circuit breaker: 0 closed, 1 half-open, 2 open.", labels=("model", "variant")
        )
        moves = CounterMetricFamily(
            "serve_app_breaker_transitions",
            "How often a circuit breaker came to a state.",
            labels=("model", "variant", "to"),
        )
        refused = CounterMetricFamily(
            "serve_app_breaker_refused",
            "Requests refused because the circuit breaker of what they asked for was open.",
            labels=("model", "variant"),
        )
        ejections = CounterMetricFamily(
            "serve_app_ejections", "Replicas ejected because they failed alone.", labels=("model",)
        )
        for model, breakers in self._scheduler.breakers().items():
            for variant, breaker in breakers.by_variant.items():
                state.add_metric((model, variant), _LEVELS[breaker.state])
                for to, count in breaker.moves.items():
                    moves.add_metric((model, variant, to.value), count)
            for variant, count in breakers.refused.items():
                refused.add_metric((model, variant), count)
            ejections.add_metric((model,), breakers.ejection.count)
        yield from (state, moves, refused, ejections)
