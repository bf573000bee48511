"""The check for cycles finds what it should, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from collector import in_cycles, without_cycles

import serve_app

_CODE = """
def careful(ask):
    ask()

def keeps(ask):
    try:
        ask()
    except KeyError as error:
        kept = error
        raise

def makes():
    error = KeyError("made")
    raise error
"""


def _of_the_server(name: str) -> Callable[..., None]:
    """A function as if it stood in the server's package."""
    names: dict[str, Callable[..., None]] = {}
    exec(compile(_CODE, str(Path(serve_app.__file__).parent / "none.py"), "exec"), names)
    return names[name]


class _Double:
    """What tests put in the place of something: it keeps the error that it raises."""

    def __init__(self) -> None:
        self.error = KeyError("asked")

    def ask(self) -> None:
        """Fail."""
        raise self.error


def _refuse() -> None:
    raise KeyError("asked")


def _catch(function: Callable[..., None], *arguments: Any) -> None:
    with suppress(KeyError):
        function(*arguments)


@pytest.mark.parametrize(("name", "arguments"), [("keeps", (_refuse,)), ("makes", ())])
def test_frames_in_cycles_are_found(name: str, arguments: tuple[Any, ...]) -> None:
    """Also where the error came through a frame of a test, and was caught by one."""
    with pytest.raises(AssertionError, match=name), without_cycles():
        _catch(_of_the_server(name), *arguments)


def test_what_goes_at_once_is_not() -> None:
    """However often."""
    with without_cycles():
        for _ in range(3):
            _catch(_of_the_server("careful"), _refuse)


def test_what_a_test_keeps_is_its_own_matter() -> None:
    """An error of a server without a fault, looked at by a test."""

    def look() -> None:
        with pytest.raises(KeyError) as caught:
            _of_the_server("careful")(_refuse)
        assert caught.value.args == ("asked",)

    with without_cycles():
        look()


def test_a_leak_is_found_beside_what_a_test_keeps() -> None:
    """The test's own cycle is undone, the server's is left."""

    def look() -> None:
        with pytest.raises(KeyError) as caught:
            _of_the_server("keeps")(_refuse)
        assert caught.value.args == ("asked",)

    with pytest.raises(AssertionError, match="keeps"), without_cycles():
        look()


def test_nothing_is_left_to_look_at_twice() -> None:
    """The next look finds only what is new."""
    with pytest.raises(AssertionError), without_cycles():
        _catch(_of_the_server("makes"))
    with without_cycles():
        assert in_cycles() == []
