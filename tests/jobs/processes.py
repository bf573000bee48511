"""Processes that are there to be killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

_ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def started(module: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    """A process that runs a module of these tests, and what it says; it is killed when the context ends, if not before.

    Args:
        module: Of the package ``jobs``.
        arguments: Of its command line.
    """
    path = os.pathsep.join([str(_ROOT), str(_ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "SERVE_APP_HOME": str(_ROOT)}
    command = [sys.executable, "-m", f"jobs.{module}", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout
        finally:
            process.kill()
