"""What a configuration makes of the wings that are installed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from serve_app import wings
from serve_app.composition.locate import ModelLocation
from serve_app.config.args import AppArgs
from serve_app.config.model import ModelConfig
from serve_app.domain.service import ModelInfo
from serve_app.router.part import MakePart
from serve_app.scheduling.placement.devices import Device


def expand_models(config: AppArgs, environ: Mapping[str, str] | None = None) -> AppArgs:
    """Add the models that wings find, such as the members of pools. Raises `ConfigError` with one line per fault."""
    for expand in wings.hooks("composition", "expand"):
        config = expand(config, environ)
    return config


def model_problems(config: AppArgs, model: ModelConfig, locations: Mapping[str, ModelLocation]) -> tuple[str, ...]:
    """Why wings cannot serve a model, one line each."""
    hooks = wings.hooks("composition", "model_problems")
    return tuple(problem for find in hooks for problem in find(config, model, locations))


def router_devices(config: AppArgs) -> tuple[Callable[[], Device], ...]:
    """Make what makes the devices that models share in a router's scheduler."""
    return tuple(make for devices in wings.hooks("composition", "devices") for make in devices(config))


def check_wings(config: AppArgs, infos: Mapping[str, ModelInfo]) -> None:
    """Check what wings need of the models.

    Args:
        infos: What is known of the models, by name; of one that is missing nothing is checked.

    Raises:
        ConfigError: With one line per fault.
    """
    for check in wings.hooks("composition", "check"):
        check(config, infos)


def machine_problems(config: AppArgs) -> tuple[str, ...]:
    """Find problems with what wings need of this machine, one line each."""
    return tuple(problem for find in wings.hooks("composition", "machine_problems") for problem in find(config))


def router_parts(config: AppArgs, infos: Mapping[str, ModelInfo]) -> tuple[MakePart, ...]:
    """Make the parts of a router, the innermost first. To be called in the router's process.

    Raises:
        ConfigError: A wing cannot have what its settings name.
    """
    made = [make(config, infos) for make in wings.hooks("composition", "router_part")]
    return tuple(part for part in made if part is not None)
