"""What only Python's collector of cycles could free.

Where an error is held by a variable of a frame that it has passed, that frame and those before it stay, and with them
the request and its tensors. Routers collect seldom, and a flood makes hundreds of errors per second.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CodeType, FrameType

import serve_app

_PACKAGE, _TESTS = Path(serve_app.__file__).parent, Path(__file__).parent


def in_cycles() -> list[str]:
    """Functions of the server whose frames are held by nothing but cycles, of what was not collected yet.

    A test may keep an error to look at it, in a cycle of its own: variables of tests' frames are emptied first.
    """
    _empty([frame for frame in _frames() if Path(frame.f_code.co_filename).is_relative_to(_TESTS)])
    codes = {frame.f_code for frame in _frames()}
    return sorted(code.co_qualname for code in codes if _is_the_servers(code))


def _empty(frames: list[FrameType]) -> None:
    for frame in frames:
        with suppress(RuntimeError):  # of a generator that is suspended
            frame.clear()


def freeze() -> None:
    """Collect what only cycles hold, and never look at the rest again: only what is new costs a collection time."""
    gc.collect()
    gc.freeze()


@contextmanager
def without_cycles() -> Iterator[None]:
    """What happens meanwhile must leave none. What was there before is not looked at."""
    gc.disable()
    freeze()
    try:
        yield
        found = in_cycles()
        gc.collect()  # what was looked at, and tests' own
    finally:
        gc.enable()
    assert not found, f"only the collector of cycles could free the frames of {', '.join(found)}"


def _frames() -> list[FrameType]:
    """Those that a collection would free."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
    finally:
        gc.set_debug(0)
    frames = [each for each in gc.garbage if isinstance(each, FrameType)]
    gc.garbage.clear()
    return frames


def _is_the_servers(code: CodeType) -> bool:
    path = Path(code.co_filename)
    return path.is_relative_to(_PACKAGE) and not path.is_relative_to(_PACKAGE / "client")
