"""The file of the request log: it grows so far, and no disk can hold up who writes."""

from __future__ import annotations

import fcntl
import os
import select
import subprocess
import sys
from pathlib import Path

import orjson

from serve_app.telemetry.line_writer import LineWriter

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


def test_a_full_disk_loses_lines_and_nothing_else(tmp_path: Path) -> None:
    """Whoever logs never hears of it. What was lost is counted, and the number stands before the next line."""
    path = tmp_path / "requests.log"
    path.symlink_to("/dev/full")
    writer = LineWriter(path, NEVER, 1, room=2000)
    for _ in range(1000):
        writer(b"{}\n")
    path.unlink()  # there is room again, at once or while some lines still wait
    writer(b'{"last":1}\n')
    writer.close()
    *lines, last = map(orjson.loads, path.read_bytes().splitlines())
    assert last == {"last": 1}
    assert sum(line.get("lost", 1) for line in lines) == 1000


def test_lines_that_find_no_room_are_counted(tmp_path: Path) -> None:
    """A disk that hangs holds the writing thread up, and nobody else."""
    path = tmp_path / "requests.log"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)
    writer = LineWriter(path, NEVER, 1, room=4)
    long = b"x" * 8191 + b"\n"
    writer(long)
    select.select([reader], [], [])  # the thread is in the middle of writing it
    for number in range(9):
        writer(b"%d\n" % number)
    read = b""
    while len(read) < len(long):
        select.select([reader], [], [])
        read += os.read(reader, len(long) - len(read))
    writer.close()
    assert read == long
    assert os.read(reader, 4096) == b'{"level":"warning","lost":5}\n0\n1\n2\n3\n'
    os.close(reader)


FILLING = """
import resource, signal, sys, time
from pathlib import Path
from serve_app.telemetry.line_writer import LineWriter
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path = Path(sys.argv[1])
full = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (full, 1000))
writer = LineWriter(path, 1 << 40, 1)
for _ in range(3):
    writer(b"0123456789\\n")
while not path.exists() or path.stat().st_size < full:
    time.sleep(0.001)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
writer(b"there is room again\\n")
writer.close()
"""


def test_a_disk_that_fills_up_in_the_middle_of_a_line(tmp_path: Path) -> None:
    """What fits is written, only the rest is lost, and the next lines begin on a line of their own."""
    path = tmp_path / "requests.log"
    subprocess.run([sys.executable, "-c", FILLING, str(path), "25"], check=True)
    assert path.read_text().splitlines() == [
        "0123456789",
        "0123456789",
        "012",
        '{"level":"warning","lost":1}',
        "there is room again",
    ]
