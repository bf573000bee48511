"""Metrics of what models compute on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from serve_app.telemetry.readings import Gauge

DEVICES: Final = (
    Gauge[Mapping[str, Mapping[str, Any]]](
        "serve_app_replica_devices",
        "Replicas by what they compute on: cpu, or a GPU by its index on the node and its name.",
        ("model", "device"),
        lambda models: [
            ((model, device), count)
            for model, told in models.items()
            for device, count in told.get("devices", {}).items()
        ],
    ),
)
"""Read of what replicas have told, by model."""
