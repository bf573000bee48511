"""Memory shared by a router and the replicas on its node: large tensors are written once and read in place.

The router owns the memory and allocates blocks. A block is free once nothing refers to it: its request and all bundles
with it have ended.
"""

from __future__ import annotations

import mmap
import os
import sys
import weakref
from bisect import bisect_left
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

Block = npt.NDArray[np.uint8]

_GRAIN = 64
"""Blocks start and end at multiples of this, bytes: a cache line, and the widest vector register."""


class Arena:
    """The owner's side: a memory file divided into blocks.

    Not thread-safe, except that any thread may drop blocks.

    Args:
        nbytes: Its size. The system allocates pages on the first write, and they are kept for reuse.

    Raises:
        OSError: The system has no such memory; see `supported`.
    """

    def __init__(self, nbytes: int) -> None:
        self._fd = os.memfd_create("serve-app", os.MFD_CLOEXEC)
        os.ftruncate(self._fd, nbytes)
        self._memory = memoryview(mmap.mmap(self._fd, nbytes))
        self._start = np.frombuffer(self._memory, np.uint8).__array_interface__["data"][0]
        self._free_at = [0]
        self._free_sizes = [nbytes]
        self._dropped: deque[tuple[int, int]] = deque()
        self.nbytes = nbytes

    def __repr__(self) -> str:
        return f"<Arena {self.held} of {self.nbytes} bytes held>"

    @staticmethod
    def supported() -> bool:
        """Whether this system has memory that can be shared like this. Linux has."""
        return sys.platform == "linux"

    @property
    def fd(self) -> int:
        """The file, for the reading processes."""
        return self._fd

    @property
    def held(self) -> int:
        """Bytes of blocks in use."""
        self._take_back()
        return self.nbytes - sum(self._free_sizes)

    def allocate(self, nbytes: int) -> Block | None:
        """Allocate a block: uint8, (nbytes,), aligned to 64, with arbitrary content.

        It is free once the block and all arrays and memoryviews of it are gone.

        Returns:
            ``None`` if there is no room.
        """
        self._take_back()
        size = -(-max(nbytes, 1) // _GRAIN) * _GRAIN
        for index, free in enumerate(self._free_sizes):  # the lowest that fits: its pages are the likeliest in use
            if free >= size:
                offset = self._free_at[index]
                if free == size:
                    del self._free_at[index], self._free_sizes[index]
                else:
                    self._free_at[index] += size
                    self._free_sizes[index] -= size
                break
        else:
            return None
        block = np.frombuffer(self._memory, np.uint8, nbytes, offset)
        # Arrays made of the block refer to the block itself, since its own base is no array.
        weakref.finalize(block, self._dropped.append, (offset, size)).atexit = False
        return block

    def offset_of(self, array: npt.NDArray[Any]) -> int | None:
        """An array's offset in this memory, bytes; ``None`` if it is elsewhere."""
        offset: int = array.__array_interface__["data"][0] - self._start
        return offset if 0 <= offset < self.nbytes else None

    def close(self) -> None:
        """Close the file. The memory is freed with the last block, here and in readers."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _take_back(self) -> None:
        while self._dropped:
            self._release(*self._dropped.popleft())

    def _release(self, offset: int, size: int) -> None:
        starts, sizes = self._free_at, self._free_sizes
        index = bisect_left(starts, offset)
        if index < len(starts) and offset + size == starts[index]:  # joins what follows
            starts[index] = offset
            sizes[index] += size
        else:
            starts.insert(index, offset)
            sizes.insert(index, size)
        if index and starts[index - 1] + sizes[index - 1] == starts[index]:  # joins what comes before
            sizes[index - 1] += sizes[index]
            del starts[index], sizes[index]


class ArenaReader:
    """The other side: reads blocks of another process's arena.

    Args:
        fd: The arena's file; may be closed afterwards.
        nbytes: The arena's size.

    Raises:
        OSError: The file cannot be mapped.
        ValueError: The file is smaller.
    """

    def __init__(self, fd: int, nbytes: int) -> None:
        self._memory = memoryview(mmap.mmap(fd, nbytes, prot=mmap.PROT_READ))

    def array(self, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int) -> npt.NDArray[Any]:
        """The array at an offset; a read-only view.

        Raises:
            ValueError: It exceeds the arena.
        """
        count = 1
        for size in shape:
            count *= size
        if count == 0:
            return np.empty(shape, dtype)
        return np.frombuffer(self._memory, dtype, count, offset).reshape(shape)
