"""The raylet's replacement for Ray's ``setup_worker.py``: asks the `fork_server` for a worker process.

It precedes every worker, so it imports only the standard library. If the fork server refuses or does not answer, it
becomes Ray's own script.
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

SOCKET_VARIABLE = "SERVE_APP_FORK_SERVER"
"""Environment variable that names the fork server's socket."""

FORKED = b"forked"
"""The fork server's answer where it has started the worker."""


def main() -> None:
    """Start the worker of the command line."""
    path = os.environ.get(SOCKET_VARIABLE)
    if path and ask(path, sys.argv[1:], os.environ):
        return
    script = str(rays_own("setup_worker.py"))
    os.execv(sys.executable, [sys.executable, script, *sys.argv[1:]])  # noqa: S606 - as the raylet would


def ask(path: str, arguments: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Ask for a worker with this process's folder and standard streams.

    Args:
        path: The fork server's socket.
        arguments: For Ray's script.
        environ: Of the worker.

    Returns:
        Whether it has been started.
    """
    order = {"arguments": list(arguments), "environ": dict(environ), "folder": str(Path.cwd())}
    data = json.dumps(order).encode()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(path)
            socket.send_fds(connection, [len(data).to_bytes(8, "big")], [0, 1, 2])
            connection.sendall(data)
            return connection.recv(len(FORKED)) == FORKED
    except OSError:  # it has ended
        return False


def rays_own(script: str) -> Path:
    """The path of a worker script of Ray. Finds Ray without importing it."""
    ray = importlib.util.find_spec("ray")
    assert ray is not None
    assert ray.submodule_search_locations is not None
    return Path(ray.submodule_search_locations[0]) / "_private" / "workers" / script


if __name__ == "__main__":
    main()
