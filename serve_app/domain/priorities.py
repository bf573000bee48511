"""The numbers by which clients of Triton name priorities, and the classes that they mean here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from serve_app.domain.priority import Priority
from serve_app.errors import InvalidRequest

MAX_LEVEL: Final = 2**64 - 1
"""The protocol's numbers have 64 bits and no sign."""
_MOST_DIGITS: Final = len(str(MAX_LEVEL))
_EXPECTED: Final = f"0 (the default class), or a number from 1 (the most urgent) to {MAX_LEVEL}"


@dataclass(frozen=True, slots=True)
class PriorityLevels:
    """Which class each number means. 0 is the default class, and numbers that are not named are the lowest.

    Attributes:
        named: Classes by number, 1 or more.
    """

    named: Mapping[int, Priority] = field(default_factory=lambda: {int(priority): priority for priority in Priority})

    def of_number(self, number: int) -> Priority | None:
        """The class of ``parameters.priority``; ``None`` for the default.

        Raises:
            InvalidRequest: It is below 0, or has more than 64 bits.
        """
        if (priority := self.named.get(number)) is not None:
            return priority
        if not 0 <= number <= MAX_LEVEL:
            raise InvalidRequest(f"parameters.priority: expected {_EXPECTED}")
        return Priority.LOW if number else None

    def of_header(self, value: bytes) -> Priority | None:
        """The class that ``X-Priority`` names, by its word or by a number; ``None`` for the default.

        Raises:
            InvalidRequest: It names none.
        """
        text = value.strip().lower()
        if (priority := _BY_WORD.get(text)) is not None:
            return priority
        if text.isdigit() and len(text) <= _MOST_DIGITS and (number := int(text)) <= MAX_LEVEL:
            return self.of_number(number)
        raise InvalidRequest(f"X-Priority: expected high, normal or low, {_EXPECTED}")

    @property
    def highest(self) -> int:
        """The largest number that is named: all beyond it are the lowest class."""
        return max(self.named)

    @property
    def default(self) -> int:
        """The smallest number of the class that a request without a priority has."""
        return min(number for number, priority in self.named.items() if priority is Priority.NORMAL)


_BY_WORD: Final = {priority.label.encode(): priority for priority in Priority}

DEFAULT_LEVELS: Final = PriorityLevels()
"""1 high, 2 normal, 3 and beyond low."""
