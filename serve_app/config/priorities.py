"""The classes of numeric priorities, as Triton's clients send them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BeforeValidator, WithJsonSchema

from serve_app.config.problems import short_repr, validation_error
from serve_app.domain.priorities import DEFAULT_LEVELS, MAX_LEVEL, PriorityLevels
from serve_app.domain.priority import Priority

_CLASSES: Final = {priority.label: priority for priority in Priority}


def _numbers(given: Any) -> Any:
    """Accept numbers as text, too: JSON keys, as on Kubernetes, are text."""
    if not isinstance(given, Mapping):
        return given
    named: dict[int, Any] = {}
    for key, name in given.items():
        number = int(key) if isinstance(key, str) and key.isdecimal() and key.isascii() else key
        if type(number) is not int or not 1 <= number <= MAX_LEVEL:
            raise validation_error(
                [((), f"names numbers from 1 to {MAX_LEVEL}; 0 is always the class normal; got {short_repr(key)}")]
            )
        if number in named:
            raise validation_error([((), f"has {number} twice")])
        named[number] = name
    if all(isinstance(name, str) and name in _CLASSES for name in named.values()):
        _check_order(priority_levels(named))
    return named


def _check_order(levels: PriorityLevels) -> None:
    """Check that larger numbers are not more urgent, and that one maps to the default class."""
    before, least = 0, Priority.HIGH
    for number, priority in sorted(levels.named.items()):
        if number > before + 1:
            before, least = before + 1, Priority.LOW  # numbers between are unnamed
        if priority < least:
            raise validation_error(
                [((), f"{number} is {priority.label}, but {before}, which is more urgent, is {least.label}: name it")]
            )
        before, least = number, priority
    if Priority.NORMAL not in levels.named.values():
        raise validation_error([((), "one number must be normal, which is the class of requests that name none")])


def priority_levels(named: Mapping[int, str]) -> PriorityLevels:
    """The configured numbers with the defaults.

    Args:
        named: Class by number.
    """
    if not named:
        return DEFAULT_LEVELS
    return PriorityLevels({**DEFAULT_LEVELS.named, **{number: _CLASSES[name] for number, name in named.items()}})


PriorityNumbers: TypeAlias = Annotated[
    dict[int, Literal["high", "normal", "low"]],
    BeforeValidator(_numbers),
    WithJsonSchema(
        {
            "type": "object",
            "additionalProperties": False,
            "patternProperties": {"^[1-9][0-9]*$": {"type": "string", "enum": list(_CLASSES)}},
        }
    ),
]
"""Names of classes by number."""
