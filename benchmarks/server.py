"""A server under measurement: started in processes of its own, looked at, and ended to the last process."""

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
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
import yaml

from benchmarks.failure import BenchmarkError
from serve_app.cli.processes import end_marked, marked
from serve_app.config.locate import HOME_VARIABLE

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "benchmarks" / "out"

SERVE_APP_RUN = (sys.executable, "-m", "serve_app.cli", "run")
SERVE_RUN = (str(Path(sys.executable).with_name("serve")), "run", "--address", "local")

_MARK = "SERVE_APP_BENCHMARK_SERVER"
_STOP_WITHIN_S = 60.0
_END_WITHIN_S = 10.0
_HAPROXY_ENABLED = "RAY_SERVE_ENABLE_HA_PROXY"


class Server:
    """A Serve file, served with a Ray cluster of its own, from `__enter__` to `__exit__`.

    It listens on free ports, whatever the file says, so that it can run beside others.

    Args:
        name: For messages and file names.
        document: The Serve file.
        command: `SERVE_APP_RUN` or `SERVE_RUN`.
    """

    def __init__(self, name: str, document: Mapping[str, Any], command: Sequence[str]) -> None:
        self.name = name
        self._document = document
        self._command = command
        self._mark = uuid.uuid4().hex
        self._process: subprocess.Popen[bytes] | None = None
        self._haproxy: Path | None = None
        self._file_name = name.lower().replace(" ", "-")
        self._log_file = OUT / f"{self._file_name}.log"
        self.started_at = 0.0
        self.url = ""

    def __enter__(self) -> Server:
        OUT.mkdir(parents=True, exist_ok=True)
        file = OUT / f"{self._file_name}.yaml"
        file.write_text(yaml.safe_dump(self._on_free_ports(), sort_keys=False), encoding="utf-8")
        environment = {
            **os.environ,
            "RAY_USAGE_STATS_ENABLED": "0",
            HOME_VARIABLE: str(ROOT),
            "PYTHONPATH": str(ROOT),
            _MARK: self._mark,
        }
        try:
            with self._log_file.open("wb") as log:
                self.started_at = time.monotonic()
                self._process = subprocess.Popen(
                    [*self._command, str(file)],
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    cwd=ROOT,
                    start_new_session=True,  # the terminal's Ctrl-C is for the benchmark: it ends the server in order
                )
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def check_alive(self) -> None:
        """Raise if it has ended.

        Raises:
            BenchmarkError: With the end of its log.
        """
        if self._process is None or self._process.poll() is not None:
            log = self._log_file.read_text(encoding="utf-8", errors="replace")
            raise BenchmarkError(f"{self.name} has ended:\n{log[-3000:]}")

    def memory(self) -> dict[str, int]:
        """Memory of all its processes by role, bytes: proportional set size, which splits shared pages fairly."""
        found: dict[str, int] = {}
        for process in marked(_MARK, self._mark):
            try:
                inspected = psutil.Process(process.pid)
                name = role(inspected.cmdline())
                found[name] = found.get(name, 0) + inspected.memory_full_info().pss
            except psutil.Error:  # it has ended meanwhile
                continue
        return found

    def stop(self) -> None:
        """End it as Ctrl-C does, then whatever that left."""
        process = self._process
        with _uninterrupted():
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(_STOP_WITHIN_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            end_marked(_MARK, self._mark, _END_WITHIN_S)
            if self._haproxy is not None:
                shutil.rmtree(self._haproxy, ignore_errors=True)

    def _on_free_ports(self) -> dict[str, Any]:
        port, metrics, stats = _free_ports(3)
        self.url = f"http://127.0.0.1:{port}"
        document = {**self._document, "http_options": {"host": "127.0.0.1", "port": port}}
        given = _env_vars(document)
        if given.get(_HAPROXY_ENABLED) != "1":
            return document
        # Not below the checkout: the path of a Unix socket must be short.
        self._haproxy = Path(tempfile.mkdtemp(prefix="serve-app-"))
        variables = {
            **given,
            "RAY_SERVE_HAPROXY_METRICS_PORT": str(metrics),
            "RAY_SERVE_HAPROXY_STATS_PORT": str(stats),
            "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(self._haproxy / "haproxy.cfg"),
            "RAY_SERVE_HAPROXY_SOCKET_PATH": str(self._haproxy / "admin.sock"),
            "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(self._haproxy),
            "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(self._haproxy / "server-state"),
        }
        return {**document, "controller_options": {"runtime_env": {"env_vars": variables}}}


def role(command: list[str]) -> str:
    """What a process of the server is there for, from its command line."""
    line = " ".join(command)
    replica = re.match(r"ray::ServeReplica:[^:]*:([^\s.]+)", line)
    if replica is not None:
        return f"replica of {replica[1]}"
    if re.match(r"ray::(ServeController|ProxyActor|HAProxyManager)", line) or "haproxy" in line:
        return "Serve's controller and proxy"
    return "Ray's own processes"


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let no second Ctrl-C cut a clean-up short, each of whose waits is bounded."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _env_vars(document: Mapping[str, Any]) -> dict[str, str]:
    return dict(document.get("controller_options", {}).get("runtime_env", {}).get("env_vars", {}))


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()
