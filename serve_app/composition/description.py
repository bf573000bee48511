"""Reads every model of a configuration, and describes it for clients before any replica runs."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from serve_app.api.open_inference.sample import decode_sample
from serve_app.backends.description import Description
from serve_app.composition.locate import ModelLocation
from serve_app.composition.model import find_files, make_processor, make_samples, read_builds
from serve_app.composition.profile import profile_notes, read_model_profile
from serve_app.composition.streams import stream_problems
from serve_app.composition.tensors import input_formats, output_labels
from serve_app.composition.wing_parts import model_problems
from serve_app.config.args import AppArgs
from serve_app.config.model import ModelConfig
from serve_app.config.processor import CustomOptions
from serve_app.domain.service import ModelInfo, ModelServing
from serve_app.domain.versions import model_of
from serve_app.errors import ConfigError, ServeAppError
from serve_app.payloads import ModelSignature
from serve_app.processors.image import ImageProcessor
from serve_app.processors.of_model import ModelProcessor

_log = logging.getLogger(__name__)

_ROWS_OF_A_VALUE: Final = 64
"""Factor of the largest request if each row is one value."""


def describe_models(config: AppArgs, *, tell: bool = True) -> dict[str, ModelInfo]:
    """Read every model's files and describe it, as clients will see it before any replica runs.

    Args:
        config: From `with_versions`.
        tell: Whether further notes are logged.

    Raises:
        ConfigError: One line per model that cannot be used.
    """
    described = read_models(config, tell=tell)
    return {model.name: model_info(model, config, described[model.name], tell=tell) for model in config.models}


def read_models(config: AppArgs, *, tell: bool = True) -> dict[str, dict[str, Description]]:
    """Read the files of every model and check that they fit the configuration.

    Returns:
        By model and variant.

    Raises:
        ConfigError: One line per model that cannot be used.
    """
    described: dict[str, dict[str, Description]] = {}
    problems: list[str] = []
    for model in config.models:
        try:
            described[model.name] = _read(model, tell=tell)
            problems += model_problems(config, model, find_files(model))
        except ConfigError as error:
            problems.extend(error.problems)
        except ServeAppError as error:
            problems.append(f"model {model.name!r}: {error}")
    if problems:
        raise ConfigError(tuple(problems))
    return described


def _read(model: ModelConfig, *, tell: bool) -> dict[str, Description]:
    locations = find_files(model)
    builds = read_builds(model, locations)
    exact = builds[""]
    if problems := stream_problems(model, builds):
        raise ConfigError(problems)
    make_processor(model, exact.signature, locations[""])
    make_samples(model, exact.signature, decode_sample, rows=exact.joinable.rows)  # does what is configured fit?
    _said_of_tensors(model, exact, locations[""], tell=False)
    profile = read_model_profile(model, locations)
    for note in () if profile is None or not tell else profile_notes(model, profile):
        _log.warning("%s", note)
    return builds


def model_info(
    model: ModelConfig,
    config: AppArgs,
    builds: Mapping[str, Description],
    locations: Mapping[str, ModelLocation] | None = None,
    *,
    tell: bool = True,
) -> ModelInfo:
    """Describe a model whose files have been read, as clients will see it; ``locations`` are those files."""
    locations = find_files(model) if locations is None else locations
    exact, signature = locations[""], builds[""].signature
    processor = make_processor(model, signature, exact)
    return ModelInfo(
        name=model_of(model.name),
        version=exact.version,
        versions=(exact.version,),
        task=model.task,
        signature=signature,
        max_rows=model.batching.configured_rows,
        max_request_rows=config.router.limits.max_request_rows * (_ROWS_OF_A_VALUE if _are_values(signature) else 1),
        default_timeout_s={priority: limits.timeout_s for priority, limits in config.class_settings().items()},
        labels=() if processor is None else processor.labels,
        facts=getattr(processor, "facts", ()),  # of the server's own processors
        variants=tuple(variant for variant in locations if variant),
        serving=_serving(model, config),
        own_processor=isinstance(processor, ModelProcessor) or isinstance(model.processor, CustomOptions),
        layout=processor.settings.layout if isinstance(processor, ImageProcessor) else "",
        joinable={variant: build.joinable for variant, build in builds.items()},
        fixed_rows=builds[""].fixed_rows is not None,
        levels=config.classes.levels(),
        file=exact.file,
        numbered=exact.numbered,
        platform=exact.kind.platform,
        backend=exact.kind.triton_name or exact.kind.name,
        key=model.name if model.name != model_of(model.name) else "",
        streams=builds[""].streams,
        stream_timeout_s=model.stream_timeout_s if builds[""].streams else 0.0,
        **_said_of_tensors(model, builds[""], exact, tell=tell),
    )


def _are_values(signature: ModelSignature) -> bool:
    """Whether a row is a single value in all inputs and outputs, so that rows form a vector."""
    return all(spec.ranked and len(spec.shape) == 1 for spec in (*signature.inputs, *signature.outputs))


def _said_of_tensors(
    model: ModelConfig, build: Description, location: ModelLocation, *, tell: bool = True
) -> dict[str, Any]:
    """Settings of a model's tensors without a processor, from the configuration or a file beside the model.

    Raises:
        ConfigError: They do not fit the tensors.
    """
    if model.processor is not None:
        return {}
    signature = build.signature
    if not build.joinable.rows:  # an output as a whole has the classes that a row has elsewhere
        signature = signature._replace(
            outputs=tuple(spec._replace(shape=(-1, *spec.shape)) for spec in signature.outputs)
        )
    problems: list[str] = []
    told: dict[str, Any] = {}
    try:
        found = output_labels(model.labels, signature, location.sidecars())
        told |= {"output_labels": found.labels, "label_files": found.files}
        if found.note and tell:
            _log.log(logging.INFO if found.labels else logging.WARNING, "model %r: %s", model.name, found.note)
    except ConfigError as error:
        problems += error.problems
    try:
        told["formats"] = input_formats(model.format, build.signature)
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(tuple(f"model {model.name!r}: {problem}" for problem in problems))
    return told


def _serving(model: ModelConfig, config: AppArgs) -> ModelServing:
    return ModelServing(
        policy=model.batching.policy,
        row_sizes=model.resources.chosen_sizes,
        device=model.resources.device,
        min_replicas=model.autoscaling.min_replicas,
        max_replicas=model.most_replicas,
        queue_entries={priority: limits.queue_entries for priority, limits in config.class_settings().items()},
    )
