"""A server in processes of its own: started, looked at, and ended to the last process."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import psutil

from benchmarks.failure import BenchmarkError
from benchmarks.niceness import as_usual
from serve_app.cli.processes import end_marked, marked

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "benchmarks" / "out"

_MARK = "SERVE_APP_BENCHMARK_SERVER"
_STOP_WITHIN_S = 60.0
_END_WITHIN_S = 10.0
_ASK_EVERY_S = 0.2


class ServerProcess(ABC):
    """A server that runs from `__enter__` to `__exit__`. Every process that it starts inherits a mark.

    Args:
        name: For messages and file names.
        tree: The working tree whose code it runs.

    Attributes:
        name: The same.
        tree: The same.
        urls: Ways into it, by name; filled when it starts.
        started_at: When it was started, monotonic seconds.
    """

    def __init__(self, name: str, tree: Path = ROOT) -> None:
        self.name = name
        self.tree = tree
        self.urls: dict[str, str] = {}
        self.started_at = 0.0
        self._file_name = "".join(letter if letter.isalnum() else "-" for letter in name.lower()).strip("-")
        self._log_file = OUT / f"{self._file_name}.log"
        self._mark = uuid.uuid4().hex
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The first way in."""
        return next(iter(self.urls.values()))

    def __enter__(self) -> Self:
        OUT.mkdir(parents=True, exist_ok=True)
        try:
            command, environment = self._prepare()
            with self._log_file.open("wb") as log, as_usual():
                self.started_at = time.monotonic()
                self._process = subprocess.Popen(
                    command,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, "PYTHONPATH": str(self.tree), **environment, _MARK: self._mark},
                    cwd=self.tree,
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

    def wait_until(self, answers: Callable[[], bool], within_s: float = 180.0) -> None:
        """Ask it again and again until it answers.

        Args:
            answers: Asks once.
            within_s: Longest wait since its start, seconds.

        Raises:
            BenchmarkError: It has ended, or takes longer.
        """
        while not answers():
            self.check_alive()
            if time.monotonic() - self.started_at > within_s:
                raise BenchmarkError(f"{self.name} has not answered within {within_s:.0f} s")
            time.sleep(_ASK_EVERY_S)

    def memory(self, kind: Literal["pss", "uss"] = "pss") -> dict[str, int]:
        """Memory of all its processes by role, bytes.

        Args:
            kind: The proportional set size, which splits shared pages fairly, or the unique one: pages of its own.
        """
        found: dict[str, int] = {}
        for process in self._processes():
            try:
                name = self.role(process.cmdline())
                found[name] = found.get(name, 0) + getattr(process.memory_full_info(), kind)
            except psutil.Error:  # it has ended meanwhile
                continue
        return found

    def cpu_s(self) -> dict[str, float]:
        """CPU time of all its processes by role, seconds."""
        found: dict[str, float] = {}
        for process in self._processes():
            try:
                times, name = process.cpu_times(), self.role(process.cmdline())
            except psutil.Error:  # it has ended meanwhile
                continue
            found[name] = found.get(name, 0.0) + times.user + times.system
        return found

    def kill_one(self, role: str) -> None:
        """Kill one process of a role."""
        for process in self._processes():
            with suppress(psutil.Error):
                if self.role(process.cmdline()) == role:
                    process.kill()
                    return

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
            self._clean_up()

    @abstractmethod
    def _prepare(self) -> tuple[Sequence[str], Mapping[str, str]]:
        """The command and what it adds to the environment. Sets `urls`."""

    def _clean_up(self) -> None:  # noqa: B027 - most leave nothing behind
        """Remove what `_prepare` made, once every process has ended."""

    @staticmethod
    @abstractmethod
    def role(command: list[str]) -> str:
        """What one of its processes is there for, from its command line."""

    def _processes(self) -> list[psutil.Process]:
        found = []
        for process in marked(_MARK, self._mark):
            try:
                found.append(psutil.Process(process.pid))
            except psutil.Error:
                continue
        return found


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let no second Ctrl-C cut a clean-up short, each of whose waits is bounded."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
