"""How checks are listed and run, whatever they are about."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

SubjectT = TypeVar("SubjectT")


class NotConforming(AssertionError):
    """What was checked does not do what all of its kind promise."""


def told(error: BaseException) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {error}"


def listed_in(
    found: list[Callable[[SubjectT], None]], tell: Callable[[BaseException], str] = told
) -> Callable[[Callable[[SubjectT], None]], Callable[[SubjectT], None]]:
    """A decorator of checks.

    Args:
        found: Receives them, in their order.
        tell: Says what else a check raises than `NotConforming`: that breaks a promise, too.
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
