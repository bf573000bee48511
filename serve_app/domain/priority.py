"""The classes of requests."""

from __future__ import annotations

from enum import IntEnum


class Priority(IntEnum):
    """A class of requests. The lower number is the more urgent; the numbers are those of the V2 protocol."""

    HIGH = 1
    NORMAL = 2
    LOW = 3

    label: str
    """The name used in configuration, headers, metrics and errors."""

    def __init__(self, _: int) -> None:
        self.label = self._name_.lower()
