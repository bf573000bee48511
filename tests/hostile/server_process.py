"""The server that is asked, from outside: a process whose log, size and openings are watched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import psutil

_TESTS = Path(__file__).resolve().parents[1]
_END_WITHIN_S = 20.0


@dataclass(frozen=True, slots=True)
class Look:
    """The server process at one moment."""

    asked: int
    rss: int
    descriptors: int
    threads: int


class Server:
    """`hostile.server` in a process of its own, from `__enter__` to `__exit__`.

    Args:
        opens: A file that it opens at its end, to see whether this is told.

    Attributes:
        opened: What it opened, in words.
        tracebacks: The last lines of tracebacks in its log.
        logged: Bytes of its log.
        url: Where it listens.
    """

    url: str

    def __init__(self, opens: Path | None = None) -> None:
        self._arguments = [] if opens is None else [str(opens)]
        self.opened: list[str] = []
        self.tracebacks: Counter[str] = Counter()
        self.logged = 0
        self._ready = threading.Event()

    def __enter__(self) -> Server:
        environment = {**os.environ, "PYTHONPATH": f"{_TESTS.parent}{os.pathsep}{_TESTS}"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "hostile.server", *self._arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=environment,
            cwd=_TESTS.parent,
            start_new_session=True,  # Ctrl-C is for the run, which then ends its server
        )
        self._threads = [threading.Thread(target=listen, daemon=True) for listen in (self._listen, self._read_log)]
        for thread in self._threads:
            thread.start()
        self._ready.wait()
        if not hasattr(self, "url"):
            raise SystemExit("the server did not start")
        self.watched = psutil.Process(self._process.pid)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_END_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for thread in self._threads:
            thread.join()
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()

    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def look(self, asked: int) -> Look:
        """Its size now."""
        watched = self.watched
        return Look(asked, watched.memory_info().rss, watched.num_fds(), watched.num_threads())

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            if "url" in said:
                self.url = said["url"]
                self._ready.set()
            else:
                self.opened.append(said["opened"])
        self._ready.set()

    def _read_log(self) -> None:
        assert self._process.stderr is not None
        inside = False
        for line in self._process.stderr:
            self.logged += len(line)
            if line.startswith("Traceback"):
                inside = True
            elif inside and not line.startswith(" "):
                self.tracebacks[line.strip()] += 1
                inside = False
