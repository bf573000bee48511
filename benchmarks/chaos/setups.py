"""What the scenarios serve."""

from __future__ import annotations

from typing import Any

from benchmarks.chaos.server import Setup
from benchmarks.chaos.stage import mix_of

HEALTH = {"check_period_s": 1.0, "check_timeout_s": 3.0}
"""Replicas are asked every second, so that what is found dead or wedged is so within seconds."""

DEMO_MIX = mix_of({"tiny": 0.5, "digits": 0.25, "minilm": 0.15, "spoken-digits": 0.1})


def demo(replicas: int) -> list[dict[str, Any]]:
    """The demo's models and `tiny`. No fallbacks: every answer is the exact model's."""
    models: list[dict[str, Any]] = [
        {"name": "tiny", "path": "models/tiny", "batching": {"max_rows": 64, "slo_ms": 50}},
        {"name": "digits", "task": "image-classification", "path": "models/digits"},
        {"name": "minilm", "task": "feature-extraction", "path": "models/minilm"},
        {
            "name": "spoken-digits",
            "task": "audio-classification",
            "path": "models/spoken-digits",
            "processor": {"max_seconds": 10},
        },
    ]
    return [fixed(model, replicas) for model in models]


def fixed(model: dict[str, Any], replicas: int) -> dict[str, Any]:
    """The model with so many replicas, looked after often."""
    return {
        **model,
        "autoscaling": {"min_replicas": replicas, "max_replicas": replicas},
        "resources": {"cpus": 0.1},
        "health": dict(HEALTH),
    }


QUEUES = {"high": {"queue": 128}, "normal": {"queue": 512}, "low": {"queue": 512}}
"""So that two routers with all that these models have in flight stay below HAProxy's 4,096 connections."""

PAIRS = Setup("pairs", demo(2), router={"replicas": 2, "limits": {"headroom": 128}}, classes=QUEUES)
"""Two routers, and two replicas of every model."""

SINGLES = Setup("singles", demo(1))
"""One router, and one replica of every model."""
