"""Ends a run on a signal: accepted requests are finished, and a second signal kills.

    first signal    HAProxy takes no more connections and lets those that it has end, the routers are not ready any more
                    and answer what was accepted (`RouterDeployment.drain`); then Serve is shut down
    second signal   every process of the run is killed

Serve itself stops models together with the router, and cuts HAProxy off: queued and running requests would be lost.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from serve_app.cli.processes import Process, end, end_marked, marked, wait
from serve_app.config.file import ServeFile
from serve_app.config.names import ROUTER

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_PROXY = "haproxy"
_MORE_S = 5.0
"""How much longer than their limit the routers may take to report the end, seconds."""


class ForcedShutdown(BaseException):
    """A second signal has arrived. No `Exception`: Serve and Ray must not handle it as a fault."""


class GracefulShutdown:
    """Ends the run of this process.

    Args:
        variable: The environment variable that marks the run's processes.
        console: For messages.

    Attributes:
        asked: Whether the end was requested.
        forced: Whether it was requested again.
    """

    def __init__(self, file: ServeFile, variable: str, console: Console) -> None:
        self._file = file
        self._variable = variable
        self._console = console
        self._interrupting = False
        self.asked = False
        self.forced = False

    @contextmanager
    def handle_signals(self) -> Iterator[None]:
        """Handle SIGINT and SIGTERM in the main thread."""
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        self.take_signals()
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def take_signals(self) -> None:
        """Install the handlers again after others were installed."""
        for number in _SIGNALS:
            signal.signal(number, self._on_signal)

    def interrupt(self) -> None:
        """Raise ``KeyboardInterrupt`` in the main thread. Thread-safe."""
        self.asked = self._interrupting = True
        os.kill(os.getpid(), signal.SIGINT)

    def kill(self) -> None:
        """Kill the run's remaining processes."""
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        killed = end_marked(self._variable, os.environ[self._variable], 0.0)
        self._console.print(f"killed {len(killed)} processes; requests in progress were lost")

    def _on_signal(self, *_: Any) -> None:
        if self._interrupting:
            self._interrupting = False
            raise KeyboardInterrupt
        if self.asked:
            self.forced = True
            self._console.print("ending at once")
            raise ForcedShutdown
        self.asked = True
        router = self._file.args.router
        self._console.print(
            f"stopping: waiting up to {router.drain_timeout_s:g} s for accepted requests; press Ctrl-C again to stop"
            " immediately"
        )
        threading.Thread(target=self._drain, args=(router.drain_timeout_s,), name="drain", daemon=True).start()

    def _drain(self, limit_s: float) -> None:
        """Finish accepted requests, then interrupt the main thread in any case."""
        try:
            until = time.monotonic() + limit_s
            proxies = [each for each in marked(self._variable, os.environ[self._variable]) if _is_proxy(each)]
            for proxy in proxies:
                end(proxy, signal.SIGUSR1)  # which HAProxy calls its soft stop
            left = _drain_routers(self._file.name, limit_s)
            remaining = wait(proxies, until - time.monotonic())
            if left:
                self._console.print(f"{left} requests were not answered within {limit_s:g} s")
            if remaining:
                self._console.print(f"HAProxy had not ended after {limit_s:g} s: some clients kept their connections")
        except Exception as error:  # e.g. no router has started yet: there is nothing to finish
            self._console.print(f"graceful shutdown failed: {type(error).__name__}", style="dim")
        finally:
            if not self.forced:
                self.interrupt()


def _is_proxy(process: Process) -> bool:
    try:
        return Path(f"/proc/{process.pid}/comm").read_text(encoding="ascii").strip() == _PROXY
    except OSError:
        return False


def _drain_routers(application: str, limit_s: float) -> int:
    """Drain all routers. Returns the number of requests left after the limit."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return 0
    from ray import serve  # noqa: PLC0415 - it is there only since the run has begun

    if application not in serve.status().applications:
        return 0
    routers = serve.get_deployment_handle(ROUTER, application)
    answers = routers.broadcast("drain", limit_s).results(timeout_s=limit_s + _MORE_S, return_exceptions=True)
    return sum(answer for answer in answers if isinstance(answer, int))
