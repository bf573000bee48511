"""What Prometheus is told of models that are served in several versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from serve_app.telemetry.readings import Gauge


class TrafficReading(NamedTuple):
    """How the requests of one model are spread.

    Attributes:
        revision: Of its table.
        shares: Parts of the requests that name no version, by what metrics call the version; all versions.
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
