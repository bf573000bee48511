"""Ports of one process share the files that it may open."""

from __future__ import annotations

import subprocess
import sys

_ASKS = """
import resource
from serve_app.http.listener import within_open_files
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 5120))
print(within_open_files(8192, 2048), within_open_files(2048, 8192), within_open_files(100, 100))
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def test_each_port_gets_its_part_where_files_are_short() -> None:
    """Of 5,120 files 1,024 are for the rest of the process. In a process of its own: a limit does not rise again."""
    done = subprocess.run([sys.executable, "-c", _ASKS], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["3276", "819", "100", "5120"]
