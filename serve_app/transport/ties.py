"""A table that a router shares with the replicas on its node: who runs a request that several of them have.

A request that waits at several replicas is run by the one that is free first (tied requests; Dean and Barroso, "The
Tail at Scale", CACM 56(2), 2013). It has a place in the table, a byte: 0 while it waits, 1 once a replica has taken it.
Taking is a test-and-set under a POSIX record lock on that byte, so that no message is needed and nothing runs twice.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import weakref
from typing import Final

PLACES: Final = 65536
_WAITS, _TAKEN = 0, 1


class Ties:
    """One process's view of a table.

    The locks exclude processes, not the threads of one: in a process one thread at a time may `take`.

    Args:
        fd: File of `PLACES` bytes; it is duplicated.

    Raises:
        ValueError: The file is smaller.
    """

    def __init__(self, fd: int) -> None:
        self._fd = os.dup(fd)
        weakref.finalize(self, os.close, self._fd)
        self._bytes = mmap.mmap(self._fd, PLACES)

    def taken(self, place: int) -> bool:
        """Whether a replica has taken what is at a place."""
        return self._bytes[place] == _TAKEN

    def take(self, place: int) -> bool:
        """Take what is at a place. Returns whether this call has: nobody else had, nor was about to."""
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
    """The router's side: makes the table and gives out its places.

    Raises:
        OSError: The system does not provide such memory; see `Arena.supported`.
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
        """Places that are given out."""
        return PLACES - 1 - len(self._free)

    def place(self) -> int:
        """A place for a request that waits; 0 when there is none."""
        if not self._free:
            return 0
        place = self._free.pop()
        self._bytes[place] = _WAITS
        return place

    def free(self, place: int) -> None:
        """Nobody has what was at a place any more."""
        if place:
            self._free.append(place)
