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

_MISSING = "default_worker.py: error: the following arguments are required: --cluster-id, "
CONTEXT = json.dumps({"env_vars": {}, "py_executable": sys.executable, "command_prefix": []})


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a run."""
    given = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    return {**given, "ORT_DISABLE_TELEMETRY": "1", SOCKET_VARIABLE: str(tmp_path_factory.mktemp("f") / "s")}


@pytest.fixture(scope="module")
def server(environ: dict[str, str]) -> Iterator[str]:
    """A fork server with that environment, and its socket."""
    with fork_server(environ[SOCKET_VARIABLE], environ):
        yield environ[SOCKET_VARIABLE]


def arguments(context: str = CONTEXT, script: Path | None = None, language: str = "PYTHON") -> list[str]:
    """What the raylet gives to Ray's script: the worker that is asked for misses most of it, says so and ends."""
    script = rays_own("default_worker.py") if script is None else script
    return [f"--serialized-runtime-env-context={context}", f"--language={language}", str(script)]


def start(environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Start a worker as the raylet does."""
    return subprocess.run(
        [sys.executable, "-m", "serve_app.cli.start_worker", *arguments()],
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.usefixtures("server")
def test_a_worker_is_forked_with_its_own_arguments_and_streams(environ: dict[str, str]) -> None:
    """It runs Ray's script, and what it prints comes out where the raylet wants it."""
    started = start(environ)
    assert started.returncode == 0
    assert _MISSING in started.stderr


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
    server: str, environ: dict[str, str], given: list[str], variables: dict[str, str]
) -> None:
    """Another environment, another command or none that makes sense: no fork, and the next worker is forked as ever."""
    assert not ask(server, given, {**environ, **variables})
    assert ask(server, arguments(), environ)


def test_without_a_server_a_worker_starts_as_ever(environ: dict[str, str], tmp_path: Path) -> None:
    """Ray's own script takes over where nobody listens."""
    started = start({**environ, SOCKET_VARIABLE: str(tmp_path / "nobody")})
    assert started.returncode == 2
    assert _MISSING in started.stderr
