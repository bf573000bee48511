"""Settings of a model's versions, and the split of requests over them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field

from serve_app.config.problems import Location
from serve_app.config.values import Positive, Section
from serve_app.domain.versions import newest_last
from serve_app.versions.policy import Shadow, Sticky, Tolerance, Traffic, faults_of

if TYPE_CHECKING:
    from serve_app.config.model import ModelConfig

__all__ = ["Aliases", "ShadowConfig", "Sticky", "Versions", "Weights", "traffic_of", "version_faults"]

Percent = Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)]
Part = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Distance = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def _as_text(given: Any) -> Any:
    """A version as a name: YAML reads a number."""
    return str(given) if isinstance(given, int) and not isinstance(given, bool) else given


def _keys_as_text(given: Any) -> Any:
    return {_as_text(key): value for key, value in given.items()} if isinstance(given, Mapping) else given


Target = Annotated[str, BeforeValidator(_as_text), Field(min_length=1)]
Aliases = dict[str, Positive]
Weights = Annotated[dict[str, Part], BeforeValidator(_keys_as_text)]


class LatestVersions(Section):
    """The newest versions."""

    latest: Positive
    """How many, as far as there are so many."""

    def __len__(self) -> int:
        return self.latest


VersionList = Annotated[tuple[Positive, ...], Field(strict=False, json_schema_extra={"minItems": 1})]
Versions = LatestVersions | VersionList


class ToleranceConfig(Section):
    """How far numbers of an answer may be apart: `|a - b| <= atol + rtol * |b|`, b being the real answer's."""

    rtol: Distance = 1e-3
    """Relative to the real answer."""

    atol: Distance = 1e-5
    """In any case."""


class ShadowConfig(Section):
    """A version that runs copies of requests that another one answers, to compare the answers."""

    to: Target
    """The version, or an alias."""

    share: Percent = 100.0
    """Percent of the requests that are copied."""

    tolerance: dict[str, ToleranceConfig] = Field(default_factory=dict)
    """How far numbers may be apart, by output; of models of media by the field of an answer, e.g. `score`.

    Default: `{rtol: 1e-3, atol: 1e-5}`. Integers, booleans and texts must be equal.
    """

    def settings(self) -> Shadow:
        """The value for the layers below."""
        return Shadow(
            self.to, self.share, {name: Tolerance(each.rtol, each.atol) for name, each in self.tolerance.items()}
        )


def traffic_of(model: ModelConfig) -> Traffic:
    """How requests are split over a model's versions."""
    return Traffic(
        {alias: str(version) for alias, version in model.aliases.items()},
        dict(model.traffic),
        model.sticky,
        None if model.shadow is None else model.shadow.settings(),
    )


def version_faults(model: ModelConfig) -> list[tuple[Location, str]]:
    """What is wrong with the versions of a model, as far as its folder need not be read, with the place in it."""
    versions = model.versions
    if versions is None:
        given = [key for key in ("aliases", "traffic", "sticky", "shadow") if key in model.model_fields_set]
        return [((key,), "is for models that are served in several versions; set versions") for key in given]
    faults: list[tuple[Location, str]] = []
    if model.version is not None:
        faults.append((("version",), "leave this out: versions says which ones are served"))
    if model.profile is not None:
        faults.append((("profile",), "is measured of one version; leave this out"))
    if isinstance(versions, LatestVersions):  # which ones these are is known once the folder has been read
        return faults
    if not versions:
        faults.append((("versions",), "needs at least one version"))
    elif len(set(versions)) < len(versions):
        faults.append((("versions",), "names a version twice"))
    else:
        faults += faults_of(traffic_of(model), newest_last([str(version) for version in versions]))
    return faults
