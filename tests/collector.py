"""What only Python's collector of cycles could free.

Where an error is held by a variable of a frame that it has passed, that frame and those before it stay, and with them
the request and its tensors. Routers collect seldom, and a flood makes hundreds of errors per second.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

import serve_app

_PACKAGE, _TESTS = Path(serve_app.__file__).parent, Path(__file__).parent


def in_cycles() -> list[str]:
    """Functions of the server whose frames are held by nothing but cycles, of what was not collected yet."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    found = list(gc.garbage)
    gc.garbage.clear()
    of_tests = _reachable([each for each in found if isinstance(each, FrameType) and _is_of_a_test(each)], found)
    codes = {each.f_code for each in found if isinstance(each, FrameType) and id(each) not in of_tests}
    return sorted(code.co_qualname for code in codes if _is_the_servers(code))


@contextmanager
def without_cycles() -> Iterator[None]:
    """What happens meanwhile must leave none. What was there before is not looked at."""
    gc.disable()
    gc.freeze()
    try:
        yield
        found = in_cycles()
    finally:
        gc.unfreeze()
        gc.enable()
    assert not found, f"only the collector of cycles could free the frames of {', '.join(found)}"


def _reachable(begin: Iterable[object], among: Iterable[object]) -> set[int]:
    """The ids of those objects that are held by some of them, with these: a test may keep an error to look at it."""
    left = {id(each) for each in among}
    reached: set[int] = set()
    following = list(begin)
    while following:
        each = following.pop()
        if id(each) in left:
            left.remove(id(each))
            reached.add(id(each))
            following += gc.get_referents(each)
    return reached


def _is_of_a_test(frame: FrameType) -> bool:
    return Path(frame.f_code.co_filename).is_relative_to(_TESTS)


def _is_the_servers(code: CodeType) -> bool:
    path = Path(code.co_filename)
    return path.is_relative_to(_PACKAGE) and not path.is_relative_to(_PACKAGE / "client")
