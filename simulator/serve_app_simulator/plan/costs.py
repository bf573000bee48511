"""What replicas of a model cost: its profile, and the settings that follow from it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from serve_app.config.file import ServeFile
from serve_app.config.model import ModelConfig
from serve_app.config.profile import Profile, read_profile
from serve_app.errors import ConfigError
from serve_app.scheduling.settings import ModelScheduling
from serve_app_simulator.measured_curve import MeasuredCurve
from serve_app_simulator.scenario import Curve

CUDA: Final = "cuda"
_PAYS = 1.05
"""More rows in a batch must save a twentieth of the time per row: the server's rule for ``max_rows: auto``."""


@dataclass(frozen=True, slots=True)
class Slowed:
    """A curve at another speed."""

    curve: Curve
    factor: float

    def __call__(self, rows: int, bucket: int = 0) -> float:
        """Seconds."""
        return self.curve(rows, bucket) * self.factor


@dataclass(frozen=True, slots=True)
class Costed:
    """A model with what its batches cost.

    Attributes:
        scheduling: Its settings for the scheduler, with the plan's `max_rows`.
        curve: Mean time of a batch, seconds.
        variants: The same of each variant, by name.
        spread: Sigma of the lognormal scatter around the mean.
        threads: Of a session.
        device: ``cpu`` or ``cuda``.
        memory: Of one replica on its device, bytes; 0: unknown.
        buckets: Its cost buckets.
        because: Reasons of the settings, by name.
    """

    scheduling: ModelScheduling
    curve: Curve
    variants: Mapping[str, Curve]
    spread: float
    threads: int
    device: str
    memory: int
    buckets: tuple[int, ...]
    because: Mapping[str, str]

    @property
    def name(self) -> str:
        """The model's."""
        return self.scheduling.name


def read_costs(file: ServeFile, names: Iterable[str], config: Path) -> tuple[Costed, ...]:
    """Read the profiles of models: those that the file names, or that ``serve-app profile`` writes by default.

    Args:
        config: The file's path, for messages.

    Raises:
        ConfigError: One line per model without a usable profile, with the remedy.
    """
    models = {model.name: model for model in file.args.models}
    found: list[Costed] = []
    problems: list[str] = []
    for name in names:
        model = models[name]
        path = model.profile or f"profiles/{model.deployment}.json"
        try:
            profile = read_profile(path, os.environ)
        except ConfigError as error:
            problem = "; ".join(error.problems)
        else:
            if profile.model == name:
                found.append(_costed(model, profile))
                continue
            problem = f"{path}: is of the model {profile.model!r}"
        remedy = f"measure it: serve-app profile {config} --model {name}"
        problems.append(f"model {name!r} has no usable profile ({problem}); {remedy}")
    if problems:
        raise ConfigError(tuple(problems))
    return tuple(found)


def _costed(model: ModelConfig, profile: Profile) -> Costed:
    curve = MeasuredCurve.of(profile)
    buckets = tuple(sorted({point.bucket for point in profile.shapes if not point.variant}))
    rows, because = _max_rows(model, curve, sorted({point.rows for point in profile.shapes}), buckets[-1])
    known = set(profile.variants)
    variants = {
        each.name: MeasuredCurve.of(profile, each.name) if each.name in known else curve for each in model.variants
    }
    reasons = {"batching.max_rows": because, "resources.threads": f"as profiled on {profile.machine.cpu}"}
    for each in model.variants:
        listed = "a fallback" if each.name in model.fallbacks else "only for requests that name it"
        measured = "" if each.name in known else "; the profile lacks it, so it counts as slow as the model"
        reasons[f"variants.{each.name}"] = f"as configured, {listed}{measured}"
    return Costed(
        replace(model.scheduling(), max_rows=rows),
        curve,
        variants,
        profile.spread(),
        profile.threads,
        profile.device,
        _memory(profile),
        buckets,
        reasons,
    )


def _max_rows(model: ModelConfig, curve: Curve, measured: Sequence[int], bucket: int) -> tuple[int, str]:
    given, slo_s = model.batching.max_rows, model.batching.slo_ms / 1000
    if given != "auto":
        return given, "as configured"
    per_row = {rows: curve(rows, bucket) / rows for rows in measured if curve(rows, bucket) <= slo_s} or {1: 0.0}
    rows = min(rows for rows, row_s in per_row.items() if row_s <= _PAYS * min(per_row.values()))
    return rows, f"more rows save less than 5% per row, or take longer than slo_ms {model.batching.slo_ms:g}"


def _memory(profile: Profile) -> int:
    """Of a replica that has run all shapes, bytes: on a GPU what it added there, else the resident set."""
    if profile.device == CUDA:
        before = profile.memory.gpu_before_load_bytes or 0
        held = [each.gpu_bytes or 0 for each in profile.shapes] + [profile.memory.gpu_after_load_bytes or 0]
        return max(0, max(held) - before)
    return max([each.peak_rss_bytes or 0 for each in profile.shapes] + [profile.memory.after_load_bytes or 0])
