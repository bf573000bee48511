"""A table that a router shares with its node's replicas: which one runs a duplicated request.

The first free replica runs a request that waits at several (tied requests; Dean and Barroso, "The Tail at Scale", CACM
56(2), 2013). It has a place in the table, a byte: 0 while it waits, 1 once taken. Taking is a test-and-set under a
POSIX record lock on that byte: no message is needed, and nothing runs twice.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import weakref
from typing import Final

PLACES: Final = 65536
_WAITS, _TAKEN = 0, 1


class SharedTies:
    """One process's view of a table.

    The locks exclude processes, not threads: only one thread of a process at a time may `take`.

    Args:
        fd: File of `PLACES` bytes; duplicated.

    Raises:
        ValueError: The file is smaller.
    """

    def __init__(self, fd: int) -> None:
        self._fd = os.dup(fd)
        weakref.finalize(self, os.close, self._fd)
        self._bytes = mmap.mmap(self._fd, PLACES)

    def taken(self, place: int) -> bool:
        """Whether the request at a place has been taken."""
        return self._bytes[place] == _TAKEN

    def take(self, place: int) -> bool:
        """Try to take the request at a place. Returns whether this call has taken it."""
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
        except BlockingIOError:
            return False
        try:
            if self._bytes[place] == _TAKEN:
                return False
            self._bytes[place] = _TAKEN
            return True
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, place)


class TieTable:
    """The router's side: creates the table and allocates places.

    Raises:
        OSError: The system has no such memory; see `Arena.supported`.
    """

    def __init__(self) -> None:
        self.fd = os.memfd_create("serve-app-ties", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, PLACES)
        weakref.finalize(self, os.close, self.fd)
        self._bytes = mmap.mmap(self.fd, PLACES)
        self._free = list(range(PLACES - 1, 0, -1))  # 0 is no place

    def __repr__(self) -> str:
        return f"<TieTable {PLACES - 1 - len(self._free)} places held>"

    @property
    def held(self) -> int:
        """Places in use."""
        return PLACES - 1 - len(self._free)

    def place(self) -> int:
        """Allocate a place for a waiting request; 0 if none is free."""
        if not self._free:
            return 0
        place = self._free.pop()
        self._bytes[place] = _WAITS
        return place

    def free(self, place: int) -> None:
        """Release a place that no replica uses any more."""
        if place:
            self._free.append(place)
