"""What was understood of a model's folder and configuration."""

from __future__ import annotations

from typing import Final, NamedTuple

WARNING: Final = "warning"
"""Name of a fact that is no setting: files that disagree, or what somebody should know."""
ASSUMED: Final = "default"
"""Source of what nothing says."""


class Fact(NamedTuple):
    """A setting, and where it comes from.

    Attributes:
        name: Of the setting, as ``max length``.
        value: As people write it.
        source: File and key, ``processor.key``, the model's file, or ``default``.
    """

    name: str
    value: str
    source: str
