"""Memory of this process."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_LARGE: Final = 1024**2
_LOOKED_AT: Final = 128 * 1024
_LARGEST_IN_HEAP: Final = 32 * 1024**2
"""What the C library takes from a heap at most, and what it gets to by itself where large blocks come and go."""

_keeps_more = False


def give_memory_back() -> None:
    """Have the C library give the system what was freed. It keeps it otherwise: whole models, one after the other.

    What is free at the end of a thread's heap stays all the same: see `give_end_of_heap_back`.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)


def give_end_of_heap_back() -> None:
    """Have the C library give the system what is free at the end of the heap that this thread allocates from.

    To be called in a thread that has ended what it did. The library looks when a block of more than 64 KiB is freed,
    and gives back what is more than 128 KiB, but 64 MiB once a model was loaded with `large_blocks_apart`.
    """
    libc = ctypes.CDLL(None)
    if not _keeps_more or not hasattr(libc, "mallopt"):
        return
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    _set_option(_M_TRIM_THRESHOLD, 0)
    libc.free(libc.malloc(_LOOKED_AT))
    _set_option(_M_TRIM_THRESHOLD, 2 * _LARGEST_IN_HEAP)


def keep_large_blocks_apart() -> None:
    """Have the C library take every block of 1 MiB or more from the system, and give it back as soon as it is freed.

    Otherwise weights of models that come and go lie between each other in one heap, and the gaps, which are as large
    again, stay with the process.
    """
    _set_option(_M_MMAP_THRESHOLD, _LARGE)


@contextmanager
def large_blocks_apart() -> Iterator[None]:
    """As `keep_large_blocks_apart`, in here alone: for what a load allocates, in a process that runs models as well.

    Runs then take their tensors from the heap again, which is faster: a block from the system is cleared first. Of
    two threads that are in here at once, the first that leaves ends it for both.
    """
    global _keeps_more  # noqa: PLW0603 - as the option: of the process, and never taken back
    _set_option(_M_MMAP_THRESHOLD, _LARGE)
    try:
        yield
    finally:
        _keeps_more = True
        # Once an option is set, the C library adapts it no more: both are what it would adapt them to.
        _set_option(_M_MMAP_THRESHOLD, _LARGEST_IN_HEAP)
        _set_option(_M_TRIM_THRESHOLD, 2 * _LARGEST_IN_HEAP)


def _set_option(option: int, value: int) -> None:
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc has it
    if set_option is not None:
        set_option(option, value)
