"""Controls the C library's memory of this process."""

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
"""The C library's largest block on a heap, and the size that it adapts to when large blocks come and go."""

_keeps_more = False


def give_memory_back() -> None:
    """Return freed memory to the system; otherwise the C library keeps it, model after model.

    The free end of a thread's heap stays: see `give_end_of_heap_back`.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)


def give_end_of_heap_back() -> None:
    """Return the free end of the calling thread's heap to the system.

    Call it in a thread that has finished its work. The C library trims when a block above 64 KiB is freed, beyond 128
    KiB, or beyond 64 MiB once a model was loaded with `large_blocks_apart`.
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
    """Take each block of 1 MiB or more from the system, and return it as soon as it is freed.

    Otherwise weights of successive models interleave in one heap, and the gaps, which are as large again, stay with the
    process.
    """
    _set_option(_M_MMAP_THRESHOLD, _LARGE)


@contextmanager
def large_blocks_apart() -> Iterator[None]:
    """`keep_large_blocks_apart` for the duration of a load, in a process that runs models as well.

    Runs then take tensors from the heap again, which is faster: the system clears a block first. If two threads
    overlap, the first to leave ends it for both.
    """
    global _keeps_more  # noqa: PLW0603 - as the option: of the process, and never taken back
    _set_option(_M_MMAP_THRESHOLD, _LARGE)
    try:
        yield
    finally:
        _keeps_more = True
        # Once an option is set, the C library stops adapting it: both get their adapted values.
        _set_option(_M_MMAP_THRESHOLD, _LARGEST_IN_HEAP)
        _set_option(_M_TRIM_THRESHOLD, 2 * _LARGEST_IN_HEAP)


def _set_option(option: int, value: int) -> None:
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc has it
    if set_option is not None:
        set_option(option, value)
