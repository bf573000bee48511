"""The table of wings: features that the core does without, each in a package of its own.

The core imports no wing. It asks this table for a module by its name, and goes on without it where the wing is not
installed; a setting that needs it is refused by name then. These modules are asked for:

==============  =============================================================================
``config``      the wing's sections of the configuration, and ``problems(args)`` over all of it
``composition`` what a configuration makes of the wing: ``router_part(args, infos)``; see `composition.wing_parts`
``deployment``  ``deployments(args, revisions, described)``: its own deployments in Ray Serve, by name;
                ``version_store(application)``: where routers keep what they agree on
``commands``    ``add_to(app)``: its commands of ``serve-app``
==============  =============================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from types import ModuleType
from typing import Any, Final

from serve_app.errors import ConfigError

WINGS: Final = ("pools", "cache", "pipelines", "jobs", "versions", "triton")
"""In the order in which they wrap inference, the innermost first."""


def find(wing: str, name: str) -> ModuleType | None:
    """Import a module of a wing; ``None`` where the wing is not installed or has no such module."""
    package = f"{__package__}.{wing}"
    try:
        return import_module(f"{package}.{name}")
    except ModuleNotFoundError as error:
        if error.name in (package, f"{package}.{name}"):
            return None
        raise


def need(wing: str, name: str, setting: str) -> ModuleType:
    """Import a module of a wing for a setting.

    Raises:
        ConfigError: The wing is not installed.
    """
    module = find(wing, name)
    if module is None:
        raise ConfigError((f"{setting}: {missing(wing)}",))
    return module


def missing(wing: str) -> str:
    """The message for a setting whose wing is not installed."""
    return f"needs the package {__package__}.{wing}, which is not installed"


def hooks(name: str, function: str) -> Iterator[Callable[..., Any]]:
    """The functions of that name that the installed wings have in their modules ``name``."""
    for wing in WINGS:
        found = getattr(find(wing, name), function, None)
        if found is not None:
            yield found
