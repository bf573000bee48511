"""Finds the holders of ports. Linux: read from ``/proc``."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from pathlib import Path

_LISTENING = "0A"


def busy(host: str, port: int) -> bool:
    """Whether a server could not listen there now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno in {errno.EADDRINUSE, errno.EACCES}:
                return True
            raise
    return False


def listened_at(port: int) -> bool:
    """Whether a port has a listener on any address. Closed connections do not count."""
    return any(True for _ in _listening_inodes(port))


def holder(port: int) -> str | None:
    """The listener of a port: ``haproxy (pid 4711: haproxy -f ...)``, if visible."""
    inodes = set(_listening_inodes(port))
    for process in _processes():
        if inodes & set(_socket_inodes(process)):
            command = _text(process / "cmdline").replace("\0", " ").strip()
            return f"{_text(process / 'comm').strip()} (pid {process.name}: {_shortened(command)})"
    return None


def _listening_inodes(port: int) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        for line in _text(Path("/proc/net") / table).splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENING and int(fields[1].rsplit(":", 1)[1], 16) == port:
                yield f"socket:[{fields[9]}]"


def _processes() -> Iterator[Path]:
    return (entry for entry in Path("/proc").iterdir() if entry.name.isdecimal())


def _socket_inodes(process: Path) -> Iterator[str]:
    try:
        descriptors = list((process / "fd").iterdir())
    except OSError:  # gone, or another user's
        return
    for descriptor in descriptors:
        try:
            target = str(descriptor.readlink())
        except OSError:
            continue
        if target.startswith("socket:"):
            yield target


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _shortened(command: str, characters: int = 80) -> str:
    return command if len(command) <= characters else command[: characters - 3] + "..."
