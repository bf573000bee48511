"""Metrics of pools' loaded members."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from serve_app.telemetry.readings import Gauge, Samples, Total

_Pools = Mapping[str, Mapping[str, Any]]


def _of_host(read: Callable[[Mapping[str, Any]], float]) -> Callable[[_Pools], Samples]:
    return lambda pools: [
        ((pool, host), read(state)) for pool, known in pools.items() for host, state in known["hosts"].items()
    ]


def _counted(**keys: str) -> Callable[[_Pools], Samples]:
    return lambda pools: [((pool, label), known[key]) for pool, known in pools.items() for label, key in keys.items()]


POOLS: Final[tuple[Gauge[_Pools] | Total[_Pools], ...]] = (
    Gauge(
        "serve_app_pool_members",
        "Models that are members of a pool.",
        ("pool",),
        lambda pools: [((pool,), known["members"]) for pool, known in pools.items()],
    ),
    Gauge(
        "serve_app_pool_resident_members",
        "Members that a host has loaded.",
        ("pool", "host"),
        _of_host(lambda host: host["resident"]),
    ),
    Gauge(
        "serve_app_pool_used_bytes",
        "Bytes that the members hold that a host has loaded, or loads.",
        ("pool", "host"),
        _of_host(lambda host: host["used_bytes"]),
    ),
    Total(
        "serve_app_pool_requests",
        "Requests for members: those of a hit were loaded when it came, those of a miss were not.",
        ("pool", "residency"),
        _counted(hit="hits", miss="misses"),
    ),
    Total(
        "serve_app_pool_loads",
        "Loads by how they ended.",
        ("pool", "outcome"),
        _counted(ok="loads", failed="failed_loads"),
    ),
    Total(
        "serve_app_pool_evictions",
        "Members that were unloaded.",
        ("pool",),
        lambda pools: [((pool,), known["evictions"]) for pool, known in pools.items()],
    ),
)
