"""The commands of docs/jobs.md do what the page says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from local_server import LocalServer, every_kind_of_model

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"^```bash\n(.*?)^```", re.DOTALL | re.MULTILINE)

pytestmark = pytest.mark.skipif(shutil.which("jq") is None, reason="needs jq: apt-get install jq")


def test_the_commands_of_the_page(tmp_path: Path) -> None:
    """All of them, one after the other; they check what they print."""
    page = (ROOT / "docs" / "jobs.md").read_text()
    router = {"jobs": {"path": str(tmp_path / "jobs.sqlite")}}
    with LocalServer({**every_kind_of_model(tmp_path / "models"), "router": router}) as server:
        commands = "\n".join(_BLOCK.findall(page)).replace("minilm", "words")
        commands = commands.replace("http://127.0.0.1:8000", server.url).replace("tests/data", f"{ROOT}/tests/data")
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", commands],
            cwd=tmp_path,
            env={**os.environ, "PATH": path, "SERVE_APP_URL": server.url},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].count('"custom_id"') == 1
    assert len((tmp_path / "answers.jsonl").read_text().splitlines()) > 1
