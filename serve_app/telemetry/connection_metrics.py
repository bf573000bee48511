"""Metrics of connections to the routers' own HTTP port, and of requests that never started."""

from __future__ import annotations

from typing import Final

from serve_app.domain.priority import Priority
from serve_app.http.listener import Listener
from serve_app.http.turns import Turns
from serve_app.telemetry.readings import Gauge, Total

CONNECTIONS: Final[tuple[Gauge[Listener], ...]] = (
    Total(
        "serve_app_connections_refused",
        "Connections to the routers' HTTP port rejected: too many, in all or from one address.",
        (),
        lambda listener: [((), listener.refused)],
    ),
    Total(
        "serve_app_connections_evicted",
        "Idle connections to the routers' HTTP port closed to admit new ones.",
        (),
        lambda listener: [((), listener.evicted)],
    ),
)
"""Read of a `Listener`."""

TURNS: Final[tuple[Gauge[Turns], ...]] = (
    Total(
        "serve_app_requests_shed",
        "Requests refused before anything of them was decoded: the router was busy with others.",
        ("priority",),
        lambda turns: [((priority.label,), turns.refused[priority]) for priority in Priority],
    ),
)
"""Read of `Turns`."""
