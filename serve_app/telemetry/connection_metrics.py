"""What Prometheus is told of connections to the routers' own port for HTTP."""

from __future__ import annotations

from typing import Final

from serve_app.http.listener import Listener
from serve_app.scheduling.entry import Priority
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
    Total(
        "serve_app_requests_shed",
        "Requests to the routers' HTTP port refused before anything was decoded: the router was busy with others.",
        ("priority",),
        lambda listener: [((priority.label,), listener.turned_down[priority]) for priority in Priority],
    ),
)
"""Read of a `Listener`."""
