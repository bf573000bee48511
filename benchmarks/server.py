"""A Serve file under measurement, with a Ray cluster of its own."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import yaml

from benchmarks.ports import free_ports, haproxy_variables
from benchmarks.process import OUT, ROOT, ServerProcess
from serve_app.config.file import read_document
from serve_app.config.files import HOME_VARIABLE

__all__ = [
    "DIRECT",
    "HOSTS",
    "OUT",
    "ROOT",
    "SERVE_APP_RUN",
    "SERVE_RUN",
    "Server",
    "demo_document",
    "is_ready",
    "role",
]

SERVE_APP_RUN = (sys.executable, "-m", "serve_app.cli", "run", "--no-dashboard")
SERVE_RUN = (str(Path(sys.executable).with_name("serve")), "run", "--address", "local")

PROXY, DIRECT = "proxy", "direct"
"""Ways into a server: through Serve's proxy, and straight to the router where the file gives it a port."""

HOSTS = "Python models' own processes"
"""Role of the processes that run Python models with packages of their own."""

_REPLICA_PORTS = 64
_HAPROXY_ENABLED = "RAY_SERVE_ENABLE_HA_PROXY"


class Server(ServerProcess):
    """A Serve file, served with a Ray cluster of its own, from `__enter__` to `__exit__`.

    It listens on free ports, whatever the file says, so that it can run beside others.

    Args:
        name: For messages and file names.
        document: The Serve file.
        command: `SERVE_APP_RUN` or `SERVE_RUN`.
        tree: The working tree whose code and models it runs.
        variables: What else stands in its environment.

    Attributes:
        grpc: Ways into it by gRPC, by name: ``host:port``.
    """

    def __init__(
        self,
        name: str,
        document: Mapping[str, Any],
        command: Sequence[str],
        tree: Path = ROOT,
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(name, tree)
        self._document = document
        self._command = command
        self._variables = variables
        self._haproxy: Path | None = None
        self.grpc: dict[str, str] = {}

    def _prepare(self) -> tuple[Sequence[str], Mapping[str, str]]:
        file = OUT / f"{self._file_name}.yaml"
        file.write_text(yaml.safe_dump(self._on_free_ports(), sort_keys=False), encoding="utf-8")
        return [*self._command, str(file)], {
            "RAY_USAGE_STATS_ENABLED": "0",
            HOME_VARIABLE: str(self.tree),
            **self._variables,
        }

    def _clean_up(self) -> None:
        if self._haproxy is not None:
            shutil.rmtree(self._haproxy, ignore_errors=True)

    def _on_free_ports(self) -> dict[str, Any]:
        port, direct, proxy_grpc, direct_grpc = free_ports(4)
        self.urls = {PROXY: f"http://127.0.0.1:{port}"}
        document = {**deepcopy(dict(self._document)), "http_options": {"host": "127.0.0.1", "port": port}}
        if document.get("grpc_options"):
            document["grpc_options"]["port"] = proxy_grpc
            self.grpc[PROXY] = f"127.0.0.1:{proxy_grpc}"
        for application in document["applications"]:
            router = application.get("args", {}).get("router", {})
            if router.get("http", {}).get("port"):
                router["http"]["port"] = direct
                self.urls[DIRECT] = f"http://127.0.0.1:{direct}"
            if router.get("grpc", {}).get("port"):
                router["grpc"]["port"] = direct_grpc
                self.grpc[DIRECT] = f"127.0.0.1:{direct_grpc}"
        given = _env_vars(document)
        if given.get(_HAPROXY_ENABLED) != "1":
            return document
        # Not below the checkout: the path of a Unix socket must be short.
        self._haproxy = Path(tempfile.mkdtemp(prefix="serve-app-"))
        variables = {**given, **haproxy_variables(self._haproxy, _REPLICA_PORTS)}
        return {**document, "controller_options": {"runtime_env": {"env_vars": variables}}}

    @staticmethod
    def role(command: list[str]) -> str:
        """See `role`."""
        return role(command)


def demo_document(**args: Any) -> dict[str, Any]:
    """The demonstration's Serve file without its models and pipelines.

    Args:
        **args: What stands under ``args:`` instead of what stands there, e.g. ``models``.

    Raises:
        ConfigError: It cannot be read.
    """
    document = read_document(ROOT / "configs" / "demo.yaml")
    given = document["applications"][0]["args"]
    del given["pipelines"]  # they are of its models
    given.update({"models": [], **args})
    return document


def is_ready(url: str) -> bool:
    """Whether the server there says that every model can take work."""
    try:
        return httpx.get(f"{url}/v2/health/ready", timeout=10.0).status_code == 200
    except httpx.TransportError:
        return False


def role(command: list[str]) -> str:
    """What a process of the server is there for, from its command line."""
    line = " ".join(command)
    replica = re.match(r"ray::ServeReplica:[^:]*:([^\s.]+)", line)
    if replica is not None:
        return f"replica of {replica[1]}"
    if "serve_app/backends/python/host.py" in line:
        return HOSTS
    if re.match(r"ray::(ServeController|ProxyActor|HAProxyManager)", line) or "haproxy" in line:
        return "Serve's controller and proxy"
    return "Ray's own processes"


def _env_vars(document: Mapping[str, Any]) -> dict[str, str]:
    return dict(document.get("controller_options", {}).get("runtime_env", {}).get("env_vars", {}))
