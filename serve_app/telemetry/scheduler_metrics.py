"""Metrics of the scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from serve_app.telemetry.readings import Gauge, Samples, Total

_Models = Mapping[str, Mapping[str, Any]]


def _of_model(read: Callable[[Mapping[str, Any]], float]) -> Callable[[_Models], Samples]:
    return lambda models: [((model,), read(state)) for model, state in models.items()]


def _of_queue(key: str) -> Callable[[_Models], Samples]:
    return lambda models: [
        ((model, label), queue[key]) for model, state in models.items() for label, queue in state["queues"].items()
    ]


def _tasks(_: _Models) -> Samples:
    """Tasks of the running event loop, if any: growth reveals tasks that never end."""
    try:
        return [((), len(asyncio.all_tasks()))]
    except RuntimeError:
        return ()


SCHEDULER: Final = (
    Gauge("serve_app_queue_entries", "Entries waiting in the router.", ("model", "priority"), _of_queue("entries")),
    Gauge("serve_app_queue_rows", "Rows waiting in the router.", ("model", "priority"), _of_queue("rows")),
    Gauge("serve_app_queue_bytes", "Bytes waiting in the router.", ("model", "priority"), _of_queue("bytes")),
    Gauge(
        "serve_app_running_rows",
        "Rows sent to replicas.",
        ("model",),
        _of_model(lambda state: state["running_rows"]),
    ),
    Gauge(
        "serve_app_replicas",
        "Replicas known to the router.",
        ("model",),
        _of_model(lambda state: len(state["replicas"])),
    ),
    Gauge("serve_app_slots_in_use", "Bundles in flight.", ("model",), _of_model(lambda state: state["slots_in_use"])),
    Gauge(
        "serve_app_replicas_held",
        "Replicas excluded from dispatch: failed, ejected or unresponsive.",
        ("model",),
        _of_model(lambda state: len(state["held_replicas"])),
    ),
    Gauge(
        "serve_app_replicas_silent",
        "Unresponsive replicas that have requests in flight.",
        ("model",),
        _of_model(lambda state: len(state["silent_replicas"])),
    ),
    Total(
        "serve_app_wasted_rows",
        "Rows executed whose results were not used.",
        ("model",),
        _of_model(lambda state: state["wasted_rows"]),
    ),
    Gauge("serve_app_tasks", "Tasks of the router's event loop.", (), _tasks),
)
"""Read of `Scheduler.snapshot`."""

DEVICES: Final = (
    Gauge[_Models](
        "serve_app_replica_devices",
        "Replicas by device: cpu, or a GPU by its index on the node and its name.",
        ("model", "device"),
        lambda models: [
            ((model, name), count) for model, told in models.items() for name, count in told.get("devices", {}).items()
        ],
    ),
)
"""Read of what replicas have told, by model."""
