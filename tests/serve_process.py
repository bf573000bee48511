"""Runs the real server for tests, in a process of its own, on free ports, with its own Ray cluster."""

from __future__ import annotations

import os
import re
import shutil
import signal
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

from benchmarks.ports import free_ports, haproxy_variables

ROOT = Path(__file__).resolve().parent.parent
MARKER = "SERVE_APP_TEST_SERVER"
"""Environment variable that every process of one server inherits."""
NO_CLUSTER = "RAY_ENABLE_AUTO_CONNECT"
"""Environment variable that keeps Ray from starting a cluster for a test. A server runs without it, as users' do."""

START_TIMEOUT_S = 300.0
_DIRECT_PORTS = 20
STOP_TIMEOUT_S = 60.0


class ServeProcess:
    """``serve run`` of one configuration, from `__enter__` to `__exit__`.

    Args:
        args: What stands under ``args:``.
        folder: Where the configuration and the log go.
        autoscale: Whether replicas follow the router's queue.
        env: Further environment variables of the server.
        graceful: Whether it is ``serve-app run``, which finishes what it has accepted, and not ``serve run``.

    Attributes:
        exit_code: Of the command, once it has stopped.
    """

    def __init__(
        self,
        args: Mapping[str, Any],
        folder: Path,
        *,
        autoscale: bool = True,
        env: Mapping[str, str] | None = None,
        graceful: bool = False,
    ) -> None:
        self._folder = folder
        # A cluster of its own, whatever others have left in Ray's folder about theirs.
        serve = [str(Path(sys.executable).with_name("serve")), "run", "--address", "local"]
        self._command = [sys.executable, "-m", "serve_app.cli", "run", "--no-dashboard"] if graceful else serve
        folder.mkdir(parents=True, exist_ok=True)
        self.port, self.grpc_port = free_ports(2)
        self._mark = f"{os.getpid()}-{self.port}"
        self.url = f"http://127.0.0.1:{self.port}"
        # Not in `folder`: the path of a Unix socket must be short.
        self._haproxy = Path(tempfile.mkdtemp(prefix="sa-"))
        self.config: dict[str, Any] = {
            "http_options": {"host": "127.0.0.1", "port": self.port},
            "grpc_options": {
                "port": self.grpc_port,
                "grpc_servicer_functions": ["serve_app.api.grpc_app.add_to_server"],
                "enable_reflection": False,
            },
            "controller_options": {
                "runtime_env": {
                    "env_vars": {
                        "RAY_SERVE_ENABLE_HA_PROXY": "1",
                        "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
                        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",  # beside other load
                        "RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH": str(256 * 1024 * 1024),
                        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",
                        **haproxy_variables(self._haproxy, _DIRECT_PORTS),
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
                "policy_function": "serve_app.deployments.autoscaling:ScaleByDemand"
            }
        self.config_file = folder / "config.yaml"
        self.log_file = folder / "serve.log"
        self._env = {
            **{name: value for name, value in os.environ.items() if name != NO_CLUSTER},
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "disabled",
            "RAY_worker_niceness": "0",  # as `serve-app run` sets it
            "SERVE_APP_HOME": str(ROOT),
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests"))),
            MARKER: self._mark,
            **(env or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None
        self.exit_code: int | None = None

    def __enter__(self) -> ServeProcess:
        self.config_file.write_text(yaml.safe_dump(self.config, sort_keys=False))
        with self.log_file.open("wb") as log:
            self._process = subprocess.Popen(
                [*self._command, str(self.config_file)],
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
                if self.application().get("status") == "DEPLOY_FAILED":
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

    def application(self) -> Mapping[str, Any]:
        """What Serve says of our application: its ``status``, e.g. ``RUNNING``, and a ``message``. Empty at first."""
        try:
            answer = httpx.get(f"{self._dashboard()}/api/serve/applications/", timeout=60.0)
        except httpx.TransportError:
            return {}
        found: Mapping[str, Mapping[str, Any]] = answer.json()["applications"] if answer.status_code == 200 else {}
        return found.get("serve-app", {})

    def _dashboard(self) -> str:
        address = re.search(r"View the dashboard at.*?(http://[\d.]+:\d+)", self.log())
        return address.group(1) if address else "http://127.0.0.1:1"

    def send(self, number: signal.Signals) -> None:
        """Send the command a signal, and wait for nothing."""
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self, number: signal.Signals = signal.SIGINT) -> list[psutil.Process]:
        """Stop by a signal, that of Ctrl-C unless told otherwise.

        Returns:
            The processes that outlived it, after ending them too.
        """
        process = self._process
        if process is None:
            return []
        family = self.processes()
        if process.poll() is None:
            process.send_signal(number)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.exit_code = process.returncode
        _, survivors = psutil.wait_procs(family, timeout=10.0)
        for survivor in survivors:
            survivor.kill()
        psutil.wait_procs(survivors, timeout=10.0)
        shutil.rmtree(self._haproxy, ignore_errors=True)
        self._process = None
        return survivors
