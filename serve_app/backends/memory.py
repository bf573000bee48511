"""Memory of this process."""

from __future__ import annotations

import ctypes


def give_memory_back() -> None:
    """Have the C library give the system what was freed. It keeps it otherwise: whole models, one after the other."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)
