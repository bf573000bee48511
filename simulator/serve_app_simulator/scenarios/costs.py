"""What the models of a scenario cost: curves from the file or from profiles, and what a load of 1 means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from serve_app.config.problems import place
from serve_app.config.profile import read_profile
from serve_app.errors import ConfigError
from serve_app_simulator.measured_curve import MeasuredCurve
from serve_app_simulator.scenario import Curve, Noise, SimulatedModel, Stream
from serve_app_simulator.scenarios.file import ScenarioFile
from serve_app_simulator.scenarios.models import SimulatedModelConfig
from serve_app_simulator.workloads import zipf


def read_costs(file: ScenarioFile, folder: Path) -> tuple[tuple[SimulatedModel, ...], Noise]:
    """The models of a file with their curves, and how execution times scatter.

    Raises:
        ConfigError: A profile is missing, broken or of another model, or a model cannot meet its own latency target.
    """
    models: list[SimulatedModel] = []
    problems: list[str] = []
    spreads: list[float] = []
    for number, config in enumerate(file.models):
        where = place(("models", number))
        try:
            model, spread = _read_model(config, folder)
        except ConfigError as error:
            problems += [f"{where}.{problem}" for problem in error.problems]
            continue
        one_row_s = model.curve(1, 0)
        if one_row_s > model.scheduling.slo_s:
            problems.append(
                f"{where}.batching.slo_ms: {config.batching.slo_ms:g} is less than one row takes,"
                f" {one_row_s * 1000:.4g} ms"
            )
        models.append(model)
        spreads += [] if spread is None else [spread]
    if file.noise.kind == "measured" and not spreads and not problems:
        problems.append("noise.kind: measured takes the scatter from models' profiles, and no model has one")
    if problems:
        raise ConfigError(tuple(problems))
    noise = file.noise.simulated()
    return tuple(models), replace(noise, spread=max(spreads)) if file.noise.kind == "measured" else noise


def _read_model(config: SimulatedModelConfig, folder: Path) -> tuple[SimulatedModel, float | None]:
    variants: dict[str, Curve] = {
        variant.name: variant.latency.curve() for variant in config.variants if variant.latency is not None
    }
    if config.latency is not None:
        return config.simulated(config.latency.curve(), variants), None
    assert config.profile is not None
    try:
        profile = read_profile(folder.resolve() / config.profile)
    except ConfigError as error:
        raise ConfigError(tuple(f"profile: {problem}" for problem in error.problems)) from None
    if profile.model != config.name:
        raise ConfigError((f"profile: {config.profile} is of the model {profile.model!r}, not of {config.name!r}",))
    for number, variant in enumerate(config.variants):
        if variant.latency is None:
            if variant.name not in profile.variants:
                known = ", ".join(profile.variants) or "none"
                message = f"{config.profile} has no variant {variant.name!r}; there are: {known}"
                raise ConfigError((f"variants[{number}].name: {message}",))
            variants[variant.name] = MeasuredCurve.of(profile, variant.name)
    return config.simulated(MeasuredCurve.of(profile), variants), profile.spread()


def capacity(model: SimulatedModel, between_s: float = 0.0) -> float:
    """Rows per second that a model's replicas can answer within its latency target, each with a device of its own.

    ``replicas * max(b / (L(b) + between_s))`` over the batch sizes ``b`` with ``L(b) <= slo_s``: a load of 1.
    """
    settings = model.scheduling
    sizes = range(1, settings.max_rows + 1)
    rates = [rows / (seconds + between_s) for rows in sizes if (seconds := model.curve(rows, 0)) <= settings.slo_s]
    return model.replicas * max(rates)


def loads(models: Sequence[SimulatedModel], streams: Sequence[Stream]) -> dict[str, float]:
    """Load of each model that has replicas, as a part of its `capacity`, without surges and traces."""
    offered = {model.scheduling.name: 0.0 for model in models}
    for stream in streams:
        if stream.kind == "long_tail":
            for model, part in zip(models, zipf(len(models), stream.exponent).tolist(), strict=True):
                offered[model.scheduling.name] += stream.rate * part * stream.rows
        elif stream.kind != "trace" and stream.model in offered:  # otherwise it asks a pool
            rate = stream.streams * stream.fps if stream.kind == "video" else stream.rate
            offered[stream.model] += rate * stream.rows
    return {
        model.scheduling.name: offered[model.scheduling.name] / capacity(model) for model in models if model.replicas
    }


def unit_rate(models: Sequence[SimulatedModel], model: str, exponent: float, rows: int) -> float:
    """Requests per second, of so many rows each, that are a load of 1 of a model.

    An empty name means all models by Zipf's law with this exponent; then the highest load counts.
    """
    if model:
        return next(capacity(each) for each in models if each.scheduling.name == model) / rows
    parts: list[float] = zipf(len(models), exponent).tolist()
    return min(capacity(each) / float(part) for each, part in zip(models, parts, strict=True)) / rows
