"""Metrics of API keys."""

from __future__ import annotations

from typing import Final

from serve_app.access.guard import Guard
from serve_app.telemetry.readings import Gauge, Total

KEYS: Final[tuple[Gauge[Guard], ...]] = (
    Total(
        "serve_app_key_requests",
        "Requests by the name of their API key: admitted, rate_limited, or unauthenticated (without a name).",
        ("key", "outcome"),
        lambda guard: guard.counts.items(),
    ),
    Total(
        "serve_app_key_reloads",
        "Attempts to read changed API keys: ok or failed.",
        ("outcome",),
        lambda guard: [((outcome,), count) for outcome, count in guard.reloads.items()],
    ),
    Gauge("serve_app_keys", "API keys in use.", (), lambda guard: [((), guard.number)]),
    Gauge(
        "serve_app_keys_loaded_timestamp_seconds",
        "Unix time of the last successful load of the API keys.",
        (),
        lambda guard: [((), guard.loaded_at)],
    ),
)
"""Read of a `Guard`."""
