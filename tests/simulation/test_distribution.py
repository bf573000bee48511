"""The simulator is a distribution of its own, released with the server."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import serve_app

ROOT = Path(__file__).resolve().parents[2]


def project(folder: Path) -> dict[str, Any]:
    """The metadata of a distribution."""
    found: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
    return found


def test_the_simulator_has_the_servers_version_and_license() -> None:
    """Each asks for exactly the other one, the server as an extra only."""
    version = serve_app.__version__
    simulator, server = project(ROOT / "simulator"), project(ROOT)
    assert (simulator["version"], simulator["dependencies"][0]) == (version, f"serve-app=={version}")
    assert server["optional-dependencies"]["simulate"] == [f"serve-app-simulator=={version}"]
    assert (ROOT / "simulator" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


@pytest.mark.parametrize(
    ("imported", "absent"),
    [
        ("serve_app.cli", "serve_app_simulator"),
        ("serve_app_simulator.command", "ray"),
        ("serve_app_simulator.command", "matplotlib"),
    ],
)
def test_imports_stay_apart(imported: str, absent: str) -> None:
    """No command loads the simulator but its own, which loads no Ray, and matplotlib only where it draws."""
    program = f"import sys, {imported}; print({absent!r} in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, env=environment)
    assert ended.stdout == "False\n"
