"""KServe's Python REST client, in an environment of its own: it needs other versions than this server."""

from __future__ import annotations

import subprocess
from pathlib import Path


def test_the_rest_client_of_kserve(address: str, root: Path) -> None:
    """Health, and inference in JSON and in binary, as it does them by itself."""
    python = root / ".venv-clients" / "bin" / "python"
    assert python.exists(), "the environment of the clients is missing: make clients"

    done = subprocess.run(
        [python, root / "tests" / "clients" / "kserve_rest.py", f"http://{address}"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert done.returncode == 0, done.stderr
