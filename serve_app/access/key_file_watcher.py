"""Updates a guard's keys from their file without a restart.

A thread reads the file every few seconds: it may be a Kubernetes secret, whose symbolic links and inodes tell little,
and it is small. New content counts after two equal reads, since one may see a half-written file. Unreadable or invalid
content changes nothing: the previous keys stay, and the log says why.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from serve_app.access.guard import Guard
from serve_app.domain.keys import Key
from serve_app.errors import ConfigError

_log = logging.getLogger(__name__)

_WORLD: Final = stat.S_IROTH | stat.S_IWOTH


class KeyFile(NamedTuple):
    """The source of keys.

    Attributes:
        read: Raises `ConfigError`.
        parse: Raises `ConfigError`.
    """

    path: Path
    read: Callable[[Path], bytes]
    parse: Callable[[bytes], Sequence[Key]]


class KeyFileWatcher:
    """Polls a file of keys, and updates a guard.

    Args:
        within_s: Longest delay of a change, seconds: polls are twice as frequent.
        make: Makes the guard of the first keys.

    Raises:
        ConfigError: The first content is unreadable or invalid.
    """

    def __init__(self, file: KeyFile, within_s: float, make: Callable[[Sequence[Key]], Guard]) -> None:
        self._file = file
        self._every_s = within_s / 2
        self._seen: bytes | None = file.read(file.path)
        self._judged = True
        self._fault = ""
        self._task: asyncio.Task[None] | None = None
        self.guard = make(file.parse(self._seen))
        with contextlib.suppress(OSError):
            if file.path.stat().st_mode & _WORLD:
                _log.warning("%s can be read or written by every user of this machine: chmod 600 %s", *[file.path] * 2)

    def start(self) -> None:
        """Poll in the running event loop, until `close`."""
        self._task = asyncio.create_task(self._run())

    def close(self) -> None:
        """Stop polling."""
        if self._task is not None:
            self._task.cancel()

    async def poll(self) -> None:
        """Poll once."""
        try:
            await self._apply_file()
        except ConfigError as error:
            self._failed(str(error))
        except Exception as error:  # a bug; its message may hold a part of the file
            self._failed(f"cannot be understood: {type(error).__name__}")

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            await self.poll()

    async def _apply_file(self) -> None:
        """Apply the file's keys, if equal to those of the last poll."""
        before, self._seen = self._seen, None
        content = self._seen = await asyncio.to_thread(self._file.read, self._file.path)
        if content != before:
            self._judged = False
        elif not self._judged:
            try:
                keys = await asyncio.to_thread(self._file.parse, content)
            except ConfigError:
                self._judged = True
                raise
            self.guard.replace(keys)
            self._judged, self._fault = True, ""
            _log.warning("API keys: %d read from %s", len(keys), self._file.path)

    def _failed(self, fault: str) -> None:
        if fault == self._fault:
            return  # said already
        self._fault = fault
        self.guard.keep(fault)
        for problem in fault.splitlines():
            _log.error("API keys: %s: %s; the previous keys stay in use", self._file.path, problem)
