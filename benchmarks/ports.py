"""Free ports for servers that run beside others: their own, and all that Serve and HAProxy take."""

from __future__ import annotations

import random
from pathlib import Path

from benchmarks.failure import BenchmarkError
from serve_app.cli.ports import busy

_RANGES_TRIED = 100
# Above those of Ray's workers, and below those that Linux hands out for outgoing connections, which may take any of
# them before a server does
_LOWEST_PORT, _HIGHEST_PORT = 20_000, 32_000
_given: set[int] = set()  # who got one may not listen yet


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listened on a moment ago.

    Raises:
        BenchmarkError: There are not so many.
    """
    found: list[int] = []
    for port in random.sample(range(_LOWEST_PORT, _HIGHEST_PORT), _HIGHEST_PORT - _LOWEST_PORT):
        if len(found) == count:
            break
        if port not in _given and not busy("127.0.0.1", port):
            found.append(port)
    if len(found) < count:
        raise BenchmarkError(f"no {count} ports are free")
    _given.update(found)
    return found


def free_port_range(count: int) -> int:
    """The first of ``count`` neighbouring ports of 127.0.0.1 that were free a moment ago.

    Raises:
        BenchmarkError: No such neighbours were found.
    """
    for _ in range(_RANGES_TRIED):
        first = random.randrange(_LOWEST_PORT, _HIGHEST_PORT - count)
        ports = range(first, first + count)
        if _given.isdisjoint(ports) and not any(busy("127.0.0.1", port) for port in ports):
            _given.update(ports)
            return first
    raise BenchmarkError(f"no {count} neighbouring ports are free")


def haproxy_variables(folder: Path, replicas: int) -> dict[str, str]:
    """Serve's settings by which HAProxy and the replicas behind it listen on free ports.

    Serve shares the replicas' ports with whoever has them already: two servers would answer each other's requests.

    Args:
        folder: For HAProxy's files. Its path must be short, as that of every Unix socket.
        replicas: How many of the application's first deployment may run at once.

    Raises:
        BenchmarkError: No such ports are free.
    """
    # One range, and not where `free_ports` looks: no two of all these are the same.
    http = free_port_range(2 * replicas + 4)
    grpc = http + replicas
    metrics, stats, fallback_http, fallback_grpc = range(grpc + replicas, grpc + replicas + 4)
    return {
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(http),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(http + replicas - 1),
        "RAY_SERVE_DIRECT_INGRESS_MIN_GRPC_PORT": str(grpc),
        "RAY_SERVE_DIRECT_INGRESS_MAX_GRPC_PORT": str(grpc + replicas - 1),
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(fallback_http),
        "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": str(fallback_grpc),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(metrics),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(stats),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "admin.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
    }
