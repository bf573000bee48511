"""Identifies processes, and ends exactly those. Linux: read from ``/proc``."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

_KILLING_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Process:
    """A process, distinguished from later ones with the same id.

    Attributes:
        started: Start time, clock ticks after boot.
    """

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """The process with this id, if any."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        except OSError:
            return None
        # The second field is a name in parentheses, which may itself hold spaces and parentheses.
        fields = stat[stat.rindex(")") + 2 :].split()
        return None if fields[0] == "Z" else cls(pid, int(fields[19]))

    def alive(self) -> bool:
        """Whether it is running."""
        return Process.of(self.pid) == self

    def write(self, path: Path) -> None:
        """Record it in a file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self)) + "\n", encoding="ascii")

    @classmethod
    def read(cls, path: Path) -> Process | None:
        """The process recorded in a file, if it is running."""
        try:
            noted = cls(**json.loads(path.read_text(encoding="ascii")))
        except (OSError, ValueError, TypeError):
            return None
        return noted if noted.alive() else None


def marked(variable: str, value: str) -> list[Process]:
    """This user's other processes whose environment has this variable and value."""
    wanted = f"{variable}={value}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
        except OSError:  # gone, or another user's
            continue
        process = Process.of(int(entry.name)) if wanted in environment else None
        if process is not None:
            found.append(process)
    return found


def end(process: Process, with_signal: signal.Signals) -> None:
    """Signal a process, unless its id belongs to another one now."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        # The descriptor pins the number: if the process is alive now, the signal cannot reach another one.
        if process.alive():
            signal.pidfd_send_signal(descriptor, with_signal)
    except ProcessLookupError:
        pass
    finally:
        os.close(descriptor)


def wait(processes: Iterable[Process], timeout_s: float) -> list[Process]:
    """Wait up to ``timeout_s`` seconds for processes to end; returns the others."""
    deadline = time.monotonic() + timeout_s
    remaining = []
    for process in processes:
        try:
            descriptor = os.pidfd_open(process.pid)
        except ProcessLookupError:
            continue
        try:
            if process.alive():
                select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
        finally:
            os.close(descriptor)
        if process.alive():
            remaining.append(process)
    return remaining


def end_marked(variable: str, value: str, patience_s: float) -> list[Process]:
    """End every process with a mark: wait, then terminate, then kill, until none is left.

    Kills in rounds, because a process may start another one meanwhile.

    Args:
        variable: The environment variable of the mark.
        patience_s: How long to wait for processes to end by themselves, and again after SIGTERM, seconds.

    Returns:
        Processes that did not end by themselves.
    """
    left_over = wait(marked(variable, value), patience_s)
    for process in left_over:
        end(process, signal.SIGTERM)
    wait(left_over, patience_s)
    for _ in range(_KILLING_ROUNDS):
        remaining = marked(variable, value)
        if not remaining:
            break
        for process in remaining:
            end(process, signal.SIGKILL)
        wait(remaining, patience_s)
    return left_over
