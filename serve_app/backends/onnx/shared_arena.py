"""One memory arena for all sessions of a process that runs one batch at a time.

A session's own arena keeps what its largest batch has needed, for as long as the session lives: of many models that is
many times what is ever used at once. The weights of a session are kept outside of the shared arena, so that the system
gets them back with the session.
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
    """Have a session that is made with these options use the arena of this process. From any thread."""
    _make()
    options.add_session_config_entry("session.use_env_allocators", "1")
    options.add_session_config_entry("session.use_device_allocator_for_initializers", "1")


def _make() -> None:
    """ONNX Runtime takes one of a process, once."""
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
