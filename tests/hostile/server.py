"""The server that is asked: a process of its own that tells what it opens, ``python -m hostile.server``.

It writes one line of JSON when it is ready (``url``), and one for every file, address or program that it opens from
then on (``opened``). It ends when its standard input does.
"""

from __future__ import annotations

import json
import os
import sys
import sysconfig
import tempfile
import threading
import traceback
from pathlib import Path
from typing import Any

from local_server import LocalServer, every_kind_of_model

from serve_app.deployments.garbage import tune_garbage_collection

_TELLING = frozenset(
    (
        "open",
        "os.listdir",
        "os.remove",
        "os.rename",
        "os.mkdir",
        "os.symlink",
        "os.system",
        "os.exec",
        "os.posix_spawn",
        "os.fork",
        "subprocess.Popen",
        "socket.connect",
        "socket.getaddrinfo",
        "urllib.Request",
        "ctypes.dlopen",
    )
)
"""Audit events that a request must not lead to; see Python's table of audit events."""

_CODE = tuple(
    str(Path(folder).resolve())
    for folder in (*sysconfig.get_paths().values(), sys.prefix, sys.base_prefix, str(Path(__file__).parents[2]))
)
_KERNEL = ("/proc/", "/sys/")


def main() -> None:
    """Serve until there is nobody any more who listens."""
    with tempfile.TemporaryDirectory() as folder, LocalServer(every_kind_of_model(Path(folder))) as server:
        tune_garbage_collection()  # as routers do
        _say("url", server.url)
        sys.addaudithook(_hook)
        sys.stdin.read()
        for file in sys.argv[1:]:
            Path(file).write_bytes(b"")
        _over.set()


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if event not in _TELLING or _over.is_set():
        return
    what = args[0] if args else ""
    if isinstance(what, int):  # a descriptor that is open already
        return
    name = os.fsdecode(what) if isinstance(what, (str, bytes, os.PathLike)) else repr(args)
    if event == "open" and (_is_code(name) or name.startswith(_KERNEL)):
        return  # a module that is imported late, or the kernel's word on this process
    frames = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in traceback.extract_stack(limit=8)[:-1]]
    _say("opened", f"{event} {name} ({' > '.join(frames)})")


def _is_code(name: str) -> bool:
    return ".." not in name and name.startswith(_CODE) and name.endswith((".py", ".pyc", ".so", ".pth"))


_lock = threading.Lock()
_over = threading.Event()
"""Set when requests have come to their end, and what follows is the server's own tidying up."""


def _say(key: str, value: str) -> None:
    with _lock:
        sys.stdout.write(json.dumps({key: value}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
