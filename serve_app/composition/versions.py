"""Models in several versions, if the wing of versions is installed. Without it every model has one version."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

from serve_app import wings
from serve_app.config.args import AppArgs
from serve_app.config.model import ModelConfig


def with_versions(config: AppArgs) -> AppArgs:
    """Replace every model with versions by its versions, each a model named by its `version_key`.

    Without `versions`, the configuration is unchanged. Remote models are copied here.

    Raises:
        ConfigError: With one line per fault: versions, or files that they name, are missing.
    """
    wing = _wing()
    changed: AppArgs = config if wing is None else wing.with_versions(config)
    return changed


def versions_of(model: ModelConfig) -> tuple[ModelConfig, ...]:
    """The versions of a model to serve, each as a model of its own, the newest last; the model itself if it has one.

    Raises:
        ConfigError: Versions, or files that they name, are missing.
    """
    wing = _wing()
    found: tuple[ModelConfig, ...] = (model,) if wing is None else wing.versions_of(model)
    return found


def named_version(model: ModelConfig, versions: Sequence[str], named: str) -> str | None:
    """The version of a number or an alias before any change at run time, or ``None``.

    Args:
        model: One of the versions, from `with_versions`.
        versions: Those that are served, the newest last.
    """
    wing = _wing()
    if wing is None:
        return named if named in versions else None
    found: str | None = wing.named_version(model, versions, named)
    return found


def configured_traffic(model: ModelConfig) -> object:
    """The configured split of requests over the versions of a model, for `RoutedModel.traffic`."""
    wing = _wing()
    return None if wing is None else wing.traffic_of(model)


def _wing() -> ModuleType | None:
    return wings.find("versions", "composition")
