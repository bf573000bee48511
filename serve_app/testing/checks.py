"""Lists and runs checks of any kind."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

SubjectT = TypeVar("SubjectT")


class NotConforming(AssertionError):
    """The checked object breaks its contract."""


def told(error: BaseException) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {error}"


def listed_in(
    found: list[Callable[[SubjectT], None]], tell: Callable[[BaseException], str] = told
) -> Callable[[Callable[[SubjectT], None]], Callable[[SubjectT], None]]:
    """A decorator of checks.

    Args:
        found: Receives them in order.
        tell: Describes other errors of a check than `NotConforming`: those break the contract, too.
    """

    def decorate(do: Callable[[SubjectT], None]) -> Callable[[SubjectT], None]:
        @wraps(do)
        def check(subject: SubjectT) -> None:
            try:
                do(subject)
            except NotConforming:
                raise
            except Exception as error:
                raise NotConforming(tell(error)) from error

        found.append(check)
        return check

    return decorate


def require(condition: bool, message: str) -> None:
    """Raise `NotConforming` with this message unless the condition holds."""
    if not condition:
        raise NotConforming(message)


def name_of(check: Callable[..., Any]) -> str:
    """A check's name, as test runners show it."""
    return check.__name__
