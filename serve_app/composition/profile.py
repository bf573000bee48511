"""Checks the profile of a configured model: whether it is that model's, and how replicas differ from it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from serve_app.composition.locate import ModelLocation
from serve_app.config.model import ModelConfig
from serve_app.config.problems import short_repr
from serve_app.config.profile import Profile, read_profile
from serve_app.errors import ConfigError
from serve_app.payloads import Execution


def check_profile(profile: Profile, model: str, locations: Mapping[str, ModelLocation]) -> tuple[str, ...]:
    """Faults that show that this is the profile of another model, one line each. Reads the model's files."""
    problems = []
    if profile.model != model:
        problems.append(f"model: it is the profile of {short_repr(profile.model)}, not of {short_repr(model)}")
    for variant, location in locations.items():
        known = profile.files.get(variant)
        if known is not None and (found := sha256(location.model_file)) != known:
            problems.append(
                f"files[{variant!r}]: it was measured with another {location.model_file.name}"
                f" (SHA-256 {known[:12]}..., the one in {location.folder} has {found[:12]}...);"
                " measure again with serve-app profile"
            )
    return tuple(problems)


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_model_profile(
    model: ModelConfig, locations: Mapping[str, ModelLocation], environ: Mapping[str, str] | None = None
) -> Profile | None:
    """Read the model's profile, or ``None`` if none is configured.

    Raises:
        ConfigError: It is missing, not a profile, or that of another model.
    """
    if model.profile is None:
        return None
    try:
        profile = read_profile(model.profile, environ)
        problems = tuple(f"{model.profile}: {problem}" for problem in check_profile(profile, model.name, locations))
    except ConfigError as error:
        problems = error.problems
    if problems:
        raise ConfigError(tuple(f"model {model.name!r}: profile: {problem}" for problem in problems))
    return profile


def profile_notes(model: ModelConfig, profile: Profile) -> tuple[str, ...]:
    """Differences between replicas of this configuration and the measured ones, one line each."""
    notes = []
    resources = model.resources
    if resources.device == "cuda" or resources.gpus == 0:  # otherwise the cluster decides
        device = "cuda" if resources.device == "cuda" else "cpu"
        if profile.device != device:
            notes.append(f"was measured on {profile.device}, replicas run on {device}")
    if profile.device == "cpu" and resources.threads not in ("auto", profile.threads):
        notes.append(f"was measured with threads: {profile.threads}, replicas have {resources.threads}")
    largest = max(shape.rows for shape in profile.shapes)
    if largest < model.batching.configured_rows:
        notes.append(f"was measured up to {largest} rows, batches have up to {model.batching.configured_rows}")
    notes += [
        f"does not have the variant {short_repr(variant.name)}"
        for variant in model.variants
        if variant.name not in profile.variants
    ]
    return tuple(f"model {model.name!r}: profile: {model.profile} {note}" for note in notes)


def read_priors(models: Sequence[ModelConfig]) -> Mapping[str, list[Execution]]:
    """Batch costs from the models' profiles, which were checked when the models were described."""
    priors: dict[str, list[Execution]] = {}
    for model in models:
        if model.profile is not None:
            served = {"", *(variant.name for variant in model.variants)}
            points = read_profile(model.profile).points()
            priors[model.name] = [point for point in points if point.variant in served]
    return priors
