"""Metrics of models with several versions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from serve_app.telemetry.metrics import RouterMetrics
from serve_app.telemetry.readings import Gauge
from serve_app.telemetry.series import Counter


class TrafficReading(NamedTuple):
    """The split of one model's requests.

    Attributes:
        revision: Of its table.
        shares: Parts of requests without a version, by the versions' names in metrics; all versions.
    """

    revision: int
    shares: Mapping[str, float]


_Models = Mapping[str, TrafficReading]

TRAFFIC: Final[tuple[Gauge[_Models], ...]] = (
    Gauge(
        "serve_app_traffic_share",
        "Part of the requests naming no version that a version answers, of models with several.",
        ("model",),
        lambda models: [((key,), share) for told in models.values() for key, share in told.shares.items()],
    ),
    Gauge(
        "serve_app_traffic_revision",
        "How often the traffic of a model with several versions was changed at run time.",
        ("model",),
        lambda models: [((model,), told.revision) for model, told in models.items()],
    ),
)


def shadow_counter(metrics: RouterMetrics) -> Callable[[str, str], None]:
    """Show the shadow requests; returns a function that counts one by its version's key and its outcome."""
    requests = metrics.show(
        Counter(
            "serve_app_shadow_requests",
            "Copies of requests that a version ran as a shadow: their answers were the same or different, or they"
            " failed, or were dropped, since there was no room.",
            ("model", "outcome"),
            names=metrics.names,
        )
    )

    def count(model: str, outcome: str) -> None:
        requests.of(model, outcome).value += 1

    return count
