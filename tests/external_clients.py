"""Runs what lives in the environments of foreign clients: see ``tests/clients``."""

from __future__ import annotations

import ctypes.util
import os
import subprocess
from collections.abc import Mapping

import pytest
from serve_process import ROOT

CLIENTS = ROOT / ".venv-clients" / "bin" / "python"
_PERF_ANALYZER = ROOT / ".venv-perf-analyzer"

needs_clients = pytest.mark.skipif(not CLIENTS.exists(), reason="no .venv-clients: `make clients` makes it")


def _absent() -> str:
    if not _PERF_ANALYZER.exists():
        return "no .venv-perf-analyzer: `make clients` makes it"
    if ctypes.util.find_library("b64") is None:
        return "perf_analyzer needs the system library libb64 (Debian: apt-get install libb64-0d)"
    return ""


needs_perf_analyzer = pytest.mark.skipif(bool(_absent()), reason=_absent())

_PATIENCE_S = 200


def run_script(name: str, *arguments: str) -> str:
    """Run one of the scripts to its end, which must be a good one. Returns what it said."""
    return _run([str(CLIENTS), str(ROOT / "tests" / "clients" / name), *arguments])


def run_perf_analyzer(protocol: str, address: str, model: str, *options: str) -> str:
    """Run Triton's load generator with one and with two requests at once, briefly. Returns what it said.

    Args:
        protocol: ``grpc`` or ``http``.
        address: Host and port.
        model: Name of the model.
        *options: Further ones.
    """
    libraries = next(_PERF_ANALYZER.glob("lib/python3*/site-packages")) / "nvidia" / "cuda_runtime" / "lib"
    path = os.pathsep.join(filter(None, (str(libraries), os.environ.get("LD_LIBRARY_PATH"))))
    # Nothing has to be stable: a busy machine must not fail a test.
    brief = ("--measurement-mode", "count_windows", "--measurement-request-count", "20", "-s", "1000", "-r", "3")
    command = [str(_PERF_ANALYZER / "bin" / "perf_analyzer"), "-i", protocol, "-u", address, "-m", model]
    return _run([*command, "--concurrency-range", "1:2", *brief, *options], {"LD_LIBRARY_PATH": path})


def _run(command: list[str], env: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        command, env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said
