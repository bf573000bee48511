"""The folder of one run, inaccessible to other users."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from serve_app.cli import cluster_tls

# Serve's default is one folder that all users may enter, and HAProxy's socket there takes orders from everybody:
# another user could shut the server down, or have the sockets that it listens at handed over.
_HAPROXY_FILES = {
    "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": "haproxy.cfg",
    "RAY_SERVE_HAPROXY_SOCKET_PATH": "admin.sock",
    "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": "",
    "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": "server-state",
    "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": "metrics.sock",
}

FOLDER_VARIABLE = "SERVE_APP_RUN_FOLDER"
"""Environment variable that names the folder to the processes of a run."""


@contextmanager
def run_folder(environ: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Create the folder, and remove it at the end, after its users.

    Args:
        environ: The present environment; the user's settings stay.

    Yields:
        Additions to the environment before Ray is imported: certificates for calls between Ray's and Serve's processes
        (`cluster_tls`), and the place of HAProxy's files.
    """
    # Not in TMPDIR: Serve adds a node's name of 56 characters, and the path of a Unix socket has at most 107.
    folder = Path(tempfile.mkdtemp(prefix="sa-", dir="/tmp"))
    try:
        haproxy = {name: str(folder / file) for name, file in _HAPROXY_FILES.items() if name not in environ}
        yield {FOLDER_VARIABLE: str(folder), **haproxy, **cluster_tls.variables(folder, environ)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
