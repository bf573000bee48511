"""Free ports for servers that run beside others: their own, and all that Serve and HAProxy take."""

from __future__ import annotations

import fcntl
import os
import random
import tempfile
from collections.abc import Iterable
from functools import cache
from itertools import takewhile
from pathlib import Path

from benchmarks.failure import BenchmarkError
from serve_app.cli.ports import busy

_RANGES_TRIED = 100
# Above those of Ray's workers, and below those that Linux hands out for outgoing connections, which may take any of
# them before a server does
_LOWEST_PORT, _HIGHEST_PORT = 20_000, 32_000
_given: set[int] = set()  # who got one may not listen yet
# Not the generator that tests seed: processes that seed alike would look for the same ports
_random = random.SystemRandom()


@cache
def _claims() -> int:
    """A file of which each process that looks for ports locks the bytes at the numbers of its own, until it ends."""
    file = Path(tempfile.gettempdir()) / f"serve-app-ports-{os.getuid()}"
    return os.open(file, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)


def _claim(port: int) -> bool:
    """Take a port for this process, unless it is given, another process has taken it, or somebody listens on it."""
    if port in _given:
        return False
    try:
        fcntl.lockf(_claims(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    if busy("127.0.0.1", port):
        fcntl.lockf(_claims(), fcntl.LOCK_UN, 1, port)
        return False
    _given.add(port)
    return True


def _give_back(ports: Iterable[int]) -> None:
    for port in ports:
        _given.discard(port)
        fcntl.lockf(_claims(), fcntl.LOCK_UN, 1, port)


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listened on a moment ago, and that no other process was given by this.

    Raises:
        BenchmarkError: There are not so many.
    """
    found: list[int] = []
    for port in _random.sample(range(_LOWEST_PORT, _HIGHEST_PORT), _HIGHEST_PORT - _LOWEST_PORT):
        if len(found) == count:
            return found
        if _claim(port):
            found.append(port)
    _give_back(found)
    raise BenchmarkError(f"no {count} ports are free")


def free_port_range(count: int) -> int:
    """The first of ``count`` neighbouring ports of 127.0.0.1 that were free a moment ago.

    Raises:
        BenchmarkError: No such neighbours were found.
    """
    for _ in range(_RANGES_TRIED):
        first = _random.randrange(_LOWEST_PORT, _HIGHEST_PORT - count)
        claimed = list(takewhile(_claim, range(first, first + count)))
        if len(claimed) == count:
            return first
        _give_back(claimed)
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
