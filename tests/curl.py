"""curl, run as people type it."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import pytest

needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")


def curl(*args: str, stdin: bytes = b"") -> tuple[int, Any]:
    """Run it. Returns the status and the decoded body."""
    done = subprocess.run(
        ["curl", "--silent", "--show-error", "--max-time", "30", "--write-out", "\n%{http_code}", *args],
        input=stdin,
        capture_output=True,
        check=True,
    )
    body, _, status = done.stdout.rpartition(b"\n")
    return int(status), json.loads(body)
