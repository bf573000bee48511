"""The fork server: workers come from one process that has imported everything; what it cannot start is left to Ray."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from serve_app.cli.fork_server import fork_server
from serve_app.cli.start_worker import SOCKET_VARIABLE, ask, rays_own

CONTEXT = json.dumps({"env_vars": {}, "py_executable": sys.executable, "command_prefix": []})


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A fork server with this process's environment, and its socket."""
    path = str(tmp_path_factory.mktemp("f") / "s")
    monkeypatch.setenv(SOCKET_VARIABLE, path)
    with fork_server(path, os.environ):
        yield path


def arguments(context: str = CONTEXT, script: Path | None = None, language: str = "PYTHON") -> list[str]:
    """What the raylet gives to Ray's script: the worker that is asked for prints its options and ends."""
    script = rays_own("default_worker.py") if script is None else script
    return [f"--serialized-runtime-env-context={context}", f"--language={language}", str(script), "--help"]


def start(given: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    """Start a worker as the raylet does."""
    return subprocess.run(
        [sys.executable, "-m", "serve_app.cli.start_worker", *given],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_worker_is_forked_with_its_own_arguments_and_streams(server: str) -> None:
    """It runs Ray's script, and what it prints comes out where the raylet wants it."""
    started = start(arguments())
    assert (started.returncode, started.stderr) == (0, "")
    assert "--raylet-name" in started.stdout


@pytest.mark.parametrize(
    ("given", "variables"),
    [
        (arguments(json.dumps({"env_vars": {"RAY_SERVE_X": "1"}})), {}),
        (arguments(json.dumps({"command_prefix": ["nice"]})), {}),
        (arguments(script=Path("other.py")), {}),
        (arguments(language="JAVA"), {}),
        (arguments("{"), {}),
        (arguments(), {"RAY_JOB_ID": "02000000"}),
    ],
    ids=["environment", "prefix", "script", "language", "broken", "job"],
)
def test_what_differs_is_left_to_ray(
    server: str, monkeypatch: pytest.MonkeyPatch, given: list[str], variables: dict[str, str]
) -> None:
    """Another environment, another command or none that makes sense: no fork, and the next worker is forked all the same."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert not ask(server, given)
    for name in variables:
        monkeypatch.delenv(name)
    assert ask(server, arguments())


def test_without_a_server_a_worker_starts_as_ever(tmp_path: Path) -> None:
    """Ray's own script takes over where nobody listens."""
    started = start(arguments(), **{SOCKET_VARIABLE: str(tmp_path / "nobody")})
    assert started.returncode == 0
    assert "--raylet-name" in started.stdout
