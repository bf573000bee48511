"""The budget of requests: everything waiting or running must fit through the ports in front of the router.

Ray Serve admits at most ``max_ongoing_requests`` per router replica, and HAProxy ``maxconn`` connections per node. More
wait outside in order of arrival, where priorities are unknown. So all queues, all work in flight and some headroom must
fit: then a full queue of a low class never locks out a high one. Unset limits are computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MAXCONN_VARIABLE = "RAY_SERVE_HAPROXY_MAXCONN"
"""Environment variable that sets HAProxy's connection limit."""

HAPROXY_VARIABLE = "RAY_SERVE_ENABLE_HA_PROXY"
"""Environment variable that puts HAProxy in front of the routers, where it is 1."""

DEFAULT_MAXCONN = 4096
"""Connections that Ray Serve lets its HAProxy hold when the variable is not set."""

DEFAULT_ONGOING = 4096
"""Least requests that Ray Serve lets into a router at once, unless the file says otherwise."""

_LISTED = 8
"""How many parts of a sum a message names."""

_SPARE_FILES = 512
"""Files that HAProxy opens besides its connections: listeners, checks, log."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Most requests that one router process may have to hold.

    Attributes:
        queues: Queue limit by class.
        in_flight: Rows in flight by model, over all replicas. Each may be a request.
        headroom: Further free requests.
    """

    queues: Mapping[str, int]
    in_flight: Mapping[str, int]
    headroom: int

    @property
    def requests(self) -> int:
        """Their sum."""
        return sum(self.queues.values()) + sum(self.in_flight.values()) + self.headroom

    def problem(self, limit: int, routers: int = 1) -> str | None:
        """Why a limit is too small, with the numbers and the remedy, if it is.

        Args:
            limit: Concurrent requests of a port.
            routers: Router processes behind that port.
        """
        needed = self.requests * routers
        if needed <= limit:
            return None
        times = "" if routers == 1 else f" for each of {routers} routers"
        return (
            f"{limit} is too small: queues ({_sum(self.queues)}) + in flight ({_sum(self.in_flight)})"
            f" + headroom ({self.headroom}) = {self.requests} requests{times}; raise it to at least {needed},"
            f" or lower classes.*.queue, autoscaling.max_replicas or batching.max_rows"
        )


def fitting_connections(files: int) -> int:
    """HAProxy's connections for this many open files.

    A connection takes a client's and a router's socket, and half a file of the pipes that HAProxy keeps for a quarter
    of the connections, since Ray Serve enables splicing.
    """
    return max(0, (files - _SPARE_FILES) * 2 // 5)


def _sum(parts: Mapping[str, int]) -> str:
    listed = [f"{number} {name}" for name, number in parts.items()]
    if len(listed) > _LISTED:
        rest = list(parts.values())[_LISTED:]
        listed = [*listed[:_LISTED], f"{sum(rest)} of {len(rest)} more"]
    return " + ".join(listed)
