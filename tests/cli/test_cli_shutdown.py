"""The end of a run: what a signal does, and a second one. Ray is not there; HAProxy is, as far as its name goes."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from rich.console import Console

from serve_app.cli.shutdown import ForcedShutdown, GracefulShutdown
from serve_app.config.file import parse_document

MARK = "SERVE_APP_TEST_MARK"
STUBBORN = """
import signal
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
open("/proc/self/comm", "w").write("haproxy")
print("started", flush=True)
signal.pause()
"""


@pytest.fixture
def proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[str]]:
    """A process of the run that is called haproxy, and does not end when it is asked to."""
    monkeypatch.setenv(MARK, str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        yield process
        process.kill()


def shutdown(said: io.StringIO, drain_timeout_s: float) -> GracefulShutdown:
    """Of a run of this process."""
    args = {"models": [{"name": "m", "path": "m"}], "router": {"drain_timeout_s": drain_timeout_s}}
    application = {"name": "serve-app", "import_path": "serve_app.app:build", "args": args}
    file = parse_document({"http_options": {"host": "127.0.0.1"}, "applications": [application]})
    return GracefulShutdown(file, MARK, Console(file=said, width=200))


def serve_until_sigterm() -> NoReturn:
    """What a run does: it goes on until the main thread is interrupted."""
    signal.raise_signal(signal.SIGTERM)
    while True:
        time.sleep(0.01)


def test_a_second_signal_kills_what_is_left(proxy: subprocess.Popen[str]) -> None:
    """However long what was accepted may still take; nobody's handlers stay behind."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    said = io.StringIO()
    end = shutdown(said, drain_timeout_s=600.0)
    with end.handle_signals():
        signal.raise_signal(signal.SIGTERM)
        assert (end.asked, end.forced) == (True, False)
        with pytest.raises(ForcedShutdown):
            signal.raise_signal(signal.SIGINT)
        assert end.forced
        end.kill()
        signal.raise_signal(signal.SIGTERM)  # a third one interrupts nothing
    assert proxy.wait() in {-signal.SIGTERM, -signal.SIGKILL}
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert said.getvalue().splitlines() == [
        "stopping: waiting up to 600 s for accepted requests; press Ctrl-C again to stop immediately",
        "ending at once",
        "killed 1 processes; requests in progress were lost",
    ]


def test_a_proxy_that_does_not_end_is_named(proxy: subprocess.Popen[str]) -> None:
    """It holds the end up for as long as requests may, and is no request."""
    said = io.StringIO()
    with shutdown(said, drain_timeout_s=0.1).handle_signals(), pytest.raises(KeyboardInterrupt):
        serve_until_sigterm()
    assert proxy.poll() is None
    assert said.getvalue().splitlines()[1:] == [
        "HAProxy had not ended after 0.1 s: some clients kept their connections"
    ]


def test_a_run_with_nothing_to_finish_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is said of what is not there."""
    monkeypatch.setenv(MARK, str(os.getpid()))
    said = io.StringIO()
    with shutdown(said, drain_timeout_s=600.0).handle_signals(), pytest.raises(KeyboardInterrupt):
        serve_until_sigterm()
    assert len(said.getvalue().splitlines()) == 1
