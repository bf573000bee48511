"""Memory of this process."""

from __future__ import annotations

import ctypes
from typing import Final

_M_MMAP_THRESHOLD: Final = -3
_LARGE: Final = 1024**2


def give_memory_back() -> None:
    """Have the C library give the system what was freed. It keeps it otherwise: whole models, one after the other."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)


def keep_large_blocks_apart() -> None:
    """Have the C library take every block of 1 MiB or more from the system, and give it back as soon as it is freed.

    Otherwise weights of models that come and go lie between each other in one heap, and the gaps, which are as large
    again, stay with the process.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc has it
    if set_option is not None:
        set_option(_M_MMAP_THRESHOLD, _LARGE)
