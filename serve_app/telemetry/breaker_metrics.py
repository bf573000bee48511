"""Circuit breakers and ejections in Prometheus' terms. The label ``variant`` is empty for the exact model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from serve_app.scheduling.health.breaker import State
from serve_app.scheduling.health.breakers import Breakers
from serve_app.telemetry.readings import Gauge, Samples, Total

_LEVELS = {State.CLOSED: 0, State.HALF_OPEN: 1, State.OPEN: 2}
_Models = Mapping[str, Breakers]


def _states(models: _Models) -> Samples:
    for model, breakers in models.items():
        for variant, breaker in breakers.by_variant.items():
            yield (model, variant), _LEVELS[breaker.state]


def _transitions(models: _Models) -> Samples:
    for model, breakers in models.items():
        for variant, breaker in breakers.by_variant.items():
            for to, count in breaker.moves.items():
                yield (model, variant, to.value), count


def _refused(models: _Models) -> Samples:
    for model, breakers in models.items():
        for variant, count in breakers.refused.items():
            yield (model, variant), count


def _ejections(models: _Models) -> Samples:
    return [((model,), breakers.ejection.count) for model, breakers in models.items()]


BREAKERS: Final = (
    Gauge(
        "serve_app_breaker_state",
        "Circuit breaker: 0 closed, 1 half-open, 2 open.",
        ("model", "variant"),
        _states,
        together=max,
    ),
    Total(
        "serve_app_breaker_transitions",
        "State transitions of circuit breakers, by new state.",
        ("model", "variant", "to"),
        _transitions,
    ),
    Total(
        "serve_app_breaker_refused",
        "Requests refused because the circuit breaker of what they asked for was open.",
        ("model", "variant"),
        _refused,
    ),
    Total("serve_app_ejections", "Replicas ejected as outliers.", ("model",), _ejections),
)
"""Read of `Scheduler.breakers`."""
