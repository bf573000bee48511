"""Processes: told apart from later ones with the same number, and ended exactly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from serve_app.cli.processes import Process, end, end_marked, marked, wait
from serve_app.cli.run import environment, pid_file, stop

LOOP = "import signal, sys; print('started', flush=True); signal.pause()"
MARK = "SERVE_APP_TEST_MARK"
HERE = f"here-{os.getpid()}."  # tests that run beside these mark processes, too


@pytest.fixture
def child() -> Iterator[subprocess.Popen[str]]:
    """A process that waits until it is ended, and carries a mark in its environment."""
    with subprocess.Popen(
        [sys.executable, "-c", LOOP],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {MARK: HERE},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        yield process
        process.kill()


def process_of(child: subprocess.Popen[str]) -> Process:
    """The running child as a `Process`."""
    process = Process.of(child.pid)
    assert process is not None
    return process


def test_a_process_is_told_apart_by_its_start(child: subprocess.Popen[str]) -> None:
    """A number that now belongs to another process is not the process that was meant."""
    process = process_of(child)
    earlier = Process(process.pid, process.started - 1)
    assert (process.alive(), earlier.alive()) == (True, False)
    end(earlier, signal.SIGKILL)
    assert process.alive()


def test_an_ended_process_is_gone(child: subprocess.Popen[str]) -> None:
    """Ending and waiting leaves nothing, whether or not somebody has collected the exit code."""
    process = process_of(child)
    end(process, signal.SIGTERM)
    assert wait([process], 30) == []
    assert child.wait() == -signal.SIGTERM
    assert Process.of(child.pid) is None
    end(process, signal.SIGTERM)


def test_waiting_is_bounded(child: subprocess.Popen[str]) -> None:
    """What has not ended in time is returned."""
    process = process_of(child)
    assert wait([process], 0) == [process]


def test_marked_processes_are_found(child: subprocess.Popen[str]) -> None:
    """What inherited a variable with a value is found; another value is another run."""
    assert (marked(MARK, HERE), marked(MARK, HERE[:-1])) == ([process_of(child)], [])


def test_everything_marked_is_ended_whatever_it_ignores(child: subprocess.Popen[str]) -> None:
    """A process that ends by itself on request and one that ignores requests are both gone afterwards."""
    stubborn = (
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('started', flush=True); signal.pause()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", stubborn], stdout=subprocess.PIPE, text=True, env=os.environ | {MARK: HERE}
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "started\n"
        assert {process.pid for process in end_marked(MARK, HERE, 0.2)} == {child.pid, other.pid}
        assert (child.wait(), other.wait()) == (-signal.SIGTERM, -signal.SIGKILL)
    assert marked(MARK, HERE) == []


def test_a_note_of_a_process_that_is_gone_counts_for_nothing(tmp_path: Path, child: subprocess.Popen[str]) -> None:
    """A file left by a killed run does not point at a stranger."""
    note = tmp_path / "build" / "a.pid"
    process = process_of(child)
    process.write(note)
    assert Process.read(note) == process
    Process(process.pid, process.started - 1).write(note)
    assert Process.read(note) is None
    note.write_text("nonsense")
    assert Process.read(note) is None
    assert Process.read(tmp_path / "none") is None


def test_stop_ends_what_is_noted(tmp_path: Path, child: subprocess.Popen[str]) -> None:
    """`stop` interrupts the noted process and waits for its end."""
    environ = {"SERVE_APP_HOME": str(tmp_path)}
    process_of(child).write(pid_file(8000, environ))
    console = Console(quiet=True)
    assert stop(environ, console) == 0
    assert child.wait() in {-signal.SIGINT, 1}
    assert stop(environ, console) == 0


def test_the_environment_of_a_run_respects_the_user(tmp_path: Path) -> None:
    """Usage statistics are off and the token is on, unless the user decided otherwise."""
    home = str(tmp_path)
    added = environment({"SERVE_APP_HOME": home})
    again = environment({"SERVE_APP_HOME": home})
    assert added.pop("SERVE_APP_RUN") != again.pop("SERVE_APP_RUN")
    ours = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_worker_niceness": "0",
        "RAY_prestart_worker_first_driver": "0",
        "ORT_DISABLE_TELEMETRY": "1",
    }
    assert added == {**ours, "SERVE_APP_HOME": home}
    chosen = {**dict.fromkeys(ours, "2"), "SERVE_APP_HOME": home, "RAY_AUTH_MODE": "disabled"}
    added = environment(chosen)
    del added["SERVE_APP_RUN"]
    assert added == chosen
