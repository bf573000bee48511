"""The core does without any wing, and says so where a setting needs one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from unplugged_server import SETTINGS

from serve_app.wings import WINGS

TESTS: Final = Path(__file__).parent


@pytest.mark.parametrize("wing", WINGS)
def test_a_server_starts_and_answers_without_a_wing(wing: str, tmp_path: Path) -> None:
    """Models answer as ever, and the wing's settings are refused by name; `--without-wing` runs the core's tests so."""
    done = subprocess.run(
        [sys.executable, str(TESTS / "unplugged_server.py"), wing, str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=TESTS.parent,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])

    assert (told["infer"], told["embeddings"], told["ready"]) == (200, 200, 200)
    (problem,) = told["problems"]
    assert problem.endswith(f"needs the package serve_app.{wing}, which is not installed")
    assert any("/v1/jobs" in path for path in told["paths"]) == (wing != "jobs")


def test_every_wing_is_a_folder_with_its_settings() -> None:
    """What the table names is there."""
    assert set(SETTINGS) >= set(WINGS)
    for wing in WINGS:
        assert (TESTS.parent / "serve_app" / wing / "__init__.py").is_file()
