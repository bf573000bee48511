"""Shares one memory arena among all sessions of a process that runs one batch at a time.

A session's own arena keeps the memory of its largest batch for the session's life: many models hold many times what is
ever in use. Weights stay outside of the shared arena, so that they return to the system with the session.
"""

from __future__ import annotations

from threading import Lock
from typing import Any, Final

import onnxruntime

_NEXT_POWER_OF_TWO: Final = 0
"""How it grows: blocks that serve many models of different sizes, instead of one for every size that comes up."""
_lock = Lock()
_made = False


def share_arena(options: Any) -> None:
    """Make a session with these options use the process's arena. Thread-safe."""
    _make()
    options.add_session_config_entry("session.use_env_allocators", "1")
    options.add_session_config_entry("session.use_device_allocator_for_initializers", "1")


def _make() -> None:
    """Register the arena; ONNX Runtime accepts one per process, once."""
    global _made  # noqa: PLW0603 - so does what it belongs to
    with _lock:
        if not _made:
            memory = onnxruntime.OrtMemoryInfo(
                "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
            )
            # Without a limit; -1: as ONNX Runtime chooses.
            growth = onnxruntime.OrtArenaCfg(0, _NEXT_POWER_OF_TWO, -1, -1)
            onnxruntime.create_and_register_allocator(memory, growth)
            _made = True
