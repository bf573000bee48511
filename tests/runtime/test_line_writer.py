"""The file of the request log: it grows so far, and no disk can hold up who writes."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

from serve_app.runtime.line_writer import LineWriter

NEVER = 1 << 40


def test_lines_are_in_the_file_after_the_end(tmp_path: Path) -> None:
    """In their order, behind those of an earlier process; the folder is made."""
    path = tmp_path / "new" / "requests.log"
    for first in (0, 100):
        writer = LineWriter(path, NEVER, 1)
        for number in range(first, first + 100):
            writer(b"%d\n" % number)
        writer.close()
    assert path.read_bytes() == b"".join(b"%d\n" % number for number in range(200))


def test_files_rotate(tmp_path: Path) -> None:
    """No file is much longer than allowed, only so many are kept, and the newest lines are there."""
    path = tmp_path / "requests.log"
    for number in range(10):  # each in a write of its own
        writer = LineWriter(path, 10, 2)
        writer(b"line %d line\n" % number)
        writer.close()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["requests.log", "requests.log.1", "requests.log.2"]
    found = [path.with_name(name).read_text() for name in ("requests.log.2", "requests.log.1", "requests.log")]
    assert found == [f"line {number} line\n" for number in (7, 8, 9)]


def test_a_full_disk_loses_lines_and_nothing_else() -> None:
    """`/dev/full` takes nothing: whoever logs never hears of it."""
    writer = LineWriter(Path("/dev/full"), NEVER, 1)
    for _ in range(10_000):
        writer(b"line\n")
    writer.close()


FILLING = """
import resource, signal, sys
from pathlib import Path
from serve_app.runtime.line_writer import LineWriter
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path = Path(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (25, 1000))
writer = LineWriter(path, 1 << 40, 1)
writer(b"0123456789\\n0123456789\\n0123456789\\n")
writer.close()
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
writer = LineWriter(path, 1 << 40, 1)
writer(b"there is room again\\n")
writer.close()
"""


def test_a_disk_that_fills_up_in_the_middle_of_a_line(tmp_path: Path) -> None:
    """What fits is written, and the process goes on."""
    path = tmp_path / "requests.log"
    subprocess.run([sys.executable, "-c", FILLING, str(path)], check=True, env={**os.environ})
    assert path.read_text().startswith("0123456789\n0123456789\n012")
    assert path.read_text().endswith("there is room again\n")
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 25
