"""Sections of the configuration that wings define."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator

from serve_app import wings


def section(wing: str, name: str) -> Any:
    """The type of a wing's section; one that refuses every value where the wing is not installed."""
    module = wings.find(wing, "config")
    if module is not None:
        return getattr(module, name)

    def refuse(_: Any) -> Any:
        raise ValueError(wings.missing(wing))

    return Annotated[Any, BeforeValidator(refuse)]


def default(wing: str, name: str) -> Any:
    """A wing's section with its defaults; ``None`` where the wing is not installed."""
    module = wings.find(wing, "config")
    return None if module is None else getattr(module, name)()
