"""Models that are served in several versions: each version becomes a model of its own, with the same settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from serve_app.composition.locate import resolve_model
from serve_app.config.args import AppArgs
from serve_app.config.model import ModelConfig
from serve_app.config.problems import place
from serve_app.domain.service import ModelInfo
from serve_app.domain.versions import newest_last, version_key
from serve_app.errors import ConfigError
from serve_app.router.part import MakePart
from serve_app.router.versions import MakeVersions
from serve_app.versions.config import LatestVersions, traffic_of
from serve_app.versions.policy import faults_of, version_of
from serve_app.versions.router import VersionsPart, make_tables


def model_versions(args: AppArgs) -> MakeVersions:  # noqa: ARG001 - of all wings
    """Make the tables of one router process."""
    return make_tables


def router_part(args: AppArgs, infos: Mapping[str, ModelInfo]) -> MakePart:  # noqa: ARG001 - of all wings
    """Make the part of a router that shows and changes the tables."""
    return VersionsPart


def with_versions(config: AppArgs) -> AppArgs:
    """Replace every model with versions by its versions, each a model named by its `version_key`.

    Without `versions`, the configuration is unchanged. Remote models are copied here.

    Raises:
        ConfigError: With one line per fault: versions or files that they name are missing.
    """
    if all(model.versions is None for model in config.models):
        return config
    problems: list[str] = []
    models: list[ModelConfig] = []
    for model in config.models:
        try:
            models += versions_of(model)
        except ConfigError as error:
            problems += (f"model {model.name!r}: {problem}" for problem in error.problems)
    if problems:
        raise ConfigError(tuple(problems))
    return config.model_copy(update={"models": tuple(models)})


def versions_of(model: ModelConfig) -> tuple[ModelConfig, ...]:
    """The versions of a model to serve, each as a model of its own, the newest last; the model itself if it has one.

    Raises:
        ConfigError: Versions, or files that they name, are missing.
    """
    if model.versions is None:
        return (model,)
    found = resolve_model(model.path, None, backend=model.backend, file=model.file)
    if not found.numbered:
        raise ConfigError((f"{model.path}: holds no folders of versions; leave versions out",))
    if isinstance(model.versions, LatestVersions):
        versions = newest_last(found.versions)[-model.versions.latest :]
    else:
        versions = newest_last([str(version) for version in model.versions])
    if missing := [version for version in versions if version not in found.versions]:
        there = ", ".join(found.versions)
        raise ConfigError((f"{model.path}: has no version {', '.join(missing)}; there is {there}",))
    faults = faults_of(traffic_of(model), versions)
    if problems := tuple(f"{place(where)}: {fault}" for where, fault in faults):
        raise ConfigError(problems)
    return tuple(_of_version(model, version) for version in versions)


def named_version(model: ModelConfig, versions: Sequence[str], named: str) -> str | None:
    """The configured version of a number or an alias, or ``None``.

    Args:
        model: One of the versions, from `with_versions`.
        versions: Those that are served, the newest last.
    """
    return version_of(traffic_of(model), versions, named)


def _of_version(model: ModelConfig, version: str) -> ModelConfig:
    """A version as a model, under its internal name."""
    number = int(version)
    variants = tuple(
        variant if variant.version is not None else variant.model_copy(update={"version": number})
        for variant in model.variants
    )
    name = version_key(model.name, version)
    return model.model_copy(update={"name": name, "version": number, "versions": None, "variants": variants})
