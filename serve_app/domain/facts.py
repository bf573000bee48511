"""Facts about a model's folder and configuration."""

from __future__ import annotations

from typing import Final, NamedTuple

WARNING: Final = "warning"
"""Name of a fact that is no setting: files that disagree, or other notes."""
ASSUMED: Final = "default"
"""Source of a default."""


class Fact(NamedTuple):
    """A setting, and its source.

    Attributes:
        name: Of the setting, as ``max length``.
        value: For people.
        source: File and key, ``processor.key``, the model's file, or ``default``.
    """

    name: str
    value: str
    source: str
