"""Appends lines to a file without blocking, whatever the disk does."""

from __future__ import annotations

import os
import queue
import threading
from bisect import bisect_right
from itertools import accumulate
from pathlib import Path
from typing import Final

import orjson

_AT_ONCE: Final = 256
"""Lines that one write may hold."""


class LineWriter:
    """Writes lines in a thread. Lines without room, in the queue or on the disk, are dropped.

    The next line after a loss tells the number. A file of ``max_bytes`` becomes ``.1``, the previous ``.1`` becomes
    ``.2``, and so on.

    Args:
        path: Its folder is created.
        max_bytes: Largest size.
        kept: Number of earlier files.
        room: Most waiting lines.
    """

    def __init__(self, path: Path, max_bytes: int, kept: int, room: int = 4096) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._kept = kept
        self._lines: queue.Queue[bytes | None] = queue.Queue(room)
        self._lost = 0
        self._broken_line = False  # a write ended in the middle of one
        self._file = -1
        self._thread = threading.Thread(target=self._run, name="request log", daemon=True)
        self._thread.start()

    def __call__(self, line: bytes) -> None:
        """Queue a complete line. Never blocks."""
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._lost += 1

    def close(self, limit_s: float = 2.0) -> None:
        """Write waiting lines and end, within ``limit_s`` seconds."""
        try:
            self._lines.put(None, timeout=limit_s)
        except queue.Full:
            return
        self._thread.join(limit_s)

    def _run(self) -> None:
        ended = False
        while not ended:
            lines = [self._lines.get()]
            while len(lines) < _AT_ONCE and not self._lines.empty():
                lines.append(self._lines.get())
            ended = None in lines
            self._append([line for line in lines if line is not None])
        if self._file >= 0:
            os.close(self._file)

    def _append(self, lines: list[bytes]) -> None:
        if not lines:
            return
        lost = self._lost
        first = [b"\n"] if self._broken_line else []
        if lost:
            first.append(orjson.dumps({"level": "warning", "lost": lost}, option=orjson.OPT_APPEND_NEWLINE))
        ends = list(accumulate(map(len, (*first, *lines))))
        try:
            written = os.write(self._opened(), b"".join((*first, *lines)))
        except OSError:  # the disk is full, or the folder gone: no request may fail for that
            self._lost += len(lines)
            self._forget()
            return
        whole = bisect_right(ends, written)  # of the parts, those that were written to their end
        if written:
            self._broken_line = written not in ends
        self._lost += len(lines) - max(0, whole - len(first))
        if whole >= len(first):
            self._lost -= lost

    def _opened(self) -> int:
        if self._file < 0:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._open()
        if os.fstat(self._file).st_size >= self._max_bytes:
            self._forget()
            self._rotate()
            self._open()
        return self._file

    def _open(self) -> None:
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)

    def _forget(self) -> None:
        """Close the file, which is reopened by name for the next line."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _rotate(self) -> None:
        names = [self._path, *(self._path.with_name(f"{self._path.name}.{number + 1}") for number in range(self._kept))]
        for older, newer in zip(reversed(names[1:]), reversed(names[:-1]), strict=True):
            if newer.exists():
                newer.replace(older)
        if not self._kept:
            self._path.unlink(missing_ok=True)
