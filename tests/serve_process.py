"""Runs the real server for tests: ``serve run`` in a process of its own, on free ports, with its own Ray cluster."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
import psutil
import yaml

ROOT = Path(__file__).resolve().parent.parent
MARKER = "SERVE_APP_TEST_SERVER"
"""Environment variable that every process of one server inherits."""

START_TIMEOUT_S = 300.0
_DIRECT_PORTS = 20
STOP_TIMEOUT_S = 60.0


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [int(sock.getsockname()[1]) for sock in sockets]
    finally:
        for sock in sockets:
            sock.close()


def free_range(count: int) -> int:
    """The first of so many ports in a row that nobody listens on now."""
    while True:
        first = free_ports(1)[0]
        if first + count < 65536 and all(_is_free(port) for port in range(first, first + count)):
            return first


def _is_free(port: int) -> bool:
    with socket.socket() as sock:
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


class ServeProcess:
    """``serve run`` of one configuration, from `__enter__` to `__exit__`.

    Args:
        args: What stands under ``args:``.
        folder: Where the configuration and the log go.
        autoscale: Whether replicas follow the router's queue.
        env: Further environment variables of the server.
    """

    def __init__(
        self, args: Mapping[str, Any], folder: Path, *, autoscale: bool = True, env: Mapping[str, str] | None = None
    ) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.port, self.grpc_port, metrics, stats, fallback_http, fallback_grpc = free_ports(6)
        # Serve shares these with whoever has them: two servers would answer each other's requests.
        direct_http, direct_grpc = free_range(_DIRECT_PORTS), free_range(_DIRECT_PORTS)
        self._mark = f"{os.getpid()}-{self.port}"
        self.url = f"http://127.0.0.1:{self.port}"
        # Not in `folder`: the path of a Unix socket must be short.
        self._haproxy = Path(tempfile.mkdtemp(prefix="sa-"))
        self.config: dict[str, Any] = {
            "http_options": {"host": "127.0.0.1", "port": self.port},
            "grpc_options": {
                "port": self.grpc_port,
                "grpc_servicer_functions": ["serve_app.protocols.grpc_app.add_to_server"],
                "enable_reflection": False,
            },
            "controller_options": {
                "runtime_env": {
                    "env_vars": {
                        "RAY_SERVE_ENABLE_HA_PROXY": "1",
                        "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
                        "RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH": str(256 * 1024 * 1024),
                        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",
                        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(direct_http),
                        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(direct_http + _DIRECT_PORTS),
                        "RAY_SERVE_DIRECT_INGRESS_MIN_GRPC_PORT": str(direct_grpc),
                        "RAY_SERVE_DIRECT_INGRESS_MAX_GRPC_PORT": str(direct_grpc + _DIRECT_PORTS),
                        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(fallback_http),
                        "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": str(fallback_grpc),
                        "RAY_SERVE_HAPROXY_METRICS_PORT": str(metrics),
                        "RAY_SERVE_HAPROXY_STATS_PORT": str(stats),
                        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(self._haproxy / "haproxy.cfg"),
                        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(self._haproxy / "admin.sock"),
                        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(self._haproxy),
                        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(self._haproxy / "server-state"),
                    }
                }
            },
            "applications": [
                {
                    "name": "serve-app",
                    "route_prefix": "/",
                    "import_path": "serve_app.app:build",
                    "logging_config": {"enable_access_log": False, "log_level": "WARNING"},
                    "args": dict(args),
                }
            ],
        }
        if autoscale:
            self.config["applications"][0]["autoscaling_policy"] = {
                "policy_function": "serve_app.deployments.autoscaling:scale_by_queue"
            }
        self.config_file = folder / "config.yaml"
        self.log_file = folder / "serve.log"
        self._env = {
            **os.environ,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "disabled",
            "SERVE_APP_HOME": str(ROOT),
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests"))),
            MARKER: self._mark,
            **(env or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> ServeProcess:
        self.config_file.write_text(yaml.safe_dump(self.config, sort_keys=False))
        serve = Path(sys.executable).with_name("serve")
        with self.log_file.open("wb") as log:
            self._process = subprocess.Popen(
                [str(serve), "run", str(self.config_file)],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._env,
                cwd=self._folder,
                start_new_session=True,
            )
        try:
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def log(self) -> str:
        """What the server has printed so far."""
        return self.log_file.read_text(errors="replace")

    def wait_ready(self) -> None:
        """Wait until every model answers, or fail with the server's log."""
        deadline = time.monotonic() + START_TIMEOUT_S
        assert self._process is not None
        with httpx.Client() as client:
            while time.monotonic() < deadline:
                if self._process.poll() is not None:
                    break
                try:
                    if client.get(f"{self.url}/v2/health/ready").status_code == 200:
                        return
                except httpx.TransportError:
                    pass
                if self.application_status() == "DEPLOY_FAILED":
                    break
                time.sleep(0.2)
        raise AssertionError(f"the server did not become ready; its log:\n{self.log()[-5000:]}")

    def processes(self) -> list[psutil.Process]:
        """Every process of this server that is alive, wherever it hangs in the process tree."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARKER) == self._mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def replica_processes(self, deployment: str) -> list[psutil.Process]:
        """The processes of one deployment's replicas."""
        title = f"ray::ServeReplica:serve-app:{deployment}"
        found = []
        for process in self.processes():
            try:
                if process.cmdline()[:1] == [title]:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def deploy(self, file: Path) -> None:
        """Replace the configuration while it runs, as `serve deploy` does."""
        answer = httpx.put(
            f"{self._dashboard()}/api/serve/applications/", json=yaml.safe_load(file.read_text()), timeout=60.0
        )
        assert answer.status_code == 200, answer.text

    def application_status(self) -> str:
        """What Serve says of our application, e.g. ``RUNNING``; empty while it says nothing."""
        try:
            answer = httpx.get(f"{self._dashboard()}/api/serve/applications/", timeout=60.0)
        except httpx.TransportError:
            return ""
        application = answer.json()["applications"].get("serve-app") if answer.status_code == 200 else None
        return str(application["status"]) if application else ""

    def _dashboard(self) -> str:
        address = re.search(r"View the dashboard at.*?(http://[\d.]+:\d+)", self.log())
        return address.group(1) if address else "http://127.0.0.1:1"

    def stop(self) -> list[psutil.Process]:
        """Stop as Ctrl-C does. Returns the processes that outlived it, after ending them too."""
        process = self._process
        if process is None:
            return []
        family = self.processes()
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        _, survivors = psutil.wait_procs(family, timeout=10.0)
        for survivor in survivors:
            survivor.kill()
        psutil.wait_procs(survivors, timeout=10.0)
        shutil.rmtree(self._haproxy, ignore_errors=True)
        self._process = None
        return survivors
